"""What a file holds, told apart by its size and a sample of its bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b, sha256

_WHOLE_BYTES = 64 * 1024  # up to here a file is read as a whole
_PART_BYTES = 16 * 1024  # of a larger one: begin, middle and end
_NUM_THREADS = 8  # a disk, and a file server even more, answers several at once


def digest_of_files(names: Iterable[bytes], paths: Iterable[bytes]) -> str:
    """Return a digest of files in their order: names, sizes, and a sample of what they hold.

    Neither where they lie nor when they were written counts.

    Args:
        names: relative to what may be moved.
        paths: where the files are now.
    """
    total = sha256()
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for name, mark in zip(names, pool.map(_mark, paths, chunksize=64), strict=True):
            total.update(len(name).to_bytes(4, "little") + name + mark)
    return total.hexdigest()


def _mark(path: bytes) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= _WHOLE_BYTES:
                parts = [file.readall()]
            else:
                parts = []
                for start in (0, size // 2, size - _PART_BYTES):
                    file.seek(start)
                    parts.append(file.read(_PART_BYTES))
    except OSError:  # reading the sample will say it
        return b"unreadable".ljust(24)
    return size.to_bytes(8, "little") + blake2b(b"".join(parts), digest_size=16).digest()
