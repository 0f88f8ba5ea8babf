"""The processes that prepare input: how many there should be, and how each of them starts."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from training.signals import leave_to_parent, withheld_from_children

T = TypeVar("T")

_BYTES_A_WORKER = 2**30
# Measured in a run on class folders (PNG, batches of 32 x 3 x 224 x 224, two ahead, torch 2.14,
# torchvision 0.29, Linux): a worker started by spawn has a proportional share of 0.45 GiB, of that
# 0.38 its own; a forked one writes to 0.03. The rest is for larger images and batches.

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def auto_workers() -> int:
    """Return how many workers a run on this machine should have.

    One core of each rank's share is left to the training process, and each worker gets a GiB of
    the memory that is free. There is always one at least.
    """
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))  # set by torchrun
    cores = num_cores() // ranks - 1
    memory = free_bytes() // ranks // _BYTES_A_WORKER
    return max(1, min(cores, memory))


def num_cores() -> int:
    """Return how many cores this process may use, by its affinity and the quota of its cgroups."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for folder in _cgroups("cpu"):
        quota, period = _numbers(folder / "cpu.max", 2)  # "150000 100000", or "max 100000"
        if quota is None:  # version 1
            quota = _numbers(folder / "cpu.cfs_quota_us", 1)[0]
            period = _numbers(folder / "cpu.cfs_period_us", 1)[0]
        if quota is not None and period:
            cores = min(cores, max(1, -(-quota // period)))
    return cores


def free_bytes() -> int:
    """Return the memory that is free, on the machine and within the limits of the cgroups."""
    free = 2**62
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
        free = next(1024 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    for folder in _cgroups("memory"):
        limit = _numbers(folder / "memory.max", 1)[0]
        used = _numbers(folder / "memory.current", 1)[0]
        if limit is None:  # version 1
            limit = _numbers(folder / "memory.limit_in_bytes", 1)[0]
            used = _numbers(folder / "memory.usage_in_bytes", 1)[0]
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used))
    return free


def _cgroups(controller: str) -> list[Path]:
    """Return the folders of this process's cgroup and of all that it lies in."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:  # "0::/user.slice" of version 2, "4:cpu,cpuacct:/docker/1f" of version 1
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            root = _CGROUP if controllers == "" else _CGROUP / controller
            inner = Path(path.lstrip("/"))
            return [root / inner, *(root / parent for parent in inner.parents), root]
    return []


def _numbers(file: Path, count: int) -> list[int | None]:
    """Return the first numbers in a file; None for what is no number, or not there."""
    try:
        words = file.read_text().split()[:count]
    except OSError:
        words = []
    numbers = [int(word) if word.lstrip("-").isdecimal() else None for word in words]
    found = [number if number is not None and number > 0 else None for number in numbers]
    return found + [None] * (count - len(found))


def begin_pass(loader: DataLoader[T]) -> Iterator[T]:
    """Return an iterator over a loader; signals that ask to end do not reach what it starts."""
    if loader.num_workers > 0:
        context = loader.multiprocessing_context or multiprocessing.get_context()
        if context.get_start_method() != "fork":
            # A process that multiprocessing starts with the first worker, and in Python up to 3.12
            # lets this one have the signals again.
            resource_tracker.ensure_running()
    with withheld_from_children():
        return iter(loader)


def start_worker(worker_id: int) -> None:
    """Prepare a worker process; a `worker_init_fn` of DataLoader.

    The global generators of Python and NumPy follow from torch's seed of this worker, as torch's
    notes on randomness recommend, for what a user's code draws from them. What a build draws
    should not be left to this: it depends on which worker builds the sample.
    """
    leave_to_parent(worker_id)
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)
