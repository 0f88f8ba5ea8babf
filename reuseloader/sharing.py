"""The folder of a dataset: locked until that ends, and other datasets of the process in it."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reuseloader.builds import differs
from reuseloader.folder import close_folder, open_folder

_turns: dict[str, list[weakref.ref[FolderUse]]] = {}
"""Who has begun a pass in a folder: those that are alive, the last one at the end."""


class FolderUse:
    """What a dataset keeps in a folder, which is locked for this process.

    It ends with ``close``, or when Python frees it. Copies of it hold nothing.

    Args:
        directory: the folder.
        mark: what the files are told apart by.
        build: makes what they hold.

    Raises:
        ValueError: the folder cannot be created or written.
        FolderInUseError: another process holds it.
    """

    def __init__(self, directory: Path, mark: tuple[Any, ...], build: Callable[..., Any]) -> None:
        self._directory, self._mark, self._build = directory, mark, build
        self._said = False
        self._is_open = True
        self._give_back: weakref.finalize[..., Any] | None = None
        if (folder := open_folder(directory)) is not None:
            self._give_back = weakref.finalize(self, close_folder, folder)
            # Not at exit: the system unlocks then, and the order of destruction is not ours.
            self._give_back.atexit = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_give_back": None}

    def close(self) -> None:
        """Give the folder back, once."""
        self._is_open = False
        for turns in _turns.values():
            turns[:] = [ref for ref in turns if ref() is not self]
        if self._give_back is not None:
            self._give_back()

    def check_open(self) -> None:
        """Refuse what only an open dataset can do."""
        if not self._is_open:
            raise ValueError(
                f"this loader or dataset over {self._directory} is closed; make a new one"
            )

    def begin(self) -> None:
        """Begin a pass; warn, once, where one with other samples is in its way.

        That is one between it and its last pass, which wrote over its files, or one at any time
        whose files it would take for its own, as they are marked alike.
        """
        turns = _turns.setdefault(os.path.realpath(self._directory), [])
        living = [use for use in (ref() for ref in turns) if use is not None]
        between = living[living.index(self) + 1 :] if self in living else []
        turns[:] = [weakref.ref(use) for use in [*(u for u in living if u is not self), self]]
        if self._said:
            return
        alike = [] if self in living else [use for use in living if self._mistakes(use)]
        if alike or any(use._mark != self._mark or self._mistakes(use) for use in between):
            for use in (self, *alike):
                use._said = True
            warnings.warn(
                "directory must be a folder of this dataset alone, but got "
                f"directory={self._directory}, in which another one of this process works as well: "
                "each loses the samples of the other or takes them for its own; give each its own "
                "folder" + (", or a fingerprint of its own" if alike else ""),
                stacklevel=3,
            )

    def _mistakes(self, other: FolderUse) -> bool:
        """Return whether it would take the other's files for its own, and they are not."""
        return other._mark == self._mark and differs(self._build, other._build)
