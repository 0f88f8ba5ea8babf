"""The run folder: what is written down so that a run can be understood and repeated."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shutil
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import torch
import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc
from tqdm import tqdm

from training import environment
from training.config import Config, ConfigError, Table

log = logging.getLogger("training")

_NESTED_REFERENCE = re.compile(r"\$\{[^{}]*\$\{oc\.env:")
# Variables of the environment with such names say where something lies; all others may be secret.
_LOCATION = re.compile(r"(^|_)(DIR|DIRECTORY|FOLDER|HOME|PATH|ROOT)$")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a run before its first step, in the form that is written down."""

    config: dict[str, Any]
    overrides: list[str]
    curriculum: Table


class Run:
    """A run folder; as a context manager it keeps `status.json` true to the end.

    Args:
        directory: made here; refused where a run was recorded before.
        config: what the run does.
        record: what is written before the first step.

    Raises:
        ConfigError: the folder holds a run, or cannot be written.
    """

    def __init__(self, directory: Path, config: Config, record: Record) -> None:
        self.directory = directory
        self.config = config
        self.curriculum = record.curriculum
        self.cache = Path(config.cache.directory or directory / "cache")
        self._remove_cache = config.cache.directory is None and not config.cache.keep
        self.checkpoints = directory / "checkpoints"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with open(
                directory / "config.yaml", "x", encoding="utf-8"
            ) as file:  # fails where there is one
                yaml.safe_dump(record.config, file, sort_keys=False)
        except FileExistsError as error:
            raise ConfigError(
                f"hydra.run.dir must be a new folder, but {directory} holds a run already"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"hydra.run.dir must be a folder that can be written, but got {directory}: "
                f"{error.strerror}"
            ) from error
        self._write("overrides", "".join(f"{line}\n" for line in record.overrides))
        self._write("curriculum.yaml", yaml.safe_dump(record.curriculum, sort_keys=False))
        self._write("environment.json", json.dumps(environment.describe(), indent=2) + "\n")
        if diff := environment.git_diff():
            self._write("environment.diff", diff)
        self._metrics: TextIO | None = None
        self._status("running")
        self._handlers = [
            _Console(),
            logging.FileHandler(directory / "train.log", encoding="utf-8"),
        ]

    def __enter__(self) -> Run:
        self._handlers[1].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        for name in ("training", "py.warnings"):
            logger = logging.getLogger(name)
            logger.handlers = list(self._handlers)
            logger.propagate = False
        log.setLevel(logging.INFO)
        logging.captureWarnings(True)
        self._format_warning = warnings.formatwarning
        warnings.formatwarning = lambda message, *_: str(message)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is KeyboardInterrupt:
            log.warning("interrupted; what is recorded and prepared stays in %s", self.directory)
        log.handlers = [self._handlers[1]]  # the screen is for the command, which reports errors
        if kind is None:
            self._status("done")
            if self._remove_cache:
                shutil.rmtree(self.cache, ignore_errors=True)
        elif kind is KeyboardInterrupt:
            self._status("interrupted")
        else:
            self._status("failed", f"{kind.__name__}: {error}")
            log.error("failed", exc_info=error)
        warnings.formatwarning = self._format_warning
        logging.captureWarnings(False)
        for name in ("training", "py.warnings"):
            logging.getLogger(name).handlers = []
        self._handlers[1].close()
        if self._metrics is not None:
            self._metrics.close()

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append an epoch to `metrics.csv`."""
        if self._metrics is None:
            self._metrics = open(self.directory / "metrics.csv", "w", newline="")  # noqa: SIM115
            csv.DictWriter(self._metrics, row).writeheader()
        csv.DictWriter(self._metrics, row).writerow(row)
        self._metrics.flush()

    def save_checkpoint(self, name: str, state: dict[str, Any]) -> None:
        """Write `checkpoints/<name>.pt` whole: the previous one stays until it is there."""
        path = self.checkpoints / f"{name}.pt"
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def _status(self, status: str, error: str | None = None) -> None:
        state = {
            "status": status,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "pid": os.getpid(),
            "error": error,
        }
        self._write("status.json", json.dumps(state, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        temporary = self.directory / f"{name}.tmp"
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, self.directory / name)


class _Console(logging.Handler):
    """Prints above the progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        tqdm.write(f"{prefix}{record.getMessage()}")


def resolved(composed: DictConfig) -> dict[str, Any]:
    """Return the config as plain values, as it is written down.

    Interpolations are replaced by what they give, so that the result stands alone, all but
    references to the environment: `${oc.env:API_KEY}` stays as it is, unless the variable's name
    says that it holds a place (`DATA_ROOT`, `HOME`).

    Raises:
        ConfigError: an interpolation cannot be resolved.
    """
    OmegaConf.register_new_resolver("oc.env", _env_reference, replace=True)
    try:
        return {str(name): _resolve(composed, name) for name in composed}
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _env_reference(name: str, *default: Any) -> Any:
    if _LOCATION.search(name):
        return oc.env(name, *default)
    return "${oc.env:" + ",".join([name, *map(str, default)]) + "}"


def _resolve(parent: DictConfig | ListConfig, key: Any) -> Any:
    raw: Any = OmegaConf.to_container(parent, resolve=False)
    written = raw[key]
    if isinstance(written, str) and _NESTED_REFERENCE.search(written):
        return written  # another resolver works on the value, and is kept with the reference
    try:
        value = parent[key]
    except OmegaConfBaseException as error:
        if "oc.env" in str(written):
            return written
        text = str(error).splitlines()[0]
        raise ConfigError(f"{error.full_key}: {written} cannot be resolved: {text}") from error
    if isinstance(value, DictConfig):
        return {name: _resolve(value, name) for name in value}
    if isinstance(value, ListConfig):
        return [_resolve(value, number) for number in range(len(value))]
    return value
