"""Checkpoint files: written whole or not at all, and believed only where they are whole."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from training.checks import ConfigError

# Behind the zip that torch.save writes (torch.load does not mind): magic, epoch and batch to go on
# with, bytes before the trailer, and the CRC-32 of all that.
_TRAILER = struct.Struct("<8sQQQI")
_MAGIC = b"reuse\x00ck"

PARTS = frozenset(
    {"model", "ema", "optimizer", "scheduler", "scaler", "random", "best", "epoch", "step"}
    | {"lr", "base_lr", "losses", "progress", "loader", "point", "versions"}
)
"""The entries of a checkpoint."""


_PLAIN = (torch.Tensor, torch.nn.Parameter, int, float, str, bool, bytes, type(None))


@dataclass(frozen=True)
class Found:
    """A checkpoint that was read, and what is wrong with newer ones."""

    path: Path
    content: dict[str, Any]
    damaged: list[str]


def plain(value: Any) -> Any:
    """Return a state with numbers of Python in place of those of NumPy, at any depth."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {plain(name): plain(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    return value


def check_loadable(value: Any, place: str) -> None:
    """Make sure that a part of a checkpoint opens with `weights_only=True`.

    Raises:
        ConfigError: it does not; names what is in the way.
    """
    if type(value) in _PLAIN:
        return
    if type(value) in (dict, OrderedDict):
        for name, item in value.items():
            check_loadable(name, f"{place}, a key")
            check_loadable(item, f"{place}.{name}")
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            check_loadable(item, f"{place}[{number}]")
    elif not _opens(value):
        kind = type(value)
        raise ConfigError(
            f"{place} must be tensors, numbers, texts, lists and dicts of these, to be saved and "
            f"loaded with weights_only=True, but is a {kind.__module__}.{kind.__qualname__}"
        )


def _opens(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # whatever pickling an object of the user's raises
        return False
    return True


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a file that `torch.load(path, weights_only=True)` opens; keep an older one till then.

    Args:
        path: ends in `.pt`.
        content: `loader` says with which epoch and batch to go on.

    Raises:
        OSError: it cannot be written, on a full disk for example; an older one stays.
    """
    with _whole(path) as temporary, open(temporary, "wb+") as file:
        torch.save(content, file)
        length = file.tell()
        place = content.get("loader") or {"epoch": 0, "num_batches": 0}
        head = _TRAILER.pack(_MAGIC, place["epoch"], place["num_batches"], length, 0)[:-4]
        checksum = zlib.crc32(head, _checksum(file, length))
        file.write(head + checksum.to_bytes(4, "little"))
        file.flush()
        os.fsync(file.fileno())
    with suppress(OSError):  # the new name, too, has to outlive a power cut
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Put a file in its place when the block has written all of it to where it is told to."""
    temporary = path.with_suffix(".tmp")
    try:
        yield temporary
    except Exception as error:
        with suppress(OSError):
            temporary.unlink()  # on a full disk it would stand in its own way
        cause = _error_of_the_system(error)
        if cause is None or cause is error:
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from error
    os.replace(temporary, path)


def _error_of_the_system(error: BaseException | None) -> OSError | None:
    """Return what is behind an exception: torch.save says of a full disk `unexpected pos`."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def keep_numbered(path: Path, step: int, keep: int) -> None:
    """Keep a checkpoint under the number of its step, and of these the newest so many.

    Raises:
        OSError: as `write_checkpoint`, on a file system without hard links.
    """
    if keep == 0:
        return
    numbered = path.with_name(f"step-{step:08d}.pt")
    with suppress(FileNotFoundError):
        numbered.unlink()
    try:
        os.link(path, numbered)
    except OSError:  # a file system without hard links
        with _whole(numbered) as temporary:
            shutil.copyfile(path, temporary)
    steps = (other.stem.removeprefix("step-") for other in path.parent.glob("step-*.pt"))
    # By number and not by name: beyond 99,999,999 they have more digits.
    for older in sorted((text for text in steps if text.isdecimal()), key=int)[:-keep]:
        path.with_name(f"step-{older}.pt").unlink()


def read_newest(folder: Path, run: Path) -> Found:
    """Read the newest checkpoint that is whole.

    Args:
        folder: of the checkpoints.
        run: of the run, for messages.

    Raises:
        ConfigError: there is no whole one, or the newest lacks a part.
    """
    paths = sorted(folder.glob("*.pt"), key=_place, reverse=True)
    damaged = []
    for path in paths:
        reason, content = _read(path)
        if content is None:
            damaged.append(f"{path} {reason}")
            continue
        missing = sorted(PARTS - content.keys())
        if missing:
            raise ConfigError(f"{path} must be a checkpoint of a run, but lacks {missing[0]}")
        return Found(path, content, damaged)
    reason = "; ".join(damaged) or "there is none"
    raise ConfigError(
        f"resume must be a run with a whole checkpoint, but got resume={run}: {reason}"
    )


def _place(path: Path) -> tuple[int, int, int, bool]:
    """Order checkpoints by how far they had come; one without a trailer, by its name alone."""
    trailer = _trailer(path)
    is_last = path.name == "last.pt"
    return (1, *trailer[:2], is_last) if trailer else (2 * is_last, 0, 0, is_last)


def _trailer(path: Path) -> tuple[int, int, int, int] | None:
    try:
        with open(path, "rb") as file:
            file.seek(-_TRAILER.size, os.SEEK_END)
            magic, *values = _TRAILER.unpack(file.read())
    except OSError:  # also where the file is shorter than that
        return None
    return tuple(values) if magic == _MAGIC else None  # type: ignore[return-value]


def _read(path: Path) -> tuple[str, dict[str, Any] | None]:
    """Return a checkpoint, or why it is not whole."""
    trailer = _trailer(path)
    try:
        if trailer is not None:
            epoch, batch, length, expected = trailer
            head = _TRAILER.pack(_MAGIC, epoch, batch, length, 0)[:-4]
            with open(path, "rb") as file:
                if expected != zlib.crc32(head, _checksum(file, length)):
                    return "is damaged (its checksum does not agree with its content)", None
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever another program's file makes torch.load raise
        if trailer is not None and isinstance(error, pickle.UnpicklingError):
            return "is whole, but holds what weights_only=True does not load", None
        return f"is damaged ({why_unread(error)})", None
    if not isinstance(content, dict):
        return "is damaged (it holds no checkpoint)", None
    return "", content


def why_unread(error: Exception) -> str:
    """Return in a few words why torch.load refused a file."""
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    if isinstance(error, pickle.UnpicklingError):
        return "it is no file of tensors and plain values"  # torch tells how to run its code
    line = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("\n")[0]
    return line or type(error).__name__


def _checksum(file: BinaryIO, length: int) -> int:
    file.seek(0)
    checksum = 0
    while length > 0:
        piece = file.read(min(length, 1 << 20))
        if not piece:
            return -1  # shorter than it says
        checksum = zlib.crc32(piece, checksum)
        length -= len(piece)
    return checksum
