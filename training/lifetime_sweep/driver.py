"""The command of a sweep over lifetimes: checks it, runs it, and ends with its report."""

from __future__ import annotations

import math
import shlex
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from training.arguments import parse
from training.command import USER_ERRORS, after_sweep, again, fail, read
from training.config import Config, ConfigError
from training.distributed import ranks
from training.launch import conf_of
from training.lifetime_sweep.book import Book
from training.lifetime_sweep.process import FreshProcesses
from training.lifetime_sweep.serial import Serial
from training.options import SweepConfig
from training.redaction import Redaction
from training.signals import Interrupted
from training.sweeps import hold, start

_KEY = "hydra.run.dir"  # names the folder of the sweep


def is_asked_for(composed: DictConfig) -> bool:
    """Say whether a command asks for a sweep over lifetimes."""
    sweep = composed.get("sweep")
    return isinstance(sweep, DictConfig) and sweep.get("lifetimes") is not None


def sweep_lifetimes(composed: DictConfig) -> float:
    """Run the sweep that a config asks for; end with exit code 1 where a run of it failed."""
    folder = Path(HydraConfig.get().runtime.output_dir).absolute()
    try:
        with hold(folder, _KEY):
            errors = _sweep(folder, composed)
    except USER_ERRORS as error:
        fail(error)
    for name, text in errors.items():
        print(f"error: {name} failed: {text}", file=sys.stderr)
    if errors:
        print(f"to run what is missing: {_to_go_on(folder)}", file=sys.stderr)
        sys.exit(1)
    return math.nan


def _sweep(folder: Path, composed: DictConfig) -> dict[str, str]:
    """Run what is missing; return which runs failed, and why."""
    given = parse(sys.argv[1:])
    config, record = read(composed, HydraConfig.get())
    _check(config, given.overrides)
    command = Redaction(record.variables)(f"python train.py {shlex.join(sys.argv[1:])}")
    book = Book(folder=folder, sweep=_sweep_of(config), command=command)
    book.open(record.config)
    shared, cache = _shared(folder, given), config.cache.directory
    try:
        with FreshProcesses() as run:
            place = None if cache is None else Path(cache).absolute()
            Serial(book=book, arguments=shared, run=run, cache=place)()
    except Interrupted as error:
        print(f"stopped by {error}; to go on: {_to_go_on(folder)}", file=sys.stderr)
        sys.exit(128 + error.signum)
    finally:
        after_sweep(folder)
    return book.errors


def _to_go_on(folder: Path) -> str:
    return again(sys.argv[1:], folder, _KEY)


def _check(config: Config, overrides: list[str]) -> None:
    """Refuse what a run may have and a sweep may not.

    Raises:
        ConfigError: names it.
    """
    if not ranks().is_single:
        raise ConfigError("sweep must be none under torchrun: its runs are single processes")
    for name, value in (
        *(("resume", config.resume), ("replay", config.replay)),
        ("trainer.evaluate", config.trainer.evaluate),
    ):
        if value is not None:
            raise ConfigError(f"{name} must be null in a sweep, but got {name}={value}")
    for word in overrides:
        name, _, value = word.lstrip("+").partition("=")
        if name in ("lifetime", "seed"):
            raise ConfigError(
                f"{name} must be left to sweep.{name}s in a sweep, but got {name}={value}"
            )


def _sweep_of(config: Config) -> SweepConfig:
    """Return which runs there are: few where it is only to be seen that everything works."""
    sweep = config.sweep
    if config.trainer.fast_dev_run:
        few = sorted(sweep.lifetimes or [])[:2]
        sweep = replace(sweep, lifetimes=few, seeds=sweep.seeds[:1])
    has_fresh = bool(config.augment.fresh) and not config.augment.store_all
    return sweep if has_fresh else replace(sweep, fresh=False)


def _shared(folder: Path, given: Namespace) -> list[str]:
    """Return what all runs have in common: what was typed, without what is about the sweep."""
    options = [f"--config-path={start(folder, conf_of(given), _KEY)}"]
    for name in ("config_name", "config_dir"):
        if (value := getattr(given, name)) is not None:
            options.append(f"--{name.replace('_', '-')}={value}")
    words = [
        word
        for word in given.overrides
        if word.lstrip("+~").partition("=")[0].partition(".")[0] != "sweep"
        and not word.startswith(f"{_KEY}=")
    ]
    chosen = ["sweep=none"] if "sweep" in HydraConfig.get().runtime.choices else []
    return [*options, *words, *chosen, "sweep.lifetimes=null"]
