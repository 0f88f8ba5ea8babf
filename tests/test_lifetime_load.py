"""What other programs take of the processors is told from what this one and its children take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from training.lifetime_sweep import load
from training.lifetime_sweep.load import Others


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc/stat of a test's own, on a machine of two cores on which ten seconds pass."""
    file = tmp_path / "stat"
    file.write_text("cpu  100 0 50 9000 7 0 0 0 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(load, "_STAT", file)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    times = iter([0.0, 10.0, 10.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    monkeypatch.setattr(load, "_own_s", lambda: 5.0)
    return file


def test_what_others_take_is_a_share_of_all_cores(
    stat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Others()
    # 600 + 100 + 100 ticks, 8 s of work; waiting for a disk (99) is none. 5 s are our own.
    stat.write_text("cpu  700 0 150 9900 106 0 100 0 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(load, "_own_s", lambda: 10.0)

    assert others.share() == pytest.approx(3.0 / 20.0)


def test_rounding_makes_no_negative_share(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others()
    monkeypatch.setattr(load, "_own_s", lambda: 5.1)
    assert others.share() == 0.0


def test_without_such_a_file_nothing_is_known(stat: Path) -> None:
    stat.unlink()
    assert Others().share() is None


def test_a_process_that_was_waited_for_counts_as_its_own() -> None:
    before_s = load._own_s()
    code = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert load._own_s() - before_s >= 0.2
