"""Signals that ask a run to end: it finishes its step first, so that nothing is lost."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
Agree = Callable[[int | None], int | None]

_ECHO_S = 5.0  # torchrun passes a signal on to ranks that may have got it themselves

ASKING_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""CTRL-C, a preempted job, and what SLURM sends before a time limit (`--signal=USR1@60`)."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_parent: int | None = None  # that this process is to end with

FROM_A_LAUNCHER = signal.SIGUSR2
"""What submitit has SLURM send; without a handler of its own this one still ends the process."""

_NOT_FOR_WORKERS = (*ASKING_TO_END, FROM_A_LAUNCHER)


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to end.

    Attributes:
        signum: which one.
        run: folder of a run that can be continued, or None.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.run: Path | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Interrupted, (self.signum,)  # for the processes that run the jobs of a sweep


class Signals:
    """Takes note of the first signal; the second one ends the process at once.

    Args:
        at_once: called before the process ends on a second signal.
        agree: with several ranks, called at each step on all of them with the signal of this one,
            or None; returns the signal for which all of them stop here.
    """

    def __init__(self, at_once: Callable[[], None], agree: Agree | None = None) -> None:
        self._at_once = at_once
        self._agree = agree
        self._received: int | None = None
        self._pid = os.getpid()
        self._received_at = 0.0
        self._is_waiting = False
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Take the place of the present handlers."""
        if threading.current_thread() is threading.main_thread():
            asking = [*ASKING_TO_END]
            if callable(signal.getsignal(FROM_A_LAUNCHER)):
                asking.append(FROM_A_LAUNCHER)
            self._previous = {n: signal.signal(n, self._receive) for n in asking}

    def restore(self) -> None:
        """Give the handlers before `install` their place back."""
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous = {}

    def between(self, items: Iterable[T], can_stop_waiting: bool, every: int = 1) -> Iterator[T]:
        """Yield items, and raise where a signal came, before the first and after some of them.

        Args:
            items: what the loop takes.
            can_stop_waiting: whether waiting for an item may be broken off as well: the items
                are made by other processes.
            every: number of items after which the loop can be continued from its state.

        Raises:
            Interrupted: a signal came.
        """
        iterator = iter(items)
        count = 0
        while True:
            if count % every == 0:
                self._check()
                self._is_waiting = can_stop_waiting and self._agree is None
            try:
                self._check_waiting()
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._is_waiting = False
            yield item
            count += 1

    def _check(self) -> None:
        received = self._received if self._agree is None else self._agree(self._received)
        if received is not None:
            raise Interrupted(received)

    def _check_waiting(self) -> None:
        if self._is_waiting:  # a signal between the two lines before was only noted
            self._check()

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a worker that does not ignore it yet
            os._exit(128 + signum)
        if self._received is not None:
            if self._agree is not None and time.monotonic() < self._received_at + _ECHO_S:
                return
            end_children()
            with suppress(Exception):
                self._at_once()
                sys.stdout.flush()
            os._exit(128 + signum)
        self._received, self._received_at = signum, time.monotonic()
        if self._is_waiting:
            self._is_waiting = False
            raise Interrupted(signum)


def end_children() -> None:
    """End the processes that prepare input, wherever they are in it: no file is left half."""
    _kill(active_children())


def end_workers() -> None:
    """End the processes of loaders, wherever they are in preparing input."""
    _kill([child for child in active_children() if child.daemon])


# Before multiprocessing's own exit, which asks workers to end by a signal that they ignore, and
# then waits for them.
Finalize(None, end_workers, exitpriority=10)


def _kill(children: list[BaseProcess]) -> None:
    # torch's own handler would report each of them as an error, in the middle of anything.
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in children:
        with suppress(ProcessLookupError):  # those of a launcher's have no kill()
            if child.pid is not None:
                os.kill(child.pid, signal.SIGKILL)
    for child in children:
        child.join()
    signal.signal(signal.SIGCHLD, previous)


def end_with_parent() -> None:
    """Let this process be asked to end when its parent has ended, in whatever way.

    Nothing else would end the ranks of a torchrun that was killed: they need no word of it to go
    on training.
    """
    global _parent
    _parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if is_left_alone():  # between the two lines before
            os.kill(os.getpid(), signal.SIGTERM)


def is_left_alone() -> bool:
    """Say whether the parent has ended that this process is to end with."""
    return _parent not in (None, os.getppid())


def killed_with_parent() -> Callable[[], None] | None:
    """Return what a process is to begin with to be killed when its parent ends; None where none."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork, after which little is safe
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _do_nothing(signum: int, frame: FrameType | None) -> None:
    """Take the place of SIG_IGN, which programs that a build starts would inherit."""


@contextmanager
def withheld_from_children() -> Iterator[None]:
    """Let processes that are started in the block get no signal that asks to end, until they ask.

    `leave_to_parent` would come too late for those that are seconds at their imports. What this
    process itself gets in the block, it gets at its end.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_WORKERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent(_: int) -> None:
    """Let a worker end with its parent, which alone is to act on signals to the whole group."""
    for signum in _NOT_FOR_WORKERS:
        signal.signal(signum, _do_nothing)
    if hasattr(signal, "pthread_sigmask"):  # they were withheld from it until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_FOR_WORKERS)
    # After a kill of the parent a worker might wait forever for room in the pipe to it, and keep
    # open what tells others, such as joblib, that the parent is gone.
    if (begin := killed_with_parent()) is not None:
        begin()
