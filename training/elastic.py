"""torchrun --max-restarts: workers that were started again go on with the run they had begun."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from training.distributed import put, ranks, take

_goes_on = False


def after_restart(arguments: list[str]) -> list[str]:
    """Return the arguments of the command, or those to go on where the workers began a run before.

    A command that names a recorded run itself stays as it is.
    """
    global _goes_on
    begun = _begun_anywhere()
    named = any(re.match(r"\+*(resume|replay)=", argument) for argument in arguments)
    _goes_on = begun is not None and not named
    return [f"resume={begun}"] if _goes_on else arguments


def is_restart() -> bool:
    """Say, on rank 0, whether `after_restart` named a run to go on with."""
    return _goes_on


def remember(run: Path) -> None:
    """Note for a restart, on each machine, which run the workers of torchrun have begun."""
    file = _note()
    if file is None or ranks().local_rank != 0:
        return
    with suppress(OSError):
        _write_own(file, str(run))


def forget() -> None:
    """Remove the note: the run is done."""
    file = _note()
    if file is not None and ranks().local_rank == 0:
        with suppress(OSError):
            file.unlink()


def was_said(text: str) -> bool:
    """Say whether an earlier start of these workers has ended with the same mistake; note it.

    torchrun starts its workers again whatever ended them, and a user's mistake stays one.
    """
    note = _note()
    if note is None:
        return False
    file, last = note.with_name(f"{note.name}-said"), os.environ.get("TORCHELASTIC_MAX_RESTARTS")
    said = _read_own(file) == text
    with suppress(OSError):
        if os.environ.get("TORCHELASTIC_RESTART_COUNT") == last:
            file.unlink()
        else:
            _write_own(file, text)
    return said


def _begun_anywhere() -> Path | None:
    """Return the run of an earlier start, from whichever machine knows it; rank 0 may have moved.

    Every rank has to ask.
    """
    own = _begun()
    if ranks().num_nodes == 1:
        return own
    if ranks().local_rank == 0:
        put(f"begun/{ranks().node}", own)
    notes = [take(f"begun/{node}") for node in range(ranks().num_nodes)]
    return next((note for note in notes if note is not None), None)


def _begun() -> Path | None:
    file = _note()
    text = None if file is None else _read_own(file)
    return None if text is None else Path(text)


def _write_own(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as note:
        note.write(text)


def _read_own(file: Path) -> str | None:
    try:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None  # another user's, who may not choose what is read here
        return file.read_text(encoding="utf-8")
    except OSError:
        return None


def _note() -> Path | None:
    """Return where the note of this launch lies: torchrun's process outlives its workers."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id is None or int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) == 0:
        return None
    agent = os.getppid()
    try:
        after_name = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # without its time of start the number may be another launch's
    name = re.sub(r"\W", "_", f"{run_id}-{agent}-{after_name[19]}")
    return Path(tempfile.gettempdir(), f"reuseloader-{os.getuid()}-{name}")
