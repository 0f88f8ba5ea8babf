"""A process that is at work is told from one that has ended, and from a later one of its number."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from training.alive import is_alive, refuse_alive
from training.checks import ConfigError


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def status_of(pid: int, **changed: Any) -> dict[str, Any]:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    own = {"status": "running", "host": platform.node(), "pid": pid, "time": time}
    return own | changed


def test_a_process_at_work_is_alive(process: subprocess.Popen[bytes]) -> None:
    assert is_alive(status_of(process.pid))


@pytest.mark.parametrize(
    "changed", [{"status": "done"}, {"status": "interrupted"}, {"host": "elsewhere"}, {"pid": None}]
)
def test_what_has_ended_or_cannot_be_known_is_not(
    process: subprocess.Popen[bytes], changed: dict[str, Any]
) -> None:
    assert not is_alive(status_of(process.pid) | changed)


def test_this_process_is_no_other_one() -> None:
    assert not is_alive(status_of(os.getpid()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_later_process_of_the_same_number_is_another_one(
    process: subprocess.Popen[bytes],
) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    assert not is_alive(status_of(process.pid, time=long_ago.isoformat(timespec="seconds")))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_was_killed_and_not_waited_for_is_not_alive(
    process: subprocess.Popen[bytes],
) -> None:
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert not is_alive(status_of(process.pid))


def test_a_run_that_a_process_is_at_work_on_is_not_gone_on_with(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    refuse_alive(tmp_path)  # no run: others say so
    (tmp_path / "status.json").write_text(json.dumps(status_of(process.pid)))
    pattern = rf"^resume must be a run that nobody is at work on, .* process {process.pid} still is"
    with pytest.raises(ConfigError, match=pattern):
        refuse_alive(tmp_path)
    process.kill()
    process.wait()
    refuse_alive(tmp_path)
