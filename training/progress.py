"""What an epoch has come to so far: its losses and its counts of samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from reuseloader import ReuseStats
from training.distributed import gather, ranks


@dataclass
class TrainLoss:
    """The losses of an epoch. Those not read yet stay on the device: reading one waits for it.

    Attributes:
        sum, num_samples: of what was read.
        window_sum, window_samples: of what was read since the latest point of the curve.
        unread: losses, of so many samples, of the step after so many.
    """

    sum: float = 0.0
    num_samples: int = 0
    window_sum: float = 0.0
    window_samples: int = 0
    unread: list[tuple[Tensor, int, int]] = field(default_factory=list)

    def add(self, loss: Tensor, num_samples: int, step: int) -> None:
        """Add the mean loss of a batch, on its way to an update."""
        self.unread.append((loss.detach(), num_samples, step))

    def read(self, epoch: int) -> None:
        """Read what was added since the last time.

        Raises:
            FloatingPointError: a loss is not finite; says in which epoch and step.
        """
        if not self.unread:
            return
        losses = torch.stack([loss for loss, _, _ in self.unread]).tolist()
        for loss, (_, size, step) in zip(losses, self.unread, strict=True):
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the training loss is {loss} in epoch {epoch}, step {step}"
                )
            self.sum += loss * size
            self.window_sum += loss * size
            self.num_samples += size
            self.window_samples += size
        self.unread.clear()

    def window(self, epoch: int) -> float:
        """Return the mean over samples since the last time, and begin anew; raises as `read`."""
        self.read(epoch)
        mean = self.window_sum / self.window_samples if self.window_samples else math.nan
        self.window_sum, self.window_samples = 0.0, 0
        return mean

    def state_dict(self) -> dict[str, float]:
        """Return what was read, as the arguments of another one."""
        names = ("sum", "num_samples", "window_sum", "window_samples")
        return {name: getattr(self, name) for name in names}

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
        build_s, read_s: seconds in which they were built and read, over all workers.
        seconds: of each phase, since the row before; written down where a run is saved.
    """

    num_batches: int = 0
    built: int = 0
    reused: int = 0
    build_s: float = 0.0
    read_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)


_SUMMED = ("built", "reused", "build_s", "read_s")  # over the ranks


def over_ranks(losses: TrainLoss, progress: Progress) -> tuple[TrainLoss, Progress]:
    """Return losses that were read, and counts of samples, of all ranks together."""
    if ranks().is_single:
        return losses, progress
    read = losses.state_dict()
    own = (*read.values(), *(getattr(progress, name) for name in _SUMMED))
    both = [sum(values) for values in zip(*gather(own), strict=True)]
    progress = replace(progress, **dict(zip(_SUMMED, both[len(read) :], strict=True)))
    return TrainLoss(**dict(zip(read, both, strict=False))), progress  # type: ignore[arg-type]


class Measurement:
    """Counts an epoch, on from what it had come to before.

    Args:
        before: what that was; nothing at the start of an epoch.
        stats: counts of the loader since then.
    """

    def __init__(self, before: Progress, stats: Callable[[], ReuseStats]) -> None:
        self._before, self._stats = before, stats

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
            build_s=before.build_s + stats.build_s,
            read_s=before.read_s + stats.read_s,
        )
