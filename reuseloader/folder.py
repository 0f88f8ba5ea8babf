"""The folder of stored samples: file names, the lock, and what an earlier run left behind."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl

_TEMPORARY_NAME = re.compile(r"([0-9]{8}|[1-9][0-9]{8,})\.pt\..+\.tmp")
_TOKEN = os.urandom(4).hex()  # tells processes of the same number on two machines apart
_numbers = itertools.count()

_RANK_WAIT_S = 60.0  # while another rank of the job sweeps; a folder of 10^6 files takes about 1 s


class FolderInUseError(RuntimeError):
    """Another process works in the folder.

    Args:
        message: what is said.
        holders: numbers of the processes that do, where they are known.
    """

    def __init__(self, message: str, holders: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.holders = list(holders)


def sample_name(index: int) -> str:
    """Return the name of the one file of a sample: ``00000123.pt``."""
    return f"{index:08d}.pt"


def sample_path(directory: Path, index: int) -> Path:
    """Return the path of that file."""
    return directory / sample_name(index)


def temporary_path(path: Path) -> Path:
    """Return a new name beside ``path`` that no other process or thread uses."""
    return path.with_name(f"{path.name}.{os.getpid()}-{_TOKEN}-{next(_numbers)}.tmp")


@dataclass
class _Hold:
    descriptor: int
    count: int


_holds: dict[tuple[int, int], _Hold] = {}


def _forget_holds() -> None:
    # A forked worker must not keep the folder locked after its parent was killed. Closing its
    # copy of the descriptor leaves the parent's lock alone.
    for hold in _holds.values():
        os.close(hold.descriptor)
    _holds.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_holds)


def open_folder(directory: Path) -> tuple[int, int] | None:
    """Create, lock and sweep a folder; give what is returned to ``close_folder``.

    The lock is on the folder itself and leaves no file in it. This process may open the folder
    again, and so may processes that it starts by multiprocessing, and the other ranks of its job.

    Returns:
        The folder's device and inode number; None where this process holds no lock on it.

    Raises:
        ValueError: the folder cannot be created or written.
        FolderInUseError: a process of another job holds it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = temporary_path(sample_path(directory, 0))
        probe.touch()
        probe.unlink(missing_ok=True)  # another rank may have swept it away
        status = directory.stat()
    except OSError as error:
        raise ValueError(
            f"directory must be a folder that can be written, but got directory={directory}: "
            f"{error.strerror}"
        ) from error
    name = (status.st_dev, status.st_ino)
    if name in _holds:
        _holds[name].count += 1
        return name
    descriptor = _lock(directory, name)
    if descriptor is None:
        return None
    _holds[name] = _Hold(descriptor, 1)
    return name


def close_folder(name: tuple[int, int]) -> None:
    """Give the folder back; the last of this process to do so unlocks it."""
    hold = _holds.get(name)
    if hold is None:  # a forked child that never held it
        return
    hold.count -= 1
    if hold.count == 0:
        del _holds[name]
        os.close(hold.descriptor)


def _lock(directory: Path, name: tuple[int, int]) -> int | None:
    if fcntl is None:
        _warn_unlocked(directory, "this system cannot lock a folder")
        return None
    descriptor = os.open(directory, os.O_RDONLY)
    give_up = time.monotonic() + _RANK_WAIT_S
    try:
        while not _try_lock(directory, descriptor):
            holders = _holders(name)
            parent = multiprocessing.parent_process()
            if parent is not None and parent.pid in holders:
                os.close(descriptor)
                return None  # the parent's lock stands for both
            if not (_is_rank() and all(map(_is_rank_of_this_job, holders))) or (
                time.monotonic() > give_up
            ):
                raise FolderInUseError(_in_use(directory, holders), holders)
            time.sleep(0.01)
        strangers = [pid for pid in _holders(name) if not _is_rank_of_this_job(pid)]
        if strangers:
            raise FolderInUseError(_in_use(directory, strangers), strangers)
    except FolderInUseError:
        os.close(descriptor)
        raise
    except OSError as error:
        os.close(descriptor)
        _warn_unlocked(directory, error.strerror)
        return None
    return descriptor


def _try_lock(directory: Path, descriptor: int) -> bool:
    """Lock for this process alone, or together with the other ranks; False where it is locked."""
    exclusive, shared = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, exclusive)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        if not _is_rank():
            return False
    else:
        # Alone in the folder: what lies there unfinished belongs to no one.
        _sweep(directory)
        if not _is_rank():
            return True
    try:
        fcntl.flock(descriptor, shared)
    except BlockingIOError:
        return False
    return True


def _sweep(directory: Path) -> None:
    with os.scandir(directory) as entries:
        left = [entry.path for entry in entries if _TEMPORARY_NAME.fullmatch(entry.name)]
    for path in left:
        if not os.path.isdir(path):
            with suppress(FileNotFoundError):  # of another rank, which has removed it itself
                os.unlink(path)


def _is_rank() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1") and "RANK" in os.environ


def _holders(name: tuple[int, int]) -> list[int]:
    """Return the processes that hold the folder, this one left out; empty where unknown."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    file = f"{os.major(name[0]):02x}:{os.minor(name[0]):02x}:{name[1]}"
    # 3: FLOCK  ADVISORY  WRITE 1234 fe:00:527 0 EOF; a line with "->" waits and holds nothing.
    held = [line.split() for line in lines if " -> " not in line]
    pids = {int(words[4]) for words in held if words[1] == "FLOCK" and words[5] == file}
    return sorted(pids - {os.getpid()})


def _is_rank_of_this_job(pid: int) -> bool:
    return pid == os.getpid() or _job(pid) == _job(os.getpid())


def _job(pid: int) -> tuple[str, ...] | None:
    """Return what the ranks of one job have in common: where they meet, or else their parent."""
    try:
        environment, parent = _environment(pid), _parent(pid)
        names = ("MASTER_ADDR=", "MASTER_PORT=", "TORCHELASTIC_RUN_ID=")
        meeting = sorted(line for line in environment if line.startswith(names))
        if "GROUP_WORLD_SIZE=1" in environment:
            # One torchrun started them all, and only its process tells two launches apart, which
            # may meet at the same port one after the other, and have no name.
            return (*_launcher(pid, environment), *meeting)
    except OSError:
        return None
    # Two launches of torchrun on one machine, one for each of its "nodes", are one job.
    told = any(line.startswith("MASTER_PORT=") for line in meeting)
    return tuple(meeting) if told else (str(parent), *meeting)


def _launcher(pid: int, environment: list[str]) -> tuple[str, str]:
    """Return number and time of start of torchrun's process, which started that of a rank."""
    rank = [line for line in environment if line.startswith(("RANK=", "TORCHELASTIC_RUN_ID="))]
    parent = _parent(pid)
    while parent > 1:  # up from a worker of the rank, and from a script around it
        try:
            inherited = set(rank) <= set(_environment(parent))
        except OSError:  # another user's, or gone
            break
        if not inherited:
            break
        parent = _parent(parent)
    return str(parent), process_stat(parent)[19]


def _parent(pid: int) -> int:
    return int(process_stat(pid)[1])


def process_stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state on; the name before it may hold spaces.

    Raises:
        OSError: there is no such process, or no /proc.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")


def _in_use(directory: Path, holders: list[int]) -> str:
    who = " and ".join(f"process {pid}" for pid in holders) or "another process"
    return (
        f"directory must not be in use, but got directory={directory}, in use by {who}; "
        "wait until that ends, or name another folder"
    )


def _warn_unlocked(directory: Path, reason: str | None) -> None:
    warnings.warn(
        f"cannot lock {directory} ({reason}): a second run in it would not be noticed, "
        "and what a killed run left unfinished there is not removed",
        stacklevel=2,
    )
