"""Recorded runs: what is read from their folder, and how a command for one becomes Hydra's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from training.alive import refuse_alive
from training.checks import ConfigError
from training.config import Config
from training.fingerprint import ACCESS_KEYS, LOCATION_KEYS
from training.records import Record
from training.resolved import NOT_OF_THE_RUN
from training.targets import PROJECT, check_targets

_HYDRA_PARTS = ("run", "sweep", "output_subdir")  # what a run writes down; more would run code

_PLACE_KEYS = (*LOCATION_KEYS, *ACCESS_KEYS)
# Where the data lies and how it is got at. That it is the same data, its content says.
_PLACES = tuple(f"data.{part}{key}" for part in ("", "train.", "val.") for key in _PLACE_KEYS)

RESUMABLE = (
    *("epochs", "num_workers", "num_threads", "device", "optimizer.lr"),
    *("loader.prefetch_factor", "loader.persistent_workers", "loader.multiprocessing_context"),
    *("cache.keep", "cache.max_bytes", "cache.verify", "checkpoint", "tracker", "report"),
    *("trainer.early_stopping", "trainer.evaluate_every", *_PLACES),
)
"""What may change when a run goes on: all that is trained so far would have been the same."""

REPEATABLE = (
    *("num_workers", "device", "loader.prefetch_factor", "loader.persistent_workers"),
    *("loader.multiprocessing_context", "cache", "checkpoint", "tracker", "report", *_PLACES),
)
"""What may differ when a run is repeated: with or without it the numbers are the same."""


def _is_any_of(name: str, names: tuple[str, ...]) -> bool:
    """Say whether a dotted name is one of these, or lies below one."""
    return any(name == other or name.startswith(f"{other}.") for other in names)


def read_config(folder: Path, word: str) -> dict[str, Any]:
    """Read a recorded config, which is data from disk: it may name nothing that is not allowed.

    Args:
        folder: of the run.
        word: `resume` or `replay`, for messages.

    Raises:
        ConfigError: it is no run, or its config would run something.
    """
    place = f"{word} must be the folder of a run, but got {word}={folder}"
    file = folder / "config.yaml"
    try:
        text = file.read_text(encoding="utf-8")
        config = yaml.safe_load(text)
    except FileNotFoundError as error:
        what = "it holds no config.yaml" if folder.is_dir() else "there is no such folder"
        raise ConfigError(f"{place}: {what}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{place}: its config.yaml cannot be read: {reason}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{place}: its config.yaml holds no config")
    if "@package" in "".join(line for line in text.splitlines() if line.startswith("#")):
        raise ConfigError(f"{file}: a recorded config must not say into which package it goes")
    known = {*(entry.name for entry in fields(Config)), "hydra"}
    for name in config:
        if name not in known:
            raise ConfigError(f"{file}: {name} is not a key of the config")
    missing = {"data", "model", "epochs", "optimizer"} - config.keys()
    if missing:
        raise ConfigError(f"{place}: its config.yaml lacks {min(missing)}")
    hydra = config.get("hydra") or {}
    for name in hydra:
        if name not in _HYDRA_PARTS:
            raise ConfigError(f"{file}: hydra.{name} must not be in a recorded config")
    check_targets(config, str(file.name))
    return config


def rewrite_command(word: str, folder: Path, rest: list[str], run_dir: str) -> list[str]:
    """Return arguments with which Hydra composes the recorded config, and what else was given.

    Args:
        word: `resume` or `replay`.
        folder: of the recorded run.
        rest: the other arguments.
        run_dir: where the run goes, an override's value.

    Raises:
        ConfigError: an argument has no place here.
    """
    if {"-m", "--multirun", "hydra.mode=MULTIRUN"} & {word.lstrip("+") for word in rest}:
        raise ConfigError(f"{word} is for one run: leave out --multirun")
    groups = {path.name for path in (PROJECT / "conf").iterdir() if path.is_dir()}
    for argument in rest:
        name = argument.lstrip("+~").partition("=")[0].partition("@")[0]
        if name in ("resume", "replay"):
            raise ConfigError(
                f"{word} must be the one recorded run, but got {word}={folder} and {argument}"
            )
        if name in groups:
            raise ConfigError(
                f"{name} must stay as recorded with {word}={folder}, but got {argument}"
            )
    given = [a for a in rest if not a.startswith("hydra.run.dir=")]
    if word == "replay":
        run_dir = next((a.partition("=")[2] for a in rest if a not in given), quoted(run_dir))
        given = ["cache.directory=null", *given]  # samples of the run's own, not stored ones
    # What the record left at its default is no key of it; the schema knows which keys there are.
    plain = r"[a-z_][\w.]*="
    given = [f"++{a.lstrip('+')}" if re.match(plain, a.lstrip("+")) else a for a in given]
    return [
        *("--config-path", str(folder), "--config-name", "config", "hydra/job_logging=none"),
        *("hydra.output_subdir=null", f"hydra.run.dir={run_dir}", f"++{word}={quoted(folder)}"),
        *given,
    ]


def with_places(given: list[str], recorded: dict[str, Any]) -> list[str]:
    """Return arguments in which a new place of the data is that of both sources.

    In `conf/` these refer to `data.root`, or what it is called; in a record stands what it was.
    """
    followers = []
    for argument in given:
        name, equals, value = argument.lstrip("+").partition("=")
        group, _, key = name.partition(".")
        first = key.partition(".")[0]
        if group != "data" or not equals or first not in _PLACE_KEYS:
            continue
        data = recorded["data"]
        for part in ("train", "val"):
            node = data.get(part) or {}
            if first in node and node[first] == data.get(first):
                followers.append(f"data.{part}.{key}={value}")
    return [*followers, *given]  # what is given for one source alone comes after that


def quoted(value: Any) -> str:
    """Return a text as a value of an override."""
    # Hydra's grammar: backslashes count double before a quote alone.
    text = re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), str(value))
    return f"'{text}'"


def default_place(kind: str, conf: Path | None = None) -> dict[str, Any]:
    """Return where a new run goes, or with `sweep` a new sweep: Hydra's `dir` and more.

    Args:
        kind: `run` or `sweep`.
        conf: the files that a job is composed from, which stay while those of conf/ are edited.
    """
    for folder in (conf, PROJECT / "conf"):
        file = None if folder is None else folder / "config.yaml"
        if file is not None and file.is_file():
            hydra = yaml.safe_load(file.read_text(encoding="utf-8")).get("hydra") or {}
            if kind in hydra:
                return dict(hydra[kind])
    raise ConfigError(f"conf/config.yaml must have hydra.{kind}, but it has none")


def changes(recorded: dict[str, Any], given: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two configs: dotted name -> recorded and given value.

    `hydra` and what names a recorded run are no part of this.
    """
    # As it would be after it was written: 1e-3 may be a text, and a tuple is a list.
    given = yaml.safe_load(yaml.safe_dump(given))
    found = _differences(recorded, given, "")
    return {name: values for name, *values in found if name not in NOT_OF_THE_RUN}  # type: ignore[misc]


def _differences(old: Any, new: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        if old.get("_target_") != new.get("_target_"):
            yield f"{name}._target_", old.get("_target_"), new.get("_target_")
            return
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{name}.{key}" if name else str(key)
            if not name and key in NOT_OF_THE_RUN:
                continue
            if key in old and key in new:
                yield from _differences(old[key], new[key], inner)
            elif key in old or key in new:
                yield inner, old.get(key), new.get(key)
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield name, old, new


def check_changes(
    found: dict[str, tuple[Any, Any]], allowed: tuple[str, ...], word: str, folder: Path
) -> None:
    """Refuse a change that is not allowed.

    Raises:
        ConfigError: names it, with the recorded and the given value.
    """
    for name, (old, new) in found.items():
        if not _is_any_of(name, allowed):
            raise ConfigError(
                f"{name} must stay as recorded with {word}={folder}, {name}={_text(old)}, "
                f"but got {name}={_text(new)}"
            )


def resumed(folder: Path, config: Config, record: Record) -> tuple[Config, Record]:
    """Return config and record of a run that goes on, after a look at what is to change.

    Args:
        folder: of the run.
        config: with the changes.
        record: the same, as it is written down.

    Raises:
        ConfigError: something may not change, or another process is at work on the run.
    """
    refuse_alive(folder)
    recorded = read_config(folder, "resume")
    found = changes(recorded, record.config)
    check_changes(found, RESUMABLE, "resume", folder)
    for name, (old, new) in found.items():
        print(f"{name} was {_text(old)} and is {_text(new)} from here on")
    written = {**record.config, "resume": None, "hydra": recorded.get("hydra")}
    if "epochs" in found and config.schedule_end is None:
        # The rate has come down, or is about to; a longer run does not send it up again.
        config = replace(config, schedule_end=recorded["epochs"])
        written["schedule_end"] = recorded["epochs"]
    said = {name: list(values) for name, values in found.items()}
    return config, replace(record, config=written, changes=said)


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
