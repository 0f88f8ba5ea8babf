"""What an epoch takes beside its parts, measured by the loop itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import begin

from training.bounds import rest
from training.bounds.rest import Rest, measure_rest
from training.device import choose_device, set_up
from training.loaders import make_loaders
from training.state import make_model


def test_the_cost_of_a_batch_is_what_longer_epochs_take_more() -> None:
    assert Rest.of([0.5, 0.25, 9.0], [0.75, 1.0, 0.0], 10) == Rest(epoch_s=0.5, batch_s=0.025)
    assert Rest.of([0.5], [0.25], 10) == Rest(epoch_s=0.5, batch_s=0.0)  # no less than nothing
    assert Rest.of([0.5], [], 0) == Rest(epoch_s=0.5, batch_s=0.0)


@pytest.mark.parametrize(
    ("step_s", "accumulate", "lengths"),
    [
        (0.01, 1, [2] * 4 + [26] * 3),  # as long as is measured
        (0.1, 1, [2] * 4 + [8] * 3),
        (0.1, 4, [8] * 4 + [12] * 3),  # whole updates
        (5.0, 1, [2] * 4),
    ],
)
def test_short_epochs_are_trained_without_the_loader_and_leave_files_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_s: float,
    accumulate: int,
    lengths: list[int],
) -> None:
    seen: list[tuple[int, str]] = []

    def watched(job: Any, state: Any, epoch: int) -> dict[str, Any]:
        row = run_epoch(job, state, epoch)
        seen.append((job.plan.num_batches, row.get("val_loss", "not evaluated")))
        return {**row, "other_s": float(job.plan.num_batches)}

    run_epoch = rest.run_epoch
    monkeypatch.setattr(rest, "run_epoch", watched)
    words = ("tracker=tensorboard", "tracker.num_pictures=0", f"trainer.accumulate={accumulate}")
    with begin(tmp_path / "run", *words) as run:
        device = choose_device(run.config.device)
        set_up(run.config)
        model = make_model(run.config, device)
        loaders = make_loaders(run, device, drop_single=False)
        stored = list(run.cache.rglob("*.pt"))
        batch = {
            "image": torch.zeros((16, 1, 32, 32), dtype=torch.uint8),
            "label": torch.zeros(16, dtype=torch.int64),
        }
        found = measure_rest(run.config, model, device, run, loaders, batch, 2.0, step_s)
        assert list(run.cache.rglob("*.pt")) == stored

    assert seen == [(length, "not evaluated") for length in lengths]
    assert found == Rest(epoch_s=lengths[0], batch_s=1.0 if len(lengths) > 4 else 0.0)
