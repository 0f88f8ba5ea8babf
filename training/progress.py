"""What an epoch has come to so far: its losses, its counts of samples, its times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from reuseloader import ReuseStats


@dataclass
class TrainLoss:
    """The losses of an epoch. Those not read yet stay on the device: reading one waits for it."""

    sum: float = 0.0
    num_samples: int = 0
    unread: list[tuple[Tensor, int, int]] = field(default_factory=list)

    def add(self, loss: Tensor, num_samples: int, step: int) -> None:
        """Add the mean loss of a batch, on its way to an update."""
        self.unread.append((loss.detach(), num_samples, step))

    def read(self, epoch: int) -> float:
        """Read what was added since the last time; return its mean over samples.

        Raises:
            FloatingPointError: a loss is not finite; says in which epoch and step.
        """
        if not self.unread:
            return math.nan
        losses = torch.stack([loss for loss, _, _ in self.unread]).tolist()
        added = num_samples = 0
        for loss, (_, size, step) in zip(losses, self.unread, strict=True):
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the training loss is {loss} in epoch {epoch}, step {step}"
                )
            self.sum += loss * size
            added += loss * size
            num_samples += size
        self.num_samples += num_samples
        self.unread.clear()
        return added / num_samples

    @property
    def mean(self) -> float:
        """The mean over all samples of the epoch that were read."""
        return self.sum / self.num_samples if self.num_samples else math.nan


@dataclass(frozen=True)
class Progress:
    """What an epoch has come to so far.

    Attributes:
        num_batches: batches of the loader that are trained on.
        built, reused: samples of these.
        wait_s, train_s: seconds waited for them, and seconds in all.
    """

    num_batches: int = 0
    built: int = 0
    reused: int = 0
    wait_s: float = 0.0
    train_s: float = 0.0


class Measurement:
    """Counts and times an epoch, on from what it had come to before.

    Args:
        before: what that was; nothing at the start of an epoch.
        stats: counts of the loader since then.
    """

    def __init__(self, before: Progress, stats: Callable[[], ReuseStats]) -> None:
        self._before, self._stats = before, stats
        self._start = perf_counter()
        self._wait = Wait()

    def wait_for(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches; the time that they are waited for is added up."""
        return self._wait.of(batches)

    def progress(self, num_batches: int) -> Progress:
        """Return what the epoch has come to.

        Args:
            num_batches: batches of the loader that are trained on, those of before as well.
        """
        before, stats = self._before, self._stats()
        return Progress(
            num_batches=num_batches,
            built=before.built + stats.built,
            reused=before.reused + stats.reused,
            wait_s=before.wait_s + self._wait.seconds,
            train_s=before.train_s + perf_counter() - self._start,
        )


@dataclass
class Wait:
    """Passes on what a loader gives, and adds up the time that it was waited for."""

    seconds: float = 0.0

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches; whoever takes them is timed until the next one is there."""
        iterator = iter(batches)
        while True:
            start = perf_counter()
            batch = next(iterator, None)
            self.seconds += perf_counter() - start
            if batch is None:
                return
            yield batch
