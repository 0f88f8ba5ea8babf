"""Permutations with a key of their own at every position, backwards too, and of whole blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reuseloader.policy import (
    _ROUNDS,
    _TABLE_SIZE,
    _add,
    _radices,
    _shuffled_table,
    _step_array,
    mix,
    permute,
)

Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

_TABLE_ENTRIES = 2**18  # of the shuffled tables that are made at once: some 5 MB at work
_FEW_TABLES = 16  # below, as many tables one by one take no longer than together: measured, 64 rows

_TO_PLACE, _TO_SHUFFLE, _TO_SHUFFLE_INSIDE = 1, 2, 3  # keep the streams of a block order apart


def split(number: Integers, divisor: int) -> tuple[Integers, Integers]:
    """Return quotient and remainder; NumPy's own ``divmod`` takes ten times as long."""
    quotient = number // divisor
    return quotient, number - quotient * divisor


def permute_each(index: Integers, size: int, keys: Keys) -> Integers:
    """Map positions through keyed permutations of ``[0, size)``, each by a key of its own.

    Args:
        index: shape (n,), in ``[0, size)``.
        size: the number of elements, in ``[1, 2**62]``.
        keys: shape (n,).

    Returns:
        Shape (n,): at each place what ``permute(index, size, key)`` gives.
    """
    return _apply(index, size, keys, inverse=False)


def unpermute_each(value: Integers, size: int, keys: Keys) -> Integers:
    """Return the positions that ``permute_each`` maps to ``value``, with the same arguments."""
    return _apply(value, size, keys, inverse=True)


def _apply(values: Integers, size: int, keys: Keys, inverse: bool) -> Integers:
    if size <= _TABLE_SIZE:
        return _look_up(values, size, keys, inverse)
    state = _network(values.astype(np.uint64), size, keys, inverse)
    outside = np.flatnonzero(state >= size)
    while outside.size:
        state[outside] = _network(state[outside], size, keys[outside], inverse)
        outside = outside[state[outside] >= size]
    return state.astype(np.int64)


def _network(state: Keys, size: int, keys: Keys, inverse: bool) -> Keys:
    a, b = _radices(size)
    x = state // np.uint64(b)
    y = state - x * np.uint64(b)
    for number in reversed(range(_ROUNDS)) if inverse else range(_ROUNDS):
        round_keys = _step_array(keys ^ np.uint64(number))
        if number % 2 == 0:
            x = _add(x, _shifts(y ^ round_keys, a, inverse), a)
        else:
            y = _add(y, _shifts(x ^ round_keys, b, inverse), b)
    return x * np.uint64(b) + y


def _shifts(mixed: Keys, radix: int, inverse: bool) -> Keys:
    values = _step_array(mixed)
    shifts = values - values // np.uint64(radix) * np.uint64(radix)
    return np.uint64(radix) - shifts if inverse else shifts


def _look_up(values: Integers, size: int, keys: Keys, inverse: bool) -> Integers:
    distinct, table_of = np.unique(keys, return_inverse=True)
    num_at_once = max(_FEW_TABLES, _TABLE_ENTRIES // size)
    found = np.empty(len(values), np.int64)
    for first in range(0, len(distinct), num_at_once):
        tables = _tables(size, distinct[first : first + num_at_once])
        if inverse:
            tables = np.argsort(tables, axis=0)
        here = np.flatnonzero((table_of >= first) & (table_of < first + num_at_once))
        found[here] = tables[values[here], table_of[here] - first]
    return found


def _tables(size: int, keys: Keys) -> npt.NDArray[Any]:
    """Return the shuffled tables of ``permute`` as columns, shape (size, keys)."""
    if len(keys) < _FEW_TABLES:
        return np.stack([_shuffled_table(size, key) for key in keys.tolist()], axis=1)
    draws = _step_array(np.arange(size, dtype=np.uint64)[:, None] ^ keys)
    column = np.arange(len(keys))
    tables = np.repeat(np.arange(size, dtype=np.int16)[:, None], len(keys), axis=1)
    for last in range(size - 1, 0, -1):
        other = (draws[last] % np.uint64(last + 1)).astype(np.int64)
        taken = tables[other, column]
        tables[other, column] = tables[last]
        tables[last] = taken
    return tables


def permute_blocks(position: Integers, size: int, block_size: int, key: int) -> Integers:
    """Map positions through a permutation of ``[0, size)`` that keeps blocks together.

    The blocks ``[0, block_size)``, ``[block_size, 2 * block_size)`` ... come in a shuffled order,
    the last and short one among them, and each is shuffled inside by a permutation of its own.

    Args:
        position: shape (n,), in ``[0, size)``.
        size: the number of elements, in ``[1, 2**62]``.
        block_size: a positive integer; at 1 this is ``permute``.
        key: any integer, taken modulo 2^64; it selects the permutation.

    Returns:
        Shape (n,).
    """
    if block_size == 1:
        return permute(position, size, key)
    num_whole, num_short = divmod(size, block_size)
    # A place drawn for the short block, and the whole ones shuffled around it, is as uniform as a
    # shuffle of all of them, and says without a search where the short one begins.
    start = mix(key, _TO_PLACE) % (num_whole + 1) * block_size
    in_short = (position >= start) & (position < start + num_short)
    elements = np.empty_like(position)
    here = np.flatnonzero(~in_short)
    if here.size:
        place, row = split(position[here] - num_short * (position[here] >= start), block_size)
        block = permute(place, num_whole, mix(key, _TO_SHUFFLE))
        keys = _step_array(np.uint64(mix(key, _TO_SHUFFLE_INSIDE)) ^ block.astype(np.uint64))
        elements[here] = block * block_size + permute_each(row, block_size, keys)
    here = np.flatnonzero(in_short)
    if here.size:
        row = permute(position[here] - start, num_short, mix(key, _TO_SHUFFLE_INSIDE, num_whole))
        elements[here] = num_whole * block_size + row
    return elements
