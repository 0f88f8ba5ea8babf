"""Whether a run waited for its input, and what lifetime would have hidden that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

COMPUTE_BOUND = 0.05
"""Share of waiting below which a run counts as bound by compute: less is not worth a change."""

LEAST_BATCHES = 10
"""Batches below which nothing is judged: of few, many were prepared before the clock ran."""

MAX_LIFETIME = 16  # a longer one saves at most another 1/16 of the builds, and costs variety


@dataclass(frozen=True, kw_only=True)
class Work:
    """What some epochs took, all of them together.

    Attributes:
        lifetime, num_workers: as the run had them.
        wait_s: seconds of waiting for input.
        train_s: seconds of training with the waiting, without warm-up and evaluation.
        built, reused: samples.
        build_s: seconds in which samples were built, over all workers.
        read_s: seconds in which samples were read, over all workers.
        num_cores: that training and workers share; None where training computes on a GPU.
        num_ranks: processes that train, each with workers of its own.
        num_batches: that the times are of; 0 where it is not known.
        num_firsts: samples of all the first batches of the epochs, each of which one worker makes
            while nothing else can be done.
    """

    lifetime: int
    num_workers: int
    wait_s: float
    train_s: float
    built: int
    reused: int
    build_s: float
    read_s: float = 0.0
    num_cores: int | None = None
    num_ranks: int = 1
    num_batches: int = 0
    num_firsts: int = 0

    @property
    def is_too_short(self) -> bool:
        """Whether there were too few batches to say what bounded them."""
        return 0 < self.num_batches < LEAST_BATCHES

    @property
    def wait_share(self) -> float:
        """Waiting as a share of the time of training."""
        return self.wait_s / self.train_s if self.train_s > 0 else 0.0

    @property
    def fills_the_cores(self) -> bool:
        """Whether training and workers together keep all the cores busy."""
        if self.num_cores is None or self.num_workers == 0:
            return False
        busy_s = self.build_s + self.read_s + self.num_ranks * (self.train_s - self.wait_s)
        return busy_s > 0.9 * self.num_cores * self.train_s

    def wait_at(self, lifetime: int) -> float:
        """Return the seconds of waiting that would be left at another lifetime.

        A worker is spared its share of the builds that fall away, and reads those samples
        instead; that the rest of its work stays makes the answer a careful one. The first batch
        of an epoch is always waited for. Without workers the training process itself builds and
        reads, and waits for all of it.
        """
        if self.built == 0:
            return self.wait_s
        build_s = self.build_s / self.built
        read_s = self.read_s / self.reused if self.reused else 0.0
        spared = self.built - (self.built + self.reused) / lifetime
        num_makers = self.num_ranks * max(1, self.num_workers)
        firsts_s = self.num_firsts * (build_s / lifetime + read_s * (1 - 1 / lifetime))
        spared_s = spared * (build_s - read_s) / num_makers
        return max(min(firsts_s, self.wait_s), self.wait_s - spared_s)


def work_of(
    rows: list[dict[str, Any]],
    lifetime: int,
    num_workers: int,
    num_cores: int | None,
    num_ranks: int = 1,
    batch_size: int = 0,
) -> Work | None:
    """Return what the epochs of a run took that are like those to come: all but epoch 0.

    Args:
        rows: of metrics.csv, in numbers; None where there is none.
        lifetime, num_workers, num_cores, num_ranks: as in `Work`.
        batch_size: samples of a batch; 0 where that is not known.

    Returns:
        None where no epoch ended, or its times were not written down.
    """
    rows = [row for row in rows if row["epoch"] != 0] or rows  # of one epoch, that one
    if not rows or any(row.get(name) is None for row in rows for name in ("wait_s", "build_s")):
        return None

    def total(*names: str) -> float:
        return math.fsum(row.get(name) or 0.0 for row in rows for name in names)

    return Work(
        lifetime=lifetime,
        num_workers=num_workers,
        wait_s=total("wait_s"),
        train_s=total("wait_s", "copy_s", "compute_s", "other_s"),
        built=int(total("built")),
        reused=int(total("reused")),
        build_s=total("build_s"),
        read_s=total("read_s"),
        num_cores=num_cores,
        num_ranks=num_ranks,
        num_batches=_num_batches(rows, batch_size * num_ranks),
        num_firsts=min(batch_size * len(rows), int(total("built", "reused"))),
    )


def _num_batches(rows: list[dict[str, Any]], size: int) -> int:
    """Return how many batches of so many samples some epochs had; 0 where the size is not known."""
    if size == 0:
        return 0
    return sum(math.ceil(((row["built"] or 0) + (row["reused"] or 0)) / size) for row in rows)


def hiding_lifetime(work: Work) -> int | None:
    """Return the smallest lifetime at which nothing is waited for, or None where there is none."""
    # In epoch 0 alone everything was built: then the run's own lifetime may be enough.
    only_first = work.built > 1.5 * (work.built + work.reused) / work.lifetime
    start = work.lifetime if only_first else work.lifetime + 1
    for lifetime in range(start, MAX_LIFETIME + 1):
        if work.wait_at(lifetime) < COMPUTE_BOUND * work.train_s:
            return lifetime
    return None


def advise(work: Work) -> str:
    """Return a line: what bounded the training, and what another lifetime would do about it."""
    if work.is_too_short:
        count = f"{work.num_batches}, of which {LEAST_BATCHES} are needed"
        return f"too few batches to say what bounds it ({count})"
    share = f"{100 * work.wait_share:.0f} % of the time waiting"
    if work.wait_share < COMPUTE_BOUND:
        if work.fills_the_cores:
            return f"compute-bound: {share}; workers and training share {work.num_cores} cores"
        if work.lifetime == 1:
            return "compute-bound: reuse would not help"
        return f"compute-bound: {share}; a longer lifetime would not help"
    lifetime = hiding_lifetime(work)
    if lifetime is not None:
        return f"input-bound: {share}; lifetime={lifetime} would hide it"
    if work.num_workers == 0:
        return (
            f"input-bound: {share}; workers would prepare beside training (num_workers=1 or more)"
        )
    left = work.wait_at(max(work.lifetime, MAX_LIFETIME))
    if left > 0.8 * work.wait_s:
        return f"input-bound: {share}; no lifetime would hide it, little of it is building"
    rest = 100 * left / (work.train_s - work.wait_s + left)
    return (
        f"input-bound: {share}; no lifetime would hide it, "
        f"lifetime={MAX_LIFETIME} would leave {rest:.0f} %"
    )
