"""Whether the process that a status names is still alive, and at work on a run."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from pathlib import Path
from typing import Any

from reuseloader.folder import process_stat
from training.checks import ConfigError
from training.tables import read_json

_SLACK_S = 5.0  # a status has whole seconds, and so has the time of the boot


def is_alive(status: dict[str, Any]) -> bool:
    """Say whether the process that wrote a status is at work, on this machine as another one.

    Args:
        status: what it says it does, with its `host`, `pid` and the `time` of the writing.
    """
    if status.get("status") != "running" or status.get("host") != platform.node():
        return False
    pid = status.get("pid")
    if not isinstance(pid, int) or pid <= 0 or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        pass
    except OSError:
        return False
    return not _is_another(pid, status.get("time"))


def refuse_alive(run: Path) -> None:
    """Make sure that no other process works on a run that is to go on.

    Raises:
        ConfigError: one does.
    """
    status = read_json(run / "status.json")
    if is_alive(status):
        raise ConfigError(
            f"resume must be a run that nobody is at work on, but got resume={run}, where process "
            f"{status['pid']} still is; wait until it ends, or end it by kill {status['pid']}"
        )


def _is_another(pid: int, written: Any) -> bool:
    """Say whether a number is a later process's, or one's that has ended and waits to be read."""
    try:
        words = process_stat(pid)
        lines = Path("/proc/stat").read_text().splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        started = booted + int(words[19]) / os.sysconf("SC_CLK_TCK")
        written_at = datetime.fromisoformat(written).timestamp()
    except (OSError, ValueError, TypeError, StopIteration):  # no Linux, or no time
        return False
    return words[0] == "Z" or started > written_at + _SLACK_S
