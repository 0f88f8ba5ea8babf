"""The command line, put into the form in which Hydra takes it."""

from __future__ import annotations

import argparse
import difflib
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from training.checks import ConfigError

_MODES = ("run", "multirun", "cfg", "info", "shell_completion")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return Hydra's options by name, and `overrides`, which may stand anywhere between them.

    Raises:
        ConfigError: an option or an override that Hydra would answer with a page of its own.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    given, rest = parser.parse_known_args(arguments)
    known = [name for action in parser._actions for name in action.option_strings]
    for word in rest:
        if word.startswith("-"):
            raise _no_option(word, known)
    given.overrides += rest
    for word in given.overrides:
        key, equals, _ = word.partition("=")
        if not key or (not equals and not word.startswith("~")):
            raise ConfigError(
                f"{word} must have the form key=value, without spaces around the equals sign"
            )
    _check_modes(given)
    return given


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; `python train.py --hydra-help` explains the options")


def _no_option(word: str, known: list[str]) -> ConfigError:
    if "=" in word:
        remedy = f"a value is set without dashes, {word.lstrip('-')}"
    elif near := difflib.get_close_matches(word, known, n=1, cutoff=0.75):
        remedy = f"did you mean {near[0]}?"
    else:
        remedy = "`python train.py --hydra-help` lists them"
    return ConfigError(f"{word} is not an option; {remedy}")


def _check_modes(given: argparse.Namespace) -> None:
    modes = [name for name in _MODES if getattr(given, name)]
    if len(modes) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in modes)
        raise ConfigError(f"{names} exclude each other: leave out all but one")
    if given.resolve and given.cfg is None and not given.help:
        raise ConfigError("--resolve needs --cfg: python train.py --cfg job --resolve")
    if given.experimental_rerun is not None:
        raise ConfigError(
            "--experimental-rerun reads a pickle, which can run code; replay=FOLDER repeats a run"
        )


def join(given: argparse.Namespace) -> list[str]:
    """Return arguments that parse to the same, options first."""
    options = []
    for name, value in vars(given).items():
        if name != "overrides" and value not in (None, False):
            option = f"--{name.replace('_', '-')}"
            options.append(option if value is True else f"{option}={value}")
    return [*options, *given.overrides]


def is_sweep(given: argparse.Namespace) -> bool:
    """Say whether the arguments ask for a sweep."""
    return bool(given.multirun) or "hydra.mode=MULTIRUN" in given.overrides
