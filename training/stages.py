"""From the config to the functions that make samples: for the store, and for each use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from reuseloader import FOREVER, ReuseKey
from training.build import Source, Transform, compose, finish_image
from training.config import Config
from training.curriculum import Steps, apply_row
from training.samples import check_signature, checked
from training.sections import Table
from training.targets import make, make_function


@dataclass(frozen=True, kw_only=True)
class Stages:
    """How the samples of a run are made.

    Attributes:
        build: makes what is stored of a training sample.
        finish: makes of it what one epoch uses; None leaves it as stored.
        build_val: makes a validation sample.
    """

    build: Callable[[ReuseKey], Any]
    finish: Callable[[Any, ReuseKey], Any] | None
    build_val: Callable[[ReuseKey], Any]


def make_stages(config: Config, table: Table, train: Source, val: Source) -> Stages:
    """Make the transforms of the config, and the build function over them.

    Args:
        config: names them.
        table: the expanded curriculum, which sets their parameters by first epoch.
        train, val: raw items.

    Raises:
        ConfigError: a node cannot be made, or the build function cannot be called.
    """
    augment = config.augment
    # Training has its own: what a transform of the user's keeps is not validation's.
    prepare, first = (_make_all(config.data.prepare, "data.prepare") for _ in range(2))
    if augment.replaces_prepare:
        first = []
    every_use = {} if augment.store_all else augment.fresh
    also_stored = augment.fresh if augment.store_all else {}
    rows = Steps(table)
    stored = rows.map(
        lambda row: compose(
            [*first, *_at(row, augment.stored, "stored"), *_at(row, also_stored, "fresh")]
        )
    )
    fresh = rows.map(lambda row: compose(_at(row, every_use, "fresh")))
    function = make_function(config.build, "build")
    check_signature(function, config.build["_target_"])
    build, finish = checked(
        partial(function, source=train, transforms=stored),
        partial(finish_image, transforms=fresh) if every_use else None,
        config.data,
        config.lifetime,
    )
    as_it_is = Steps({0: compose(prepare)})
    build_val = partial(function, source=val, transforms=as_it_is)
    build_val, _ = checked(build_val, None, config.data, FOREVER)
    return Stages(build=build, finish=finish, build_val=build_val)


def _make_all(nodes: dict[str, Any], place: str) -> list[Transform]:
    return [make(node, f"{place}.{name}") for name, node in nodes.items()]


def _at(row: dict[str, Any], nodes: dict[str, Any], stage: str) -> list[Transform]:
    """Make the transforms of a stage with the parameters of a row of the curriculum."""
    if not nodes:  # nor where those of the stage are made for the other one
        return []
    return _make_all(apply_row(nodes, row, stage), f"augment.{stage}")
