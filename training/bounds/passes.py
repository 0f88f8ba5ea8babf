"""Times of single samples, and of passes over a loader with nothing beside them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np

from reuseloader import ReuseDataLoader, load_tensors


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of single samples."""

    values: list[float]

    @property
    def median(self) -> float:
        """Half of the samples take no longer."""
        return float(np.median(self.values))

    @property
    def p95(self) -> float:
        """Of 20 samples 19 take no longer."""
        return float(np.percentile(self.values, 95))


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A part of a pass over a loader, with nothing beside it.

    Attributes:
        num_samples, num_batches, seconds: of the batches that were counted.
        cpu_s, main_cpu_s: processor seconds, of all processes and of this one.
        start_s: seconds until the first batch was there.
    """

    num_samples: int
    num_batches: int
    seconds: float
    cpu_s: float
    main_cpu_s: float
    start_s: float

    @property
    def per_s(self) -> float:
        """Samples a second."""
        return self.num_samples / self.seconds


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def timed_pass(loader: ReuseDataLoader, num_first: int = 0, until_s: float | None = None) -> Pass:
    """Take the batches of epoch 0, with nothing beside it.

    Args:
        loader: of which nothing else is in use.
        num_first: batches that are not counted, while workers start; 0 where they run already.
        until_s: stop after so many seconds, when every worker has given as many batches as the
            others; None goes to the end.
    """
    loader.set_epoch(0)
    begin = time.perf_counter()
    iterator = iter(loader)
    for _ in islice(iterator, num_first):
        pass
    pids = [child.pid for child in active_children() if child.pid is not None]
    num_samples = num_batches = 0
    start_s = math.nan
    start, main_start, workers_start = time.perf_counter(), time.process_time(), _cpu_s(pids)
    for batch in iterator:
        num_batches += 1
        num_samples += len(batch["label"])
        if num_batches == 1:
            start_s = time.perf_counter() - begin
        whole_rounds = num_batches % max(1, loader.num_workers) == 0
        if until_s is not None and whole_rounds and time.perf_counter() - start > until_s:
            break
    seconds, main_cpu_s = time.perf_counter() - start, time.process_time() - main_start
    workers_s = loader.num_workers * seconds  # where the system does not tell: always busy
    workers_end = _cpu_s(pids)
    if workers_start is not None and workers_end is not None:
        workers_s = workers_end - workers_start
    return Pass(
        num_samples=num_samples,
        num_batches=num_batches,
        seconds=seconds,
        cpu_s=main_cpu_s + workers_s,
        main_cpu_s=main_cpu_s,
        start_s=start_s,
    )


def trained_pass(
    loader: Any,
    batch_size: int,
    accumulate: int,
    train: Callable[[int], Any],
    until_s: float,
    now: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Train beside a loader in epoch 0: on a batch of its own whenever samples for it have come.

    Args:
        loader: its batches are put away; they may be smaller than those of training.
        batch_size: samples of a batch of training.
        accumulate: batches of an update.
        train: trains on so many batches, and waits for the device.
        until_s: stop after so many seconds.
        now: returns seconds.

    Returns:
        Seconds from the end of the first update, before which workers had a start, to the end of
        the last one; and for how many batches.
    """
    loader.set_epoch(0)
    num_taken = num_updates = num_before = counted = 0
    start = last = now()
    for batch in loader:
        num_taken += len(batch["label"])
        if num_taken < (num_updates + 1) * accumulate * batch_size:
            continue
        train(accumulate)
        num_updates += 1
        last, counted = now(), num_taken
        if num_updates == 1:
            start, num_before = last, num_taken
        elif last - start > until_s:
            break
    return last - start, (counted - num_before) / batch_size


def _cpu_s(pids: list[int]) -> float | None:
    """Return the processor time of processes so far; None where the system does not tell."""
    try:
        return sum(int(text.split()[0]) for pid in pids for text in _tasks(pid)) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _tasks(pid: int) -> Iterator[str]:
    folder = Path(f"/proc/{pid}/task")
    for task in folder.iterdir():
        with suppress(ProcessLookupError, FileNotFoundError):  # a thread that has just ended
            yield (task / "schedstat").read_text()


def workers_memory() -> int | None:
    """Return the memory of all workers, what they share counted once; None if not known."""
    total = 0
    for child in active_children():
        try:
            text = Path(f"/proc/{child.pid}/smaps_rollup").read_text()
        except OSError:
            return None
        total += sum(int(s.split()[1]) for s in text.splitlines() if s.startswith("Pss:")) * 1024
    return total or None


def read_times(files: list[Path]) -> Times:
    """Read stored samples one by one, in this process; the first time warms it up."""
    values = []
    for file in [*files[:20], *files[:1000]]:
        before = time.perf_counter()
        load_tensors(file)
        values.append(time.perf_counter() - before)
    return Times(values=values[len(files[:20]) :])
