"""What happens where an item cannot be read: an error, or the next one stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training.checks import check
from training.data.images import UnreadableError

Item = dict[str, Any]


def skips(on_error: str) -> bool:
    """Return whether items that cannot be read are skipped; refuse other words than the two."""
    check("on_error", repr(on_error), on_error in ("raise", "skip"), "raise or skip")
    return on_error == "skip"


def read_or_next(read: Callable[[int], Item], index: int, size: int) -> Item:
    """Return an item with the entry `valid`; where it stands in for another, False.

    Then there is an entry `skipped` as well, that says why.

    Args:
        read: returns an item by its index, or raises an UnreadableError.
        index: of the item wanted.
        size: number of items.

    Raises:
        UnreadableError: none of them can be read.
    """
    try:
        return {**read(index), "valid": True}
    except UnreadableError as error:
        reason = str(error)
    for other in range(index + 1, index + size):
        try:
            return {**read(other % size), "valid": False, "skipped": reason}
        except UnreadableError:
            continue
    raise UnreadableError(f"none of the {size} samples can be read: {reason}")
