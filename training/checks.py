"""The error for a mistake in the config, and the checks that raise it."""

from __future__ import annotations

from typing import Any


class ConfigError(ValueError):
    """A mistake in the user's input; its text is one line that names the remedy."""


def check(name: str, value: Any, holds: bool, rule: str) -> None:
    """Raise where a rule does not hold: `name must be RULE, but got name=value`."""
    if not holds:
        raise ConfigError(f"{name} must be {rule}, but got {name}={value}")


def check_minimum(name: str, value: int, minimum: int) -> None:
    """Raise where an integer is below 0 or 1."""
    rule = {0: "an integer from 0 up", 1: "a positive integer"}[minimum]
    check(name, value, value >= minimum, rule)
