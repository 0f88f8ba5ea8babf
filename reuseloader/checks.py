"""Checks of arguments, with errors in one line that name the field, the rule and the value."""

from __future__ import annotations

from operator import index as as_index
from typing import Any

import numpy as np


def check_integer(name: str, value: Any, minimum: int | None = None) -> int:
    """Return ``value`` as an ``int``, or raise a ValueError that names the field and the rule."""
    rule = {None: "an integer", 0: "an integer from 0 up", 1: "a positive integer"}.get(minimum)
    assert rule is not None, minimum
    try:
        # A bool is an int to Python, but to a person lifetime=True is a mistake.
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = as_index(value)
    except TypeError:
        raise ValueError(f"{name} must be {rule}, but got {name}={value!r}") from None
    if minimum is not None and number < minimum:
        raise ValueError(f"{name} must be {rule}, but got {name}={number}")
    return number


def check_share(name: str, value: Any) -> float:
    """Return ``value``, a number from 0 to 1, or raise a ValueError that names field and rule."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= 1):
        raise ValueError(f"{name} must be a share from 0 to 1, but got {name}={value!r}")
    share: float = value
    return share
