"""Whole runs inside the test process, on a few digits without augmentation."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torch import nn

from training.config import Config, load_config
from training.curriculum import expand
from training.device import choose_device, set_up
from training.evaluation import evaluate_checkpoint
from training.loaders import Loaders, make_loaders
from training.loop import fit
from training.models import has_batch_norm
from training.recorded import quoted, resumed
from training.records import Record, Run
from training.redaction import Redaction, referred
from training.resolved import resolved
from training.rows import is_time
from training.state import make_model
from training.targets import PROJECT

SMALL = (
    *("data.train.limit=64", "data.val.limit=40", "augment=none", "epochs=2", "batch_size=16"),
    *("num_workers=0", "device=cpu", "tracker=csv", "model.width=4"),
)


is_old = not hasattr(torch.amp, "GradScaler")
"""Whether this torch is older than 2.3, and looks at fewer values of its arguments."""

needs_fp16 = pytest.mark.skipif(is_old, reason="torch before 2.3 knows fp16 on CUDA alone")


def compose_config(*overrides: str) -> DictConfig:
    """Return the config of a small run, as Hydra composes it."""
    experiment = any(override.startswith("experiment=") for override in overrides)
    small = ("num_workers=0", "device=cpu") if experiment else SMALL
    if any(override.startswith("data=") for override in overrides):
        small = tuple(o for o in small if ".limit=" not in o)  # which the digits alone have
    if any(override.startswith("model=") for override in overrides):
        small = tuple(o for o in small if not o.startswith("model."))
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        return compose("config", overrides=[*small, *overrides])


def make_config(*overrides: str) -> Config:
    """Return the checked config of a small run."""
    return load_config(compose_config(*overrides))


@contextmanager
def begin(directory: Path, *overrides: str) -> Iterator[Run]:
    """Record a run in a folder."""
    composed = compose_config(*overrides)
    config = load_config(composed)
    table = expand(composed, config.curriculum.table)
    recorded = resolved(composed)
    if config.curriculum.table is not None:
        recorded["curriculum"]["table"] = Redaction(referred(composed)).values(table)
    record = Record(
        config=recorded,
        overrides=list(overrides),
        curriculum=table,
        variables=referred(composed),
    )
    if config.resume is not None:
        config, record = resumed(Path(config.resume), config, record)
    with Run(directory, config, record) as run:
        yield run


def prepare(run: Run) -> tuple[nn.Module, Loaders, torch.device]:
    """Make what `fit` needs, in the order of train.py."""
    device = choose_device(run.config.device)
    set_up(run.config)
    model = make_model(run.config, device)
    return model, make_loaders(run, device, drop_single=has_batch_norm(model)), device


def train(directory: Path, *overrides: str) -> list[dict[str, Any]]:
    """Train a small run, or evaluate it; return the rows of its metrics.csv."""
    with begin(directory, *overrides) as run:
        model, loaders, device = prepare(run)
        function = fit if run.config.trainer.evaluate is None else evaluate_checkpoint
        with loaders:
            function(run, model, loaders, device)
    return rows(directory)


def resume(directory: Path, *overrides: str) -> list[dict[str, Any]]:
    """Go on with a run that was given the same overrides, or others that may change."""
    return train(directory, *overrides, f"resume={quoted(directory)}")


def rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.csv, with numbers as numbers and None where one is missing."""
    with open(directory / "metrics.csv", newline="") as file:
        return [
            {name: float(value) if value else None for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def without_times(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the columns that differ from run to run."""
    return [{k: v for k, v in row.items() if not is_time(k)} for row in table]


def load(directory: Path, name: str = "last") -> dict[str, Any]:
    """Return a checkpoint of a run."""
    checkpoint: dict[str, Any] = torch.load(
        directory / "checkpoints" / f"{name}.pt", weights_only=True
    )
    return checkpoint
