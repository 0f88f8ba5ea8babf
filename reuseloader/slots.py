"""Which record of a large store lies in a local slot: each one once before any twice.

A slot is an index of the loader; in every generation it gets another record. The uses of slots,
``(slot, generation)``, are numbered from 0 in the order of generations, and within one in the
order of slots; the records are used in the order of these numbers, shuffled in each pass over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from reuseloader.checks import check_integer
from reuseloader.mixing import TO_ASSIGN, mix
from reuseloader.permutation import permute
from reuseloader.sizes import SizeTable


class SlotRecords:
    """Assigns records to the slots of a loader, by arithmetic alone.

    In every epoch the records used so far are the first so many of their order, to within one
    generation of slots. So each of them is used once before any is used twice, to within that.

    Args:
        size: number of slots, or a table of first epoch -> number of slots from there on, which
            begins at epoch 0 and never falls.
        num_records: records in the store; at least as many as slots.
        lifetime: of the loader.
        seed: any integer, taken modulo 2^64.

    Raises:
        ValueError: an argument breaks a rule above.
    """

    def __init__(
        self,
        size: int | Mapping[int, int] | SizeTable,
        num_records: int,
        *,
        lifetime: int,
        seed: int = 0,
    ) -> None:
        sizes = SizeTable.of(size)
        self.num_records = check_integer("num_records", num_records, minimum=1)
        self.num_slots = sizes.largest
        if self.num_slots > self.num_records:
            raise ValueError(
                f"size must be at most the number of records, {num_records}, "
                f"but got size={self.num_slots}"
            )
        self._lifetime = check_integer("lifetime", lifetime, minimum=1)
        self._seed = check_integer("seed", seed)
        # Slots that come into use together: first epoch, first slot, and the slot after the last.
        bounds = pairwise([0, *sizes.sizes])
        self._rows = [(epoch, *slots) for epoch, slots in zip(sizes.epochs, bounds, strict=True)]

    def number(self, slot: int, generation: int) -> int:
        """Return how many uses of slots come before this one.

        Raises:
            ValueError: the slot is not used in that generation.
        """
        if not 0 <= slot < self.num_slots:
            raise ValueError(f"slot must be in [0, {self.num_slots}), but got slot={slot}")
        if generation < self._first_generation(slot):
            raise ValueError(
                f"slot {slot} is not used before generation {self._first_generation(slot)}, "
                f"but got generation={generation}"
            )
        return sum(self._before(row, slot, generation) for row in self._rows)

    def record(self, slot: int, generation: int) -> int:
        """Return the record that a slot holds in a generation, in O(1)."""
        number = self.number(slot, generation)
        turn, position = divmod(number, self.num_records)
        return permute(position, self.num_records, mix(self._seed, TO_ASSIGN, turn))

    def _first_generation(self, slot: int) -> int:
        epoch = next(epoch for epoch, start, stop in self._rows if start <= slot < stop)
        return (epoch + slot % self._lifetime) // self._lifetime

    def _before(self, row: tuple[int, int, int], slot: int, generation: int) -> int:
        """Return how many uses before this one are of the slots of a row."""
        epoch, start, stop = row
        first, into = divmod(epoch, self._lifetime)
        # Slots of a phase below this one are used in their generation `first` already; the others,
        # for which the epoch lies in the next one, begin with that.
        phases = self._lifetime - into
        if generation < first:
            return 0
        if generation == first:
            return _count(start, min(stop, slot), phases, self._lifetime)
        early = _count(start, stop, phases, self._lifetime)
        whole = (generation - first - 1) * (stop - start)
        return early + whole + max(0, min(stop, slot) - start)


def _count(start: int, stop: int, phases: int, lifetime: int) -> int:
    """Return how many slots in ``[start, stop)`` have a phase below ``phases``."""

    def below(slot: int) -> int:
        return slot // lifetime * phases + min(slot % lifetime, phases)

    return max(0, below(stop) - below(start)) if stop > start else 0
