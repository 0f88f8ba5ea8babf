"""Rows of an HDF5 file: a data set of images, and one of labels."""

from __future__ import annotations

import os
import weakref
from hashlib import sha256
from typing import Any

from training.checks import ConfigError
from training.data.hdf5_content import blocks, class_names, digest, image_rows, label_rows
from training.data.images import UnreadableError, from_array

_opened: weakref.WeakSet[Hdf5] = weakref.WeakSet()
"""Who has a file open in this process."""


def _close_all() -> None:
    for source in list(_opened):
        source.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_all)  # the library keeps state that may not be shared


class Hdf5:
    """Images and labels of an HDF5 file, read row by row.

    Each process opens the file by itself, when it reads the first row. `block_size` is the number
    of rows that are compressed together: read in blocks of so many, each is decompressed about
    once.

    Args:
        path: the file.
        images: name of a data set N x H x W, N x C x H x W or N x H x W x C, of uint8, or of
            floats from 0 to 1.
        labels: name of a data set of N integers from 0 up.
        num_classes: labels lie below it. Names of classes are taken from the file's attribute
            `classes`, where it has one.
        cache_bytes: decompressed chunks that a process keeps; None is room for four.
        rgb: make three channels of one.

    Raises:
        ConfigError: h5py is missing, an argument breaks a rule, or the file cannot be opened, or
            does not fit.
    """

    def __init__(
        self,
        path: str,
        images: str,
        labels: str,
        num_classes: int,
        cache_bytes: int | None = None,
        rgb: bool = True,
    ) -> None:
        self.path, self._images, self._rgb = path, images, rgb
        self._cache_bytes = 0
        self._file: Any = None
        self._data: Any = None
        with self._open() as file:
            data = image_rows(file, images)
            self.labels = label_rows(file, labels, data, num_classes)
            self.classes = class_names(file, num_classes)
            self.block_size, self._cache_bytes = blocks(data, cache_bytes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return `{"image": C x H x W, "label": int}`.

        Raises:
            UnreadableError: the row cannot be read; names it.
        """
        label = int(self.labels[index])
        if self._file is None:
            self._file = self._open()
            self._data = self._file[self._images]  # whose chunk cache lives as long as it does
            _opened.add(self)
        try:
            row = self._data[index]
        except (OSError, RuntimeError) as error:
            raise UnreadableError(
                f"row {index} of {self._images} in {self.path} cannot be read: {error}"
            ) from error
        try:
            return {"image": from_array(row, self._rgb), "label": label}
        except UnreadableError as error:
            place = f"row {index} of {self._images} in {self.path}"
            raise UnreadableError(f"{place}: {error}") from error

    def identity(self) -> str:
        """Return a digest of labels, classes, shape, type, attributes and some of the chunks."""
        with self._open() as file:
            rows = digest(file, file[self._images])
        return sha256(
            f"{self.classes!a} {self._rgb} {rows}".encode() + self.labels.tobytes()
        ).hexdigest()

    def close(self) -> None:
        """Close the file in this process; the next row opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = self._data = None

    def _open(self) -> Any:
        try:
            import h5py
        except ImportError as error:
            raise ConfigError("HDF5 files need h5py: pip install '.[hdf5]'") from error
        # No lock: it needs a file system that has locks, and nobody writes while a run reads.
        try:
            return h5py.File(self.path, "r", locking=False, rdcc_nbytes=self._cache_bytes)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
            raise UnreadableError(f"{self.path} cannot be opened as HDF5: {reason}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_data": None}
