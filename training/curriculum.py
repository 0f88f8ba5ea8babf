"""A table keyed by the first epoch: which values hold, step by step, as training goes on."""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from training.config import ConfigError, suggest
from training.sections import Table
from training.signature import parameters_of
from training.targets import target_of

T = TypeVar("T")
U = TypeVar("U")


class Steps(Generic[T]):
    """Values that hold from an epoch on, until the next one begins.

    Args:
        table: first epoch -> value; the first key is 0 and the keys ascend.

    Raises:
        ConfigError: the keys do not begin at 0 or do not ascend.
    """

    def __init__(self, table: dict[int, T]) -> None:
        self.first_epochs = list(table)
        self.values = list(table.values())
        if not self.first_epochs or self.first_epochs[0] != 0:
            given = self.first_epochs[0] if self.first_epochs else "none"
            raise ConfigError(f"curriculum.table must begin at epoch 0, but its first is {given}")
        for earlier, later in zip(self.first_epochs, self.first_epochs[1:], strict=False):
            if later <= earlier:
                raise ConfigError(
                    f"curriculum.table must have ascending epochs, but {later} follows {earlier}"
                )

    def at(self, epoch: int) -> T:
        """Return the value that holds in an epoch, from 0 up."""
        return self.values[bisect_right(self.first_epochs, epoch) - 1]

    def map(self, function: Callable[[T], U]) -> Steps[U]:
        """Return the same steps with a function applied to each value."""
        return Steps(dict(zip(self.first_epochs, map(function, self.values), strict=True)))


def expand(composed: DictConfig, table: Table | None) -> Table:
    """Return the table in terms of the parameters of transforms, resolved.

    A row names parameters by their place in `augment` (`magnitude`, `stored.elastic.alpha`).
    Parameters that follow from a named one by interpolation appear with their values, so that
    the result can be read, and repeated, without the interpolations.

    Args:
        composed: the whole config, unresolved.
        table: rows as the user wrote them; None is no curriculum.

    Raises:
        ConfigError: a row names an unknown parameter, or not the same ones as the first row.
    """
    if not table:
        return {0: {}}
    if "oc.env" in str(OmegaConf.to_container(composed.curriculum, resolve=False)):
        raise ConfigError(  # the table is written down with its values
            "curriculum.table must hold plain values, but it refers to the environment; "
            "put the reference into augment"
        )
    Steps(table)
    first = next(iter(table.values()))
    for epoch, row in table.items():
        for name in row:
            _check_known(composed, epoch, name)
        if row.keys() != first.keys():
            raise ConfigError(
                f"curriculum.table must set the same parameters in every row, but row {epoch} "
                f"sets {', '.join(row) or 'none'} and row 0 sets {', '.join(first) or 'none'}"
            )
    plain = _leaves(composed)
    for epoch, row in table.items():
        for name, value in row.items():
            _check_value(epoch, name, value, plain[name])
    rows = {epoch: _row(composed, epoch, row) for epoch, row in table.items()}
    named = [name for name in rows[0] if name in first]
    derived = [
        name
        for name in rows[0]
        if name not in first and any(row[name] != plain[name] for row in rows.values())
    ]
    return {epoch: {name: row[name] for name in named + derived} for epoch, row in rows.items()}


def _check_known(composed: DictConfig, epoch: int, name: str) -> None:
    known = list(_leaves(composed))
    if name in known:
        return
    remedy = suggest(name, known)
    if _is_left_at_default(composed, name):
        remedy = f"+augment.{name}=VALUE makes it one"
    raise ConfigError(f"curriculum.table, row {epoch}: {name} is no parameter of augment; {remedy}")


def _is_left_at_default(composed: DictConfig, name: str) -> bool:
    """Say whether a transform takes a parameter that its node does not give."""
    parent, _, own = name.rpartition(".")
    node = OmegaConf.select(composed.augment, parent) if parent else None
    if not isinstance(node, DictConfig) or "_target_" not in node:
        return False
    transform = target_of({"_target_": node["_target_"]}, f"augment.{parent}")
    return own in (parameters_of(transform) or {})


def _check_value(epoch: int, name: str, value: Any, plain: Any) -> None:
    """Refuse what cannot stand where a number stands; only its transform knows all that can."""
    if isinstance(value, float) and not math.isfinite(value):
        rule = "a finite number"
    elif name == "magnitude" and (isinstance(value, bool) or not isinstance(value, (int, float))):
        rule = "a number"
    elif isinstance(value, (str, dict)) and isinstance(plain, (int, float, list)):
        rule = f"like {plain}"
    else:
        return
    raise ConfigError(f"curriculum.table, row {epoch}: {name} must be {rule}, but got {value}")


def _row(composed: DictConfig, epoch: int, row: dict[str, Any]) -> dict[str, Any]:
    try:
        return _leaves(_with(composed, row))
    except OmegaConfBaseException as error:
        given = ", ".join(f"{name}={value}" for name, value in row.items())
        raise ConfigError(
            f"curriculum.table, row {epoch}: {given} does not fit what follows from it, "
            f"{error.full_key}: {str(error).splitlines()[0]}"
        ) from error


def _with(composed: DictConfig, row: dict[str, Any]) -> DictConfig:
    changed = copy.deepcopy(composed)  # all of it: ${augment.magnitude} has to find the row's value
    for name, value in row.items():
        OmegaConf.update(changed, f"augment.{name}", value, merge=False)
    return changed


def _leaves(composed: DictConfig) -> dict[str, Any]:
    """Return the parameters of augment: dotted name -> resolved value; a list is one value."""
    leaves: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else str(key))
        elif name not in ("replaces_prepare", "store_all") and not name.endswith("._target_"):
            leaves[name] = value

    walk(OmegaConf.to_container(composed.augment, resolve=True), "")
    return leaves


def apply_row(nodes: dict[str, Any], row: dict[str, Any], stage: str) -> dict[str, Any]:
    """Return the transforms of a stage with a row of an expanded table put in.

    Args:
        nodes: name -> node, the stage's transforms.
        row: dotted name -> value; names of other stages are passed over.
        stage: `stored` or `fresh`.
    """
    changed = copy.deepcopy(nodes)
    for name, value in row.items():
        first, *path = name.split(".")
        if first != stage:
            continue
        node = changed
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
    return changed
