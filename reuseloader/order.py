"""Which index comes at a position of an epoch, on each of many ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from reuseloader.checks import check_integer
from reuseloader.mixing import TO_SHUFFLE_SHARE, mix
from reuseloader.ownership import Deal, Round
from reuseloader.permutation import Integers, permute_blocks, split
from reuseloader.policy import ReusePolicy
from reuseloader.sizes import SizeTable

_LARGEST_BLOCK = 2**62


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    """The indices of every epoch in the order in which one rank uses them.

    All of it is arithmetic: any position of any epoch costs the same, and nothing is kept. With
    one rank and ``block_size`` 1 it is ``policy.order``, or without ``shuffle`` the plain order.

    **Ranks.** A sample stays with one rank for as long as it is reused, and moves only when it has
    to be built anyway: the samples that change their generation together are dealt anew then, by
    a permutation, and each rank shuffles in every epoch what it has got. So each rank finds all
    that it reuses in a folder of its own, and each builds as many samples in an epoch, to within
    one for each step of ``index % lifetime``. Without ``shuffle`` nothing moves: rank r has the
    indices r, r + num_replicas, ...; where ``lifetime`` and ``num_replicas`` have a common divisor,
    which would leave the builds of an epoch to some of the ranks, the ranks take turns at coming
    first.

    **Blocks.** For a source that is read in chunks, HDF5 for one: ``block_size`` consecutive
    indices are used one after the other, in a shuffled order of blocks, each shuffled inside. With
    many ranks a block stays whole and with the same rank in every epoch: its samples are of all
    generations, so that it cannot move without splitting, and then each rank would have to
    decompress its chunk. Only at lifetime 1 the blocks are dealt anew in every epoch. To make the
    ranks equal, up to ``num_replicas`` blocks are split among them; where the size grows, these
    alone may move inside a generation.

    **Growth.** What is added is dealt by itself, so that what was there before stays where it is.

    Args:
        policy: its seed and lifetime.
        size: number of samples, or a table of numbers by first epoch, ``{0: 2000, 3: 8000}``:
            epochs ascend from 0, and sizes never fall.
        num_replicas: number of ranks, at most the number of samples in epoch 0.
        rank: the one asked for, in ``[0, num_replicas)``.
        shuffle: whether the order is shuffled.
        drop_last: make the ranks equal by leaving out up to ``num_replicas - 1`` samples instead
            of using as many twice, as in torch's ``DistributedSampler``.
        block_size: a positive integer up to 2^62.

    Raises:
        ValueError: an argument breaks a rule above.
    """

    policy: ReusePolicy
    size: int | Mapping[int, int] | SizeTable
    num_replicas: int = 1
    rank: int = 0
    shuffle: bool = True
    drop_last: bool = False
    block_size: int = 1

    def __post_init__(self) -> None:
        sizes = SizeTable.of(self.size)
        num_replicas = check_integer("num_replicas", self.num_replicas, minimum=1)
        rank = check_integer("rank", self.rank)
        block_size = check_integer("block_size", self.block_size, minimum=1)
        if num_replicas > sizes.at(0):
            raise ValueError(
                f"num_replicas must be at most the number of samples, {sizes.at(0)}, "
                f"but got num_replicas={num_replicas}"
            )
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be in [0, {num_replicas}), but got rank={rank}")
        if block_size > _LARGEST_BLOCK:
            raise ValueError(f"block_size must be at most 2**62, but got block_size={block_size}")
        for name, value in {
            "size": sizes, "num_replicas": num_replicas, "rank": rank, "block_size": block_size
        }.items():  # fmt: skip
            object.__setattr__(self, name, value)

    @property
    def sizes(self) -> SizeTable:
        """The number of samples by first epoch."""
        assert isinstance(self.size, SizeTable)
        return self.size

    def length(self, epoch: int) -> int:
        """Return the number of positions of an epoch, the same on every rank."""
        size = self.sizes.at(check_integer("epoch", epoch, minimum=0))
        return size // self.num_replicas if self.drop_last else -(-size // self.num_replicas)

    def num_real(self, epoch: int) -> int:
        """Return how many positions are this rank's alone; a further one repeats another's sample.

        The union of these positions over the ranks holds every sample once, so that a sum over
        them counts none twice. The one that may follow is the last.
        """
        return min(self._round(epoch).num_slots(self.rank), self.length(epoch))

    @overload
    def index(self, position: int, epoch: int) -> int: ...
    @overload
    def index(self, position: npt.NDArray[Any], epoch: int) -> Integers: ...
    def index(self, position: Any, epoch: int) -> Any:
        """Return the index at a position of an epoch on this rank.

        Args:
            position: an integer, or an integer array of any shape, in ``[0, length(epoch))``.
            epoch: from 0 up.

        Returns:
            An ``int`` for an integer, an int64 array of the same shape for an array.

        Raises:
            IndexError: a position lies outside.
            ValueError: an argument is not integral.
        """
        numbers = _checked("position", position, self.length(epoch))
        found = self._indices(numbers.ravel(), epoch).reshape(numbers.shape)
        return found if isinstance(position, np.ndarray) else int(found)

    @overload
    def owner(self, index: int, epoch: int) -> int: ...
    @overload
    def owner(self, index: npt.NDArray[Any], epoch: int) -> Integers: ...
    def owner(self, index: Any, epoch: int) -> Any:
        """Return the rank that uses an index in an epoch; of two that do, the one it belongs to.

        With ``drop_last`` those that are left out in this epoch belong to a rank, too. Arguments,
        return and errors are those of ``index``.
        """
        size = self.sizes.at(check_integer("epoch", epoch, minimum=0))
        indices = _checked("index", index, size)
        slots = self._slots(indices.ravel(), epoch)
        ranks = self._round(epoch).ranks(slots).reshape(indices.shape)
        return ranks if isinstance(index, np.ndarray) else int(ranks)

    def _indices(self, position: Integers, epoch: int) -> Integers:
        num_real = self.num_real(epoch)
        if not self.shuffle:
            own = position
        elif self.num_replicas == self.block_size == 1:
            return self.policy.order(position, epoch, num_real)
        else:
            own = self._shuffled(position, epoch, num_real)
        spread = self._round(epoch)
        slots = spread.slots(own, self.rank)
        if position.size and position.max() == num_real:
            slots[position == num_real] = spread.padding(self.rank)
        deals = self._deals(epoch)
        if self.block_size == 1 or not deals:
            return _items(deals, slots)
        blocks, row = split(slots, self.block_size)
        distinct, at = np.unique(blocks, return_inverse=True)  # many rows of few blocks
        return _items(deals, distinct)[at] * self.block_size + row

    def _shuffled(self, position: Integers, epoch: int, num_real: int) -> Integers:
        key = mix(self.policy.seed, TO_SHUFFLE_SHARE, epoch, self.rank)
        own = np.minimum(position, num_real - 1)  # the padding goes its own way
        return permute_blocks(own, num_real, self.block_size, key)

    def _slots(self, index: Integers, epoch: int) -> Integers:
        blocks, row = split(index, self.block_size)
        for deal in self._deals(epoch):
            blocks = deal.slots(blocks)
        return blocks * self.block_size + row

    def _deals(self, epoch: int) -> list[Deal]:
        """Return how the blocks lie in the slots; a block that a step completes keeps its place."""
        if self.num_replicas == 1 or not self.shuffle:
            return []
        moves = self.block_size == 1 or self.policy.lifetime == 1
        return [
            Deal(
                start=-(-start // self.block_size),
                stop=stop // self.block_size,
                lifetime=self._period(),
                epoch=epoch if moves else 0,
                seed=self.policy.seed,
            )
            for start, stop in self.sizes.steps(epoch)
        ]

    def _round(self, epoch: int) -> Round:
        return Round(
            size=self.sizes.at(check_integer("epoch", epoch, minimum=0)),
            num_replicas=self.num_replicas,
            block_size=self.block_size,
            # In a shuffled order the blocks of a phase lie side by side, and reach every rank.
            period=1 if self.shuffle else self._period(),
        )

    def _period(self) -> int:
        """Return after how many blocks the phases of their samples repeat."""
        return self.policy.lifetime // gcd(self.policy.lifetime, self.block_size)


def _items(deals: list[Deal], slots: Integers) -> Integers:
    for deal in deals:
        slots = deal.items(slots)
    return slots


def _checked(name: str, value: Any, stop: int) -> Integers:
    if not isinstance(value, np.ndarray):
        value = np.array(check_integer(name, value), dtype=object)
    elif value.dtype.kind not in "iu":
        raise ValueError(f"{name} must be of an integer dtype, but got dtype={value.dtype}")
    if value.size and (value.min() < 0 or value.max() >= stop):
        raise IndexError(
            f"{name} must be in [0, {stop}), but got {name}={value if value.ndim == 0 else '...'}"
        )
    return np.asarray(value, dtype=np.int64)
