"""The kinds of faults, and how often each is tried."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.disks import clocks, damages, full_disks, lost_folders, two_runs
from benchmarks.faults.errors import bad_losses, memory_errors
from benchmarks.faults.processes import kills, lost_workers, lost_workers_of_large_batches
from benchmarks.faults.trial import Tally

KINDS: dict[str, tuple[Callable[[Path, int], Tally], int]] = {
    "SIGKILL in a caching epoch, 4 workers": (kills, 200),
    "bit flip, cut, zeros, foreign file; both formats": (damages, 10_000),
    "full disk, from the start and midway": (full_disks, 20),
    "folder read-only or deleted midway": (lost_folders, 20),
    "worker killed": (lost_workers, 20),
    "worker killed, pass broken off, while batches over 1 MB are held": (
        lost_workers_of_large_batches,
        20,
    ),
    "MemoryError in build": (memory_errors, 20),
    "two runs on one folder": (two_runs, 20),
    "clock set back": (clocks, 20),
    "NaN loss": (bad_losses, 3),
}


def run_kind(name: str, trials: int) -> Tally:
    """Do so many trials of a kind in a new folder."""
    function, _ = KINDS[name]
    with tempfile.TemporaryDirectory() as parent, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(parent) / "samples"
        folder.mkdir()
        return function(folder, trials)
