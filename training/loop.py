"""The training loop, from top to bottom: batches become updates, epochs become rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import nn

from reuseloader import ReuseDataLoader
from training.console import describe, progress, report_end, report_epoch
from training.device import Batch, Preprocess, Wait, autocast, repeat, to_device
from training.loaders import Loaders
from training.metrics import Evaluation, Meters
from training.optim import Plan
from training.options import TrainerConfig
from training.pictures import show_confusion, show_samples
from training.randomness import aside
from training.records import Run
from training.resume import restore
from training.signals import Interrupted
from training.state import Progress, State, evaluation_mode, load_weights, make_state
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
T = TypeVar("T")


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
    if run.config.resume is not None:
        restored = restore(run, state, loaders, plan)
        if restored is None:
            return state.best.value
        rows += restored
    with aside():
        first_step = state.step + 1 if state.step > 0 else 0  # the step itself has its points
        opened = Trackers.of(run.directory, run.config.tracker, first_step)
    with opened as trackers:
        job = Job(run=run, plan=plan, loaders=loaders, prepare=prepare, trackers=trackers)
        describe(run.config, plan, loaders, model, device)
        show_samples(trackers, loaders, run.config.tracker.num_pictures, state.step)
        try:
            for epoch in range(state.epoch, plan.epochs):
                rows.append(run_epoch(job, state, epoch))
                if stops_early(job, state):
                    break
        except Interrupted as interruption:
            save(job, state)
            interruption.run = run.directory
            raise
        show_confusion(trackers, state.best.confusion, loaders.classes, state.step)
    report_end(run, state.best, rows)
    return state.best.value


def run_epoch(job: Job, state: State, epoch: int) -> Row:
    """Train an epoch, or the rest of it; evaluate and write it down, then save."""
    start = perf_counter()
    if epoch != state.epoch:
        state.begin_epoch(epoch)
    earlier = state.progress.train_s
    row = train_epoch(job, state)
    if job.plan.evaluates(epoch):
        row |= evaluate_epoch(job, state)
    state.schedule.after_epoch(row.get(job.trainer.monitor))
    row = write_row(job, row | {"epoch_s": round(earlier + perf_counter() - start, 4)})
    save(job, state, ended=True)  # after the row: a run that goes on writes the later rows anew
    return row


def train_epoch(job: Job, state: State) -> Row:
    """Train one epoch, or the rest of it; return what is known of it without an evaluation."""
    start, wait, before = perf_counter(), Wait(), state.progress
    accumulate, echo = job.trainer.accumulate, job.trainer.echo
    limit = None if job.plan.limit is None else job.plan.limit - before.num_batches
    batches = islice(job.loaders.train, limit)
    bar = progress(batches, state.epoch, job.plan.num_batches - before.num_batches)
    split = windows(repeat(to_device(wait.of(bar), job.prepare.device), echo), accumulate)
    whole = math.lcm(echo, accumulate) // accumulate  # updates after which no batch is half used

    def note(num_batches: int) -> None:
        seconds = before.train_s + perf_counter() - start
        stats = job.loaders.train.stats()
        state.progress = Progress(
            num_batches=num_batches,
            built=before.built + stats.built,
            reused=before.reused + stats.reused,
            wait_s=before.wait_s + wait.seconds,
            train_s=seconds,
        )

    for number, window in enumerate(stoppable(job, split, job.loaders.train, whole), 1):
        update(job.trainer, state, job.prepare, window)
        if state.step % job.run.config.tracker.log_every == 0:
            loss = state.losses.read(state.epoch)
            job.trackers.scalars({"train/loss": loss, "train/lr": state.lr}, state.step)
        if number % whole == 0:
            note(before.num_batches + number * accumulate // echo)
            save_if_due(job, state)
    state.losses.read(state.epoch)
    state.check_weights()
    note(job.plan.num_batches)
    done = state.progress
    return {
        "epoch": state.epoch,
        "train_loss": state.losses.mean,
        "lr": state.lr,
        "built": done.built,
        "reused": done.reused,
        "wait_s": round(done.wait_s, 4),
        "samples_per_s": round((done.built + done.reused) / done.train_s, 1),
        "step": state.step,
    }


def stoppable(job: Job, items: Iterable[T], loader: ReuseDataLoader, every: int = 1) -> Iterator[T]:
    """Yield items; where a signal came, raise before the first and after each `every` of them."""
    return job.run.signals.between(items, loader.num_workers > 0, every)


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
        on_device = to_device(batches, job.prepare.device)
        for batch in stoppable(job, on_device, job.loaders.val):
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


def save(job: Job, state: State, ended: bool = False) -> None:
    """Write a checkpoint, at the end of an epoch also the best one."""
    place = (state.epoch + 1, 0) if ended else (state.epoch, state.progress.num_batches)
    checkpoint = state.checkpoint()
    checkpoint["loader"] = {
        **job.loaders.train.state_dict(),  # which counts a batch as soon as it is taken
        **dict(zip(("epoch", "num_batches"), place, strict=True)),
    }
    if ended and state.best.epoch == state.epoch:
        job.run.save_checkpoint("best", checkpoint)
    job.run.save_checkpoint("last", checkpoint)
    state.saved = state.step


def save_if_due(job: Job, state: State) -> None:
    """Write a checkpoint where `checkpoint.every_steps` asks for one."""
    every = job.run.config.checkpoint.every_steps
    if every is not None and state.step // every > state.saved // every:
        save(job, state)


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
