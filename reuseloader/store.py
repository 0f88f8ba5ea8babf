"""How a sample lies on disk: who it is, a checksum, and the default format.

Nothing is believed that was read: a file counts as the sample asked for only if it says so and
its checksum agrees.
"""

from __future__ import annotations

import io
import pickle
import stat
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import torch

Save = Callable[[Any, Path], None]
Load = Callable[[Path], Any]

STALE: Final = object()
"""What a reader returns for a whole file that holds another generation, seed or build."""


class DamagedFileError(ValueError):
    """A file that is not what the library wrote."""


class UnstorableSampleError(ValueError):
    """A sample with a part that the format cannot hold."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What has to agree before a stored sample may be used.

    Attributes:
        generation: generation of the sample.
        seed: seed that it was built from.
        lifetime: lifetime of the policy.
        fingerprint: the user's mark of everything else that the build depends on.
    """

    generation: int
    seed: int
    lifetime: int
    fingerprint: str

    def envelope(self, sample: Any) -> dict[str, Any]:
        """Return the object that is stored: the identity's entries and the sample."""
        return {**vars(self), "sample": sample}

    def digest(self) -> bytes:
        """Return 16 bytes that stand for the identity."""
        text = f"{self.generation}/{self.seed}/{self.lifetime}/{self.fingerprint}"
        return blake2b(text.encode(), digest_size=16).digest()


# After the zip that torch.save writes (torch.load does not mind): magic, digest of the identity,
# bytes before the trailer, their CRC-32, and the CRC-32 of the trailer up to here.
_TRAILER = struct.Struct("<8s16sQII")
_MAGIC = b"reuse\x00\x01\n"


def save_torch(obj: Any, path: Path) -> None:
    """Write ``obj`` with ``torch.save``, followed by its identity and a checksum.

    Raises:
        UnstorableSampleError: a part of ``obj`` cannot be pickled.
        OSError: the file cannot be written.
    """
    buffer = io.BytesIO()
    try:
        # The default protocol, 2, writes an ndarray as text, half as large again, and loses its
        # byte order.
        torch.save(obj, buffer, pickle_protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnstorableSampleError(f"torch.save cannot store the sample: {error}") from error
    payload = buffer.getbuffer()
    digest = digest_of(obj)
    head = _TRAILER.pack(_MAGIC, digest, len(payload), zlib.crc32(payload), 0)[:-4]
    with open(path, "wb") as file:
        file.write(payload)
        file.write(head + zlib.crc32(head).to_bytes(4, "little"))


def load_torch(path: Path) -> Any:
    """Read what ``save_torch`` wrote.

    It unpickles, and a pickle can run code: read only folders that this library wrote.

    Raises:
        DamagedFileError: the file is not one that ``save_torch`` wrote, or has changed since.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    _read_trailer(data)
    return _unpack(data)


def read_torch(path: Path, identity: Identity) -> Any:
    """Return the sample in the file, or ``STALE``; a stale file is not unpickled."""
    data = path.read_bytes()
    if _read_trailer(data) != identity.digest():
        return STALE
    return sample_of(_unpack(data), identity)


def sample_of(envelope: Any, identity: Identity) -> Any:
    """Return the sample of a loaded envelope, or ``STALE`` where the identity is another one.

    Raises:
        DamagedFileError: ``envelope`` is none.
    """
    if not isinstance(envelope, dict) or envelope.keys() != identity.envelope(None).keys():
        raise DamagedFileError("it does not hold a sample of this library")
    return envelope["sample"] if identity.envelope(envelope["sample"]) == envelope else STALE


READERS: dict[Load, Callable[[Path, Identity], Any]] = {load_torch: read_torch}
"""For a ``load`` of this library, a reader that finds out early that a file is stale."""


def read_sample(path: Path, identity: Identity, load: Load) -> tuple[Any, int]:
    """Return the sample in the file, or ``STALE``, and the bytes of the file.

    Raises:
        DamagedFileError: the file is not what ``save`` wrote.
        OSError: the file cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedFileError("it is no regular file")
    reader = READERS.get(load)
    sample = sample_of(load(path), identity) if reader is None else reader(path, identity)
    return sample, status.st_size


PAIRS: dict[Save, Load] = {save_torch: load_torch}
"""For a ``save`` of this library, the ``load`` that reads what it writes."""


def check_pair(save: Save, load: Load) -> None:
    """Raise a ValueError where both are this library's, and do not belong together."""
    expected = PAIRS.get(save, load)
    if load is not expected and load in PAIRS.values():
        raise ValueError(
            f"load must be {_name(expected)} with save={_name(save)}, but got load={_name(load)}"
        )


def _name(function: Any) -> str:
    return str(function.__name__)


def digest_of(obj: Any) -> bytes:
    """Return the digest of an envelope's identity; zeros for any other object."""
    names = Identity.__dataclass_fields__.keys()
    if not isinstance(obj, dict) or not names <= obj.keys():
        return bytes(16)
    return Identity(**{name: obj[name] for name in names}).digest()


def _read_trailer(data: bytes) -> bytes:
    if len(data) < _TRAILER.size:
        raise DamagedFileError(f"it has {len(data)} bytes, less than the shortest file")
    trailer = data[-_TRAILER.size :]
    magic, digest, length, _, checksum = _TRAILER.unpack(trailer)
    if magic != _MAGIC or checksum != zlib.crc32(trailer[:-4]):
        raise DamagedFileError("it does not end as a file of this library does")
    if length != len(data) - _TRAILER.size:
        raise DamagedFileError(f"it has {len(data)} bytes, not {length + _TRAILER.size}")
    return bytes(digest)


def _unpack(data: bytes) -> Any:
    checksum = _TRAILER.unpack(data[-_TRAILER.size :])[3]
    if checksum != zlib.crc32(memoryview(data)[: -_TRAILER.size]):
        raise DamagedFileError("its checksum does not agree with its content")
    return torch.load(io.BytesIO(data), weights_only=False)
