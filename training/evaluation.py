"""Evaluating a checkpoint, without training."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from training.checkpoint import why_unread
from training.checks import ConfigError
from training.device import Preprocess
from training.loaders import Loaders
from training.loop import Job, evaluate
from training.optim import Plan
from training.records import Run
from training.rows import columns
from training.tracking import Trackers
from training.trial import try_evaluation

log = logging.getLogger("training")


def evaluate_checkpoint(
    run: Run, model: nn.Module, loaders: Loaders, device: torch.device
) -> float:
    """Evaluate the checkpoint that `trainer.evaluate` names; return the value of the monitor.

    The run that it comes from is only read: the values go to the screen, and as a row without an
    epoch to the `metrics.csv` of this one.

    Raises:
        ConfigError: there is no such checkpoint, or it is another model's.
    """
    path = run.config.trainer.evaluate
    assert path is not None
    origin = load_weights(model, path, device)
    plan = Plan.of(run.config, loaders.num_batches)
    prepare = Preprocess(run.config, device)
    try_evaluation(run.config, model, loaders, prepare)
    job = Job(run=run, plan=plan, loaders=loaders, prepare=prepare, trackers=Trackers({}))
    result = evaluate(job, model)
    values = result.columns()
    run.add_metrics(columns(values))
    log.info("%s: %s", path, origin)
    log.info(
        "val loss %.4f  accuracy %.2f %%  top-5 %.2f %%  of %d samples",
        result.loss,
        100 * result.accuracy,
        100 * result.top5_accuracy,
        result.num_samples,
    )
    log.info("run folder     %s", run.directory)
    return values[run.config.trainer.monitor]


def load_weights(model: nn.Module, path: str, device: torch.device) -> str:
    """Put the weights of a checkpoint into a model: the moving average where it has one.

    Returns:
        What these weights are, for the screen.

    Raises:
        ConfigError: there is no checkpoint, or it is another model's.
    """
    place = f"trainer.evaluate must be a checkpoint of this model, but got trainer.evaluate={path}"
    if Path(path).is_dir():
        best = Path(path) / "checkpoints" / "best.pt"
        remedy = f"; its best is trainer.evaluate={best}" if best.is_file() else ""
        raise ConfigError(f"{place}: it is a folder{remedy}")
    if not Path(path).is_file():
        raise ConfigError(f"{place}: there is no such file")
    try:
        checkpoint = torch.load(path, map_location=device, weights_only=True)
        weights, ema, epoch = (checkpoint[name] for name in ("model", "ema", "epoch"))
    except KeyError as error:
        raise ConfigError(f"{place}: it lacks the entry {error.args[0]}") from error
    except Exception as error:  # whatever another program's file makes torch.load raise
        raise ConfigError(f"{place}: {why_unread(error)}") from error
    if ema is not None:
        prefix = "module."
        weights = {k.removeprefix(prefix): v for k, v in ema.items() if k.startswith(prefix)}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ConfigError(f"{place}: {' '.join(lines[:2])}{_remedy(Path(path))}") from error
    return f"weights of epoch {epoch}" if ema is None else f"moving average of epoch {epoch}"


def _remedy(path: Path) -> str:
    """Return what the run of a checkpoint was started with, where its folder says so."""
    try:
        overrides = (path.absolute().parent.parent / "overrides").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return f"; its run was given: {' '.join(overrides.split()) or 'nothing'}"
