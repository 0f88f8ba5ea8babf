"""The fast format: a small header and the memory of the tensors, read without a pickle.

A file holds, in this order (numbers little-endian):

    head      64 bytes, with a CRC-32 of its own: a stale file costs no more than these
    layout    JSON; equal for samples of the same structure, dtypes and shapes
    values    numbers, and the lengths of texts
    blocks    the memory of tensors and arrays, each at a multiple of 64 bytes
    tail      the identity as JSON, then the texts

No offset is stored: where a part lies follows from the lengths before it, so parts of a file
cannot overlap or lead outside it.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from reuseloader.blocks import ALIGNMENT, aligned
from reuseloader.checksum import CHECKSUMS
from reuseloader.layout import Layout, read_layout
from reuseloader.pack import take_apart
from reuseloader.store import (
    PAIRS,
    READERS,
    STALE,
    DamagedFileError,
    Identity,
    digest_of,
)

_MAGIC = b"reuse\x00" + sys.byteorder[:1].encode()  # blocks are as the machine has them
_VERSION = 1

# magic, version, algorithm, checksum of all behind the head, digest of the identity, bytes of the
# file, of the layout, of the values, of the identity and of the tail; CRC-32 of the head so far.
HEAD = struct.Struct("<7sBI Q 16s Q 4I I")
_MAX_PIECES = 1024  # that Linux writes at once
# Without O_NONBLOCK a named pipe would wait for its writer.
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class Head(NamedTuple):
    """The head of a file, checked against its own CRC-32."""

    algorithm: int
    checksum: int
    digest: bytes
    file_bytes: int
    layout_bytes: int
    values_bytes: int
    identity_bytes: int
    tail_bytes: int

    @classmethod
    def read(cls, data: Any) -> Head:
        """Return the head that ``data`` begins with; raises DamagedFileError."""
        if len(data) < HEAD.size:
            raise DamagedFileError(f"it has {len(data)} bytes, less than the shortest file")
        magic, version, *fields, crc = HEAD.unpack(data[: HEAD.size])
        if magic != _MAGIC or version != _VERSION or crc != zlib.crc32(data[: HEAD.size - 4]):
            raise DamagedFileError("it does not begin as a file of this library does")
        return cls(*fields)

    def pack(self) -> bytes:
        """Return the head as it stands in the file."""
        data = HEAD.pack(_MAGIC, _VERSION, *self, 0)[:-4]
        return data + zlib.crc32(data).to_bytes(4, "little")


class Found(NamedTuple):
    """What was read: a sample, its layout, its identity as JSON, and the size of its file."""

    layout: Layout
    sample: Any
    identity: bytes
    num_bytes: int


def save_tensors(obj: Any, path: Path) -> None:
    """Write ``obj`` in the fast format.

    It holds None, bool, int, float, str and bytes; NumPy scalars and arrays (none of objects);
    dense tensors on the CPU of every dtype but the quantized; torchvision's ``tv_tensors``; and
    dicts, lists and tuples of these. A tensor or array that occurs twice is stored once and
    comes back as one object.

    Args:
        obj: what ``ReuseDataset`` hands to ``save``, or any sample.
        path: the file.

    Raises:
        UnstorableSampleError: a part of ``obj`` is of another type; names the type and the place.
        OSError: the file cannot be written.
    """
    identity, sample = _split(obj)
    layout, parts = take_apart(sample)
    values, tail = parts.packed(), identity + b"".join(parts.tail)
    front = layout + values + _padding(HEAD.size + len(layout) + len(values))
    pads = [_padding(block.size) for block in parts.blocks]
    frame = b"".join([front, *pads, tail])
    algorithm = max(CHECKSUMS)
    head = Head(
        algorithm=algorithm,
        checksum=CHECKSUMS[algorithm]([frame, *parts.blocks]),
        digest=digest_of(obj),
        file_bytes=HEAD.size + len(frame) + sum(block.size for block in parts.blocks),
        layout_bytes=len(layout),
        values_bytes=len(values),
        identity_bytes=len(identity),
        tail_bytes=len(tail),
    )
    pieces: list[Any] = [head.pack() + front]
    for block, pad in zip(parts.blocks, pads, strict=True):
        pieces += [block.data, pad]
    _write(path, [*pieces, tail])


def _write(path: Path, pieces: list[Any]) -> None:
    if not hasattr(os, "writev") or len(pieces) > _MAX_PIECES:
        path.write_bytes(b"".join(pieces))
        return
    # Of what storing costs, half lies in the calls of the system: these are the fewest.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        done = os.writev(descriptor, pieces)
        if done < sum(len(piece) for piece in pieces):  # the disk is full, or the file is huge
            rest = memoryview(b"".join(pieces))[done:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def load_tensors(path: Path) -> Any:
    """Read what ``save_tensors`` wrote; no file can make it run code.

    Returns:
        An object equal to the one saved: in types, values, dtypes, shapes and strides.

    Raises:
        DamagedFileError: the file is not one that ``save_tensors`` wrote, has changed since, or
            has a checksum for which a package is missing here.
        OSError: the file cannot be read.
    """
    found = read_file(path, None)
    if not found.identity:
        return found.sample
    return {**_loads_identity(found.identity), "sample": found.sample}


def read_tensors(path: Path, identity: Identity) -> Any:
    """Return the sample in the file, or ``STALE``; of a stale file the head alone is read."""
    found = read_file(path, identity.digest())
    return STALE if found is STALE else found.sample


READERS[load_tensors] = read_tensors
PAIRS[save_tensors] = load_tensors


def read_file(path: str | Path, digest: bytes | None) -> Any:
    """Read a file; no more than its head where it has not the ``digest`` wanted.

    Never allocates more than the file has bytes.

    Returns:
        What was ``Found``, or ``STALE``.

    Raises:
        DamagedFileError, OSError: as ``load_tensors``.
    """
    with open(path, "rb", buffering=0, opener=_open) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DamagedFileError("it is no regular file")
        head = Head.read(file.read(HEAD.size))
        if digest is not None and head.digest != digest:
            return STALE
        if head.file_bytes != status.st_size:
            raise DamagedFileError(f"it has {status.st_size} bytes, not {head.file_bytes}")
        memory = _memory_of(torch.empty(status.st_size, dtype=torch.uint8))
        done = HEAD.size
        while done < len(memory):
            count = file.readinto(memory[done:])
            if not count:
                raise DamagedFileError("it became shorter while it was read")
            done += count
    try:
        return _unpack(head, memory)
    except DamagedFileError:
        raise
    except Exception as error:  # whatever a file that lies makes torch or NumPy raise
        raise DamagedFileError(f"its content makes no sample: {error}") from error


def _memory_of(tensor: torch.Tensor) -> memoryview:
    data: memoryview = tensor.numpy().data
    return data


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | OPEN_FLAGS)


def _unpack(head: Head, memory: memoryview) -> Found:
    if head.algorithm not in CHECKSUMS:
        raise DamagedFileError(
            f"its checksum is of kind {head.algorithm}, which this Python cannot compute; "
            "kind 2 needs the package xxhash"
        )
    values_at = HEAD.size + head.layout_bytes
    front = aligned(values_at + head.values_bytes)
    tail_at = len(memory) - head.tail_bytes
    if not front <= tail_at or head.identity_bytes > head.tail_bytes:
        raise DamagedFileError("the lengths in its head do not agree")
    layout = read_layout(bytes(memory[HEAD.size : values_at]))
    if layout.values.size != head.values_bytes or front + layout.blocks_bytes != tail_at:
        raise DamagedFileError("its layout and its lengths do not agree")
    blocks, pads, start = [], [], front
    for block in layout.blocks:
        stop = start + block.num_bytes
        blocks.append(memory[start:stop])
        start = aligned(stop)
        pads.append(memory[stop:start])
    frame = b"".join([memory[HEAD.size : front], *pads, memory[tail_at:]])
    if CHECKSUMS[head.algorithm]([frame, *blocks]) != head.checksum:
        raise DamagedFileError("its checksum does not agree with its content")
    texts_at = tail_at + head.identity_bytes
    sample = layout.build(
        layout.values.unpack(memory[values_at : values_at + head.values_bytes]),
        memory[texts_at:],
        [block.of(part) for block, part in zip(layout.blocks, blocks, strict=True)],
    )
    return Found(layout, sample, bytes(memory[tail_at:texts_at]), len(memory))


def _padding(num_bytes: int) -> bytes:
    """Return what follows a part of this many bytes."""
    return bytes(-num_bytes % ALIGNMENT)


def _split(obj: Any) -> tuple[bytes, Any]:
    names = Identity.__dataclass_fields__.keys()
    if type(obj) is not dict or obj.keys() != {*names, "sample"}:
        return b"", obj
    return json.dumps([obj[name] for name in names]).encode(), obj["sample"]


def _loads_identity(text: bytes) -> dict[str, Any]:
    names = Identity.__dataclass_fields__.keys()
    try:
        return dict(zip(names, json.loads(text), strict=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedFileError("it does not say which sample it holds") from error
