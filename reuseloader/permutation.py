"""Keyed permutations: of one key, of a key of their own at every position, and of whole blocks."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from reuseloader.checks import check_integer
from reuseloader.mixing import MASK, mix, step, step_array

Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

_TABLE_SIZE = 256  # up to here a shuffled table; a network of few values is no good permutation
_ROUNDS = 10  # 8 passed the tests of uniformity at every size tried; 2 more as a margin
_SIZE_LIMIT = 2**62  # sums and products of the network stay inside 64 bits

_TABLE_ENTRIES = 2**18  # of the shuffled tables that are made at once: some 5 MB at work
_FEW_TABLES = 16  # below, as many tables one by one take no longer than together: measured, 64 rows

_TO_PLACE, _TO_SHUFFLE, _TO_SHUFFLE_INSIDE = 1, 2, 3  # keep the streams of a block order apart


@overload
def permute(index: int, size: int, key: int) -> int: ...
@overload
def permute(index: npt.NDArray[Any], size: int, key: int) -> npt.NDArray[np.int64]: ...
def permute(index: Any, size: int, key: int) -> Any:
    """Map positions through a keyed permutation of ``[0, size)``, each without the others.

    Up to 256 elements the permutation is a Fisher-Yates shuffle. Above, it is a Feistel network in
    mixed radix: ``index = x * b + y`` with ``a * b >= size``; rounds add a hash of one digit to the
    other, modulo ``a`` or ``b``, and values that land outside go through the network again.

    Args:
        index: an integer, or an integer array of any shape, in ``[0, size)``.
        size: the number of elements, in ``[1, 2**62]``.
        key: any integer, taken modulo 2^64; it selects the permutation.

    Returns:
        An ``int`` for an integer, an int64 array of the same shape for an array.

    Raises:
        IndexError: a position lies outside ``[0, size)``.
        ValueError: ``size`` is not a positive integer, or ``index`` is not integral.

    Source: cycle walking, Black and Rogaway, CT-RSA 2002.
    """
    size = check_integer("size", size, minimum=1)
    if size > _SIZE_LIMIT:
        raise ValueError(f"size must be at most 2**62, but got size={size}")
    key = check_integer("key", key) & MASK
    if isinstance(index, np.ndarray):
        return _permute_array(index, size, key)
    position = check_integer("index", index)
    if not 0 <= position < size:
        raise IndexError(f"index must be in [0, {size}), but got index={position}")
    if size <= _TABLE_SIZE:
        return int(_shuffled_table(size, key)[position])
    return _walk(position, size, key)


def _permute_array(index: npt.NDArray[Any], size: int, key: int) -> npt.NDArray[np.int64]:
    if index.dtype.kind not in "iu":
        raise ValueError(f"index must be of an integer dtype, but got dtype={index.dtype}")
    if index.size and (int(index.min()) < 0 or int(index.max()) >= size):
        raise IndexError(f"index must be in [0, {size}), but got {index.min()} to {index.max()}")
    if size <= _TABLE_SIZE:
        return np.asarray(_shuffled_table(size, key)[index.astype(np.int64)])
    flat = _network_array(index.astype(np.uint64).ravel(), size, key)
    outside = np.flatnonzero(flat >= size)
    while outside.size:
        flat[outside] = _network_array(flat[outside], size, key)
        outside = outside[flat[outside] >= size]
    return flat.astype(np.int64).reshape(index.shape)


@lru_cache(maxsize=256)
def _shuffled_table(size: int, key: int) -> npt.NDArray[np.int64]:
    draws = step_array(np.arange(size, dtype=np.uint64) ^ np.uint64(key)).tolist()
    table = list(range(size))
    for last in range(size - 1, 0, -1):
        other = draws[last] % (last + 1)
        table[last], table[other] = table[other], table[last]
    shuffled = np.array(table, dtype=np.int64)
    shuffled.flags.writeable = False
    return shuffled


def _radices(size: int) -> tuple[int, int]:
    a = isqrt(size - 1) + 1
    return a, -(-size // a)


def _walk(position: int, size: int, key: int) -> int:
    a, b = _radices(size)
    round_keys = [step(key ^ number) for number in range(_ROUNDS)]
    while True:
        x, y = divmod(position, b)
        for number, round_key in enumerate(round_keys):
            if number % 2 == 0:
                x = (x + step(round_key ^ y) % a) % a
            else:
                y = (y + step(round_key ^ x) % b) % b
        position = x * b + y
        if position < size:
            return position


def _network_array(index: npt.NDArray[np.uint64], size: int, key: int) -> npt.NDArray[np.uint64]:
    a, b = _radices(size)
    x, y = np.divmod(index, np.uint64(b))
    for number in range(_ROUNDS):
        round_key = step(key ^ number)
        if number % 2 == 0:
            x = _add(x, _round_values(y, b, round_key, a), a)
        else:
            y = _add(y, _round_values(x, a, round_key, b), b)
    return x * np.uint64(b) + y


def _add(
    digit: npt.NDArray[np.uint64], value: npt.NDArray[np.uint64], radix: int
) -> npt.NDArray[np.uint64]:
    total: npt.NDArray[np.uint64] = digit + value
    # Below the radix the subtraction wraps to a huge value, so the minimum is the remainder.
    return np.asarray(np.minimum(total, total - np.uint64(radix)))


def _round_values(
    digit: npt.NDArray[np.uint64], radix: int, round_key: int, modulus: int
) -> npt.NDArray[np.uint64]:
    if digit.size <= radix:
        return step_array(digit ^ np.uint64(round_key)) % np.uint64(modulus)
    # More positions than values of the digit: hash every value once and look them up.
    values = np.arange(radix, dtype=np.uint64) ^ np.uint64(round_key)
    return (step_array(values) % np.uint64(modulus))[digit.astype(np.int64)]


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
    state = _network_each(values.astype(np.uint64), size, keys, inverse)
    outside = np.flatnonzero(state >= size)
    while outside.size:
        state[outside] = _network_each(state[outside], size, keys[outside], inverse)
        outside = outside[state[outside] >= size]
    return state.astype(np.int64)


def _network_each(state: Keys, size: int, keys: Keys, inverse: bool) -> Keys:
    a, b = _radices(size)
    x = state // np.uint64(b)
    y = state - x * np.uint64(b)
    for number in reversed(range(_ROUNDS)) if inverse else range(_ROUNDS):
        round_keys = step_array(keys ^ np.uint64(number))
        if number % 2 == 0:
            x = _add(x, _shifts(y ^ round_keys, a, inverse), a)
        else:
            y = _add(y, _shifts(x ^ round_keys, b, inverse), b)
    return x * np.uint64(b) + y


def _shifts(mixed: Keys, radix: int, inverse: bool) -> Keys:
    values = step_array(mixed)
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
    draws = step_array(np.arange(size, dtype=np.uint64)[:, None] ^ keys)
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
        keys = step_array(np.uint64(mix(key, _TO_SHUFFLE_INSIDE)) ^ block.astype(np.uint64))
        elements[here] = block * block_size + permute_each(row, block_size, keys)
    here = np.flatnonzero(in_short)
    if here.size:
        row = permute(position[here] - start, num_short, mix(key, _TO_SHUFFLE_INSIDE, num_whole))
        elements[here] = num_whole * block_size + row
    return elements
