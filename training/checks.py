"""The error for a mistake in the config, and the checks that raise it."""

from __future__ import annotations

import re
import sys
from typing import Any


class ConfigError(ValueError):
    """A mistake in the user's input; its text is one line that names the remedy."""


def check(name: str, value: Any, holds: bool, rule: str) -> None:
    """Raise where a rule does not hold: `name must be RULE, but got name=value`."""
    if not holds:
        given = "null" if value is None else value
        raise ConfigError(f"{name} must be {rule}, but got {name}={given}")


def check_minimum(name: str, value: int, minimum: int) -> None:
    """Raise where an integer is below 0 or 1."""
    rule = {0: "an integer from 0 up", 1: "a positive integer"}[minimum]
    check(name, value, value >= minimum, rule)


def is_finite(value: Any) -> bool:
    """Say whether a value is a number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def text_of(error: BaseException) -> str:
    """Return what an exception says, never nothing.

    Of one that a worker raised, without the worker's traceback, which its text holds as well.
    """
    text = str(error)
    if "\nOriginal Traceback " in text:
        lines = text.rstrip().splitlines()
        last_frame = max(n for n, line in enumerate(lines) if n == 0 or line.startswith(" "))
        return re.sub(r"^[\w.]+: ", "", "\n".join(lines[last_frame + 1 :]))
    if isinstance(error, (LookupError, AttributeError, AssertionError)) or not text:
        return f"{type(error).__name__}: {text}".removesuffix(": ")
    return text


def reason(error: BaseException) -> str:
    """Return in one line what an exception says."""
    said, *_ = text_of(error).split("Exception raised from")  # behind it: frames of C++
    return " ".join(said.split())
