"""A setting of a sweep: the runs that differ by their seed alone, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training.report.history import History


@dataclass(frozen=True)
class Spread:
    """A value over seeds.

    Attributes:
        values: one a seed, of those that have one.
        num_seeds: seeds in all.
    """

    values: tuple[float, ...]
    num_seeds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Leave out what is not a number."""
        given = list(values)
        return cls(tuple(value for value in given if math.isfinite(value)), len(given))

    @property
    def is_complete(self) -> bool:
        """Whether every seed has a value."""
        return 0 < len(self.values) == self.num_seeds

    @property
    def mean(self) -> float:
        """Mean of the values; NaN of none."""
        return math.fsum(self.values) / len(self.values) if self.values else math.nan

    @property
    def half_range(self) -> float:
        """Half of the distance between the largest and the smallest."""
        return (max(self.values) - min(self.values)) / 2 if self.values else 0.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The runs that differ by their seed alone.

    Attributes:
        name: what sets them apart from the others, such as `lifetime=2`.
        lifetime: of all of them.
        runs: by seed, those that are done.
        num_failed: runs that failed.
        num_missing: runs that did not end otherwise, or left no record that can be read.
    """

    name: str
    lifetime: int
    runs: list[History]
    num_failed: int = 0
    num_missing: int = 0

    @property
    def epochs(self) -> str:
        """How many epochs the runs trained: `8`, or `8 to 9`."""
        counts = sorted({len(run.rows) for run in self.runs})
        return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))

    @property
    def last_accuracy(self) -> Spread:
        """Accuracy of the last evaluation, a fraction."""
        return Spread.of(points[-1][2] if points else math.nan for points in self._points())

    @property
    def best_accuracy(self) -> Spread:
        """Accuracy of the best evaluation, which chance makes look better."""
        values = ([point[2] for point in points] for points in self._points())
        return Spread.of(max(found, default=math.nan) for found in values)

    def time_to(self, accuracy: float) -> Spread:
        """Return the seconds, without warm-up, to the first evaluation of at least an accuracy."""
        return Spread.of(self._first(points, accuracy)[1] for points in self._points())

    def epochs_to(self, accuracy: float) -> Spread:
        """Return the epochs trained to the first evaluation of at least an accuracy."""
        return Spread.of(self._first(points, accuracy)[0] + 1 for points in self._points())

    def _points(self) -> list[list[tuple[int, float, float]]]:
        return [run.evaluations() for run in self.runs]

    @staticmethod
    def _first(points: list[Any], accuracy: float) -> tuple[float, float]:
        return next((p[:2] for p in points if p[2] >= accuracy), (math.nan, math.nan))

    @property
    def time_s(self) -> Spread:
        """Seconds of the run, without warm-up."""
        return Spread.of(run.times_s[-1] if run.rows else math.nan for run in self.runs)

    @property
    def warmup_s(self) -> Spread:
        """Seconds of warm-up."""
        return Spread.of(run.warmup_s for run in self.runs)

    @property
    def built(self) -> Spread:
        """Samples built in the run."""
        return Spread.of(run.total("built") for run in self.runs)

    @property
    def wait_share(self) -> Spread:
        """Share of the time of training, after epoch 0, in which input was waited for."""
        works = (run.work() for run in self.runs)
        return Spread.of(math.nan if work is None else work.wait_share for work in works)


def baseline_of(settings: list[Setting]) -> Setting | None:
    """Return the setting of the shortest lifetime, of several the one with the best accuracy."""
    evaluated = [setting for setting in settings if setting.best_accuracy.values]
    if not evaluated:
        return None
    shortest = min(setting.lifetime for setting in evaluated)
    candidates = [setting for setting in evaluated if setting.lifetime == shortest]
    return max(candidates, key=lambda setting: setting.best_accuracy.mean)
