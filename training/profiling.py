"""A trace of a few steps, for Perfetto (ui.perfetto.dev) and chrome://tracing: tracker.profile."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from reuseloader import ReuseDataset
from reuseloader.trace import Span, Trace, read_spans
from training.checks import text_of
from training.distributed import ranks
from training.loaders import Loaders
from training.records import Run
from training.timing import Clock

log = logging.getLogger("training")

NUM_STEPS = 6  # updates in the trace: enough for a batch of each of a few workers
_SKIPPED, _WARMUP = 2, 2  # updates before it: until workers are at work, and the profiler is warm
_CLOCK = "clock of the loader"  # marks by which times of both clocks are brought together
_NUM_MARKS = 5  # of which that counts during which the system did nothing else
Mark = tuple[int, int]
_NAMES = {"wait": "wait for input", "copy": "copy to the device"}


class NoProfiler:
    """Traces nothing."""

    def epoch(self, epoch: int, num_updates: int) -> AbstractContextManager[None]:
        """Do nothing around the training of an epoch."""
        return nullcontext()

    def step(self) -> None:
        """Do nothing after an update."""


class Profiler(NoProfiler):
    """Traces some updates of the second epoch of this process, or of its only one.

    In the second one samples are built as well as read. PyTorch's profiler sees the training
    process alone; so the loader takes down, in whatever process it is, when it builds and reads
    which sample, and these times are put beside those of the profiler. They are of the monotonic
    clock that all processes of a machine share.

    Args:
        run: into whose folder `trace.json` is written.
        loaders: the one for training is told to take its times down.
        clock: whose phases are shown.
        first, end: epochs that this process trains, half-open.
    """

    def __init__(self, run: Run, loaders: Loaders, clock: Clock, first: int, end: int) -> None:
        self._path, self._folder = run.directory / "trace.json", run.directory / ".trace"
        self._clock, self._epoch = clock, min(first + 1, end - 1)
        self._torch: Any = None
        self._num_skipped = self._num_steps = 0
        self._marks: list[Mark] = []
        dataset = loaders.train.dataset
        assert isinstance(dataset, ReuseDataset)
        dataset.trace = Trace(self._folder, self._epoch)

    @contextmanager
    def _tracing(self, num_updates: int) -> Iterator[None]:
        if num_updates < 2:  # one warms the profiler up
            yield
            self._finish()
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        else:
            # Kineto, below the profiler, prints when it starts and stops, and that there is no GPU.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # above all of its levels
        skipped, warmup = (_SKIPPED, _WARMUP) if num_updates > _SKIPPED + _WARMUP else (0, 1)
        self._num_skipped = skipped + warmup
        active = max(1, min(NUM_STEPS, num_updates - self._num_skipped))
        plan = schedule(wait=skipped, warmup=warmup, active=active, repeat=1)
        self._clock.mark = lambda name: record_function(_NAMES.get(name, name))
        try:
            with profile(activities=activities, schedule=plan, on_trace_ready=self._export) as own:
                self._torch = own
                yield
        finally:
            self._torch = None
            del self._clock.mark
            self._finish()

    def epoch(self, epoch: int, num_updates: int) -> AbstractContextManager[None]:
        """Trace a part of the block, if it trains the epoch in question.

        Args:
            epoch: that the block trains.
            num_updates: that it makes.
        """
        return self._tracing(num_updates) if epoch == self._epoch else nullcontext()

    def step(self) -> None:
        """Note that an update has been made."""
        if self._torch is None:
            return
        self._torch.step()
        self._num_steps += 1
        if self._num_steps == self._num_skipped:
            self._marks = [_mark() for _ in range(_NUM_MARKS)]

    def _export(self, own: Any) -> None:
        with _reported():
            own.export_chrome_trace(str(self._path))

    def _finish(self) -> None:
        """Add what the loader did, of which all is written now that the epoch has ended."""
        with _reported():
            if self._marks and self._path.exists():
                trace = json.loads(self._path.read_text(encoding="utf-8"))
                count = add_spans(trace, read_spans(self._folder), self._marks)
                self._path.write_text(json.dumps(trace), encoding="utf-8")
                log.info("trace          %s, with %d builds and reads", self._path, count)
            else:
                log.warning("there is no trace: epoch %d has too few updates for one", self._epoch)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _reported() -> Iterator[None]:
    """Let what goes wrong with a trace, as on a full disk, be a warning: training goes on."""
    try:
        yield
    except Exception as error:
        log.warning("the trace could not be written: %s", text_of(error))


def make_profiler(run: Run, loaders: Loaders, clock: Clock, first: int, end: int) -> NoProfiler:
    """Return what `tracker.profile` asks for; of several ranks, rank 0 alone is traced."""
    if run.config.tracker.profile and ranks().is_main:
        return Profiler(run, loaders, clock, first, end)
    return NoProfiler()


def _mark() -> Mark:
    before_ns = perf_counter_ns()
    with record_function(_CLOCK):
        pass
    return before_ns, perf_counter_ns()


def add_spans(trace: dict[str, Any], spans: Iterable[Span], marks: list[Mark]) -> int:
    """Add to a trace what the loader did while it was recorded; return how many events that is.

    Args:
        trace: of PyTorch's profiler, with times in microseconds.
        spans: from all processes.
        marks: what `perf_counter_ns` said before and after each mark in the trace.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    made = sorted(event["ts"] for event in events if event["name"] == _CLOCK)
    mark_us, (before_ns, _) = min(
        zip(made, marks, strict=True), key=lambda pair: pair[1][1] - pair[1][0]
    )
    offset_us = mark_us - before_ns / 1000
    steps = [event for event in events if event["name"].startswith("ProfilerStep")]
    start = min(event["ts"] for event in steps)
    end = max(event["ts"] + event["dur"] for event in steps)
    shown = [s for s in spans if offset_us + s.end_ns / 1000 >= start]
    shown = [s for s in shown if offset_us + s.start_ns / 1000 <= end]
    trace["traceEvents"] += [
        {
            **{"ph": "X", "cat": "loader", "name": span.what, "pid": span.pid, "tid": span.thread},
            "ts": offset_us + span.start_ns / 1000,
            "dur": (span.end_ns - span.start_ns) / 1000,
            "args": {"index": span.sample},
        }
        for span in shown
    ]
    workers = {span.pid for span in shown} - {os.getpid()}
    trace["traceEvents"] += [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "loader worker"}}
        for pid in sorted(workers)
    ]
    return len(shown)
