"""Which rank uses which sample, in closed form and in both directions.

The indices of an epoch are dealt into slots, and the slots are handed round to the ranks. Both
are maps of ``[0, size)`` that are asked for many values at once and hold no table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np

from reuseloader.mixing import TO_DEAL, mix, step_array
from reuseloader.permutation import Integers, Keys, permute_each, split, unpermute_each


class _Group(NamedTuple):
    """Neighbouring classes with equally many items, and the slots that they fill."""

    num_items: int
    classes: range
    slots: range


@dataclass(frozen=True, kw_only=True)
class Deal:
    """A range of items dealt into the slots of the same numbers, class by class.

    A class holds the items whose numbers agree modulo ``lifetime``: all of them change their
    generation together. The classes lie end to end, and the members of each in the order of a
    permutation that changes with the generation of the class alone.

    Args:
        start, stop: the half-open range; items and slots outside it stay what they are.
        lifetime: epochs of a generation, a positive integer.
        epoch: from 0 up.
        seed: in ``[0, 2**64)``.
    """

    start: int
    stop: int
    lifetime: int
    epoch: int
    seed: int

    def items(self, slots: Integers) -> Integers:
        """Return the item in each slot, shape (n,)."""
        found = slots.copy()
        for group in self._groups():
            here = np.flatnonzero((slots >= group.slots.start) & (slots < group.slots.stop))
            number, place = split(slots[here] - group.slots.start, group.num_items)
            number += group.classes.start
            member = permute_each(place, group.num_items, self._keys(number))
            found[here] = self.start + number + self.lifetime * member
        return found

    def slots(self, items: Integers) -> Integers:
        """Return the slot of each item, shape (n,)."""
        found = items.copy()
        inside = (items >= self.start) & (items < self.stop)
        for group in self._groups():
            member, number = split(items - self.start, self.lifetime)
            here = np.flatnonzero(
                inside & (number >= group.classes.start) & (number < group.classes.stop)
            )
            member, number = member[here], number[here]
            place = unpermute_each(member, group.num_items, self._keys(number))
            first = group.slots.start + (number - group.classes.start) * group.num_items
            found[here] = first + place
        return found

    def _groups(self) -> Iterator[_Group]:
        if self.lifetime >= self.stop - self.start:
            return  # each item is a class of its own, and there is nothing to deal
        num_items, num_longer = divmod(self.stop - self.start, self.lifetime)
        border = self.start + num_longer * (num_items + 1)
        yield _Group(num_items + 1, range(num_longer), range(self.start, border))
        yield _Group(num_items, range(num_longer, self.lifetime), range(border, self.stop))

    def _keys(self, number: Integers) -> Keys:
        phase = split(number + self.start % self.lifetime, self.lifetime)[1]
        generation, passed = divmod(self.epoch, self.lifetime)
        bases = [mix(self.seed, TO_DEAL, self.start, generation + later) for later in (0, 1)]
        key = np.array(bases, dtype=np.uint64)[(phase >= self.lifetime - passed).astype(np.int64)]
        return step_array(key ^ phase.astype(np.uint64))


@dataclass(frozen=True, kw_only=True)
class Round:
    """Slots handed round to the ranks in blocks, the same number of slots to each.

    The ranks get one whole block each, again and again, for as long as there is one for all. What
    is left is cut into one piece for each rank, and the pieces differ by one slot at most.

    Args:
        size: number of slots, from ``num_replicas`` up.
        num_replicas: number of ranks, a positive integer.
        block_size: slots of a block, a positive integer; at 1 slot t goes to rank
            ``t % num_replicas``.
        period: after how many blocks their phases repeat. Where it has a divisor in common with
            ``num_replicas``, always the same ranks would get the blocks of a phase; then the rank
            that comes first changes, such that each gets all phases equally often.
    """

    size: int
    num_replicas: int
    block_size: int = 1
    period: int = 1

    def num_slots(self, rank: int) -> int:
        """Return how many slots a rank gets."""
        return self._num_rounds * self.block_size + self._piece + (self._place(rank) < self._longer)

    def slots(self, number: Integers, rank: int) -> Integers:
        """Return the slots that a rank gets as its 0th, 1st, 2nd ..., shape (n,)."""
        turn, row = split(number, self.block_size)
        place = self._modulo(rank - self._shift(turn))
        slots = (turn * self.num_replicas + place) * self.block_size + row
        rest = np.flatnonzero(number >= self._num_rounds * self.block_size)
        if rest.size:
            own = self._place(rank)
            first = self._rest + own * self._piece + min(own, self._longer)
            slots[rest] = first + number[rest] - self._num_rounds * self.block_size
        return slots

    def padding(self, rank: int) -> int:
        """Return the slot that a rank with one slot less than others uses as well."""
        return self._place(rank) - self._longer

    def ranks(self, slots: Integers) -> Integers:
        """Return the rank that gets each slot, shape (n,)."""
        turn, place = split(slots // self.block_size, self.num_replicas)
        rest = np.flatnonzero(slots >= self._rest)
        if rest.size:
            number = slots[rest] - self._rest
            border = self._longer * (self._piece + 1)
            behind = self._longer + (number - border) // max(self._piece, 1)
            place[rest] = np.where(number < border, number // (self._piece + 1), behind)
            turn[rest] = self._num_rounds
        return self._modulo(place + self._shift(turn))

    @property
    def _num_rounds(self) -> int:
        return self.size // self.block_size // self.num_replicas

    @property
    def _rest(self) -> int:
        return self._num_rounds * self.num_replicas * self.block_size

    @property
    def _piece(self) -> int:
        return (self.size - self._rest) // self.num_replicas

    @property
    def _longer(self) -> int:
        return (self.size - self._rest) % self.num_replicas

    def _place(self, rank: int) -> int:
        """Return where a rank stands among the pieces."""
        last = np.array([self._num_rounds])
        return int(self._modulo(rank - self._shift(last))[0])

    def _shift(self, turn: Integers) -> Integers:
        """Return by how many ranks a round begins later."""
        common = gcd(self.period, self.num_replicas)
        if common == 1:
            return np.zeros_like(turn)
        num_rounds = min(self.period // common, self.size)  # after them all phases have come
        return turn // num_rounds % common

    def _modulo(self, number: Integers) -> Integers:
        return split(number, self.num_replicas)[1]
