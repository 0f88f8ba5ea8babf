"""A job of a sweep: its device, its start method, and the signal that its launcher waits for."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from typing import Any

import pytest

from training import job as module
from training.job import _pass_on, _restore_start_method
from training.signals import Interrupted
from training.sweeps import JobError


def test_a_failure_survives_the_way_between_processes() -> None:
    again = pickle.loads(pickle.dumps(JobError("job 1 (a=1) failed: it was bad")))
    assert (type(again), str(again)) == (JobError, "job 1 (a=1) failed: it was bad")


def test_a_start_method_of_a_launchers_own_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    own = {"get_start_method": lambda: "loky", "set_start_method": lambda *a, **k: chosen.append(a)}
    for name, function in own.items():
        monkeypatch.setattr(module.multiprocessing, name, function)
    _restore_start_method()
    assert chosen == [(multiprocessing.get_all_start_methods()[0],)]
    for method in multiprocessing.get_all_start_methods():
        monkeypatch.setattr(module.multiprocessing, "get_start_method", lambda m=method: m)
        _restore_start_method()
    assert len(chosen) == 1


def test_a_signal_is_handed_to_the_launcher_that_waits_for_it() -> None:
    seen: list[tuple[int, Any]] = []
    previous = signal.signal(signal.SIGUSR2, lambda *received: seen.append(received))
    try:
        _pass_on(Interrupted(signal.SIGUSR2))
        assert seen == [(signal.SIGUSR2, None)]
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        _pass_on(Interrupted(signal.SIGUSR2))
        _pass_on(Interrupted(signal.SIGINT))  # Python's own handler says nothing new
        assert len(seen) == 1
    finally:
        signal.signal(signal.SIGUSR2, previous)
