"""A sweep around its jobs: what they are composed from, where each one works, how they ended.

The folder of a sweep holds a folder for each job, and `.sweep`: the files of conf/ as they were
before the first job, which jobs failed and why, and runs that later ones took the place of. A sweep
that is started again in its folder looks there for what is done.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reuseloader.folder import FolderInUseError, close_folder, open_folder
from training.alive import is_alive
from training.checks import ConfigError
from training.metrics import monitored
from training.options import MONITORS
from training.state import Best
from training.tables import in_numbers, read_metrics

_STARTED = Path(".sweep", "started")
_CONF = Path(".sweep", "conf")
_FAILED = Path(".sweep", "failed")
_EARLIER = Path(".sweep", "earlier")

OF_LIFETIMES = Path(".sweep", "config.yaml")
"""What a sweep over lifetimes writes down of its runs, and one by -m does not."""


class JobError(RuntimeError):
    """A job of a sweep failed, and has said why."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A job that failed: its number or folder, what was typed for it, and why."""

    job: str
    overrides: list[str]
    error: str


@contextmanager
def hold(sweep: Path, key: str = "hydra.sweep.dir") -> Iterator[None]:
    """Keep other sweeps out of a folder until the block ends, or the process in whatever way.

    The lock is the system's, on the folder itself; where there is none, a warning says so. Nothing
    is left of a folder in which the block wrote nothing before an error.

    Args:
        sweep: the folder; made where it is not there.
        key: that names the folder in the config.

    Raises:
        ConfigError: the folder cannot be written, or another sweep is at work in it.
    """
    try:
        lock = open_folder(sweep)
    except FolderInUseError as error:
        who = f"process {error.holders[0]}" if error.holders else "one"
        raise ConfigError(
            f"{key} must be used by one sweep at a time, but {who} is at work in {sweep}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{key} must be a folder that can be made: {error.__cause__}") from error
    try:
        yield
    except Exception:
        with suppress(OSError):
            sweep.rmdir()
        raise
    finally:
        if lock is not None:
            close_folder(lock)


def start(sweep: Path, conf: Path, key: str = "hydra.sweep.dir") -> Path:
    """Begin a sweep in a folder that is held, and may hold what an earlier start of it has done.

    Args:
        sweep: the folder.
        conf: the files that the jobs are composed from.
        key: that names the folder in the config.

    Returns:
        A copy of `conf`: what is edited from now on changes no job that is still waiting.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        copy = _snapshot(conf, sweep / _CONF)
        shutil.rmtree(sweep / _FAILED, ignore_errors=True)
        (sweep / _FAILED).mkdir()
        (sweep / _STARTED).write_text("The time of this file is when the sweep was started.\n")
    except OSError as error:
        raise ConfigError(f"{key} must be a folder that can be made: {error}") from error
    return copy


def _snapshot(source: Path, target: Path) -> Path:
    """Copy the YAML files of a folder to a new one, or to one that holds just these."""
    files = {
        path.relative_to(source): path.read_bytes()
        for path in source.rglob("*.yaml")
        if path.is_file()
    }
    number = 0
    while True:
        number += 1
        copy = target.with_name(f"{target.name}-{number}")
        if not copy.exists():
            break
        if files == {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*.yaml")}:
            return copy
    for name, content in files.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    return copy


def find_done(own: Path, config: str) -> Path | None:
    """Return the folder in which a job was done before; None where it was not.

    Args:
        own: the job's folder, by its number; the others lie beside it.
        config: digest of the job's config, which tells it from all others.
    """
    for folder, status in _runs(own):
        if status["status"] == "done" and status.get("config") == config:
            return folder
    return None


def place(own: Path, config: str, overrides: list[str]) -> tuple[Path, bool]:
    """Return the folder in which a job works, and whether the run in it goes on.

    A run of the same config that did not end goes on from its checkpoint. One that has none, or
    that failed, or one of the same overrides and another config, makes room; all others stay.

    Args:
        own: the job's folder, by its number.
        config: digest of the job's config.
        overrides: what was typed for the job.

    Raises:
        ConfigError: another process is at work on this job.
    """
    for folder, status in _runs(own):
        same = status.get("config") == config
        if not same and _overrides(folder) != overrides:
            continue
        if is_alive(status):
            raise ConfigError(
                f"hydra.sweep.dir must be used by one sweep at a time, but process "
                f"{status['pid']} is at work in {folder}"
            )
        if same and status["status"] in ("interrupted", "running") and _can_go_on(folder):
            return folder, True
        put_aside(folder)
    return free(own), False


def free(own: Path) -> Path:
    """Return the job's folder, or a name like it where that holds a run."""
    folder, number = own, 1
    while any((folder / name).exists() for name in ("config.yaml", "status.json")):
        number += 1
        folder = own.with_name(f"{own.name}-{number}")
    return folder


def sweep_of(own: Path) -> Path:
    """Return the folder of the sweep that a job's folder lies in, however deep."""
    started = (parent for parent in own.parents if (parent / _STARTED).exists())
    return next(started, own.parent)


def _runs(own: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return what earlier starts of the sweep left, the job's own folder first.

    What this start of the sweep has written elsewhere is another job's.
    """
    found = _statuses(sweep_of(own))
    mine = [(folder, status) for folder, status, _ in found if folder == own]
    return mine + [
        (folder, status) for folder, status, is_new in found if not is_new and folder != own
    ]


def _statuses(sweep: Path) -> list[tuple[Path, dict[str, Any], bool]]:
    """Return each run's folder, its status, and whether that was written since the start."""
    try:
        started = (sweep / _STARTED).stat().st_mtime_ns
    except OSError:  # no sweep that was started by this program
        started = 0
    found = []
    for file in _status_files(sweep):
        with suppress(OSError, ValueError):
            status = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(status, dict) and "status" in status:
                found.append((file.parent, status, file.stat().st_mtime_ns >= started))
    return found


def _status_files(sweep: Path) -> list[Path]:
    """Return the file of each run in a sweep; hydra.sweep.subdir may be several folders deep."""
    found = []
    for place, folders, files in os.walk(sweep):
        if "status.json" in files and Path(place) != sweep:
            found.append(Path(place, "status.json"))
            folders.clear()  # stored samples may be many
        if _FAILED.parts[0] in folders:
            folders.remove(_FAILED.parts[0])
    return sorted(found)


def _overrides(folder: Path) -> list[str]:
    try:
        return (folder / "overrides").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _can_go_on(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("*.pt"))


def put_aside(folder: Path) -> None:
    """Move a run out of the way of another one; nothing of it is lost."""
    sweep = sweep_of(folder)
    earlier, name = sweep / _EARLIER, "-".join(folder.relative_to(sweep).parts)
    earlier.mkdir(parents=True, exist_ok=True)
    number = 1
    while (earlier / f"{name}-{number}").exists():
        number += 1
    folder.rename(earlier / f"{name}-{number}")


def best_value(run: Path, monitor: str) -> float:
    """Return the best value of a column of a run's metrics.csv, as the run itself returned it.

    NaN is never the best, nor is an evaluation whose loss is NaN; where all are, the worst value
    there is: -inf of an accuracy, inf of a loss.
    """
    best = Best.of(monitor)
    for row in map(in_numbers, read_metrics(run)):
        if row.get(monitor) is not None:
            values = {name: math.nan if row.get(name) is None else row[name] for name in MONITORS}
            best.update(monitored(values, monitor), int(row["epoch"] or 0))
    return best.value


def note_failure(sweep: Path, failure: Failure) -> None:
    """Write down that a job failed."""
    with suppress(OSError):  # the disk may be what is wrong
        folder = sweep / _FAILED
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{failure.job}.json").write_text(json.dumps(vars(failure)), encoding="utf-8")


def forget_failure(sweep: Path, job: str) -> None:
    """Forget that a job failed: it is tried again."""
    (sweep / _FAILED / f"{job}.json").unlink(missing_ok=True)


def failures(sweep: Path) -> list[Failure]:
    """Return the jobs that failed since the sweep was started, or whose process ended midway."""
    files = sorted((sweep / _FAILED).glob("*.json"))
    found = [Failure(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
    for folder, status, is_new in _statuses(sweep):
        if is_new and status["status"] == "running":
            text, name = "its process ended before the job did", str(folder.relative_to(sweep))
            found.append(Failure(job=name, overrides=_overrides(folder), error=text))
    return sorted(found, key=lambda failure: (len(failure.job), failure.job))
