"""Which prepared sample an index uses in an epoch, and in which order the indices come.

Everything is arithmetic on ``(seed, lifetime, index, epoch)``: no state, no table that grows with
the data set, and the same answer in every process, on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from functools import lru_cache
from math import isqrt
from operator import index as as_index
from typing import Any, overload

import numpy as np
import numpy.typing as npt

FOREVER = 2**62
"""A lifetime without end: what is built once serves every epoch (validation data, say)."""

_MASK = 2**64 - 1

# What keeps the streams drawn from one seed apart, in the library and in what is built on it. A
# number, once given, stays: with another one every run would come out differently.
TO_BUILD, TO_ORDER, TO_FINISH, TO_SEED_WORKERS, TO_VERIFY = 1, 2, 3, 4, 5
TO_DEAL, TO_SHUFFLE_SHARE, TO_KEEP, TO_ASSIGN, TO_SEED_RANKS = 6, 7, 8, 9, 10

_TABLE_SIZE = 256  # up to here a shuffled table; a network of few values is no good permutation
_ROUNDS = 10  # 8 passed the tests of uniformity at every size tried; 2 more as a margin
_SIZE_LIMIT = 2**62  # sums and products of the network stay inside 64 bits


def mix(*values: int) -> int:
    """Fold integers, in order, into one 64-bit value.

    Args:
        values: integers of any size and sign, taken modulo 2^64.

    Returns:
        An integer in ``[0, 2**64)``: equal in every process, unlike Python's ``hash``.

    Source: one splitmix64 step a value; Steele, Lea and Flood, OOPSLA 2014.
    """
    state = 0
    for value in values:
        state = _step(state ^ (as_index(value) & _MASK))
    return state


def _step(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def _step_array(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


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
    key = check_integer("key", key) & _MASK
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
    draws = _step_array(np.arange(size, dtype=np.uint64) ^ np.uint64(key)).tolist()
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
    round_keys = [_step(key ^ number) for number in range(_ROUNDS)]
    while True:
        x, y = divmod(position, b)
        for number, round_key in enumerate(round_keys):
            if number % 2 == 0:
                x = (x + _step(round_key ^ y) % a) % a
            else:
                y = (y + _step(round_key ^ x) % b) % b
        position = x * b + y
        if position < size:
            return position


def _network_array(index: npt.NDArray[np.uint64], size: int, key: int) -> npt.NDArray[np.uint64]:
    a, b = _radices(size)
    x, y = np.divmod(index, np.uint64(b))
    for number in range(_ROUNDS):
        round_key = _step(key ^ number)
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
        return _step_array(digit ^ np.uint64(round_key)) % np.uint64(modulus)
    # More positions than values of the digit: hash every value once and look them up.
    values = np.arange(radix, dtype=np.uint64) ^ np.uint64(round_key)
    return (_step_array(values) % np.uint64(modulus))[digit.astype(np.int64)]


@dataclass(frozen=True, kw_only=True)
class ReuseKey:
    """What an index uses in one epoch; made by ``ReusePolicy.key``.

    Attributes:
        index: the sample, in ``[0, size)``.
        generation: how many times the sample has been replaced before.
        seed: 63 bits that ``build`` draws from, the same during the whole generation.
        epoch: the epoch that asks.
        first_epoch: first epoch of the generation; all of time that ``build`` may depend on.
        last_epoch: last epoch of the generation, itself included.
        use_index: which use of the generation this is; in the short generation 0 it does not
            begin at 0.
    """

    index: int
    generation: int
    seed: int
    epoch: int
    first_epoch: int
    last_epoch: int
    use_index: int
    policy_seed: InitVar[int]

    def __post_init__(self, policy_seed: int) -> None:
        object.__setattr__(self, "_policy_seed", policy_seed)

    @property
    def is_last_use(self) -> bool:
        """Whether no later epoch uses the sample again."""
        return self.epoch == self.last_epoch

    @property
    def use_seed(self) -> int:
        """63 bits that ``finish`` draws from, new in every epoch."""
        policy_seed: int = self._policy_seed  # type: ignore[attr-defined]
        return mix(policy_seed, TO_FINISH, self.index, self.epoch) >> 1


@dataclass(frozen=True)
class ReusePolicy:
    """The rule by which a prepared sample serves ``lifetime`` consecutive epochs.

    Args:
        lifetime: epochs that a sample serves, a positive integer; 1 prepares every sample anew
            in every epoch, ``FOREVER`` prepares each only once.
        seed: any integer, taken modulo 2^64.

    Raises:
        ValueError: an argument is not an integer, or ``lifetime`` is below 1.
    """

    lifetime: int
    seed: int = 0

    def __post_init__(self) -> None:
        lifetime = check_integer("lifetime", self.lifetime, minimum=1)
        object.__setattr__(self, "lifetime", lifetime)
        object.__setattr__(self, "seed", check_integer("seed", self.seed) & _MASK)

    def key(self, index: int, epoch: int) -> ReuseKey:
        """Return the key of sample ``index`` in ``epoch``, both integers from 0 up, in O(1)."""
        index = check_integer("index", index, minimum=0)
        epoch = check_integer("epoch", epoch, minimum=0)
        phase = index % self.lifetime
        generation, use_index = divmod(epoch + phase, self.lifetime)
        seed = mix(self.seed, TO_BUILD, index, generation) >> 1
        return self._key(index, phase, generation, use_index, seed, epoch)

    def keys(self, indices: Sequence[int], epoch: int) -> list[ReuseKey]:
        """Return the keys of many samples in ``epoch``, at about a third of the cost of each."""
        epoch = check_integer("epoch", epoch, minimum=0)
        uses: list[tuple[int, int, int, int]] = []
        for index in indices:
            if type(index) is not int or index < 0:
                index = check_integer("index", index, minimum=0)
            phase = index % self.lifetime
            generation, use_index = divmod(epoch + phase, self.lifetime)
            uses.append((index, phase, generation, use_index))
        indices64 = np.array([use[0] & _MASK for use in uses], dtype=np.uint64)
        generations64 = np.array([use[2] & _MASK for use in uses], dtype=np.uint64)
        state = _step_array(indices64 ^ np.uint64(_step(_step(self.seed) ^ TO_BUILD)))
        seeds = (_step_array(state ^ generations64) >> np.uint64(1)).tolist()
        return [self._key(*use, seed, epoch) for use, seed in zip(uses, seeds, strict=True)]

    def _key(
        self, index: int, phase: int, generation: int, use_index: int, seed: int, epoch: int
    ) -> ReuseKey:
        key = object.__new__(ReuseKey)
        # The frozen dataclass's own __init__ takes three times as long.
        key.__dict__.update(
            index=index,
            generation=generation,
            seed=seed,
            epoch=epoch,
            first_epoch=max(0, generation * self.lifetime - phase),
            last_epoch=(generation + 1) * self.lifetime - phase - 1,
            use_index=use_index,
            _policy_seed=self.seed,
        )
        return key

    @overload
    def order(self, position: int, epoch: int, size: int) -> int: ...
    @overload
    def order(self, position: npt.NDArray[Any], epoch: int, size: int) -> npt.NDArray[np.int64]: ...
    def order(self, position: Any, epoch: int, size: int) -> Any:
        """Return the index at ``position`` of an epoch's shuffled order of ``[0, size)``.

        Arguments, return and errors are those of ``permute``; ``epoch`` counts from 0.
        """
        epoch = check_integer("epoch", epoch, minimum=0)
        return permute(position, size, mix(self.seed, TO_ORDER, epoch))


def check_integer(name: str, value: Any, minimum: int | None = None) -> int:
    """Return ``value`` as an ``int``, or raise a ValueError that names the field and the rule."""
    rule = {None: "an integer", 0: "an integer from 0 up", 1: "a positive integer"}.get(minimum)
    assert rule is not None, minimum
    try:
        # A bool is an int to Python, but to a person lifetime=True is a mistake.
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = as_index(value)
    except TypeError:
        raise ValueError(f"{name} must be {rule}, but got {name}={value!r}") from None
    if minimum is not None and number < minimum:
        raise ValueError(f"{name} must be {rule}, but got {name}={number}")
    return number


def check_share(name: str, value: Any) -> float:
    """Return ``value``, a number from 0 to 1, or raise a ValueError that names field and rule."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= 1):
        raise ValueError(f"{name} must be a share from 0 to 1, but got {name}={value!r}")
    share: float = value
    return share
