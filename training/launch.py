"""From the arguments of a sweep to what its jobs share: one folder, and files that stay."""

from __future__ import annotations

import argparse
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from omegaconf import DictConfig, OmegaConf, open_dict

from training.checks import ConfigError
from training.config import load_config
from training.explain import CONF, EXTRAS, not_installed
from training.options import MONITORS
from training.recorded import quoted
from training.sweeps import OF_LIFETIMES, hold, start
from training.targets import PROJECT

# conf/hydra/launcher has files of the plugins' own names, so that hydra/launcher=joblib is ours.
# Hydra 1.3 checks them against the plugins' settings, which is meant, and warns that 1.4 will not.
warnings.filterwarnings(
    "ignore", r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema", UserWarning
)

# ${run_id:} makes run folders differ that are named after the same second.
OmegaConf.register_new_resolver("run_id", lambda: os.urandom(3).hex(), use_cache=True, replace=True)

# Devices of this machine, for the launchers that ask how many a job gets.
OmegaConf.register_new_resolver("num_gpus", torch.cuda.device_count, replace=True)
OmegaConf.register_new_resolver("one_gpu", lambda: min(1, torch.cuda.device_count()), replace=True)


def _direction(monitor: str) -> str:
    return {"max": "maximize", "min": "minimize"}[MONITORS[monitor]]


OmegaConf.register_new_resolver("direction", _direction, replace=True)

_SEARCH = {"hydra/sweeper=optuna": "hydra/sweeper=search"}
"""conf/hydra/sweeper/search.yaml is optuna with a space to search in; Hydra allows no file of the
sweeper's own name."""


@contextmanager
def launch(given: argparse.Namespace) -> Iterator[tuple[argparse.Namespace, Path]]:
    """Prepare a sweep, and keep others out of its folder until the block ends.

    Yields:
        The arguments that Hydra takes for it, and its folder.

    Raises:
        ConfigError: no job of it can run, its folder cannot be written, or another sweep is at work
            in it.
    """
    given = argparse.Namespace(**vars(given))
    given.overrides = [_SEARCH.get(word, word) for word in given.overrides]
    overrides = OverridesParser.create().parse_overrides(given.overrides)
    shared = [o.input_line for o in overrides if not o.is_sweep_override() and o.input_line]
    composed = _compose(given, shared)
    refuse_lifetimes(composed)
    for kind in ("launcher", "sweeper"):
        _check_installed(composed, kind)
    choices = composed.hydra.runtime.choices
    if choices["hydra/sweeper"] == "basic":
        _check_jobs(given, overrides)
    if choices["hydra/launcher"] != "basic":  # its processes import this project, from any folder
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, paths)])
    HydraConfig.instance().set_config(composed)
    sweep = Path(str(composed.hydra.sweep.dir)).absolute()
    HydraConfig.instance().cfg = None
    given.overrides.append(f"hydra.sweep.dir={quoted(sweep)}")
    with hold(sweep):
        if (sweep / OF_LIFETIMES).exists():
            raise ConfigError(
                "hydra.sweep.dir must be a new folder, or one of such a sweep, but "
                f"{sweep} is that of a sweep over lifetimes"
            )
        given.config_path = str(start(sweep, conf_of(given)))
        yield given, sweep


def refuse_lifetimes(composed: DictConfig) -> None:
    """Make sure that the jobs of a sweep by -m are no sweeps over lifetimes themselves.

    Raises:
        ConfigError: they are.
    """
    if OmegaConf.select(composed, "sweep.lifetimes") is not None:
        raise ConfigError(
            "sweep must be none with -m: of python train.py -m lifetime=1,2 and "
            "python train.py sweep=lifetimes each is a sweep of its own"
        )


def conf_of(given: argparse.Namespace) -> Path:
    """Return the folder of the files that a command is composed from."""
    return PROJECT / (given.config_path or CONF)  # as Hydra does, relative to train.py


def _compose(given: argparse.Namespace, overrides: list[str]) -> DictConfig:
    if not conf_of(given).is_dir():
        raise ConfigError(f"--config-path must be a folder, but got {given.config_path}")
    if given.config_dir is not None:
        folder = Path(given.config_dir).absolute()
        overrides = [*overrides, f"hydra.searchpath=[{quoted(f'file://{folder}')}]"]
    with initialize_config_dir(str(conf_of(given)), version_base="1.3"):
        return compose(given.config_name or "config", overrides, return_hydra_config=True)


def _check_installed(composed: DictConfig, kind: str) -> None:
    choice = composed.hydra.runtime.choices[f"hydra/{kind}"]
    module = composed.hydra[kind]._target_.rpartition(".")[0]
    try:
        found = importlib.util.find_spec(module) is not None
    except ImportError:
        found = False
    if not found:
        word = f"hydra/{kind}={choice}"
        raise ConfigError(not_installed(word, EXTRAS.get(word, choice)))


def _check_jobs(given: argparse.Namespace, overrides: list[Override]) -> None:
    """Refuse a sweep without a job, or of jobs that are all wrong, before the first one runs."""
    values = [_words(override) for override in overrides]
    if any(words is None for words in values):
        return  # only Hydra can tell what they stand for
    first: ConfigError | None = None
    for job in product(*(words for words in values if words is not None)):
        try:
            composed = _compose(given, list(job))
            with open_dict(composed):
                del composed["hydra"]
            load_config(composed)
            return
        except ConfigError as error:
            first = first or error
    if first is not None:
        raise first
    empty = [
        word.input_line or "" for word, words in zip(overrides, values, strict=True) if not words
    ]
    raise ConfigError(f"a sweep must have a job, but there is no value in {', '.join(empty)}")


def _words(override: Override) -> list[str] | None:
    """Return the overrides that one stands for; None where that is not known here."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if override.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
        return None
    return [f"{override.get_key_element()}={text}" for text in override.sweep_string_iterator()]
