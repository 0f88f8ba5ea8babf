"""The run folder: what is written down so that a run can be understood and repeated."""

from __future__ import annotations

import csv
import json
import logging
import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from training import environment
from training.agreement import Agreement
from training.alive import refuse_alive
from training.checkpoint import keep_numbered, write_checkpoint
from training.complaints import Console, cause_of
from training.config import Config, ConfigError
from training.disk import UnsavedError, writing
from training.distributed import ranks
from training.logs import FileFormatter, LogFile, Messages
from training.redaction import Redaction
from training.resolved import config_digest
from training.sections import Table
from training.signals import Signals
from training.tables import as_csv, earlier_sessions, in_numbers, read_json, read_metrics

log = logging.getLogger("training")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a run before its first step, in the form that is written down."""

    config: dict[str, Any]
    overrides: list[str]
    curriculum: Table
    changes: dict[str, Any] | None = None  # name -> value, in a run that continues
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment, kept secret


class Run:
    """A run folder; as a context manager it keeps `status.json` true to the end.

    Args:
        directory: made here; refused where a run was recorded before. Where the record has
            `changes` it is a run's, and stays as it is until `go_on`.
        config: what the run does.
        record: what is written before the first step. Of several ranks rank 0 alone writes.

    Raises:
        ConfigError: the folder holds a run, or cannot be written.
        UnsavedError: by every method that writes, when the disk is full for example.
    """

    def __init__(self, directory: Path, config: Config, record: Record) -> None:
        self.directory = directory
        self.config = config
        self.curriculum = record.curriculum
        self.cache = Path(config.cache.directory or directory / "cache")
        self._remove_cache = config.cache.directory is None and not config.cache.keep
        self.checkpoints = directory / "checkpoints"
        self._writes = ranks().is_main
        self.signals = Signals(
            at_once=lambda: self._status("interrupted"),
            agree=None if ranks().is_single else Agreement(),
        )
        self._record = record
        self.redact = Redaction(record.variables)
        self._digest = config_digest(record.config)
        self._inputs: dict[str, str] = {}  # marks of code and data
        self._sessions: list[list[str | None]] = []  # from when to when a process worked on it
        self._is_begun = record.changes is None
        if self._is_begun and self._writes:
            self._begin(record)
        self._file = LogFile(directory / "train.log") if self._writes else logging.NullHandler()
        self._messages = Messages(Console(), self._file)

    @property
    def is_begun(self) -> bool:
        """Whether anything of this run was written down."""
        return self._is_begun

    def _begin(self, record: Record) -> None:
        if (self.directory / ".sweep").exists():
            raise ConfigError(
                f"hydra.run.dir must be a new folder, but {self.directory} is that of a sweep"
            )
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            # fails where there is one
            with open(self.directory / "config.yaml", "x", encoding="utf-8") as file:
                yaml.safe_dump(record.config, file, sort_keys=False)
        except FileExistsError as error:
            raise ConfigError(
                f"hydra.run.dir must be a new folder, but {self.directory} holds a run already"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"hydra.run.dir must be a folder that can be written, but got {self.directory}: "
                f"{error.strerror}"
            ) from error
        self._write("overrides", "".join(f"{line}\n" for line in record.overrides))
        curriculum = self.redact.values(record.curriculum)
        self._write("curriculum.yaml", yaml.safe_dump(curriculum, sort_keys=False))
        described = environment.describe()
        described["command"] = self.redact.values(described["command"])
        self._write("environment.json", json.dumps(described, indent=2) + "\n")
        if diff := environment.git_diff():
            self._write("environment.diff", self.redact(diff))
        self._status("running")

    def go_on(self, epoch: int, step: int) -> list[dict[str, Any]]:
        """Write down that the run goes on with an epoch; forget what was measured from there on.

        Returns:
            The rows of `metrics.csv` before that epoch, in numbers.

        Raises:
            ConfigError: another process has begun to work on the run meanwhile.
        """
        if self._writes:
            refuse_alive(self.directory)
        self._is_begun = True
        if not self._writes:
            return []
        self._sessions = earlier_sessions(self.directory)
        self._status("running")
        kept = [row for row in read_metrics(self.directory) if int(row["epoch"]) < epoch]
        self._write("metrics.csv", as_csv(kept))  # without what a kill left half written
        # The change is written down before it is made: a kill may come between the two.
        changes = self.redact.values(self._record.changes)
        again = {"time": _now(), "epoch": epoch, "step": step, "changes": changes}
        file = self.directory / "resumes.yaml"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        self._write(file.name, text + yaml.safe_dump([again], sort_keys=False))
        self._write("config.yaml", yaml.safe_dump(self._record.config, sort_keys=False))
        if not read_json(self.directory / "inputs.json"):
            self._write_inputs()
        return [in_numbers(row) for row in kept]

    def finish(self) -> None:
        """Write down that the run goes on, to its end at once: nothing of it is left to train.

        A run that is done already stays as it is, and so does one that is asked to change.
        """
        recorded = read_json(self.directory / "status.json")
        if recorded.get("status") == "done" or self._record.changes:
            return
        self._is_begun = True
        self._sessions = earlier_sessions(self.directory)
        self._status("running")

    def record_inputs(self, marks: dict[str, str]) -> None:
        """Write down the marks of code and data; compare them where a run goes on or is repeated.

        Raises:
            ConfigError: the data is not what the run began with.
        """
        self._inputs = marks
        if not self._writes:
            return
        if self._is_begun:
            self._write_inputs()
        if not self._is_begun or self.config.replay is not None:
            file = Path(self.config.replay or self.directory) / "inputs.json"
            recorded = read_json(file)
            if not recorded:
                log.warning("%s cannot be read: are code and data what they were?", file)
            self._compare_inputs(recorded)

    def _write_inputs(self) -> None:
        self._write("inputs.json", json.dumps(self._inputs, indent=2) + "\n")

    def _compare_inputs(self, recorded: dict[str, Any]) -> None:
        for name, mark in self._inputs.items():
            before = recorded.get(name, mark)
            if before == mark:
                continue
            if self.config.replay is not None:
                log.info("different: %s was %s and is %s", name, before, mark)
            elif name != "code":
                raise ConfigError(
                    f"{name} must hold what it held when the run began, but its content has "
                    f"changed: {before} is {mark} now"
                )
            else:
                log.warning("the code has changed since the run began: results may differ")

    def __enter__(self) -> Run:
        self.signals.install()
        if self._is_begun and self._writes:  # a finished run stays as it is
            (self.directory / "train.log").touch()
        self._file.setFormatter(FileFormatter(self.redact))
        self._messages.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writes and kind is not None and issubclass(kind, KeyboardInterrupt):
            log.warning("interrupted; what is recorded and prepared stays in %s", self.directory)
        log.handlers = [self._file]  # the screen is for the command, which reports errors
        try:
            if self._is_begun:
                self._end(error)
            elif self._remove_cache:
                self._remove_empty_cache()
        finally:
            self._let_go()

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._status("done")
            if self._remove_cache and ranks().local_rank == 0:
                shutil.rmtree(self.cache, ignore_errors=True)
            return
        was_asked = isinstance(error, (KeyboardInterrupt, SystemExit))
        with suppress(UnsavedError):  # it would hide what ended the run
            if was_asked:
                self._status("interrupted")
            else:
                self._status("failed", self.redact(cause_of(error)))
        if not was_asked:
            log.error("failed", exc_info=error)

    def _let_go(self) -> None:
        """Give back what `__enter__` took."""
        self.signals.restore()
        self._messages.restore()
        self._file.close()

    def _remove_empty_cache(self) -> None:
        """Leave no folders behind that were made only to find that nothing is to be trained."""
        for folder in (*self.cache.glob("*"), self.cache):
            with suppress(OSError):
                folder.rmdir()

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append an epoch to `metrics.csv`."""
        if not self._writes:
            return
        path = self.directory / "metrics.csv"
        with (
            writing(self.directory, self.checkpoints),
            open(path, "a", newline="", encoding="utf-8") as file,
        ):
            if file.tell() == 0:
                csv.DictWriter(file, row).writeheader()
            csv.DictWriter(file, row).writerow(row)
            file.flush()
            os.fsync(file.fileno())  # before the checkpoint that is behind it

    def save_checkpoint(self, name: str, state: dict[str, Any]) -> None:
        """Write `checkpoints/<name>.pt` whole: the previous one stays until it is there."""
        if not self._writes:
            return
        path = self.checkpoints / f"{name}.pt"
        with writing(self.directory, self.checkpoints):
            write_checkpoint(path, state)
            if name == "last":
                keep_numbered(path, state["step"], self.config.checkpoint.keep)

    def _status(self, status: str, error: str | None = None) -> None:
        now = _now()
        if status == "running":
            self._sessions.append([now, None])
        elif self._sessions:
            self._sessions[-1][1] = now
        state = {
            "status": status,
            "time": now,
            "host": platform.node(),
            "pid": os.getpid(),
            "config": self._digest,
            "error": error,
            "sessions": self._sessions,
        }
        self._write("status.json", json.dumps(state, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        if not self._writes:
            return
        temporary = self.directory / f"{name}.tmp"
        with writing(self.directory, self.checkpoints):
            with open(temporary, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())  # a power cut must not leave the new name without its text
            os.replace(temporary, self.directory / name)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
