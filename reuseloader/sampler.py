"""The order of an epoch, and the epoch that travels with each index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from reuseloader.checks import check_integer
from reuseloader.order import EpochOrder
from reuseloader.policy import ReusePolicy
from reuseloader.requests import EpochBatch, EpochIndex
from reuseloader.sizes import SizeTable

_FIRST_BLOCK, _LARGEST_BLOCK = 1024, 65536  # positions asked at once: soon at work, then fast


class ReuseSampler(Sampler[int]):
    """The order of an epoch on one rank, computed in blocks and held nowhere.

    Args:
        policy: its seed and ``set_epoch`` select the order.
        size, num_replicas, rank, shuffle, drop_last, block_size: as in ``EpochOrder``.

    Attributes:
        order: the ``EpochOrder`` that it follows.

    Raises:
        ValueError: an argument breaks a rule of ``EpochOrder``.
    """

    def __init__(
        self,
        policy: ReusePolicy,
        size: int | Mapping[int, int] | SizeTable,
        *,
        num_replicas: int = 1,
        rank: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        block_size: int = 1,
    ) -> None:
        self.order = EpochOrder(
            policy=policy,
            size=size,
            num_replicas=num_replicas,
            rank=rank,
            shuffle=shuffle,
            drop_last=drop_last,
            block_size=block_size,
        )
        self.epoch = 0

    def __len__(self) -> int:
        return self.order.length(self.epoch)

    @property
    def num_real(self) -> int:
        """How many of the indices are this rank's alone; one that follows repeats another's."""
        return self.order.num_real(self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, an integer from 0 up."""
        self.epoch = check_integer("epoch", epoch, minimum=0)

    def at(self, epoch: int, start: int = 0) -> Iterator[int]:
        """Yield the indices of an epoch from position ``start`` on, which costs O(1)."""
        length, end = _FIRST_BLOCK, self.order.length(epoch)
        while start < end:
            stop = min(start + length, end)
            yield from self.order.index(np.arange(start, stop), epoch).tolist()
            start, length = stop, min(2 * length, _LARGEST_BLOCK)

    def __iter__(self) -> Iterator[int]:
        return self.at(self.epoch)  # bound now, not when the first index is taken


class ToldSampler(ReuseSampler):
    """The sampler of a loader; it knows whether somebody has told it which epoch comes.

    Trainers, Lightning among them, tell that to a loader's sampler, and some of them only after
    they have started the pass.
    """

    told: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the pass that is started next, or of one that nobody has asked yet."""
        super().set_epoch(epoch)
        self.told = self.epoch

    def go_to(self, epoch: int) -> None:
        """Follow the loader to an epoch."""
        super().set_epoch(epoch)
        self.told = None


class PassIndices:
    """What a DataLoader takes its indices from, or its batches of them, at the start of a pass.

    Args:
        sampler: says how many there are.
        start: starts a pass and returns what it asks for.
    """

    def __init__(self, sampler: Any, start: Callable[[], Iterator[Any]]) -> None:
        self._sampler = sampler
        self._start = start

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[EpochIndex] | Iterator[EpochBatch]:
        # Called once when a pass starts: the epoch is read here, not when the first batch is.
        return self._start()


def tag(
    epoch: int, indices: Iterator[Any], batched: bool
) -> Iterator[EpochIndex] | Iterator[EpochBatch]:
    """Put an epoch on every index, or on every batch of indices."""
    if batched:
        return (EpochBatch(epoch, list(batch)) for batch in indices)
    return map(EpochIndex, repeat(epoch), indices)
