"""A full disk ends a run with one line, and with all that was saved before."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from test_checkpoint import content_of

from training.checkpoint import read_newest, write_checkpoint
from training.disk import UnsavedError, writing
from training.options import TrackerConfig
from training.tracking import Trackers


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Let no file grow further than that: writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without times, and without what was found stored."""
    counts = ("built", "reused")
    return [{k: v for k, v in row.items() if k not in counts} for row in runs.without_times(rows)]


class CannotBePickled:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before_and_nothing_else(
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path / "last.pt", content_of(1))
    with largest_file(50_000), pytest.raises(OSError) as raised:
        write_checkpoint(tmp_path / "last.pt", content_of(2, size=100_000))

    assert (errno.EFBIG, str(tmp_path / "last.pt")) == (raised.value.errno, raised.value.filename)
    assert os.listdir(tmp_path) == ["last.pt"]
    assert read_newest(tmp_path, tmp_path).content["step"] == 1


def test_what_is_no_matter_of_the_disk_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_checkpoint(tmp_path / "last.pt", {"loader": None, "model": CannotBePickled()})

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("saved", [False, True])
def test_the_line_says_what_stays(tmp_path: Path, saved: bool) -> None:
    if saved:
        (tmp_path / "last.pt").touch()
    with pytest.raises(UnsavedError) as raised, writing(Path("run"), tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/checkpoints/last.pt")

    rest = "; what was saved before is whole, and resume=run goes on from there" if saved else ""
    assert f"run cannot be written: No space left on device{rest}" == str(raised.value)


def test_a_run_that_finds_no_room_for_a_checkpoint_ends_and_goes_on_from_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = runs.train(tmp_path / "whole")
    save, steps = torch.save, []

    def fill_up(content: Any, file: Any) -> None:
        steps.append(content["step"])
        if content["step"] <= 4:
            save(content, file)
        else:
            file.write(bytes(1000))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", fill_up)
    with pytest.raises(UnsavedError, match="No space left on device; what was saved before"):
        runs.train(tmp_path / "run")
    assert 8 in steps
    ended = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (ended["status"], "No space left on device" in ended["error"]) == ("failed", True)
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["best.pt", "last.pt"]
    monkeypatch.undo()

    rows = runs.resume(tmp_path / "run")

    assert measured(whole) == measured(rows)


@pytest.mark.parametrize("name", ["metrics.csv", "status.json.tmp", "train.log"])
def test_no_file_of_a_run_breaks_it_otherwise_than_by_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, which is a full disk")
    said: Any = None
    with runs.begin(tmp_path) as run:
        model, loaders, device = runs.prepare(run)
        path = tmp_path / name
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/full")
        if name == "train.log":
            runs.fit(run, model, loaders, device)  # goes on without
        elif name == "metrics.csv":
            with pytest.raises(UnsavedError, match=r"cannot be written: No space left") as said:
                runs.fit(run, model, loaders, device)
        path.unlink()

    if name == "train.log":
        assert capsys.readouterr().err.count("train.log cannot be written") == 1
    if name == "metrics.csv":
        assert "\n" not in str(said.value)


def test_a_status_that_finds_no_room_does_not_hide_what_ended_the_run(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, which is a full disk")
    with pytest.raises(ZeroDivisionError), runs.begin(tmp_path) as run:
        (run.directory / "status.json.tmp").symlink_to("/dev/full")
        raise ZeroDivisionError


def test_a_full_disk_under_event_files_costs_them_one_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a run before this test left writes to a file, too, and one that is long already.
    monkeypatch.setattr(logging.getLogger("training"), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    with largest_file(2000), Trackers.of(tmp_path, TrackerConfig(tensorboard=True)) as trackers:
        for step in range(200):
            trackers.scalars({"train/loss": 0.5, "train/lr": 0.1}, step)
            if step % 10 == 0:
                trackers.flush()

    (message,) = caplog.messages
    assert message.startswith("tensorboard failed and is left out from here on: ")
    assert capfd.readouterr().err == ""
