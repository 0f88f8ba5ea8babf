"""A training set that grows: the batches, the steps of the schedule and resuming follow it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from test_remote import array_file, record

from training import loop
from training.checks import ConfigError
from training.optim import Plan
from training.schedule import Schedule
from training.signals import Interrupted

pytest.importorskip("fsspec")

SIZES = [8, 8, 20, 30, 30]  # samples of each epoch
NUM_BATCHES = [2, 2, 5, 8, 8]  # of four, the last one smaller


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("store")
    for split, count in {"train": 40, "val": 6}.items():
        for number in range(count):
            path = root / split / str(number % 3) / f"{number:03d}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(array_file(record(number)))
    return f"file://{root}"


def options(store: str, size: str = "{0: 8, 2: 20, 3: 30}") -> tuple[str, ...]:
    return (
        *("data=remote", f"data.url={store}", "data.num_classes=3", "data.image_size=16"),
        *("augment=photos", "lifetime=2", "batch_size=4", "epochs=5", "schedule=onecycle"),
        f"data.size={size}",
    )


def test_a_plan_counts_the_steps_of_each_epoch() -> None:
    plan = Plan(epochs=6, num_batches=3, growth=((2, 5), (4, 8)), accumulate=2)
    assert [plan.batches_in(epoch) for epoch in range(7)] == [3, 3, 5, 5, 8, 8, 8]
    assert [plan.steps_in(epoch) for epoch in range(6)] == [2, 2, 3, 3, 4, 4]
    assert [plan.steps_before(epoch) for epoch in range(7)] == [0, 2, 4, 7, 10, 14, 18]
    assert plan.total_steps == 18


def test_a_limit_holds_for_every_epoch() -> None:
    config = runs.make_config("trainer.limit_batches=4", "epochs=3")
    plan = Plan.of(config, {0: 3, 1: 5, 2: 9})
    assert [plan.batches_in(epoch) for epoch in range(3)] == [3, 4, 4]


def test_a_run_grows_from_epoch_to_epoch(store: str, tmp_path: Path) -> None:
    table = runs.train(tmp_path / "run", *options(store))
    assert [row["built"] + row["reused"] for row in table] == SIZES
    # Half of what was there is replaced, and all that is new is built.
    assert [row["built"] for row in table] == [8, 4, 4 + 12, 10 + 10, 15]
    assert [row["step"] for row in table] == np.cumsum(NUM_BATCHES).tolist()
    said = (tmp_path / "run" / "train.log").read_text()
    assert "epochs from 2 on: 20 samples" in said
    assert "5 epochs of 2 batches, 25 updates" in said


def test_the_rate_comes_to_its_end_with_the_last_update(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = watched(monkeypatch)
    runs.train(tmp_path / "run", *options(store))
    assert len(rates) == sum(NUM_BATCHES)
    parameter = torch.nn.Parameter(torch.zeros(1))
    config = runs.make_config(*options(store))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    plan = Plan(epochs=1, num_batches=sum(NUM_BATCHES))  # as many steps in one epoch
    schedule = Schedule(config.schedule, optimizer, plan, "val_loss")
    expected = []
    for _ in rates:
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.after_update()
    assert rates == pytest.approx(expected)


def watched(monkeypatch: pytest.MonkeyPatch, stop: int | None = None) -> list[float]:
    """Note the rate of every update; send a signal in one of them."""
    rates: list[float] = []
    update = loop.update

    def noted(trainer: Any, state: Any, prepare: Any, window: Any) -> None:
        rates.append(state.optimizer.param_groups[0]["lr"])
        if state.step == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        update(trainer, state, prepare, window)

    monkeypatch.setattr(loop, "update", noted)
    return rates


SLOW = [pytest.param(stop, marks=pytest.mark.slow) for stop in (1, 3, 8, 20)]


@pytest.mark.parametrize("stop", [6, *SLOW])
def test_a_run_that_was_stopped_grows_on_to_the_same_bits(
    stop: int, store: str, tmp_path: Path
) -> None:
    whole = runs.train(tmp_path / "whole", *options(store))
    with pytest.MonkeyPatch.context() as patch:
        watched(patch, stop)
        with pytest.raises(Interrupted):
            runs.train(tmp_path / "run", *options(store))
    table = runs.resume(tmp_path / "run", *options(store))
    assert runs.without_times(table) == runs.without_times(whole)
    first, second = (runs.load(tmp_path / name)["model"] for name in ("whole", "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("{1: 4}", "size must begin at epoch 0"),
        ("{0: 8, 2: 4}", "size must never fall"),
        ("{0: 8, 2: 41}", "size must be at most the number of records, 40, but got size=41"),
        ("0.5", "size must be a positive integer, but got size=0.5"),
    ],
)
def test_a_table_that_breaks_a_rule_is_answered_in_a_line(
    size: str, said: str, store: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"data\.train: .*{said}"):
        runs.train(tmp_path / "run", *options(store, size))
