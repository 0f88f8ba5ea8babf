"""Where the time of an epoch goes: every moment belongs to one phase, on the GPU by its events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import torch

PHASES = ("warmup", "wait", "copy", "compute", "eval", "checkpoint", "other")
"""What an epoch's seconds are counted as; together they are its wall-clock time.

warmup: a process's first update and first batch of evaluation, with all that starts before them.
wait: for a batch; on CUDA, in which the GPU had nothing to do.
copy: of a batch to the device; on CUDA, for which the GPU had to wait.
compute: forward, backward and update, with what the step does to its batch.
eval, checkpoint: evaluation with its own input; writing checkpoints.
other: the rest, such as the progress bar, curves and records.
"""

_ON_DEVICE = ("wait", "copy", "compute")
_PENDING = 2048  # so many marks are kept before those whose time has come are read


_NOTHING = nullcontext()


class Clock:
    """Adds up the seconds of each phase by the wall clock of the host.

    So it is on a CPU, whose work is done when a step returns, and for want of anything better on
    MPS: there the host runs ahead, and time moves between the phases, most of it from computing
    to whatever waits for the device next. Their sum is right in any case.

    Args:
        now: returns seconds, from any start.

    Attributes:
        mark: gives what each phase is put into, such as a range of a profiler.
    """

    mark: Callable[[str], AbstractContextManager[Any]] = staticmethod(lambda _: _NOTHING)

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._phase, self._since = "other", now()
        self._is_cold = False
        self._warm: set[str] = set()

    @staticmethod
    def of(device: torch.device) -> Clock:
        """Return the clock for a device."""
        return CudaClock(device) if device.type == "cuda" else Clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block as a phase; what it interrupts goes on after it."""
        previous = self._enter(name)
        try:
            with self.mark(name):
                yield
        finally:
            self._enter(previous)

    def _enter(self, phase: str) -> str:
        now, previous = self._now(), self._phase
        self._seconds["warmup" if self._is_cold else previous] += now - self._since
        self._phase, self._since = phase, now
        return previous

    def begin_warmup(self, of: str) -> None:
        """Count everything as warm-up from here on, if this is the first time for `of`."""
        self._enter(self._phase)
        self._is_cold = of not in self._warm
        self._warm.add(of)

    def end_warmup(self) -> None:
        """End what `begin_warmup` began; does nothing where that has ended."""
        if self._is_cold:
            self._enter(self._phase)
            self._is_cold = False

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase so far."""
        self._enter(self._phase)
        return dict(self._seconds)

    def start(self, seconds: dict[str, float] | None = None) -> None:
        """Begin anew: at nothing, or where a run that continues had come to."""
        self._enter(self._phase)
        self._seconds = dict.fromkeys(PHASES, 0.0) | (seconds or {})

    def copy_begins(self, stream: Any) -> None:
        """Note that a batch is there, and is copied on a stream from now on."""

    def copy_ends(self, stream: Any) -> None:
        """Note that all of the copy has been put on the stream."""

    def wait_begins(self, stream: Any) -> None:
        """Note that the next batch is asked for; its copy will run on the stream."""


class Mark(NamedTuple):
    """A moment of the GPU's time, in seconds from any start."""

    kind: str
    time_s: float


class DeviceTimes:
    """What the marks of a GPU come to.

    A step's work lies between `compute` and `end`. The time between two steps is waiting from the
    later of `end` and `ask` until the batch is there (`copy`), and copying until `copied`, so far
    as the GPU had nothing else to do; what is left of it is neither.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(_ON_DEVICE, 0.0)
        self._times: dict[str, float] = {}

    def add(self, mark: Mark) -> None:
        """Add the next mark, in the order in which they were made."""
        times = self._times
        times[mark.kind] = mark.time_s
        if mark.kind == "end" and "compute" in times:
            self.seconds["compute"] += mark.time_s - times.pop("compute")
        if mark.kind == "compute":
            end = times.get("end", -math.inf)
            if "ask" in times and "copy" in times and "copied" in times:
                asked, there, copied = (times.pop(name) for name in ("ask", "copy", "copied"))
                self.seconds["wait"] += max(0.0, there - max(end, asked))
                self.seconds["copy"] += max(0.0, copied - max(end, there))


class CudaClock(Clock):
    """Adds up the seconds of each phase, those of training by what the GPU did.

    The host runs ahead of the GPU, so that its own clock says nothing of a step. Events mark on
    the GPU where the work of a step begins and ends, and on the stream of copies, which runs
    beside it, where a batch was asked for, was there, and was copied. They are read when their
    time has come; only a checkpoint, an evaluation and the end of an epoch wait for the GPU, as
    they do in any case.

    Args:
        device: the GPU.
        now: returns seconds of the host.
        cuda: in the place of `torch.cuda`.
    """

    def __init__(
        self, device: torch.device, now: Callable[[], float] = perf_counter, cuda: Any = torch.cuda
    ) -> None:
        super().__init__(now)
        self._device = device
        self._cuda = cuda
        self._on_device = DeviceTimes()
        self._marks: list[tuple[str, Any]] = []
        self._spare: list[Any] = []
        self._base: tuple[Any, float] | None = None  # an event, and its time

    def _enter(self, phase: str) -> str:
        if phase == self._phase:
            return super()._enter(phase)
        if self._phase == "compute":
            self._mark("end", self._cuda.current_stream(self._device))
        if phase in ("eval", "checkpoint"):
            self._cuda.synchronize(self._device)  # what is still computed is no part of it
        previous = super()._enter(phase)
        if phase == "compute":
            self._mark("compute", self._cuda.current_stream(self._device))
        return previous

    def wait_begins(self, stream: Any) -> None:
        self._mark("ask", stream)

    def copy_begins(self, stream: Any) -> None:
        self._mark("copy", stream)

    def copy_ends(self, stream: Any) -> None:
        self._mark("copied", stream)

    def end_warmup(self) -> None:
        if self._is_cold:
            self._cuda.synchronize(self._device)
            super().end_warmup()

    def seconds(self) -> dict[str, float]:
        self._cuda.synchronize(self._device)
        self._read(len(self._marks))
        host = super().seconds()
        training = sum(host[name] for name in (*_ON_DEVICE, "other"))
        on_device = self._on_device.seconds
        # The two clocks may differ in the last digits.
        share = min(1.0, training / max(sum(on_device.values()), 1e-9))
        measured = {name: share * value for name, value in on_device.items()}
        return {**host, **measured, "other": training - sum(measured.values())}

    def start(self, seconds: dict[str, float] | None = None) -> None:
        self._cuda.synchronize(self._device)
        self._read(len(self._marks))
        super().start(seconds)
        self._on_device.seconds = {name: self._seconds[name] for name in _ON_DEVICE}

    def _mark(self, kind: str, stream: Any) -> None:
        if self._is_cold:
            return
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record(stream)
        self._marks.append((kind, event))
        if len(self._marks) % _PENDING == 0:
            self._read_what_is_past()

    def _read_what_is_past(self) -> None:
        # The work of a step comes after all that was marked before it, on either stream.
        half = self._marks[: len(self._marks) // 2]
        steps = [number for number, (kind, _) in enumerate(half) if kind == "compute"]
        if steps and self._marks[steps[-1]][1].query():
            self._read(steps[-1] + 1)

    def _read(self, count: int) -> None:
        """Take the times of the first marks, which have all come."""
        if count == 0:
            return
        base, base_s = self._base or (self._marks[0][1], 0.0)
        past = [event for _, event in self._marks[:count]]
        times_s = [base_s + base.elapsed_time(event) / 1000 for event in past]  # from ms
        for (kind, _), time_s in zip(self._marks[:count], times_s, strict=True):
            self._on_device.add(Mark(kind, time_s))
        # From a mark not far back, because a difference has 24 bits, and before all later ones.
        self._base = (past[0], times_s[0])
        self._spare += [event for event in (base, *past[1:]) if event is not past[0]]
        del self._marks[:count]
