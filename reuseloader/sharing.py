"""Two datasets of one process that take turns in one folder, and lose each other's samples."""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path
from typing import Any

_turns: dict[str, list[weakref.ref[FolderUse]]] = {}
"""Who has begun a pass in a folder: those that are alive, the last one at the end."""


class FolderUse:
    """What a dataset keeps in a folder.

    Args:
        directory: the folder.
        mark: what is equal for datasets of the same samples.
    """

    def __init__(self, directory: Path, mark: tuple[Any, ...]) -> None:
        self._directory, self._mark = directory, mark
        self._said = False

    def begin(self) -> None:
        """Begin a pass; warn, once, where one with other samples was between it and the last."""
        turns = _turns.setdefault(os.path.realpath(self._directory), [])
        living = [use for use in (ref() for ref in turns) if use is not None]
        between = living[living.index(self) + 1 :] if self in living else []
        turns[:] = [weakref.ref(use) for use in [*(u for u in living if u is not self), self]]
        if not self._said and any(other._mark != self._mark for other in between):
            self._said = True
            warnings.warn(
                "directory must be a folder of this dataset alone, but got "
                f"directory={self._directory}, in which another one of this process works as well: "
                "each loses the samples of the other or takes them for its own; give each its own "
                "folder",
                stacklevel=3,
            )
