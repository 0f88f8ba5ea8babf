from __future__ import annotations

from pathlib import Path

import pytest
import runs
import torch
from runs import make_config
from test_state import make_small, steps
from torch import nn

from training.checks import ConfigError
from training.evaluation import load_weights
from training.state import make_model

CPU = torch.device("cpu")


def test_evaluating_a_checkpoint_gives_the_values_of_its_epoch(tmp_path: Path) -> None:
    options = ["trainer.ema_decay=0.5", "epochs=3"]
    trained = runs.train(tmp_path / "trained", *options)
    path = tmp_path / "trained" / "checkpoints" / "last.pt"

    (row,) = runs.train(tmp_path / "evaluated", f"trainer.evaluate='{path}'", "seed=1")

    for name in ("val_loss", "val_accuracy", "val_top5_accuracy"):
        assert trained[-1][name] == row[name]
    assert row["train_loss"] is None
    assert not (tmp_path / "evaluated" / "checkpoints" / "last.pt").exists()


def test_weights_of_a_checkpoint_are_the_moving_average_where_there_is_one(tmp_path: Path) -> None:
    state = make_small("trainer.ema_decay=0.9")
    steps(state, 3)
    torch.save(state.checkpoint(), tmp_path / "state.pt")
    model = make_model(make_config("seed=1"), CPU)

    load_weights(model, str(tmp_path / "state.pt"), CPU)

    assert torch.equal(state.evaluated[0].weight, model[0].weight)
    assert not torch.equal(state.model[0].weight, model[0].weight)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None])
def test_what_is_no_checkpoint_is_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state.pt"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match="must be a checkpoint of this model") as raised:
        load_weights(nn.Linear(2, 2), str(path), CPU)

    assert "\n" not in str(raised.value)


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    torch.save(make_small().checkpoint(), tmp_path / "state.pt")
    other = make_model(make_config("model.width=8"), CPU)

    with pytest.raises(ConfigError, match="must be a checkpoint of this model"):
        load_weights(other, str(tmp_path / "state.pt"), CPU)
