"""What is said when the disk under a run is full, or gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UnsavedError(OSError):
    """A run folder cannot be written any more; the text is one line that names the remedy."""


@contextmanager
def writing(run: Path, checkpoints: Path) -> Iterator[None]:
    """Turn an error of the system in the block into one line.

    Args:
        run: the folder that is written to.
        checkpoints: where those of the run lie, of which each is whole.

    Raises:
        UnsavedError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        text = f"{run} cannot be written: {error.strerror or error}"
        if any(checkpoints.glob("*.pt")):
            text += f"; what was saved before is whole, and resume={run} goes on from there"
        raise UnsavedError(text) from error
