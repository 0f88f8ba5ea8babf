"""From the config to the two loaders: training with reuse, validation prepared once."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from reuseloader import FOREVER, ReuseDataLoader
from training.build import Source, Transform, compose, finish_image
from training.config import Config, ConfigError, Node
from training.curriculum import Steps, apply_row
from training.fingerprint import fingerprint
from training.records import Run
from training.targets import make, make_function


@dataclass(frozen=True, kw_only=True)
class Loaders:
    """The input of a run."""

    train: ReuseDataLoader
    val: ReuseDataLoader
    classes: list[str]


def make_loaders(run: Run, device: torch.device) -> Loaders:
    """Make both loaders; nothing is built before the first pass.

    Args:
        run: its config and curriculum say what to make, its cache folder where to store.
        device: where the batches will go; for CUDA they lie in pinned memory.

    Raises:
        ConfigError: a node cannot be made, or the data does not fit the config.
    """
    config, table = run.config, run.curriculum
    train = _make_source(config.data.train, "data.train", config)
    val = _make_source(config.data.val, "data.val", config)
    if val.classes != train.classes:
        raise ConfigError(
            "data.val must have the classes of data.train, but got "
            f"{', '.join(val.classes)} against {', '.join(train.classes)}"
        )
    rows = Steps(table)
    prepare = _make_transforms(config.data.prepare, "data.prepare")
    stored = rows.map(
        lambda row: compose([*prepare, *_make_stage(config.augment.stored, row, "stored")])
    )
    fresh = rows.map(lambda row: compose(_make_stage(config.augment.fresh, row, "fresh")))
    build = make_function(config.build, "build")
    options = _options(config, device)
    return Loaders(
        train=_make_loader(
            partial(build, source=train, transforms=stored),
            len(train),
            run.cache / "train",
            lifetime=config.lifetime,
            seed=config.seed,
            shuffle=True,
            drop_last=_leaves_one(len(train), config.batch_size),
            fingerprint=fingerprint(config, table, config.data.train, train, stored=True),
            finish=partial(finish_image, transforms=fresh) if config.augment.fresh else None,
            **options,
        ),
        val=_make_loader(
            partial(build, source=val, transforms=Steps({0: compose(prepare)})),
            len(val),
            run.cache / "val",
            lifetime=FOREVER,
            seed=config.seed,
            fingerprint=fingerprint(config, table, config.data.val, val, stored=False),
            **options,
        ),
        classes=train.classes,
    )


def _make_loader(*arguments: Any, **options: Any) -> ReuseDataLoader:
    try:
        return ReuseDataLoader(*arguments, **options)
    except ValueError as error:
        raise ConfigError(str(error)) from error  # the folder: the rest has been checked


def _make_source(node: Node, place: str, config: Config) -> Source:
    source: Source = make(node, place)
    if len(source) == 0:
        raise ConfigError(f"{place} must hold at least one sample, but it is empty")
    if len(source.classes) != config.data.num_classes:
        raise ConfigError(
            f"data.num_classes must be the number of classes of {place}, {len(source.classes)}, "
            f"but got data.num_classes={config.data.num_classes}"
        )
    return source


def _make_transforms(nodes: dict[str, Any], place: str) -> list[Transform]:
    return [make(node, f"{place}.{name}") for name, node in nodes.items()]


def _make_stage(nodes: dict[str, Any], row: dict[str, Any], stage: str) -> list[Transform]:
    return _make_transforms(apply_row(nodes, row, stage), f"augment.{stage}")


def _leaves_one(size: int, batch_size: int) -> bool:
    # A last batch of one sample has no variance for BatchNorm to normalise by.
    return size > batch_size and size % batch_size == 1


def _options(config: Config, device: torch.device) -> dict[str, Any]:
    options: dict[str, Any] = {
        "batch_size": config.batch_size,
        "num_workers": config.num_workers,
        "pin_memory": device.type == "cuda",
    }
    if config.num_workers > 0:
        options |= {
            "prefetch_factor": config.loader.prefetch_factor,
            "persistent_workers": config.loader.persistent_workers,
            "multiprocessing_context": config.loader.multiprocessing_context,
            "worker_init_fn": _leave_interrupts_to_parent,
        }
    return options


def _leave_interrupts_to_parent(_: int) -> None:
    # CTRL-C reaches every process of the terminal; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
