"""Fresh processes one after the other, and what a signal does to the one at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from training.lifetime_sweep import process
from training.lifetime_sweep.process import FreshProcesses
from training.signals import Interrupted

SCRIPT = """
import os, signal, sys, time
print("begun", *sys.argv[1:], flush=True)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else 0)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A train.py that does what its arguments say."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setattr(process, "PROJECT", tmp_path)


def when(console: Path, text: str, act: Callable[[], object]) -> None:
    """Act once a process has printed a text."""

    def watch() -> None:
        while not console.exists() or text not in console.read_text():
            time.sleep(0.01)
        act()

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.usefixtures("script", "deadline")
def test_the_exit_code_is_returned_and_what_is_printed_is_kept(tmp_path: Path) -> None:
    with FreshProcesses() as run:
        assert run(["0", "lifetime=2"], tmp_path / "a") == 0
        assert run(["3"], tmp_path / "b") == 3

    assert (tmp_path / "a").read_text() == "begun 0 lifetime=2\n"
    assert (tmp_path / "b").read_text() == "begun 3\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent")
@pytest.mark.usefixtures("deadline")
def test_a_process_is_killed_with_its_parent(tmp_path: Path) -> None:
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    (tmp_path / "train.py").write_text(script)
    driver = (
        "from pathlib import Path; from training.lifetime_sweep import process; "
        f"process.PROJECT = Path({str(tmp_path)!r}); "
        f"process.FreshProcesses()([], Path({str(tmp_path / 'out')!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", driver], cwd=Path(__file__).parents[1])
    while not (tmp_path / "out").exists() or not (tmp_path / "out").read_text().endswith("\n"):
        time.sleep(0.01)
    child = int((tmp_path / "out").read_text())
    parent.kill()
    parent.wait()

    while Path(f"/proc/{child}").exists() and "(zombie)" not in _status(child):
        time.sleep(0.01)


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "(zombie)"


@pytest.mark.usefixtures("script", "deadline")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_process_and_no_further_one_begins(
    tmp_path: Path, signum: signal.Signals
) -> None:
    console = tmp_path / "console"
    when(console, "begun", lambda: os.kill(os.getpid(), signum))
    before = signal.getsignal(signum)
    with FreshProcesses() as run:
        with pytest.raises(Interrupted) as caught:
            run(["0", "wait"], console)
        assert caught.value.signum == signum
        with pytest.raises(Interrupted):
            run(["0"], tmp_path / "second")
    assert not (tmp_path / "second").exists()
    assert signal.getsignal(signum) is before


@pytest.mark.usefixtures("script", "deadline")
@pytest.mark.parametrize("patience_s", [60.0, 0.1])
def test_a_process_that_does_not_end_is_killed_by_a_second_signal_or_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(process, "_PATIENCE_S", patience_s)
    console = tmp_path / "console"

    def insist() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        if patience_s > 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGTERM)

    when(console, "ready", insist)
    with FreshProcesses() as run, pytest.raises(Interrupted):
        run(["0", "stubborn", "wait"], console)
