"""Wherever a run is killed, it goes on with each epoch and each point of its curves once.

A copy of the run folder, taken at some moment, is what a kill at that moment leaves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training import loop
from training.records import Run
from training.tracking import Trackers

RUN = (
    *("data.train.limit=32", "data.val.limit=20", "trainer.ema_decay=0.9"),
    *("tracker=tensorboard", "tracker.log_every=1", "tracker.num_pictures=0"),
    *("checkpoint.every_steps=1", "checkpoint.keep=2", "optimizer.lr=0.002"),
)
"""Two updates in each of two epochs; each update is a point and a checkpoint."""


class Kills:
    """Copies a run folder before and after whatever changes it, from the second update on.

    Args:
        run: the folder.
        copies: gets the copies, named by the order and the place.
    """

    def __init__(self, run: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.copies = run, copies
        self.num_updates = 0
        self._trackers: Any = None
        monkeypatch.setattr(os, "replace", self._around("replace", os.replace))
        monkeypatch.setattr(loop, "update", self._around("update", loop.update))
        for owner, name in ((Run, "add_metrics"), (Trackers, "scalars"), (Run, "save_checkpoint")):
            monkeypatch.setattr(owner, name, self._around(name, getattr(owner, name)))

    def copy(self, place: str) -> None:
        if 2 <= self.num_updates <= 3:
            number = len(list(self.copies.iterdir())) if self.copies.exists() else 0
            shutil.copytree(self.run, self.copies / f"{number:02d}-{place}")

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            place, watched = name, True
            if name == "replace":
                place, watched = (
                    Path(arguments[1]).name,
                    Path(arguments[1]).parent
                    in (
                        self.run,
                        self.run / "checkpoints",
                    ),
                )
            if name == "update":
                self.num_updates += 1
            if watched:
                self.copy(f"before-{place}")
            result = function(*arguments)
            if watched:
                self.copy(f"after-{place}")
            if name == "scalars":
                arguments[0].flush()
                self.copy("points-written")
            return result

        return wrapped


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each curve, of times excepted."""
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    names = [n for n in events.Tags()["scalars"] if not n.endswith(("_s", "built", "reused"))]
    return {name: [(p.step, p.value) for p in events.Scalars(name)] for name in sorted(names)}


def results(run: Path) -> Any:
    """Return what a run came to, wherever it was interrupted."""
    left_out = ("built", "reused")
    table = runs.without_times(runs.rows(run))
    rows = [{k: v for k, v in row.items() if k not in left_out} for row in table]
    state = runs.load(run)
    weights = {**state["model"], **state["ema"]}
    return rows, curves(run), {name: value.tolist() for name, value in weights.items()}


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Any, list[Path]]:
    """Return what a run comes to, and what kills at every place leave of it."""
    run, copies = tmp_path / "run", tmp_path / "copies"
    with pytest.MonkeyPatch.context() as patch:
        Kills(run, copies, patch)
        runs.train(run, *RUN)
    return results(run), sorted(copies.iterdir())


def halves(copy: Path) -> None:
    """Cut what is written last: a half row, a half record of the curves, half a checkpoint."""
    for file in (copy / "metrics.csv", *(copy / "tensorboard").iterdir()):
        if file.exists():
            data = file.read_bytes()
            file.write_bytes(data + data[-200:-7])
    for file in copy.rglob("*.tmp"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_place_costs_and_doubles_nothing(killed: Any, every: int) -> None:
    expected, copies = killed
    places = {copy.name[3:] for copy in copies}
    for place in ("update", "scalars", "add_metrics", "best.pt", "last.pt"):
        assert {f"before-{place}", f"after-{place}"} <= places
    assert "points-written" in places
    for number, copy in enumerate(copies[::every]):
        if number % 2:
            halves(copy)
        runs.resume(copy, *RUN)
        assert results(copy) == expected, copy.name
        assert list(copy.rglob("*.tmp")) == [], copy.name


@pytest.mark.slow
def test_a_second_kill_at_the_same_place_doubles_nothing_either(
    killed: Any, tmp_path: Path
) -> None:
    expected, copies = killed
    for copy in [copy for copy in copies if copy.name.endswith("points-written")]:
        again = tmp_path / "again" / copy.name
        with pytest.MonkeyPatch.context() as patch:
            kills = Kills(copy, again, patch)
            kills.num_updates = 1
            runs.resume(copy, *RUN)
        for second in sorted(again.glob("*points-written"))[:2]:
            runs.resume(second, *RUN)
            assert results(second) == expected, second


def test_half_a_row_is_not_gone_on_with(tmp_path: Path) -> None:
    expected = runs.train(tmp_path / "run", "epochs=3")
    text = (tmp_path / "run" / "metrics.csv").read_bytes()
    lines = text.splitlines(keepends=True)
    state = runs.load(tmp_path / "run", "best")
    for cut in (1, 3, len(lines[-1]) - 1):  # within the last value, the end of the line, a digit
        with runs.begin(tmp_path / f"cut{cut}", "epochs=3") as run:
            (run.directory / "metrics.csv").write_bytes(text[:-cut])
            kept = run.go_on(3, state["step"])
            assert [row["epoch"] for row in kept] == [0, 1]
            assert runs.rows(run.directory) == expected[:2]
            run.add_metrics(expected[2])
            assert runs.rows(run.directory) == expected
