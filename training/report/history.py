"""What a run folder says of a run, finished or not."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import yaml

from training.advice import Work, work_of
from training.alive import is_alive
from training.checks import ConfigError
from training.tables import in_numbers, read_metrics
from training.timing import PHASES

Row = dict[str, float | None]
Interval = tuple[datetime, datetime]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the first lines of a log say of a training.

    Attributes:
        num_train, num_val: samples.
        num_parameters: of the model.
        device: that computed.
    """

    num_train: int | None = None
    num_val: int | None = None
    num_parameters: int | None = None
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """A run, as its folder tells it; what is not written down is empty.

    Attributes:
        directory: the folder.
        config: as it was recorded.
        overrides: what was typed.
        curriculum: first epoch -> parameter -> value.
        environment: versions and hardware.
        status: running, done, interrupted, failed, or killed: at work no more, and never ended.
        error: why it failed.
        sessions: when a process worked on it, from start to end.
        rows: of metrics.csv, an epoch each; a number or None, which may be NaN.
        num_continued: how often it was continued, and trained on.
        told: what the log says of the training; empty where it does not.
    """

    directory: Path
    config: dict[str, Any]
    overrides: list[str]
    curriculum: dict[int, dict[str, Any]]
    environment: dict[str, Any]
    status: str
    error: str | None
    sessions: list[Interval]
    rows: list[Row]
    num_continued: int = 0
    told: Told = field(default_factory=Told)

    @property
    def num_val(self) -> int | None:
        """Samples of the validation set."""
        return self.told.num_val

    @property
    def seed(self) -> int:
        """Seed of all that is random."""
        return int(self.config.get("seed", 0))

    @property
    def lifetime(self) -> int:
        """Epochs that a prepared sample served."""
        return int(self.config.get("lifetime", 1))

    @property
    def epochs(self) -> list[int]:
        """The epochs that ended."""
        return [int(row["epoch"] or 0) for row in self.rows]

    def column(self, name: str) -> list[float]:
        """Return a column, NaN where nothing is written."""
        values = (row.get(name) for row in self.rows)
        return [math.nan if value is None else value for value in values]

    def total(self, name: str) -> float:
        """Return the sum of a column, of what is written of it."""
        return math.fsum(value for value in self.column(name) if math.isfinite(value))

    @property
    def warmup_s(self) -> float:
        """Seconds of warm-up, which `times_s` leaves out."""
        return self.total("warmup_s")

    @property
    def times_s(self) -> list[float]:
        """Seconds from the start to the end of each epoch, without warm-up."""
        lengths = zip(self.column("epoch_s"), self.column("warmup_s"), strict=True)
        known = ((0 if math.isnan(a) else a) - (0 if math.isnan(b) else b) for a, b in lengths)
        return list(accumulate(known))

    def evaluations(self, name: str = "val_accuracy") -> list[tuple[int, float, float]]:
        """Return (epoch, seconds, value) of each evaluation that gave a number."""
        points = zip(self.epochs, self.times_s, self.column(name), strict=True)
        return [point for point in points if math.isfinite(point[2])]

    def steady_rows(self) -> list[Row]:
        """Return the rows after epoch 0, in which everything is built; of one epoch that one."""
        return [row for row in self.rows if row["epoch"] != 0] or self.rows

    def work(self) -> Work | None:
        """Return what the epochs took that are like those to come, or None where it is unknown."""
        on_cpu = not self.environment.get("gpu") or self.config.get("device") == "cpu"
        cores = self.environment.get("cpu", {}).get("num_cores") if on_cpu else None
        ranks = self.environment.get("ranks", {})
        cores = cores and cores * ranks.get("num_nodes", 1)
        workers = int(self.config.get("num_workers", 0))
        size, num_ranks = self.config.get("batch_size"), ranks.get("world_size", 1)
        size = size if isinstance(size, int) else 0
        return work_of(self.rows, self.lifetime, workers, cores, num_ranks, size)

    def phases(self) -> dict[str, list[float]]:
        """Return the seconds of each phase by epoch, of the phases that are written down."""
        columns = {name: self.column(f"{name}_s") for name in PHASES}
        return {
            name: [0.0 if math.isnan(value) else value for value in values]
            for name, values in columns.items()
            if any(value > 0 for value in values)
        }


def is_run(folder: Path) -> bool:
    """Say whether a folder is one of a run."""
    return (folder / "config.yaml").is_file() and (folder / "status.json").is_file()


def read_history(folder: Path) -> History:
    """Read a run folder.

    Raises:
        ConfigError: it is none, or a record in it cannot be read.
    """
    if not is_run(folder):
        raise ConfigError(f"{folder} must be the folder of a run, but it holds no record of one")
    try:
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        history = History(
            directory=folder,
            config=_yaml(folder / "config.yaml"),
            overrides=_lines(folder / "overrides"),
            curriculum=_yaml(folder / "curriculum.yaml"),
            environment=_json(folder / "environment.json"),
            status=_status(status),
            error=status.get("error"),
            sessions=_sessions(status),
            rows=[in_numbers(row) for row in read_metrics(folder)],
            num_continued=len(_yaml_list(folder / "resumes.yaml")),
            told=_told(folder / "train.log"),
        )
        _ = history.seed
        history.work()  # which looks at all that is computed with
        return history
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{folder} holds a record that cannot be read: {reason}") from error


_SAMPLES = re.compile(r"(\d+) samples for training, (\d+) for validation, ")
_MODEL = re.compile(r" with (\d+) parameters on (\S+)$")


def _told(log: Path) -> Told:
    """Return what a log tells in its first lines."""
    if not log.exists():
        return Told()
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.rstrip() for line in islice(file, 200)]
    samples = next(filter(None, map(_SAMPLES.search, lines)), None)
    model = next(filter(None, map(_MODEL.search, lines)), None)
    return Told(
        num_train=int(samples[1]) if samples else None,
        num_val=int(samples[2]) if samples else None,
        num_parameters=int(model[1]) if model else None,
        device=model[2] if model else None,
    )


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _yaml(file: Path) -> dict[Any, Any]:
    return _mapping(file, yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {})


def _yaml_list(file: Path) -> list[Any]:
    value = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else []
    return value if isinstance(value, list) else []


def _status(status: dict[str, Any]) -> str:
    """Return how a run stands; the process of one that was killed could not write that down."""
    here, own = status.get("host") == platform.node(), status.get("pid") == os.getpid()
    is_gone = here and not own and not is_alive(status)
    return "killed" if status["status"] == "running" and is_gone else str(status["status"])


def _json(file: Path) -> dict[Any, Any]:
    return _mapping(file, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {})


def _mapping(file: Path, value: Any) -> dict[Any, Any]:
    if not isinstance(value, (dict, type(None))):
        raise TypeError(f"{file.name} must hold names and values, but got {value!r:.80}")
    return value or {}


def _sessions(status: dict[str, Any]) -> list[Interval]:
    """Return when the processes of a run began and ended; one that was killed ends as it began."""
    sessions = []
    for start, end in status.get("sessions", []):
        began = datetime.fromisoformat(start)
        sessions.append((began, datetime.fromisoformat(end) if end else began))
    return sessions
