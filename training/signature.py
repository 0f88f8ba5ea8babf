"""What a `_target_` says of its own arguments, held against the entries of its node."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from training.checks import check

_KNOWN = ("torch.", "torchvision.", "training.")
_RULES = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}


def check_entries(target: Callable[..., Any], entries: dict[str, Any], place: str) -> None:
    """Refuse an entry that is of another kind than its target's signature says.

    Only what is annotated as a plain value, or as one or null, is looked at: a number, a text,
    true or false. A number that is no number (NaN) is never one, and to torch and torchvision
    neither is an infinite one.

    Args:
        target: a class or function.
        entries: argument -> value, as in the config.
        place: where the node stands in the config.

    Raises:
        ConfigError: an entry is of another kind.
    """
    if not str(target.__module__).startswith(_KNOWN):  # a user's own may take what it does not say
        return
    kinds = _kinds(target)
    if not str(target.__module__).startswith("training."):
        for name, value in entries.items():
            numbers = value if isinstance(value, list) else [value]
            holds = all(map(_is_number_of_torch, numbers))
            check(f"{place}.{name}", value, holds, "a finite number below 2^63, or several")
    for name, value in entries.items():
        is_node = isinstance(value, dict) and "_target_" in value  # what it makes is not known
        if name in kinds and not is_node:
            rules = [_RULES[kind] for kind in _RULES if kind in kinds[name]]
            rule = " or ".join([*(["null"] if NoneType in kinds[name] else []), *rules])
            check(f"{place}.{name}", value, _is_of(value, kinds[name]), rule)


def parameters_of(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a class or function; None where it does not say them."""
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):  # written in C, perhaps
        return None


def _is_number_of_torch(value: Any) -> bool:
    return not isinstance(value, (int, float)) or abs(value) < 2**63  # false for NaN


def _kinds(target: Callable[..., Any]) -> dict[str, set[type]]:
    """Return argument -> the plain kinds that it may be, of those that may be nothing else."""
    function: Any = target.__init__ if inspect.isclass(target) else target  # type: ignore[misc]
    try:
        hints = get_type_hints(function)
        parameters = inspect.signature(function).parameters
    except Exception:  # names that a module has for its type checker alone, or no signature
        return {}
    found = {}
    for name, hint in hints.items():
        kinds = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
        if name not in parameters or not kinds <= {*_RULES, NoneType}:
            continue
        if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if parameters[name].default is None:
            kinds.add(NoneType)
        found[name] = kinds
    return found


def _is_of(value: Any, kinds: set[type]) -> bool:
    if value is None:
        return NoneType in kinds
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, str):
        return str in kinds
    if not isinstance(value, (int, float)) or value != value:
        return False
    is_flag = bool in kinds and value in (0, 1)
    is_whole = int in kinds and (isinstance(value, int) or value.is_integer())
    return float in kinds or is_flag or is_whole
