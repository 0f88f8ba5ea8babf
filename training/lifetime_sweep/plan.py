"""Which runs a sweep over lifetimes has, in which order, and how long each one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from training.options import SweepConfig

T = TypeVar("T")

SECTIONS = {
    "epochs": "at equal epochs",
    "wall_time": "at equal wall time",
    "stored": "with all transforms stored",
}
"""What is compared -> its name in the report; `stored` is at equal epochs as well."""

ABOUT = {
    "epochs": "Every run is a process of its own with an empty cache, one after the other, in an "
    "order that is rotated from seed to seed.",
    "wall_time": "As many epochs as take the time of {base}, warm-up left out: chosen before these "
    "runs from the first and the median later epoch of those above. The schedule spans them. "
    "{base} is the same runs as above.",
    "stored": "At equal epochs; the cheap transforms, which are otherwise drawn anew at each use, "
    "run once a generation as well (augment.store_all=true). {same}",
}
"""What the runs of a section are, for the report."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of the sweep.

    Attributes:
        kind: a key of SECTIONS.
        lifetime, seed: of the run.
        epochs: it trains; None for those of the config.
    """

    kind: str
    lifetime: int
    seed: int
    epochs: int | None = None

    @property
    def folder(self) -> str:
        """Where it works, below the folder of the sweep."""
        return f"{self.kind}-lifetime-{self.lifetime}-seed-{self.seed}"

    @property
    def name(self) -> str:
        """What is said of it on the screen."""
        return f"lifetime={self.lifetime} seed={self.seed} {SECTIONS[self.kind]}"

    def overrides(self) -> list[str]:
        """Return what sets it apart, as it is typed."""
        words = [f"lifetime={self.lifetime}", f"seed={self.seed}"]
        if self.epochs is not None:
            words.append(f"epochs={self.epochs}")
        return [*words, *(["augment.store_all=true"] if self.kind == "stored" else [])]


def shortest(sweep: SweepConfig) -> int:
    """Return the lifetime that the others are compared with."""
    return min(sweep.lifetimes or [1])


def first_jobs(sweep: SweepConfig) -> list[Job]:
    """Return the runs at equal epochs, seed by seed, those with all transforms stored among them.

    At lifetime 1 everything is drawn anew in every epoch, stored or not: one run serves for both.
    """
    settings = [("epochs", lifetime) for lifetime in sweep.lifetimes or []]
    if sweep.fresh:
        settings += [("stored", lifetime) for lifetime in sweep.lifetimes or [] if lifetime > 1]
    return [
        Job(kind=kind, lifetime=lifetime, seed=seed)
        for number, seed in enumerate(sweep.seeds)
        for kind, lifetime in rotated(settings, number, len(sweep.seeds))
    ]


def wall_time_jobs(sweep: SweepConfig, epochs: Mapping[int, int]) -> list[Job]:
    """Return the runs at equal wall time, seed by seed; those of the shortest lifetime are there.

    Args:
        sweep: the config.
        epochs: lifetime -> epochs that take as long as the runs of the shortest.
    """
    if "wall_time" not in sweep.equal:
        return []
    longer = [n for n in sweep.lifetimes or [] if n != shortest(sweep) and n in epochs]
    return [
        Job(kind="wall_time", lifetime=lifetime, seed=seed, epochs=epochs[lifetime])
        for number, seed in enumerate(sweep.seeds)
        for lifetime in rotated(longer, number, len(sweep.seeds))
    ]


def rotated(items: Sequence[T], turn: int, num_turns: int) -> list[T]:
    """Return items in an order that begins elsewhere in each turn, evenly over all of them."""
    start = turn * len(items) // num_turns
    if len(items) < num_turns:
        start = turn % max(1, len(items))
    return [*items[start:], *items[:start]]


def sections_of(job: Job, sweep: SweepConfig) -> list[str]:
    """Return the kinds of sections in which a run stands: one that serves for others in several."""
    kinds = [job.kind]
    if job.kind == "epochs" and job.lifetime == shortest(sweep) and "wall_time" in sweep.equal:
        kinds.append("wall_time")
    if job.kind == "epochs" and job.lifetime == 1 and sweep.fresh:
        kinds.append("stored")
    return kinds


def about(sweep: SweepConfig) -> dict[str, str]:
    """Return what the runs of each section are, by its name in the report."""
    base = shortest(sweep)
    same = "At lifetime=1 that is the same, so that its runs are those above." if base == 1 else ""
    return {
        SECTIONS[kind]: text.format(base=f"lifetime={base}", same=same).strip()
        for kind, text in ABOUT.items()
    }


def epochs_in(total_s: float, epochs_s: Sequence[Sequence[float]]) -> int:
    """Return how many epochs come nearest to a time, at least one.

    Args:
        total_s: seconds.
        epochs_s: of each measured run the seconds of its epochs, without warm-up. In the first one
            everything is built, so that it is counted apart; of the others the median stands for
            all.
    """
    first_s = median(run[0] for run in epochs_s)
    later = [seconds for run in epochs_s for seconds in run[1:]]
    later_s = median(later) if later else first_s
    return max(1, 1 + round((total_s - first_s) / later_s))
