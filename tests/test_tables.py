"""What is read from a run's files, whatever has happened to them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from training.tables import earlier_sessions

FIRST = ["2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00"]
KILLED = ["2026-01-02T00:00:00+00:00", None]


def run(folder: Path, sessions: Any, **written_at: int) -> Path:
    """Write down sessions; `written_at` is when files were last written, seconds of 1970."""
    (folder / "checkpoints").mkdir()
    content = {"status": "running"} | ({} if sessions is None else {"sessions": sessions})
    (folder / "status.json").write_text(json.dumps(content))
    os.utime(folder / "status.json", (0, 0))
    for name, time in written_at.items():
        file = folder / {"metrics": "metrics.csv", "last": "checkpoints/last.pt"}[name]
        file.touch()
        os.utime(file, (time, time))
    return folder


@pytest.mark.parametrize(
    ("written", "end"),
    [
        ({"metrics": 1_000_000_000, "last": 1_000_000_010}, "2001-09-09T01:46:50+00:00"),
        ({"metrics": 1_000_000_020, "last": 1_000_000_010}, "2001-09-09T01:47:00+00:00"),
        ({}, "1970-01-01T00:00:00+00:00"),  # no epoch ended
    ],
)
def test_a_process_that_was_killed_worked_until_it_last_wrote(
    tmp_path: Path, written: dict[str, int], end: str
) -> None:
    sessions = earlier_sessions(run(tmp_path, [FIRST, KILLED], **written))
    assert sessions == [FIRST, [KILLED[0], end]]


@pytest.mark.parametrize("sessions", [[FIRST], [], None])
def test_what_ended_by_itself_stays(tmp_path: Path, sessions: Any) -> None:
    assert earlier_sessions(run(tmp_path, sessions, metrics=5)) == (sessions or [])
