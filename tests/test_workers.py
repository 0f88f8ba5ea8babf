"""How many workers there should be on a machine, and what their global generators begin with."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import begin, make_config, prepare
from torch.utils.data import DataLoader

from training import workers
from training.signals import ASKING_TO_END, FROM_A_LAUNCHER
from training.workers import auto_workers, begin_pass, free_bytes, num_cores, start_worker

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("cores", "memory", "ranks", "expected"),
    [
        (1, 64, 1, 1),
        (2, 64, 1, 1),
        (8, 64, 1, 7),
        (16, 64, 4, 3),
        (16, 64, 5, 2),
        (16, 64, 16, 1),
        (16, 64, 99, 1),
        (64, 10, 1, 10),
        (64, 10, 4, 2),
        (64, 0.5, 1, 1),
    ],
)
def test_each_rank_leaves_a_core_to_itself_and_a_gigabyte_to_each_worker(
    cores: int, memory: float, ranks: int, expected: int, machine: pytest.MonkeyPatch
) -> None:
    machine.setattr(workers, "num_cores", lambda: cores)
    machine.setattr(workers, "free_bytes", lambda: int(memory * GIB))
    if ranks > 1:
        machine.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert auto_workers() == expected


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /proc and /sys/fs/cgroup, on a machine of 12 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.setattr(workers, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(workers, "_CGROUP", tmp_path / "cgroup")
    write(tmp_path, **{"proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 50000000 kB\n"})
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_without_limits_the_affinity_and_the_free_memory_count(box: Path) -> None:
    assert (num_cores(), free_bytes()) == (12, 51_200_000_000)
    write(box, **{"proc/self/cgroup": "0::/a\n", "cgroup/a/cpu.max": "max 100000\n"})
    write(box, **{"cgroup/a/memory.max": "max\n", "cgroup/a/memory.current": "5\n"})
    assert (num_cores(), free_bytes()) == (12, 51_200_000_000)


def test_the_tightest_limits_of_nested_groups_of_version_2_count(box: Path) -> None:
    write(box, **{"proc/self/cgroup": "0::/a/b/c\n"})
    write(box, **{"cgroup/a/cpu.max": "max 100000", "cgroup/a/b/cpu.max": "250000 100000"})
    write(box, **{"cgroup/a/b/c/cpu.max": "400000 100000", "cgroup/a/b/memory.max": "max"})
    write(box, **{"cgroup/a/memory.max": "9000000000", "cgroup/a/memory.current": "2000000000"})
    assert (num_cores(), free_bytes()) == (3, 7_000_000_000)


def test_limits_of_version_1_count(box: Path) -> None:
    groups = "4:cpu,cpuacct:/docker/1f\n3:memory:/docker/1f\n2:freezer:/\n"
    write(box, **{"proc/self/cgroup": groups, "cgroup/cpu/cpu.cfs_quota_us": "-1"})
    write(box, **{"cgroup/cpu/docker/1f/cpu.cfs_quota_us": "150000"})
    write(box, **{"cgroup/cpu/docker/1f/cpu.cfs_period_us": "100000"})
    write(box, **{"cgroup/memory/docker/1f/memory.limit_in_bytes": "4000000000"})
    write(box, **{"cgroup/memory/docker/1f/memory.usage_in_bytes": "1000000000"})
    assert (num_cores(), free_bytes()) == (2, 3_000_000_000)


def test_auto_becomes_a_number_before_the_run_begins(
    tmp_path: Path, machine: pytest.MonkeyPatch
) -> None:
    machine.setattr(workers, "num_cores", lambda: 3)
    machine.setattr(workers, "free_bytes", lambda: 64 * GIB)
    assert make_config("num_workers=auto").num_workers == 2
    with begin(tmp_path / "run", "num_workers=auto") as run:
        _, loaders, _ = prepare(run)
        assert loaders.train.num_workers == loaders.val.num_workers == 2


class Draws:
    """Items that show what the global generators give in a worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))


def drawn(seed: int) -> list[list[float]]:
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        Draws(), num_workers=2, worker_init_fn=start_worker, generator=generator, batch_size=None
    )
    return [[float(value) for value in item] for item in loader]


def test_a_pass_begins_with_signals_withheld_from_what_it_starts_and_from_nothing_else() -> None:
    ask = "import signal; print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    received: list[int] = []

    class Starting(list[int]):
        num_workers = 0

        def __iter__(self) -> Any:
            os.kill(os.getpid(), signal.SIGUSR1)
            out = subprocess.run([sys.executable, "-c", ask], stdout=subprocess.PIPE, check=True)
            self.blocked = {int(number) for number in out.stdout.split()}
            return super().__iter__()

    starting = Starting([3])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    previous = signal.signal(signal.SIGUSR1, lambda signum, _: received.append(signum))
    try:
        assert list(begin_pass(starting)) == [3]  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert {*ASKING_TO_END, FROM_A_LAUNCHER} <= starting.blocked
    assert received == [signal.SIGUSR1]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_global_generators_of_workers_differ_and_follow_from_the_seed() -> None:
    first, again, other = drawn(1), drawn(1), drawn(2)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert len({json.dumps(item) for item in first}) == 4
    # Items 0 and 1 come from two workers, whose torch seeds are base and base + 1.
    generator = torch.Generator().manual_seed(1)
    base = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    for worker in (0, 1):
        seed = (base + worker) % 2**32
        assert first[worker][0] == random.Random(seed).random()
        assert first[worker][1] == np.random.RandomState(seed).rand()
