"""Checksums of stored samples: the fastest that is installed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

try:
    from xxhash import xxh3_64_intdigest
except ImportError:  # crc32 then: as safe against accidents, and about 15 times as slow
    xxh3_64_intdigest = None  # type: ignore[assignment]


def _crc32(pieces: Sequence[Any]) -> int:
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return value


def _xxh3(pieces: Sequence[Any]) -> int:
    value = 0
    for piece in pieces:
        value = xxh3_64_intdigest(piece, value)
    return value


CHECKSUMS: dict[int, Callable[[Sequence[Any]], int]] = {1: _crc32}
"""By the number that a file names; over layout to tail without the blocks, then each block."""
if xxh3_64_intdigest is not None:
    CHECKSUMS[2] = _xxh3
