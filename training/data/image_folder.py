"""Images in class folders: ROOT/cat/1.jpg, or ROOT/train/cat/1.jpg and ROOT/val/cat/2.jpg."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import numpy as np

from training.data.content import digest_of_files
from training.data.folders import class_names, folder_names, images_below, share_of, split_folders
from training.data.images import UnreadableError, decode
from training.data.standin import read_or_next, skips


class ImageFolder:
    """A folder for each class, with images at any depth below it.

    Where ROOT holds the folders `train` and `val` these are the splits, whatever lies beside them,
    and the classes are those of `train`. Otherwise `val_share` of each class is for validation,
    chosen by the names. Hidden files and folders, and files without the extension of an image,
    are passed over.

    Args:
        root: the folder.
        split: `train` or `val`.
        val_share: share of the files, where the folder is not split.
        on_error: `raise` where a file cannot be read, or `skip` it: the next one stands in for
            it, is not stored, and does not count in an evaluation.

    Raises:
        ValueError: an argument breaks a rule, or the folder does not hold what it has to.
    """

    def __init__(
        self, root: str, split: str, val_share: float = 0.2, on_error: str = "raise"
    ) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"split must be train or val, but got split={split!r}")
        if not 0 < val_share < 1:
            raise ValueError(f"val_share must be between 0 and 1, but got val_share={val_share!r}")
        self._skips = skips(on_error)
        self.classes = class_names(root)
        train, val = split_folders(root)
        self.root = val if val is not None and split == "val" else train
        if strange := set(folder_names(self.root)) - set(self.classes):
            raise ValueError(f"{self.root / min(strange)} must be a class of {train}, but is none")
        files = [images_below(self.root, name) for name in self.classes]
        for name, found in zip(self.classes, files, strict=True):
            if not found and split == "train":
                raise ValueError(f"{self.root / name} must hold an image, but it holds none")
        if val is None:
            files = [share_of(found, val_share, split) for found in files]
        # Arrays, not lists: of many objects a forked worker would come to hold copies.
        self._files = np.array([name for found in files for name in found], dtype=np.bytes_)
        self.labels = np.repeat(np.arange(len(files)), [len(found) for found in files])

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return `{"image": uint8 3 x H x W, "label": int}`.

        Where files are skipped, `valid` is a further entry, and of a stand-in `skipped`: why.

        Raises:
            UnreadableError: the file cannot be read; names it.
        """
        return read_or_next(self._read, index, len(self)) if self._skips else self._read(index)

    def _read(self, index: int) -> dict[str, Any]:
        path = self._path(self._files[index])
        try:
            with open(path, "rb") as file:
                image = decode(file.read())
        except (OSError, UnreadableError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise UnreadableError(f"{os.fsdecode(path)} cannot be read: {reason}") from error
        return {"image": image, "label": int(self.labels[index])}

    def _path(self, name: bytes) -> bytes:
        return os.path.join(os.fsencode(self.root), name)

    def identity(self) -> str:
        """Return a digest of the classes, and of names, sizes and a sample of the files."""
        names = self._files.tolist()
        content = digest_of_files(names, map(self._path, names))
        return sha256(f"{self.classes!a} {content}".encode()).hexdigest()
