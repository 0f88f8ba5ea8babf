"""The first signal lets a step end, the second one does not wait."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from training.signals import (
    ASKING_TO_END,
    Interrupted,
    Signals,
    end_children,
    end_with_parent,
    is_left_alone,
    leave_to_parent,
    withheld_from_children,
)
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

    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background
    signals.install()
    try:
        with pytest.raises(Interrupted, match="SIGTERM"):
            list(signals.between(items(), can_stop_waiting=True))
    finally:
        signals.restore()
    assert signal.getsignal(signal.SIGINT) is before


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


def worker_of(number: Any) -> None:
    """Start a worker that waits forever, and wait with it."""
    worker = fork.Process(target=wait_as_worker, args=(number,))
    worker.start()
    worker.join()


def wait_as_worker(number: Any) -> None:
    leave_to_parent(0)
    number.value = os.getpid()
    time.sleep(600)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_worker_ends_when_its_parent_is_killed() -> None:
    number = fork.Value("q", 0)
    parent = fork.Process(target=worker_of, args=(number,))
    parent.start()
    while not number.value:
        time.sleep(0.01)
    for signum in (*ASKING_TO_END, signal.SIGUSR2):
        os.kill(number.value, signum)  # left to the parent
    time.sleep(0.1)
    os.kill(number.value, 0)
    parent.kill()
    parent.join()
    while os.path.exists(f"/proc/{number.value}") and state_of(number.value) != "Z":
        time.sleep(0.01)  # until the test's own limit


def ask_as_worker(blocked: Any) -> None:
    """Say what a program that a worker starts does on the signals."""
    with withheld_from_children():
        leave_to_parent(0)
    leave_to_parent(0)
    program = (
        "import signal\n"
        "print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])), sep=',')\n"
        "print([signal.getsignal(n) for n in (2, 10, 12, 15)])"
    )
    asked = [sys.executable, "-c", program]
    blocked.value = subprocess.run(asked, stdout=subprocess.PIPE, check=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="by numbers of Linux")
def test_a_program_that_a_worker_starts_can_be_asked_to_end() -> None:
    said = fork.Array("c", 500)
    worker = fork.Process(target=ask_as_worker, args=(said,))
    worker.start()
    worker.join()
    blocked, actions = said.value.decode().splitlines()
    assert blocked == ""
    assert "IGN" not in actions and "SIG_DFL" in actions


def launch_rank(number: Any, said: Any, folder: Path) -> None:
    """Start a rank as torchrun does, and wait with it."""
    rank = fork.Process(target=step_as_rank, args=(number, said, folder))
    rank.start()
    rank.join()


def step_as_rank(number: Any, said: Any, folder: Path) -> None:
    end_with_parent()
    assert not is_left_alone()
    number.value = os.getpid()
    step_forever(said, folder, 0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_rank_ends_its_step_and_then_itself_when_torchrun_is_killed(tmp_path: Path) -> None:
    number, said = fork.Value("q", 0), fork.Event()
    launcher = fork.Process(target=launch_rank, args=(number, said, tmp_path))
    launcher.start()
    assert said.wait(30)
    launcher.kill()
    launcher.join()
    while os.path.exists(f"/proc/{number.value}") and state_of(number.value) != "Z":
        time.sleep(0.01)  # until the test's own limit
    assert (tmp_path / "saved").read_text() == "1"


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_signal_of_a_launcher_is_taken_where_the_launcher_waits_for_it() -> None:
    seen = []
    previous = signal.signal(signal.SIGUSR2, lambda *_: seen.append("launcher"))
    try:
        signals = Signals(at_once=lambda: None)
        signals.install()
        os.kill(os.getpid(), signal.SIGUSR2)
        with pytest.raises(Interrupted, match="SIGUSR2"):
            list(signals.between([1], can_stop_waiting=False))
        signals.restore()
        assert seen == []
        os.kill(os.getpid(), signal.SIGUSR2)
        assert seen == ["launcher"]
    finally:
        signal.signal(signal.SIGUSR2, previous)
    signals.install()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL  # it ends the process, as ever
    signals.restore()


def test_an_interruption_survives_the_way_between_processes() -> None:
    again = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM)))
    assert (again.signum, str(again)) == (signal.SIGTERM, "SIGTERM")
