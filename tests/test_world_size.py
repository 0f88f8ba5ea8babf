"""Runs that are stopped, and go on with as many ranks or with others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from processes import RankGroup

from training import loop
from training.distributed import ranks
from training.signals import Interrupted

OPTIONS = (
    *("data.train.limit=96", "data.val.limit=21", "batch_size=8", "lifetime=2", "epochs=3"),
    *("trainer.mixup_alpha=0.4", "trainer.ema_decay=0.9", "augment=none"),
)
"""With two ranks six updates an epoch, with one rank twelve."""


def train(folder: str, stop: list[int] | None, *overrides: str) -> list[Any]:
    """Train, or go on; return the samples of each update, and the steps before them.

    Args:
        folder: of the run.
        stop: rank and step at which a signal comes, or None.
        overrides: of the config.
    """
    seen: list[Any] = []
    update = loop.update

    def watched(trainer: Any, state: Any, prepare: Any, window: Any) -> None:
        batches = list(window)
        seen.append([state.step, sum(int(batch["image"].sum()) for batch in batches)])
        if stop is not None and [ranks().rank, state.step] == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        update(trainer, state, prepare, batches)

    loop.update = watched  # type: ignore[assignment]
    try:
        runs.train(Path(folder), *OPTIONS, *overrides)
    except Interrupted as interruption:
        return [interruption.signum, seen]
    finally:
        loop.update = update
    return [0, seen]


def resume(folder: str, *overrides: str) -> list[Any]:
    """Go on with a run."""
    return train(folder, None, f"resume={folder}", *overrides)


def results(folder: Path) -> list[dict[str, Any]]:
    left_out = ("built", "reused")
    rows = runs.without_times(runs.rows(folder))
    return [{k: v for k, v in row.items() if k not in left_out} for row in rows]


def same_weights(first: Path, second: Path) -> bool:
    ours, theirs = (
        {**checkpoint["model"], **checkpoint["ema"]}
        for checkpoint in map(runs.load, (first, second))
    )
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.fixture(scope="module")
def whole(rank_group: RankGroup, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of two ranks that nothing stopped, and what each rank had seen."""
    folder = tmp_path_factory.mktemp("whole")
    answers = rank_group.of(2).call(train, folder, None)
    assert [code for code, _ in answers] == [0, 0]
    return folder, [seen for _, seen in answers]


@pytest.mark.parametrize(
    ("stop", "num_updates"),
    # All know of it a step later, which may be in the evaluation.
    [([1, 8], 10), pytest.param([0, 4], 6, marks=pytest.mark.slow), ([1, 11], 12)],
)
def test_ranks_stop_together_and_go_on_to_the_same_bits(
    rank_group: RankGroup,
    whole: tuple[Path, Any],
    tmp_path: Path,
    stop: list[int],
    num_updates: int,
) -> None:
    stopped = rank_group.of(2).call(train, tmp_path, stop)
    assert [code for code, _ in stopped] == [signal.SIGTERM] * 2
    steps = [[step for step, _ in seen] for _, seen in stopped]
    assert steps[0] == steps[1] == list(range(num_updates))
    after = rank_group.call(resume, tmp_path)
    assert whole[1] == [a[1] + b[1] for a, b in zip(stopped, after, strict=True)]
    assert results(whole[0]) == results(tmp_path)
    assert same_weights(whole[0], tmp_path)


@pytest.mark.slow
def test_three_ranks_go_on_to_the_same_bits_as_well(rank_group: RankGroup, tmp_path: Path) -> None:
    group = rank_group.of(3)
    once, stopped = tmp_path / "once", tmp_path / "stopped"
    unbroken = group.call(train, once, None)
    before = group.call(train, stopped, [2, 5])
    after = group.call(resume, stopped)
    assert [code for code, _ in before] == [signal.SIGTERM] * 3
    for whole_of_it, first, second in zip(unbroken, before, after, strict=True):
        assert whole_of_it[1] == first[1] + second[1]
        assert [step for step, _ in whole_of_it[1]] == list(range(12))
    assert results(once) == results(stopped)
    assert same_weights(once, stopped)


def test_from_two_ranks_to_one_and_back_at_the_ends_of_epochs(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    group = rank_group.of(2)
    options = ("schedule_end=3", "cache.keep=true")
    group.call(train, tmp_path, None, "epochs=1", *options)
    checkpoint = runs.load(tmp_path)
    resume(str(tmp_path), "epochs=2", *options)
    assert "1 rank now, 2 before: an update is made of 8 samples instead of 16" in log(tmp_path)
    assert "others" in checkpoint and len(checkpoint["others"]) == 1
    assert runs.load(tmp_path)["others"] == []
    answers = group.call(resume, tmp_path, "epochs=3", *options)
    assert [[step for step, _ in seen] for _, seen in answers] == [list(range(18, 24))] * 2
    assert "2 ranks now, 1 before: an update is made of 16 samples instead of 8" in log(tmp_path)
    rows = runs.rows(tmp_path)
    assert [row["step"] for row in rows] == [6.0, 18.0, 24.0]
    assert [row["built"] + row["reused"] for row in rows] == [96.0] * 3
    # The ranks share the folder of the run: what one has built the other finds.
    assert [row["built"] for row in rows] == [96.0, 48.0, 48.0]


def test_the_rate_stands_where_it_would_with_as_many_ranks_from_the_start(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    rank_group.of(2).call(train, tmp_path, None, "epochs=1", "schedule_end=3")
    resume(str(tmp_path), "epochs=3", "schedule_end=3")
    alone = tmp_path / "alone"
    train(str(alone), None, "epochs=3", "schedule_end=3")
    assert [row["lr"] for row in runs.rows(alone)][1:] == pytest.approx(
        [row["lr"] for row in runs.rows(tmp_path)][1:]
    )


def test_inside_an_epoch_other_ranks_train_as_many_samples_as_were_left(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    group = rank_group.of(2)
    stopped = group.call(train, tmp_path, [0, 7])
    assert [seen[-1][0] for _, seen in stopped] == [8, 8]  # three of the six updates of epoch 1
    _, seen = resume(str(tmp_path), "epochs=2")
    assert [step for step, _ in seen] == list(range(9, 15))  # six of the twelve
    row = runs.rows(tmp_path)[1]
    assert (row["step"], row["built"] + row["reused"]) == (15.0, 96.0)


def log(folder: Path) -> str:
    return (folder / "train.log").read_text()
