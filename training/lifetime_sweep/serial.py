"""The runs of a sweep over lifetimes, one after the other, and a line for each."""

from __future__ import annotations

import math
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from training.lifetime_sweep.book import Book
from training.lifetime_sweep.load import Others
from training.lifetime_sweep.plan import Job, first_jobs, shortest, wall_time_jobs
from training.recorded import quoted
from training.report.history import History
from training.report.text import duration, percent
from training.tables import read_json

CONSOLE = "console.log"
"""File of a run's folder that has what its process printed."""

Runner = Callable[[list[str], Path], int]
"""Runs train.py with arguments, its output going to a file; returns the exit code."""


@dataclass(kw_only=True)
class Serial:
    """Runs what is missing of a sweep.

    Attributes:
        book: the state of the sweep.
        arguments: what all runs have in common, as it is typed.
        run: does one.
        cache: folder in which each run gets one of its own, removed after it; None for the run
            folder, where the run does that itself.
    """

    book: Book
    arguments: list[str]
    run: Runner
    cache: Path | None = None
    _number: int = 0
    _took_s: dict[Job, float] = field(default_factory=dict)

    def __call__(self) -> None:
        """Run all; a run that fails is noted and stops no other.

        Raises:
            Interrupted: a signal came.
        """
        sweep = self.book.sweep
        first = first_jobs(sweep)
        undecided = wall_time_jobs(sweep, dict.fromkeys(sweep.lifetimes or [], 0))
        self.book.errors.clear()
        self.book.write()
        print(f"sweep          {len(first + undecided)} runs in {self.book.folder}", flush=True)
        for number, job in enumerate(first):
            self._do(job, first[number + 1 :] + undecided)
        self.book.decide_epochs()
        self.book.write()
        decided = wall_time_jobs(sweep, self.book.epochs)
        for number, job in enumerate(decided):
            self._do(job, decided[number + 1 :])
        for job in undecided:
            if job.lifetime not in self.book.epochs:
                self._note(job, "not begun: no run at equal epochs says how long it is to be")
        self.book.write()

    def _do(self, job: Job, later: list[Job]) -> None:
        self._number += 1
        done = self.book.finished(job)
        if done is not None:
            self._took_s[job] = done.total("epoch_s")
            self._say(job, len(later), f"{_accuracy(done)}, done already")
            return
        place = self.book.make_room(job)
        began, others = time.monotonic(), Others()
        with self._own_cache() as words:
            run_dir = f"hydra.run.dir={quoted(place)}"
            code = self.run([*self.arguments, *job.overrides(), *words, run_dir], place / CONSOLE)
        took_s = time.monotonic() - began
        self.book.note_others(job, others.share())
        done = self.book.finished(job)
        if done is None or code != 0:
            self._note(job, _reason(place, code))
            return
        self._took_s[job] = took_s
        self._say(job, len(later), f"{_accuracy(done)} in {duration(took_s)}{self._left(later)}")

    @contextmanager
    def _own_cache(self) -> Iterator[list[str]]:
        if self.cache is None:
            yield []
            return
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix="sweep-", dir=self.cache, ignore_cleanup_errors=True
        ) as own:
            yield [f"cache.directory={quoted(own)}"]

    def _note(self, job: Job, error: str) -> None:
        self.book.errors[job.folder] = error
        self.book.write()
        print(f"run {job.name} failed: {error}", file=sys.stderr, flush=True)

    def _say(self, job: Job, num_later: int, text: str) -> None:
        total = self._number + num_later
        number = f"{self._number:{len(str(total))}}"
        print(f"run {number} of {total}  {job.name}: {text}", flush=True)

    def _left(self, later: list[Job]) -> str:
        """Say how long the later runs will take, from what those like them took."""
        if not later:
            return ""
        took = [self._took_by_those_like(job) for job in later]
        longest_s = max(self._took_s.values())  # of what is not known, a longer lifetime likely
        left_s = math.fsum(fmean(seconds) if seconds else longest_s for seconds in took)
        return f", {'about' if all(took) else 'at most'} {duration(left_s)} left"

    def _took_by_those_like(self, job: Job) -> list[float]:
        base = shortest(self.book.sweep)
        like = ("epochs", base if job.kind == "wall_time" else job.lifetime)
        for kind, lifetime in ((job.kind, job.lifetime), like):
            took = [s for j, s in self._took_s.items() if (j.kind, j.lifetime) == (kind, lifetime)]
            if took:
                return took
        return []


def _accuracy(history: History) -> str:
    points = history.evaluations()
    return f"{percent(points[-1][2])} accuracy" if points else "no evaluation"


def _reason(place: Path, code: int) -> str:
    """Return why a run did not end well: what it recorded, or the last that it printed."""
    status = read_json(place / "status.json")
    if error := status.get("error"):
        return str(error)
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = (place / CONSOLE).read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("error: ")] or lines
    said = errors[-1].removeprefix("error: ").strip() if errors else ""
    return said or f"exit code {code}"
