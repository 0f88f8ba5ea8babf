"""The order of an epoch, and the epoch that travels with each index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from reuseloader.dataset import EpochBatch, EpochIndex
from reuseloader.policy import ReusePolicy, check_integer

_FIRST_BLOCK, _LARGEST_BLOCK = 1024, 65536  # positions asked at once: soon at work, then fast


class ReuseSampler(Sampler[int]):
    """The shuffled order of an epoch, asked from the policy in blocks.

    Args:
        policy: its seed and ``set_epoch`` select the order.
        size: number of samples, a positive integer.
    """

    def __init__(self, policy: ReusePolicy, size: int) -> None:
        self.policy = policy
        self.size = check_integer("size", size, minimum=1)
        self.epoch = 0

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, an integer from 0 up."""
        self.epoch = check_integer("epoch", epoch, minimum=0)

    def at(self, epoch: int, start: int = 0) -> Iterator[int]:
        """Yield the indices of an epoch from position ``start`` on, which costs O(1)."""
        length = _FIRST_BLOCK
        while start < self.size:
            stop = min(start + length, self.size)
            yield from self.policy.order(np.arange(start, stop), epoch, self.size).tolist()
            start, length = stop, min(2 * length, _LARGEST_BLOCK)

    def __iter__(self) -> Iterator[int]:
        return self.at(self.epoch)  # bound now, not when the first index is taken


class EpochTagger:
    """Puts the epoch of a pass on every index, or on every batch of indices.

    Args:
        sampler: gives the indices, or batches of them.
        start: called with it when a pass starts; returns the epoch and what the pass asks for.
        batched: whether that are batches.
    """

    def __init__(
        self, sampler: Any, start: Callable[[Any], tuple[int, Iterator[Any]]], batched: bool
    ) -> None:
        self._sampler = sampler
        self._start = start
        self._batched = batched

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[EpochIndex] | Iterator[EpochBatch]:
        # Called once when a pass starts: the epoch is read here, not when the first batch is.
        epoch, indices = self._start(self._sampler)
        if self._batched:
            return (EpochBatch(epoch, list(batch)) for batch in indices)
        return map(EpochIndex, repeat(epoch), indices)
