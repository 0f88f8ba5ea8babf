"""A user's mistake in one line: what Hydra and OmegaConf say, turned into a rule and a remedy."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf

from training.checks import text_of
from training.config import unknown_key
from training.recorded import quoted
from training.targets import PROJECT

CONF = PROJECT / "conf"

_NO_NAMES = ("true", "false", "null", "nan", "inf")  # to Hydra
_OF_NODES = ("augment.fresh", "augment.stored", "data.prepare", "trainer.batch_transforms")

EXTRAS = {
    "hydra/launcher=joblib": "joblib",
    "hydra/launcher=ray": "ray",
    "hydra/launcher=submitit_local": "submitit",
    "hydra/launcher=submitit_slurm": "submitit",
    "hydra/sweeper=optuna": "optuna",
}
"""Choices that need an extra of pyproject.toml."""


def explain(error: Exception) -> str:
    """Return one line that says what is wrong and what would be right."""
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    text = text_of(error)
    for pattern, answer in _ANSWERS.items():
        if match := re.search(pattern, text):
            return answer(*match.groups())
    cause = error.__cause__
    if said := _of_another_shape(text, str(cause)):
        return said
    if isinstance(error, HydraException) and cause is not None:
        text = f"{text} {cause}"
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("full_key", "object_type"))]
    return " ".join(kept)


def _of_another_shape(text: str, cause: str) -> str | None:
    """Explain a list for a mapping, or the reverse; None where Hydra says something else."""
    given = re.match(r"Error merging override (([^=]+)=.*)", text)
    held = re.search(r"object_type=(dict|list)", cause)
    if given is None or held is None or not cause.startswith("Cannot merge DictConfig with List"):
        return None
    rule = {"dict": "a mapping, set by its entries", "list": "a list, in brackets"}[held[1]]
    return f"{given[2]} must be {rule}, but got {given[1]}"


def mistake_in_files(error: Exception) -> str | None:
    """Return one line about what stopped Hydra before a job began; None for another error.

    That is a file of conf/ that cannot be read, or a choice of one that is no name.
    """
    if any(frame.name == "run_job" for frame in traceback.extract_tb(error.__traceback__)):
        return None
    in_choices = any(
        Path(frame.filename).name == "defaults_list.py"
        for frame in traceback.extract_tb(error.__traceback__)
    )
    if in_choices and isinstance(error, (ValueError, TypeError)) and (said := _odd_choice()):
        return said
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return _broken_yaml(error)
    for file in sorted(CONF.rglob("*.yaml")):
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except yaml.MarkedYAMLError as found:
            return _broken_yaml(found, file)
        except (OSError, ValueError) as found:
            return f"{_name(file)} must be a text in UTF-8: {found}"
        if not isinstance(content, dict | None):
            kind = type(content).__name__
            return f"{_name(file)} must hold keys with values, but holds a {kind}"
    return None


def _odd_choice() -> str | None:
    """Explain a choice of a file that is no name."""
    groups = _groups()
    for word in sys.argv[1:]:
        name, _, value = word.lstrip("+").partition("=")
        names = [one.strip("' \"") for one in value.strip("[]").split(",")]
        odd = any(not one[:1].isalpha() or one.lower() in _NO_NAMES for one in names)
        if name in groups and odd:
            return _unknown_option(f"{name}/{value}")
    return None


def _broken_yaml(error: yaml.MarkedYAMLError, file: Path | None = None) -> str:
    mark = error.problem_mark
    assert mark is not None
    problem = " ".join(str(error.problem).split())
    remedy = "; indent with spaces" if "\\t" in problem else ""
    return f"{_name(file or Path(mark.name))}, line {mark.line + 1}: {problem}{remedy}"


def _name(file: Path) -> str:
    return str(file.relative_to(PROJECT) if file.is_relative_to(PROJECT) else file)


def _unreadable(override: str) -> str:
    key, _, value = override.partition("=")
    if value.startswith("="):
        remedy = "with one equals sign"
    elif re.search(r"(^|,)\s*(,|$)", value):
        remedy = "with a value on either side of a comma"
    elif re.search(r"\s[\w.]+=", value):
        remedy = "one an argument, without quotes around two of them"
    else:
        remedy = (
            "and a value with signs that mean something to Hydra quotes of its own: "
            + shlex.quote(f"{key}={quoted(value)}")
        )
    return f"{override} must have the form key=value, {remedy}"


def _unknown_key(key: str, given: str | None = None) -> str:
    """Explain a key that Hydra did not find, by what the chosen files hold."""
    groups = _groups()
    if key in groups:
        return (
            f"{key} names one file of conf/{key}; a value in it is set with a dot, {key}.name=value"
        )
    if key.startswith("hydra."):
        return f"{key} is not a key of Hydra's; `python train.py --cfg hydra` shows them"
    known = list(_keys(_composed(groups)))
    if key in known and given is not None and given.startswith(f"{key}={{"):
        if key in _OF_NODES:
            return f"{key} takes a new entry by its name: +{key}.NAME={{_target_: ...}}"
        return f"{key} has no such entry: one that it has is set by its name, {key}.NAME=value"
    if key in known and f"~{key}" in sys.argv and any("resume=" in word for word in sys.argv):
        return f"~{key} must not be given with resume: what was recorded is not left out"
    if key in known:
        return f"{key} is not there: another argument leaves out, or replaces, what it lies in"
    text, node = str(unknown_key(key, known)), key.rpartition(".")[0]
    if given is not None and f"{node}._target_" in known and "did you mean" not in text:
        return f"{text.partition(';')[0]}; as one more argument of {node}: +{given}"
    return text


def _groups() -> list[str]:
    return [path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra"]


def _composed(groups: list[str]) -> Any:
    """Return the config of the files that the command line chooses, without its values."""
    chosen = [word for word in sys.argv[1:] if word.partition("=")[0] in groups]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", overrides=[word for word in chosen if "," not in word])
    except HydraException:  # one of them is wrong as well
        return {}
    return OmegaConf.to_container(config, resolve=False)


def _keys(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{prefix}{name}"
            yield from _keys(inner, f"{prefix}{name}.")


def _unknown_option(path: str) -> str:
    group, _, option = path.rpartition("/")
    if extra := EXTRAS.get(f"{group}={option}"):
        return not_installed(f"{group}={option}", extra)
    known = sorted(file.stem for file in (CONF / group).glob("*.yaml"))
    if not group or not known:
        return f"{path} is not a file of conf/"
    near = difflib.get_close_matches(option, known, n=1)
    if near:
        remedy = f"did you mean {group}={near[0]}?"
    elif "." in option:
        remedy = f"a class or function is named by {group}._target_={option}"
    else:
        remedy = f"known: {', '.join(known)}"
    return f"{group} must be a file of conf/{group}, but got {group}={option}; {remedy}"


def not_installed(choice: str, extra: str) -> str:
    """Say how to install what a choice needs."""
    return f"{choice} needs packages that are not installed: pip install -e '.[{extra}]'"


def _several(word: str) -> str:
    return (
        f"{word} is several values, and -m runs a job for each: python train.py -m "
        f"{shlex.quote(word)}; a text with a comma needs quotes of its own, a list brackets"
    )


def _no_config(name: str) -> str:
    known = sorted(file.stem for file in CONF.glob("*.yaml"))
    return f"--config-name must be a file of conf/, but got {name}; known: {', '.join(known)}"


_ANSWERS: dict[str, Callable[..., str]] = {
    r"Could not override '([^'@]+).*(?:\s*To append to your config use \+(.*))?": _unknown_key,
    r"Could not (?:find|load) '([^']+)'": _unknown_option,
    r"Could not delete from config\. '([^']+)' does not exist": _unknown_key,
    r"Could not delete from config\. The value of '([^']+)' is": lambda key: (
        f"~{key} leaves the key out, whatever its value: leave out what follows it"
    ),
    r"Could not append to config\. An item is already at '([^']+)'": lambda key: (
        f"{key} is a key already: leave out the +"
    ),
    r"^(\S+) appears more than once in the final defaults list": lambda group: (
        f"{group} is chosen already: leave out the +"
    ),
    r"Ambiguous value for argument '(.*)'": _several,
    r"Sweep parameters '(.*)' requires --multirun": _several,
    r"does not support sweep type : (\w+)_SWEEP": lambda kind: (
        f"{kind.lower()}(...) needs a sweeper that searches: hydra/sweeper=optuna"
    ),
    r"Cannot find primary config '([^']+)'": _no_config,
}
"""Of an error's text: a pattern -> what to say of its groups."""
