"""Whether two build functions are known to make other samples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

_MOST_LEVELS = 8  # of objects in objects, which may hold each other in a circle


def differs(one: Any, other: Any, levels: int = _MOST_LEVELS) -> bool:
    """Return whether two builds, or what they hold, are of other code or other values.

    Equal are a function and its redefinition with equal code, defaults and closure, partials and
    methods of equal parts, and objects of equal attributes. What cannot be told counts as equal.
    """
    if one is other or levels == 0:
        return False
    if type(one) is not type(other):
        return True
    if isinstance(one, torch.Tensor):
        return one.shape != other.shape or not torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return not np.array_equal(one, other)
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return True
        return any(differs(one[name], other[name], levels - 1) for name in one)
    if isinstance(one, (tuple, list)):
        if len(one) != len(other):
            return True
        return any(differs(a, b, levels - 1) for a, b in zip(one, other, strict=True))
    parts, others = _parts(one), _parts(other)
    if parts is not None:
        return differs(parts, others, levels - 1)
    try:
        return bool(one != other)
    except Exception:  # of an object that compares in a way of its own
        return False


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Return what an object is made of; None where its own comparison says more."""
    if isinstance(value, FunctionType):
        cells = value.__closure__ or ()
        return value.__code__, value.__defaults__, value.__kwdefaults__, tuple(map(_inside, cells))
    if isinstance(value, CodeType):  # whose own comparison takes in the line that it stands in
        return (
            *(value.co_code, value.co_names, value.co_consts, value.co_varnames),
            *(value.co_freevars, value.co_flags, value.co_argcount, value.co_kwonlyargcount),
        )
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, type):
        return (vars(value),)
    own: Any = type(value).__eq__
    return (_state(value),) if own is object.__eq__ else None


def _state(value: Any) -> Any:
    """Return what a worker would get of an object: not what it keeps of its own process."""
    try:
        return value.__getstate__()
    except Exception:  # it cannot be sent
        return None


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None
