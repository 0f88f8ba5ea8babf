"""Which indices are kept on disk, where not all of them fit."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from reuseloader.checks import check_integer, check_share
from reuseloader.mixing import TO_KEEP, mix

_BITS = 62  # of a hash; a limit has to fit into a signed integer
_MOST_SORTED = 10**6  # indices, which take 1 s; of more, the law of large numbers is enough


class Residency:
    """A share of the indices, chosen by ``(seed, index)``: a smaller share is part of a larger.

    The share may change at any time, and running workers see it.

    Args:
        seed: of the policy.
        share: of the indices that are kept, from 0 to 1.

    Raises:
        ValueError: the share is none.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._seed = seed
        self._limit = torch.zeros((), dtype=torch.int64)
        self._limit.share_memory_()  # type: ignore[no-untyped-call]
        self.share = share

    @property
    def share(self) -> float:
        """The share of the indices that are kept."""
        return float(int(self._limit) / 2**_BITS)

    @share.setter
    def share(self, share: Any) -> None:
        self._limit.fill_(int(check_share("resident", share) * 2**_BITS))

    def keeps(self, index: int) -> bool:
        """Say whether an index is kept."""
        limit = int(self._limit)
        return limit == 1 << _BITS or _hash(self._seed, index) < limit


def _hash(seed: int, index: int) -> int:
    return mix(seed, TO_KEEP, index) >> (64 - _BITS)


def remove_left(path: str) -> None:
    """Remove the file of an index that is no longer kept, if there is one."""
    with suppress(OSError):
        os.unlink(path)


def resident_share(num_kept: int, size: int, seed: int = 0) -> float:
    """Return the share with which ``num_kept`` of ``size`` indices are resident.

    Exact up to 10^6 indices; of more, about so many are.

    Args:
        num_kept: from 0 up; with ``size`` or more all are.
        size: number of indices, a positive integer.
        seed: of the loader.
    """
    num_kept = check_integer("num_kept", num_kept, minimum=0)
    size = check_integer("size", size, minimum=1)
    if num_kept >= size:
        return 1.0
    if size > _MOST_SORTED:
        return num_kept / size
    hashes = np.fromiter((_hash(seed, index) for index in range(size)), np.uint64, size)
    first_left_out = int(np.partition(hashes, num_kept)[num_kept])
    return float((first_left_out >> 10) / 2 ** (_BITS - 10))  # 52 bits: a float holds them all
