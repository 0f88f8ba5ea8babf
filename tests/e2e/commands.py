"""Whole commands: in this process where that is enough, in one of their own where it is not."""

from __future__ import annotations

import csv
import json
import os
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from training.rows import is_time

PROJECT = Path(__file__).resolve().parents[2]
SMALL = [
    *("data.train.limit=64", "data.val.limit=20", "epochs=3", "num_workers=0", "tracker=csv"),
    "report.enabled=false",
]
QUICK = (
    *("augment=randaugment", "batch_size=16", "model.width=4", "lifetime=3"),
    *("trainer.mixup_alpha=0.4", "trainer.ema_decay=0.9"),
)
"""Four updates an epoch, three epochs: every part of the state takes part."""


@dataclass
class Outcome:
    """What a command left: its exit code, what it printed, and its run folders in order."""

    code: int
    out: str
    err: str
    runs: list[Path]

    @property
    def run(self) -> Path:
        (run,) = self.runs
        return run


class Trainer:
    """Runs train.py in a folder, where its outputs go."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self._before: set[Path] = set()
        self._started: list[subprocess.Popen[str]] = []

    def here(self, *arguments: str, small: bool = True) -> Outcome:
        """Run in this process, which saves the imports."""
        argv, cwd, path = sys.argv, os.getcwd(), list(sys.path)
        sys.argv = ["train.py", *_with_defaults(arguments, small)]
        os.chdir(self.folder)
        code = 0
        try:
            runpy.run_path(str(PROJECT / "train.py"), run_name="__main__")
        except SystemExit as error:
            code = int(error.code or 0)
        finally:
            sys.argv, sys.path[:] = argv, path
            os.chdir(cwd)
        out, err = self._capsys.readouterr()
        return Outcome(code, out, err, self.new_runs())

    def start(self, *arguments: str, small: bool = True, **variables: str) -> subprocess.Popen[str]:
        """Start a process of its own, in a process group of its own, with more variables set."""
        # All warnings are errors, but torch's that four workers are many for this machine.
        ignore = "ignore:This DataLoader will create:UserWarning"
        command = [sys.executable, "-W", "error", "-W", ignore, str(PROJECT / "train.py")]
        process = subprocess.Popen(
            [*command, *_with_defaults(arguments, small)],
            cwd=self.folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End what a test that failed has left running."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()

    def apart(self, *arguments: str, small: bool = True) -> Outcome:
        """Run in a process of its own, and wait for it."""
        process = self.start(*arguments, small=small)
        out, err = process.communicate(timeout=280)
        return Outcome(process.returncode, out, err, self.new_runs())

    def resume(self, run: Path, *overrides: str) -> Outcome:
        """Go on with a run, in this process."""
        return self.here(f"resume={run}", *overrides, small=False)

    def new_runs(self) -> list[Path]:
        """Return the folders of runs that were not there when this was last asked."""
        files = self.folder.rglob("overrides")  # of a sweep, without what it has put aside
        runs = {file.parent for file in files if ".sweep" not in file.parts} - self._before
        self._before |= runs
        return sorted(runs)


def status(run: Path) -> dict[str, Any]:
    """Return what a run says of itself."""
    content: dict[str, Any] = json.loads((run / "status.json").read_text())
    return content


def metrics(run: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv."""
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def without_times(run: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv, without what differs from run to run."""
    return [{k: v for k, v in row.items() if not is_time(k)} for row in metrics(run)]


def results(run: Path) -> list[dict[str, str]]:
    """Return what was measured; what was built and what was found is not part of it."""
    counts = ("built", "reused")
    return [{k: v for k, v in row.items() if k not in counts} for row in without_times(run)]


def _with_defaults(arguments: tuple[str, ...], small: bool) -> list[str]:
    return [*(SMALL if small else []), *arguments]
