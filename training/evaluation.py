"""Evaluating a checkpoint, without training."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from training.checks import ConfigError
from training.device import Preprocess
from training.loaders import Loaders
from training.loop import Job, evaluate
from training.optim import Plan
from training.records import Run
from training.rows import columns
from training.tracking import Trackers

log = logging.getLogger("training")


def evaluate_checkpoint(
    run: Run, model: nn.Module, loaders: Loaders, device: torch.device
) -> float:
    """Evaluate the checkpoint that `trainer.evaluate` names; return the value of the monitor.

    Raises:
        ConfigError: there is no such checkpoint, or it is another model's.
    """
    path = run.config.trainer.evaluate
    assert path is not None
    load_weights(model, path, device)
    plan = Plan.of(run.config, len(loaders.train))
    prepare = Preprocess(run.config, device)
    job = Job(run=run, plan=plan, loaders=loaders, prepare=prepare, trackers=Trackers({}))
    values = evaluate(job, model).columns()
    run.add_metrics(columns(values))
    log.info("%s  %s", path, "  ".join(f"{name} {value:.4f}" for name, value in values.items()))
    return values[run.config.trainer.monitor]


def load_weights(model: nn.Module, path: str, device: torch.device) -> None:
    """Put the weights of a checkpoint into a model: the moving average where it has one.

    Raises:
        ConfigError: there is no checkpoint, or it is another model's.
    """
    place = f"trainer.evaluate must be a checkpoint of this model, but got trainer.evaluate={path}"
    if not Path(path).is_file():
        raise ConfigError(f"{place}: there is no such file")
    try:
        checkpoint = torch.load(path, map_location=device, weights_only=True)
        weights = checkpoint["model"]
        if checkpoint["ema"] is not None:
            prefix = "module."
            averaged = checkpoint["ema"].items()
            weights = {k.removeprefix(prefix): v for k, v in averaged if k.startswith(prefix)}
        model.load_state_dict(weights)
    except Exception as error:  # whatever another program's file makes torch.load raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"{place}: {reason}") from error
