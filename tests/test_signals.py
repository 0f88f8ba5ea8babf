"""The first signal lets a step end, the second one does not wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from training.signals import ASKING_TO_END, Interrupted, Signals, end_children
from training.targets import PROJECT

fork = get_context("fork")


def step_forever(said: Any, folder: Path, step_s: float) -> None:
    """Work as a run does, in steps of so long."""
    signals = Signals(at_once=lambda: (folder / "at_once").touch())
    signals.install()
    done = 0
    try:
        for done in signals.between(range(10**9), can_stop_waiting=False):
            if done == 0:
                said.set()
            end = time.monotonic() + step_s
            while time.monotonic() < end:
                time.sleep(0.001)
            (folder / "done").write_text(str(done + 1))
    except Interrupted as interruption:
        (folder / "saved").write_text((folder / "done").read_text())
        os._exit(128 + interruption.signum)


@pytest.fixture
def start(tmp_path: Path) -> Any:
    processes = []

    def start_one(step_s: float) -> Any:
        said = fork.Event()
        process = fork.Process(target=step_forever, args=(said, tmp_path, step_s))
        processes.append(process)
        process.start()
        assert said.wait(30)
        return process

    yield start_one
    for process in processes:
        process.kill()
        process.join()


@pytest.mark.parametrize("signum", ASKING_TO_END)
def test_a_signal_lets_the_step_end(start: Callable[..., Any], tmp_path: Path, signum: int) -> None:
    process = start(0.2)
    os.kill(process.pid, signum)
    process.join(30)
    assert process.exitcode == 128 + signum
    assert (tmp_path / "saved").read_text() == "1"


def test_a_second_signal_does_not_wait(start: Callable[..., Any], tmp_path: Path) -> None:
    process = start(10_000)
    os.kill(process.pid, signal.SIGTERM)
    process.join(0.3)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    process.join(30)
    assert process.exitcode == 130
    assert (tmp_path / "at_once").exists()


def test_waiting_for_input_is_broken_off() -> None:
    signals = Signals(at_once=lambda: None)

    def items() -> Any:
        yield 1
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    signals.install()
    try:
        with pytest.raises(Interrupted, match="SIGTERM"):
            list(signals.between(items(), can_stop_waiting=True))
    finally:
        signals.restore()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_waits_for_a_place_to_go_on_from() -> None:
    signals = Signals(at_once=lambda: None)
    signals.install()
    seen = []
    try:
        with pytest.raises(Interrupted):
            for item in signals.between(range(9), can_stop_waiting=True, every=3):
                seen.append(item)
                if item == 3:
                    os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signals.restore()
    assert seen == [0, 1, 2, 3, 4, 5]


def test_children_end_at_once_and_report_nothing() -> None:
    process = fork.Process(target=time.sleep, args=(600,))
    process.start()
    end_children()
    assert process.exitcode == -signal.SIGKILL


def test_a_program_ends_while_its_workers_ignore_the_signal_that_asks_them_to() -> None:
    program = (
        "from torch.utils.data import DataLoader\n"
        "from training.signals import leave_to_parent\n"
        "loader = DataLoader(range(9), num_workers=2, worker_init_fn=leave_to_parent,\n"
        "                    persistent_workers=True)\n"
        "batches = iter(loader)\n"
        "assert int(next(batches)) == 0\n"
        "kept = [batches]\n"
        "kept.append(kept)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=PROJECT, timeout=60, check=True)


def test_a_forked_worker_that_gets_the_signal_too_early_ends_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    signals = Signals(at_once=lambda: None)

    def wait() -> None:  # as in `between`, while workers are started
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    signals.install()
    try:
        signals._is_waiting = True
        process = fork.Process(target=wait)
        process.start()
        process.join(30)
    finally:
        signals.restore()
    assert process.exitcode == 130
    assert capfd.readouterr().err == ""
