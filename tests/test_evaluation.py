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


@pytest.mark.parametrize("averaged", [False, True])
def test_evaluating_a_checkpoint_gives_the_values_of_its_epoch_and_leaves_its_run_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], averaged: bool
) -> None:
    trained = tmp_path / "trained"
    options = ["trainer.ema_decay=0.5"] if averaged else []
    *_, last = runs.train(trained, *options)
    before = {file: file.read_bytes() for file in trained.rglob("*") if file.is_file()}
    path = f"trainer.evaluate='{trained}/checkpoints/last.pt'"

    (row,) = runs.train(tmp_path / "evaluated", path, "seed=1")

    for name in ("val_loss", "val_accuracy", "val_top5_accuracy"):
        assert last[name] == row[name]
    assert row["train_loss"] is None and row["epoch"] is None
    assert {file: file.read_bytes() for file in trained.rglob("*") if file.is_file()} == before
    assert not (tmp_path / "evaluated" / "checkpoints" / "last.pt").exists()
    kind = "moving average of epoch 1" if averaged else "weights of epoch 1"
    shown = capsys.readouterr().out.splitlines()[-3:]
    assert shown == [
        f"{trained}/checkpoints/last.pt: {kind}",
        f"val loss {row['val_loss']:.4f}  accuracy {100 * row['val_accuracy']:.2f} %  "
        f"top-5 {100 * row['val_top5_accuracy']:.2f} %  of 40 samples",
        f"run folder     {tmp_path / 'evaluated'}",
    ]


def test_evaluation_takes_other_data_another_batch_size_and_other_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, last = runs.train(tmp_path / "trained", "epochs=1")
    path = f"trainer.evaluate='{tmp_path}/trained/checkpoints/best.pt'"

    (other,) = runs.train(tmp_path / "sizes", path, "batch_size=7", "data.train.limit=3")
    (fewer,) = runs.train(tmp_path / "fewer", path, "data.val.limit=13")
    assert "of 13 samples" in capsys.readouterr().out
    options = ["trainer.precision=bf16", "trainer.channels_last=true"]
    (rounded,) = runs.train(tmp_path / "bf16", path, *options)

    assert last["val_accuracy"] == other["val_accuracy"]
    assert last["val_loss"] == pytest.approx(other["val_loss"], rel=1e-5)
    assert fewer["val_loss"] != last["val_loss"]
    assert rounded["val_loss"] == pytest.approx(last["val_loss"], rel=0.05)


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


def test_the_checkpoint_of_another_model_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "run" / "checkpoints" / "state.pt"
    path.parent.mkdir(parents=True)
    torch.save(make_small().checkpoint(), path)
    other = make_model(make_config("model.width=8"), CPU)

    with pytest.raises(ConfigError, match="must be a checkpoint of this model") as raised:
        load_weights(other, str(path), CPU)
    assert "size mismatch for 0.weight" in str(raised.value) and "\n" not in str(raised.value)

    (tmp_path / "run" / "overrides").write_text("model.width=4\nseed=1\n")
    with pytest.raises(ConfigError, match=r"; its run was given: model.width=4 seed=1$"):
        load_weights(other, str(path), CPU)


def test_a_file_of_weights_alone_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")

    with pytest.raises(
        ConfigError, match=r"but got trainer.evaluate=.*: it lacks the entry model$"
    ):
        load_weights(nn.Linear(2, 2), str(tmp_path / "weights.pt"), CPU)
