"""What lies in the folders of a data set: classes, splits and files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from training.data.images import EXTENSIONS

_LIKE_TRAIN = {"train", "training"}
_LIKE_VAL = {"val", "valid", "validation", "eval", "dev", "test", "testing"}


def split_folders(root: str | os.PathLike[str]) -> tuple[Path, Path | None]:
    """Return where training and validation lie; None for the latter if training has both.

    Raises:
        ValueError: there is no such folder, or it is split under other names.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise ValueError(f"root must be a folder, but got root={root}")
    names = folder_names(folder)
    if {"train", "val"} <= set(names):
        return folder / "train", folder / "val"
    trains = [name for name in names if name.lower() in _LIKE_TRAIN]
    vals = [name for name in names if name.lower() in _LIKE_VAL]
    if trains and vals:  # two classes of these names are less likely than a split
        raise ValueError(
            f"root must call the folders of a split train and val, but got root={root} with "
            f"{', '.join(trains + vals)}: rename them, or give as root the one that holds classes"
        )
    # Alone, train is the split where it holds folders, and a class where it holds images.
    if names == ["train"] and folder_names(folder / "train"):
        return folder / "train", None
    return folder, None


def class_names(root: str | os.PathLike[str]) -> list[str]:
    """Return the names of the class folders of training, in order.

    Raises:
        ValueError: there are none.
    """
    folder = split_folders(root)[0]
    names = folder_names(folder)
    if not names:
        raise ValueError(f"root must hold a folder for each class, but {folder} holds none")
    return names


def folder_names(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, in order, but for hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def images_below(root: Path, name: str) -> list[bytes]:
    """Return the images of a class folder at any depth, as paths relative to `root`, in order."""
    if not (root / name).is_dir():
        return []
    return sorted(_walk(os.fsencode(root), os.fsencode(name), ()))


def _walk(root: bytes, folder: bytes, above: tuple[tuple[int, int], ...]) -> Iterator[bytes]:
    status = os.stat(os.path.join(root, folder))
    place = (status.st_dev, status.st_ino)
    if place in above:  # a link to a folder that it lies in
        return
    with os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.name.startswith(b"."):
                continue
            if entry.is_dir():
                yield from _walk(root, path, (*above, place))
            elif _is_image(entry):
                yield path


def _is_image(entry: os.DirEntry[bytes]) -> bool:
    if os.path.splitext(os.fsdecode(entry.name))[1].lower() not in EXTENSIONS:
        return False
    # Reading a pipe or a device would not end. A link to nothing is an image that is missing.
    return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))


def share_of(files: list[bytes], val_share: float, split: str) -> list[bytes]:
    """Return the files of a split, in order: which ones follows from their names.

    Of two or more files each split gets one at least. A file that is added moves at most one
    other from split to split.
    """
    if len(files) < 2:
        return files if split == "train" else []
    num_val = min(max(1, round(val_share * len(files))), len(files) - 1)
    shuffled = sorted(files, key=lambda name: sha256(name).digest())
    return sorted(shuffled[:num_val] if split == "val" else shuffled[num_val:])
