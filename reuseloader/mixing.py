"""Integers from integers, which look drawn at random: what tells apart all that a seed decides."""

from __future__ import annotations

from operator import index as as_index

import numpy as np
import numpy.typing as npt

MASK = 2**64 - 1  # integers are taken modulo 2^64

# What keeps the streams drawn from one seed apart, in the library and in what is built on it. A
# number, once given, stays: with another one every run would come out differently.
TO_BUILD, TO_ORDER, TO_FINISH, TO_SEED_WORKERS, TO_VERIFY = 1, 2, 3, 4, 5
TO_DEAL, TO_SHUFFLE_SHARE, TO_KEEP, TO_ASSIGN, TO_SEED_RANKS = 6, 7, 8, 9, 10


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
        state = step(state ^ (as_index(value) & MASK))
    return state


def step(state: int) -> int:
    """Return the splitmix64 step of an integer in ``[0, 2**64)``."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def step_array(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return ``step`` of each entry of an array of any shape."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
