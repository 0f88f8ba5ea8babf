"""A job of a sweep: its device, its start method, and the signal that its launcher waits for."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from training import job as module
from training.checks import ConfigError
from training.job import _pass_on, _restore_start_method
from training.signals import Interrupted
from training.sweeps import Failure, JobError, failures, start


def test_a_failure_survives_the_way_between_processes() -> None:
    again = pickle.loads(pickle.dumps(JobError("job 1 (a=1) failed: it was bad")))
    assert (type(again), str(again)) == (JobError, "job 1 (a=1) failed: it was bad")


def test_a_job_that_fails_is_noted_in_the_folder_of_the_sweep_however_deep_its_own_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").touch()
    start(tmp_path / "sweep", tmp_path / "conf")
    own = tmp_path / "sweep" / "seed0" / "lifetime0"
    own.mkdir(parents=True)
    hydra = OmegaConf.create(
        {"runtime": {"output_dir": str(own)}, "job": {"num": 3}, "overrides": {"task": ["a=1"]}}
    )
    monkeypatch.setattr(module.HydraConfig, "get", lambda: hydra)

    def refuse(_: Any) -> None:
        raise ConfigError("a must be 2, but got a=1")

    monkeypatch.setattr(module, "refuse_lifetimes", refuse)
    with pytest.raises(JobError):
        module._run_job(lambda _: 0.0, OmegaConf.create())
    expected = Failure(job="3", overrides=["a=1"], error="a must be 2, but got a=1")
    assert failures(tmp_path / "sweep") == [expected]


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
