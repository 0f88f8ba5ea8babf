"""How many samples there are in an epoch: one number, or a table of numbers by first epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index as as_index

from reuseloader.checks import check_integer


@dataclass(frozen=True)
class SizeTable:
    """Numbers of samples, each valid from an epoch on; made by ``SizeTable.of``.

    Attributes:
        epochs: where each size begins, ascending from 0.
        sizes: positive, never falling: an index that has come is never taken away.
    """

    epochs: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, size: int | Mapping[int, int] | SizeTable) -> SizeTable:
        """Return the table of a size, or of a mapping ``{first epoch: size}``.

        Raises:
            ValueError: a size is not a positive integer, an epoch not an integer from 0 up; the
                first epoch is not 0, the epochs do not ascend, or the sizes fall.
        """
        if isinstance(size, SizeTable):
            return size
        rows = size if isinstance(size, Mapping) else {0: size}
        epochs = tuple(check_integer("an epoch of size", epoch, minimum=0) for epoch in rows)
        sizes = tuple(check_integer("size", number, minimum=1) for number in rows.values())
        for rule, broken in {
            "begin at epoch 0": epochs[:1] != (0,),
            "list its epochs in ascending order": list(epochs) != sorted(set(epochs)),
            "never fall": list(sizes) != sorted(sizes),
        }.items():
            if broken:
                raise ValueError(f"size must {rule}, but got size={size!r}")
        return cls(epochs, sizes)

    @property
    def largest(self) -> int:
        """The size of the last epochs."""
        return self.sizes[-1]

    def at(self, epoch: int) -> int:
        """Return the size of an epoch, an integer from 0 up."""
        return self.sizes[bisect_right(self.epochs, epoch) - 1]

    def steps(self, epoch: int) -> list[tuple[int, int]]:
        """Return the half-open ranges of indices that were added one after the other by then."""
        ends = sorted(set(self.sizes[: bisect_right(self.epochs, epoch)]))
        return list(zip([0, *ends], ends, strict=False))

    def check(self, indices: Sequence[int], epoch: int) -> list[int]:
        """Return indices as ``int``; raise an IndexError where the epoch does not have one."""
        size, checked = self.at(epoch), [as_index(index) for index in indices]
        for index in checked:
            if not 0 <= index < size:
                raise IndexError(f"index must be in [0, {size}), but got index={index}")
        return checked
