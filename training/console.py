"""What a run says on the screen and in its log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from reuseloader import ReuseDataLoader
from training.advice import advise, work_of
from training.config import Config
from training.distributed import ranks
from training.loaders import Loaders
from training.metrics import Evaluation
from training.optim import Plan
from training.records import Run
from training.state import Best
from training.workers import num_cores

log = logging.getLogger("training")


def describe(
    config: Config, plan: Plan, loaders: Loaders, model: nn.Module, device: torch.device
) -> None:
    """Say before the first step what is going to happen."""
    if not ranks().is_main:
        return  # it would say the same
    log.info(
        "%d samples for training, %d for validation, %d classes",
        loaders.num_train,
        loaders.num_val,
        len(loaders.classes),
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    log.info("%s with %d parameters on %s", type(model).__name__, parameters, device)
    log.info(
        "%d epoch%s of %d batches, %d updates; a prepared sample serves %d epoch%s, seed %d",
        plan.epochs,
        "" if plan.epochs == 1 else "s",
        plan.num_batches,
        plan.total_steps,
        config.lifetime,
        "" if config.lifetime == 1 else "s",
        config.seed,
    )
    for fact in loaders.facts:
        log.info("%s", fact)
    if not ranks().is_single:
        own = config.batch_size * config.trainer.accumulate
        log.info(
            "%d ranks on %s: %d samples an update, %d a rank; %d updates an epoch",
            *(ranks().world_size, "NCCL" if device.type == "cuda" else "gloo"),
            *(own * ranks().world_size, own, plan.steps_in(0)),
        )
    for note in loaders.notes:
        log.warning("%s", note)


def progress_bar(batches: Iterable[Any], epoch: int, total: int) -> Iterable[Any]:
    """Show a bar while the batches of an epoch are taken, where there is a screen."""
    disable = None if ranks().is_main else True
    return tqdm(batches, f"epoch {epoch}", total, leave=False, disable=disable, unit="batch")


def report_skipped(loader: ReuseDataLoader, what: str) -> None:
    """Say how many samples of the last pass could not be read, if any."""
    count = loader.stats().substituted
    if count:
        log.warning("%d of the samples for %s could not be read and were skipped", count, what)


def report_evaluation(result: Evaluation) -> None:
    """Warn where a model gave no answer: the loss of a sample is not a number."""
    if result.num_undefined:
        log.warning(
            "the loss of %d of %d samples for validation is not a number: they count as wrong, "
            "and this evaluation is never the best",
            *(result.num_undefined, result.num_samples),
        )


def report_epoch(epochs: int, row: dict[str, Any]) -> None:
    """Print an epoch's line."""
    evaluation = ""
    if "val_loss" in row:
        accuracy = 100 * row["val_accuracy"]
        evaluation = f"  val loss {row['val_loss']:.4f}  accuracy {accuracy:5.2f} %"
    log.info(
        "epoch %*d of %d  loss %.4f%s  built %d  reused %d  waited %.1f of %.1f s  %.0f samples/s",
        len(str(epochs)),
        row["epoch"],
        epochs,
        row["train_loss"],
        evaluation,
        row["built"],
        row["reused"],
        row["wait_s"],
        row["epoch_s"],
        row["samples_per_s"],
    )


def report_end(run: Run, best: Best, rows: list[dict[str, Any]], device: torch.device) -> None:
    """Print where the results lie, the best of them, and whether input or compute was the bound."""
    log.info("run folder     %s", run.directory)
    if best.epoch < 0:
        log.warning("no evaluation was better than none: %s", run.config.trainer.monitor)
    elif run.config.trainer.monitor == "val_accuracy":
        log.info("best accuracy  %.2f %% in epoch %d", 100 * best.value, best.epoch)
    else:
        log.info("best loss      %.4f in epoch %d", best.value, best.epoch)
    own, config = ranks(), run.config
    cores = num_cores() * own.num_nodes if device.type == "cpu" else None
    work = work_of(
        rows, config.lifetime, config.num_workers, cores, own.world_size, config.batch_size
    )
    if work is not None:
        log.info("time           %s", advise(work))
