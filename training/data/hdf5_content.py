"""What an HDF5 file holds: its data sets, their layout, and a digest of them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np

from training.checks import ConfigError
from training.data.images import is_pixel

_NUM_BLOCKS_KEPT = 4  # in the cache of a process, unless cache_bytes says otherwise
_WHOLE_BYTES = 64 * 1024**2  # up to here all of the chunks are read
_NUM_SAMPLED = 32  # of more, so many evenly spaced ones, and the last


def _dataset(file: Any, name: str) -> Any:
    """Return a data set of an open file.

    Raises:
        ConfigError: the file has none of this name; names those that it has.
    """
    found = file.get(name)
    if not hasattr(found, "shape"):
        known: list[str] = []
        file.visititems(lambda path, item: known.append(path) if hasattr(item, "shape") else None)
        raise ConfigError(
            f"{file.filename} must hold a data set {name}, but holds {', '.join(known) or 'none'}"
        )
    return found


def image_rows(file: Any, name: str) -> Any:
    """Return a data set of an open file whose rows are images.

    Raises:
        ConfigError: they are none.
    """
    data = _dataset(file, name)
    if not is_pixel(data.dtype) or len(data.shape) not in (3, 4):
        raise ConfigError(
            f"{data.name} must be N x H x W, N x C x H x W or N x H x W x C, of uint8 or floats "
            f"from 0 to 1 in at most 64 bits, but is {data.dtype} of shape {data.shape}"
        )
    return data


def label_rows(file: Any, name: str, data: Any, num_classes: int) -> np.ndarray[Any, Any]:
    """Return the labels of images in an open file, int64.

    Raises:
        ConfigError: they are not an integer for each image, or not in [0, num_classes).
    """
    found = _dataset(file, name)
    if found.shape != data.shape[:1] or found.dtype.kind not in "iu":
        raise ConfigError(
            f"{name} must hold an integer for each of the {data.shape[0]} rows of "
            f"{data.name.removeprefix('/')}, but is {found.dtype} of shape {found.shape}"
        )
    labels: np.ndarray[Any, Any] = found[:].astype(np.int64)
    if ((labels < 0) | (labels >= num_classes)).any():
        raise ConfigError(
            f"{name} must lie in [0, {num_classes}), the classes, but go from "
            f"{labels.min()} to {labels.max()}"
        )
    return labels


def blocks(data: Any, cache_bytes: int | None) -> tuple[int, int]:
    """Return how many rows are compressed together, and the size of a cache of decompressed ones.

    Args:
        data: of an open file.
        cache_bytes: the size that was asked for; None is room for four blocks.

    Raises:
        ConfigError: no block fits into the cache.
    """
    num_rows = data.chunks[0] if data.chunks else 1
    block_bytes = num_rows * data.dtype.itemsize * int(np.prod(data.shape[1:]))
    if cache_bytes is None:
        return num_rows, _NUM_BLOCKS_KEPT * block_bytes
    if num_rows > 1 and cache_bytes < block_bytes:
        raise ConfigError(
            f"cache_bytes must be at least {block_bytes}, for the {num_rows} rows that are "
            f"compressed together, but got cache_bytes={cache_bytes}"
        )
    return num_rows, cache_bytes


def class_names(file: Any, num_classes: int) -> list[str]:
    """Return the names in the attribute `classes` of a file, or numbers where it has none.

    Raises:
        ConfigError: the attribute is no list of names.
    """
    if "classes" not in file.attrs:
        return [str(number) for number in range(num_classes)]
    found = file.attrs["classes"]
    if not isinstance(found, np.ndarray) or found.ndim != 1 or len(found) == 0:
        shown = "an empty one" if getattr(found, "size", None) in (0, None) else found
        shown = found if isinstance(found, str) else shown
        raise ConfigError(
            f"the attribute classes of {file.filename} must be a list of {num_classes} names, "
            f"but is {shown}"
        )
    names = found.tolist()
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def digest(file: Any, data: Any) -> str:
    """Return a digest of a data set: shape, type, attributes, and a sample of its chunks.

    Where a file was packed anew, and where it lies, does not count.
    """
    total = sha256(f"{data.shape} {data.dtype.str} {data.chunks}".encode())
    for owner in (file, data):
        for name in sorted(owner.attrs):
            total.update(f"{name!a} {np.asarray(owner.attrs[name]).tolist()!a}".encode())
    for part in _chunks(data) if data.chunks else _rows(data):
        total.update(part)
    return total.hexdigest()


def _chunks(data: Any) -> Iterator[bytes]:
    """Yield the stored size of every chunk, and some of the chunks as they are stored."""
    infos = [data.id.get_chunk_info(n) for n in range(data.id.get_num_chunks())]
    sizes = sorted((info.chunk_offset, info.size) for info in infos)
    yield repr(sizes).encode()
    for number in _sampled(len(sizes), sum(size for _, size in sizes)):
        yield data.id.read_direct_chunk(sizes[number][0])[1]


def _rows(data: Any) -> Iterator[bytes]:
    for number in _sampled(len(data), data.nbytes):
        yield np.asarray(data[number]).tobytes()


def _sampled(count: int, num_bytes: int) -> list[int]:
    if num_bytes <= _WHOLE_BYTES or count <= _NUM_SAMPLED:
        return list(range(count))
    return sorted({*range(0, count, count // _NUM_SAMPLED), count - 1})
