"""What is written down of a sweep over lifetimes, so that it can be reported and gone on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from training.alive import is_alive
from training.checks import ConfigError
from training.lifetime_sweep.plan import (
    SECTIONS,
    Job,
    about,
    epochs_in,
    first_jobs,
    sections_of,
    shortest,
    wall_time_jobs,
)
from training.options import SweepConfig
from training.recorded import changes
from training.report.history import History, is_run, read_history
from training.report.plan import NOT_RUN, PLAN
from training.resolved import NOT_OF_THE_RUN
from training.sweeps import OF_LIFETIMES, put_aside
from training.tables import read_json


@dataclass(kw_only=True)
class Book:
    """The state of a sweep.

    Attributes:
        folder: of the sweep, with a folder in it for each run.
        sweep: the config of it.
        command: that was typed, for the report.
        epochs: lifetime -> epochs at equal wall time, once they are decided.
        errors: folder of a run -> why it did not end.
        others: folder of a run -> share of all cores that other programs took beside it.
    """

    folder: Path
    sweep: SweepConfig
    command: str
    epochs: dict[int, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)

    def open(self, config: dict[str, Any]) -> None:
        """Begin in the folder, or go on with what is there.

        Args:
            config: of the runs, in the form that is written down.

        Raises:
            ConfigError: the folder holds something else.
        """
        file = self.folder / OF_LIFETIMES
        own = {name: value for name, value in config.items() if name not in NOT_OF_THE_RUN}
        if is_run(self.folder) or (self.folder / "multirun.yaml").exists():
            raise ConfigError(
                f"hydra.run.dir must be a new folder, or one of such a sweep, but {self.folder} "
                "holds something else"
            )
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(yaml.safe_dump(own, sort_keys=False), encoding="utf-8")
        for name, (old, new) in changes(yaml.safe_load(file.read_text("utf-8")), own).items():
            raise ConfigError(
                f"{name} must stay {old}, as in the sweep that hydra.run.dir={self.folder} holds, "
                f"but got {name}={new}"
            )
        written = read_json(self.folder / PLAN)
        epochs = written.get("epochs", {})
        self.epochs = {int(lifetime): int(number) for lifetime, number in epochs.items()}
        if written.get("base", shortest(self.sweep)) != shortest(self.sweep):
            self.epochs = {}  # they took the time of a lifetime that is not the shortest any more
            for place in sorted(self.folder.glob("wall_time-*")):
                _clear(place)
        self.others = written.get("others", {})

    def jobs(self) -> list[Job]:
        """Return all runs, in the order of the sections; the epochs of some may not be decided."""
        undecided = dict.fromkeys(self.sweep.lifetimes or [], 0)
        jobs = first_jobs(self.sweep) + wall_time_jobs(self.sweep, undecided | self.epochs)
        return sorted(jobs, key=lambda job: list(SECTIONS).index(job.kind))

    def write(self) -> None:
        """Write the plan, from which the report is made."""
        entries = [(kind, job) for job in self.jobs() for kind in sections_of(job, self.sweep)]
        entries.sort(key=lambda entry: list(SECTIONS).index(entry[0]))
        jobs = [self._entry(kind, job) for kind, job in entries]
        plan = {
            "command": self.command,
            "base": shortest(self.sweep),
            "epochs": self.epochs,
            "others": self.others,
            "notes": about(self.sweep),
            "jobs": jobs,
        }
        temporary = self.folder / f"{PLAN}.tmp"
        temporary.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.folder / PLAN)

    def _entry(self, kind: str, job: Job) -> dict[str, str]:
        entry = {
            "folder": job.folder,
            "section": SECTIONS[kind],
            "setting": f"lifetime={job.lifetime}",
        }
        waits = None if (self.folder / job.folder).exists() else NOT_RUN
        error = self.errors.get(job.folder, waits)
        return entry if error is None else {**entry, "error": error}

    def note_others(self, job: Job, share: float | None) -> None:
        """Write down what other programs took of the cores beside a run, where that is known."""
        self.others.pop(job.folder, None)
        if share is not None:
            self.others[job.folder] = round(share, 4)
        self.write()

    def finished(self, job: Job) -> History | None:
        """Return a run that is done, or None."""
        place = self.folder / job.folder
        try:
            history = read_history(place) if is_run(place) else None
        except ConfigError:  # it is run again
            return None
        return history if history is not None and history.status == "done" else None

    def make_room(self, job: Job) -> Path:
        """Return the folder of a run that is to begin, empty; what an earlier one left is moved.

        Raises:
            ConfigError: another process is at work in it.
        """
        place = self.folder / job.folder
        _clear(place)
        place.mkdir(parents=True)
        return place

    def decide_epochs(self) -> None:
        """Decide how long the runs at equal wall time are, from those at equal epochs."""
        if "wall_time" not in self.sweep.equal:
            return
        base = shortest(self.sweep)
        total_s = [sum(run) for run in self._epochs_s(base)]
        for lifetime in self.sweep.lifetimes or []:
            measured = self._epochs_s(lifetime)
            if lifetime != base and lifetime not in self.epochs and total_s and measured:
                self.epochs[lifetime] = epochs_in(sum(total_s) / len(total_s), measured)

    def _epochs_s(self, lifetime: int) -> list[list[float]]:
        """Return the seconds of the epochs, without warm-up, of the runs that are done."""
        jobs = [Job(kind="epochs", lifetime=lifetime, seed=seed) for seed in self.sweep.seeds]
        return [_lengths(run) for run in map(self.finished, jobs) if run is not None and run.rows]


def _clear(place: Path) -> None:
    """Move what an earlier start left in a run's folder out of the way."""
    status = read_json(place / "status.json")
    if status and is_alive(status):
        raise ConfigError(
            f"hydra.run.dir must be used by one sweep at a time, but process {status['pid']} "
            f"is at work in {place}"
        )
    if place.exists():
        shutil.rmtree(place / "cache", ignore_errors=True)
        put_aside(place)


def _lengths(run: History) -> list[float]:
    ends: Iterable[float] = run.times_s
    before = [0.0, *ends]
    return [end - start for start, end in zip(before, run.times_s, strict=False)]
