"""What an epoch takes beside its parts, measured by the loop itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runs import begin

from training.bounds import rest
from training.bounds.rest import Rest, measure_rest, rest_of
from training.bounds.steps import Steps
from training.device import choose_device, set_up
from training.loaders import make_loaders
from training.state import make_model


def test_the_cost_of_a_batch_is_what_longer_epochs_take_more() -> None:
    # The batch takes 0.025 s, and of the 0.5 s two of them are no part of the epoch's own.
    expected = Rest(epoch_s=0.45, batch_s=0.025)
    assert rest_of([0.5, 0.25, 9.0], 2, [0.75, 1.0, 0.0], 12) == expected
    assert rest_of([0.5], 2, [0.25], 12) == Rest(epoch_s=0.5)  # no less than nothing
    assert rest_of([0.01], 2, [1.01], 12) == Rest(epoch_s=0.0, batch_s=0.1)
    assert rest_of([0.5], 2, [], 2) == Rest(epoch_s=0.5)


@contextmanager
def steps_of(folder: Path, *words: str) -> Iterator[Steps]:
    """Give what trains on a batch of a small run."""
    with begin(folder, "tracker=tensorboard", "tracker.num_pictures=0", *words) as run:
        device = choose_device(run.config.device)
        set_up(run.config)
        model = make_model(run.config, device)
        loaders = make_loaders(run, device, drop_single=False)
        yield Steps(run.config, model, device, run, loaders)


@pytest.mark.parametrize(
    ("step_s", "accumulate", "lengths"),
    [
        (0.01, 1, [2] * 4 + [26] * 3),  # as long as is measured
        (0.1, 1, [2] * 4 + [8] * 3),
        (0.1, 4, [8] * 4 + [12] * 3),  # whole updates
        (5.0, 1, [2] * 4),
    ],
)
def test_short_epochs_are_trained_without_the_loader_and_nothing_is_saved(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_s: float,
    accumulate: int,
    lengths: list[int],
) -> None:
    seen: list[int] = []

    def watched(job: Any, row: dict[str, Any]) -> dict[str, Any]:
        seen.append(job.plan.num_batches)
        return {**write_row(job, row), "other_s": float(job.plan.num_batches)}

    write_row = rest.write_row
    monkeypatch.setattr(rest, "write_row", watched)
    with steps_of(tmp_path / "run", f"trainer.accumulate={accumulate}") as steps:
        before = sorted((tmp_path / "run").rglob("*.pt"))
        found = measure_rest(steps, 2.0, step_s)
        assert sorted((tmp_path / "run").rglob("*.pt")) == before

    assert seen == lengths
    first = float(lengths[0])
    assert found == (Rest(batch_s=1.0) if len(lengths) > 4 else Rest(epoch_s=first))


def test_of_a_model_that_diverges_on_one_batch_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with steps_of(tmp_path / "run") as steps:
        for parameter in steps.state.model.parameters():
            parameter.data.fill_(math.nan)
        assert measure_rest(steps, 2.0, 5.0) == Rest()
