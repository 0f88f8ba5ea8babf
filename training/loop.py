"""The training loop, from top to bottom: batches become updates, epochs become rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from time import perf_counter
from typing import Any

import torch
from torch import nn

from training.console import describe, progress, report_end, report_epoch
from training.device import Batch, Preprocess, Wait, autocast, repeat, to_device
from training.loaders import Loaders
from training.metrics import Evaluation, Meters
from training.optim import Plan
from training.options import TrainerConfig
from training.pictures import show_confusion, show_samples
from training.randomness import aside
from training.records import Run
from training.state import State, TrainLoss, evaluation_mode, load_weights, make_state
from training.tracking import Trackers

log = logging.getLogger("training")

COLUMNS = (
    *("epoch", "train_loss", "val_loss", "val_accuracy", "lr", "built", "reused"),
    *("wait_s", "epoch_s", "samples_per_s", "val_top5_accuracy", "step"),
)
"""Of metrics.csv, one row an epoch; the values of an evaluation are empty where there was none."""

CURVES = {
    **{f"val_{name}": f"val/{name}" for name in ("loss", "accuracy", "top5_accuracy")},
    **{name: f"input/{name}" for name in ("built", "reused", "wait_s", "samples_per_s")},
    **{name: f"epoch/{name}" for name in ("train_loss", "epoch_s")},
}
"""Column of metrics.csv -> curve of the trackers; a curve runs over updates."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the steps of a run share, and do not change."""

    run: Run
    plan: Plan
    loaders: Loaders
    prepare: Preprocess
    trackers: Trackers

    @property
    def trainer(self) -> TrainerConfig:
        """The options of the loop."""
        return self.run.config.trainer


def fit(run: Run, model: nn.Module, loaders: Loaders, device: torch.device) -> float:
    """Train to the end.

    Args:
        run: its config says what to do; results go to its folder.
        model: on the device, in training mode.
        loaders: the input.
        device: where to compute.

    Returns:
        The best value of `trainer.monitor`; an accuracy is a fraction.

    Raises:
        ConfigError: something of the config does not fit, said before the first step.
        FloatingPointError: a training loss or a weight is not finite.
    """
    plan = Plan.of(run.config, len(loaders.train))
    state = make_state(run.config, model, device, plan)
    prepare = Preprocess(run.config, device)
    rows: list[Row] = []
    with Trackers.of(run.directory, run.config.tracker) as trackers:
        job = Job(run=run, plan=plan, loaders=loaders, prepare=prepare, trackers=trackers)
        describe(run.config, plan, loaders, model, device)
        show_samples(trackers, loaders, run.config.tracker.num_pictures, state.step)
        for state.epoch in range(plan.epochs):
            start = perf_counter()
            row = train_epoch(job, state)
            if plan.evaluates(state.epoch):
                row |= evaluate_epoch(job, state)
            state.schedule.after_epoch(row.get(job.trainer.monitor))
            save(job, state)
            rows.append(write_row(job, row | {"epoch_s": round(perf_counter() - start, 4)}))
            if stops_early(job, state):
                break
        show_confusion(trackers, state.best.confusion, loaders.classes, state.step)
    report_end(run, state.best, rows)
    return state.best.value


def train_epoch(job: Job, state: State) -> Row:
    """Train one epoch; return what is known of it without an evaluation."""
    start, wait = perf_counter(), Wait()
    state.losses = TrainLoss()
    batches = islice(job.loaders.train, job.plan.limit)
    bar = progress(batches, state.epoch, job.plan.num_batches)
    on_device = to_device(wait.of(bar), job.prepare.device)
    for window in windows(repeat(on_device, job.trainer.echo), job.trainer.accumulate):
        update(job.trainer, state, job.prepare, window)
        if state.step % job.run.config.tracker.log_every == 0:
            loss = state.losses.read(state.epoch)
            job.trackers.scalars({"train/loss": loss, "train/lr": state.lr}, state.step)
    state.losses.read(state.epoch)
    state.check_weights()
    stats = job.loaders.train.stats()
    return {
        "epoch": state.epoch,
        "train_loss": state.losses.mean,
        "lr": state.lr,
        "built": stats.built,
        "reused": stats.reused,
        "wait_s": round(wait.seconds, 4),
        "samples_per_s": round((stats.built + stats.reused) / (perf_counter() - start), 1),
        "step": state.step,
    }


def windows(batches: Iterable[Batch], size: int) -> Iterator[Iterator[Batch]]:
    """Split batches into the windows of an update each; the last may be shorter."""
    iterator = iter(batches)
    for first in iterator:
        yield chain([first], islice(iterator, size - 1))


def update(
    trainer: TrainerConfig, state: State, prepare: Preprocess, window: Iterable[Batch]
) -> None:
    """Make one update from the batches of a window, in which all samples count alike.

    The mean over a full window is known from its first batch; where the window turns out to be
    shorter, at the end of an epoch, the gradient is scaled to the mean over what there was.
    """
    state.optimizer.zero_grad(set_to_none=True)
    expected = num_samples = 0
    for batch in window:
        images, labels = prepare.for_training(batch)  # normalise; MixUp or CutMix, drawn anew
        expected = expected or trainer.accumulate * len(images)
        with autocast(prepare.device, trainer.precision):
            loss = state.loss(state.model(images), labels)
        state.scaler.scale(loss * (len(images) / expected)).backward()
        state.losses.add(loss, len(images), state.step)
        num_samples += len(images)
    state.scaler.unscale_(state.optimizer)
    if num_samples != expected:
        scale_gradients(state.model, expected / num_samples)
    if trainer.clip_norm is not None:
        nn.utils.clip_grad_norm_(state.model.parameters(), trainer.clip_norm)
    state.lr = state.optimizer.param_groups[0]["lr"]
    if step_optimizer(state):
        state.step += 1
        state.schedule.after_update()
        if state.ema is not None:
            state.ema.update_parameters(state.model)


def step_optimizer(state: State) -> bool:
    """Step the optimizer; say whether it moved: fp16 skips an update whose gradient overflowed."""
    scale = state.scaler.get_scale()
    state.scaler.step(state.optimizer)
    state.scaler.update()
    return state.scaler.get_scale() >= scale  # a smaller one is the scaler's answer to an overflow


def scale_gradients(model: nn.Module, factor: float) -> None:
    """Multiply the gradient of every parameter."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def evaluate_epoch(job: Job, state: State) -> Row:
    """Evaluate after an epoch, and take note if it is the best."""
    evaluation = evaluate(job, state.evaluated)
    values = evaluation.columns()
    if state.best.update(values[job.trainer.monitor], state.epoch):
        state.best.confusion = evaluation.confusion
    return values


@torch.no_grad()
def evaluate(job: Job, model: nn.Module) -> Evaluation:
    """Measure a model on the validation data; nothing that training depends on changes."""
    meters = Meters(job.run.config.data.num_classes, job.prepare.device)
    batches = islice(job.loaders.val, job.plan.limit)
    with aside(), evaluation_mode(model):
        for batch in to_device(batches, job.prepare.device):
            images, labels = job.prepare.for_evaluation(batch)
            with autocast(job.prepare.device, job.trainer.precision):
                logits = model(images)
            meters.add(logits, labels, batch.get("valid"))
    return meters.result()


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
    run.add_metrics({name: values.get(name) for name in COLUMNS})
    log.info("%s  %s", path, "  ".join(f"{name} {value:.4f}" for name, value in values.items()))
    return values[run.config.trainer.monitor]


def save(job: Job, state: State) -> None:
    """Write the checkpoints of an epoch's end."""
    checkpoint = state.checkpoint()
    if state.best.epoch == state.epoch:
        job.run.save_checkpoint("best", checkpoint)
    job.run.save_checkpoint("last", checkpoint)


def write_row(job: Job, row: Row) -> Row:
    """Write an epoch down: in metrics.csv, in the trackers, on the screen."""
    job.run.add_metrics({name: row.get(name) for name in COLUMNS})
    curves = {CURVES[name]: row[name] for name in CURVES if name in row}
    job.trackers.scalars(curves, row["step"])
    report_epoch(job.plan.epochs, row)
    return row


def stops_early(job: Job, state: State) -> bool:
    """Say whether so many evaluations brought no new best that the run ends."""
    patience = job.trainer.early_stopping
    if patience is None or state.best.num_since < patience:
        return False
    log.info("no new best in %d evaluations: the run ends early", patience)
    return True
