"""The training loop, from top to bottom: batches become updates, epochs become rows.

fit -> run_epoch -> train_epoch -> update             forward, backward, clip, step, average
                 -> evaluate_epoch -> evaluate
                 -> write_row, save
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import nn

from reuseloader import ReuseDataLoader
from training.console import describe, progress_bar, report_end, report_epoch, report_skipped
from training.device import Batch, Preprocess, autocast, repeat, to_device
from training.distributed import gather, wait_for_all
from training.loaders import Loaders
from training.metrics import Evaluation, Meters
from training.optim import Plan
from training.options import TrainerConfig
from training.parallel import exchanging_last, mark_valid, mean_over_ranks, seed_rank, share_buffers
from training.pictures import show_confusion, show_samples
from training.progress import Measurement
from training.randomness import aside
from training.records import Run
from training.resume import restore
from training.rows import Row, columns, curves, points_at, times, training_row
from training.signals import Interrupted
from training.state import State, evaluation_mode, make_state
from training.timing import Clock
from training.tracking import Trackers

log = logging.getLogger("training")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the steps of a run share, and do not change."""

    run: Run
    plan: Plan
    loaders: Loaders
    prepare: Preprocess
    trackers: Trackers
    clock: Clock = field(default_factory=Clock)

    @property
    def trainer(self) -> TrainerConfig:
        """The options of the loop."""
        return self.run.config.trainer


def fit(run: Run, model: nn.Module, loaders: Loaders, device: torch.device) -> float:
    """Train to the end; return the best value of `trainer.monitor`, an accuracy as a fraction.

    Args:
        run: its config says what to do; results go to its folder.
        model: on the device, in training mode.
        loaders: the input.
        device: where to compute.

    Raises:
        ConfigError: something of the config does not fit, said before the first step.
        FloatingPointError: a training loss or a weight is not finite.
    """
    plan = Plan.of(run.config, loaders.num_batches)
    state = make_state(run.config, model, device, plan)
    seed_rank(run.config.seed)
    prepare = Preprocess(run.config, device)
    rows = restore(run, state, loaders, plan) if run.config.resume else []
    if rows is None:  # nothing is left to train
        return state.best.value
    step = state.step if run.config.resume else None
    with Trackers.of(run.directory, run.config.tracker, step) as trackers:
        if points := points_at(state, rows):
            trackers.scalars(points, state.step)
        clock = Clock.of(device)
        job = Job(
            run=run, plan=plan, loaders=loaders, prepare=prepare, trackers=trackers, clock=clock
        )
        describe(run.config, plan, loaders, model, device)
        show_samples(trackers, loaders, run.config.tracker.num_pictures, state.step)
        clock.start(state.progress.seconds)
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
    report_end(run, state.best, rows, device)
    return state.best.value


def run_epoch(job: Job, state: State, epoch: int) -> Row:
    """Train an epoch, or the rest of it; evaluate and write it down, then save."""
    if epoch != state.epoch:
        state.begin_epoch(epoch)
    row = train_epoch(job, state)
    if job.plan.evaluates(epoch):
        row |= evaluate_epoch(job, state)
    state.schedule.after_epoch(row.get(job.trainer.monitor))
    row = write_row(job, row)
    save(job, state, ended=True)  # after the row: a run that goes on writes the later rows anew
    return row


def train_epoch(job: Job, state: State) -> Row:
    """Train one epoch, or the rest of it; return what is known of it without an evaluation."""
    accumulate, echo = job.trainer.accumulate, job.trainer.echo
    whole = math.lcm(echo, accumulate) // accumulate  # updates after which no batch is half used
    first, last = state.progress.num_batches, job.plan.batches_in(state.epoch)
    measured = Measurement(state.progress, job.loaders.train.stats)
    job.clock.begin_warmup("train")
    limit = None if job.plan.limit is None else last - first
    bar = progress_bar(islice(job.loaders.train, limit), state.epoch, last - first)
    uses = repeat(to_device(bar, job.prepare.device, job.clock), echo)
    every_window = stoppable(job, windows(uses, accumulate), job.loaders.train, whole)
    for number, window in enumerate(every_window, 1):
        step = state.step
        with job.clock.phase("compute"):
            update(job.trainer, state, job.prepare, window)
        job.clock.end_warmup()
        if state.step > step:  # fp16 skips some
            log_if_due(job, state)
        if number % whole == 0:
            state.progress = measured.progress(first + number * accumulate // echo)
            save_if_due(job, state)
    state.losses.read(state.epoch)
    state.check_weights()
    state.progress = measured.progress(last)
    report_skipped(job.loaders.train, "training")
    return training_row(state, job.clock.seconds())


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
    for batch in exchanging_last(state.parallel, window):
        images, labels = prepare.for_training(batch)  # normalise; MixUp or CutMix, drawn anew
        expected = expected or trainer.accumulate * len(images)
        with autocast(prepare.device, trainer.precision):
            loss = state.loss(state.parallel(images), labels)
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
    share_buffers(state.model, state.ema)  # each rank evaluates a part, and rank 0 saves
    with job.clock.phase("eval"):
        job.clock.begin_warmup("eval")
        evaluation = evaluate(job, state.evaluated)
    values = evaluation.columns()
    if state.best.update(values[job.trainer.monitor], state.epoch):
        state.best.confusion = evaluation.confusion
    return values


@torch.no_grad()
def evaluate(job: Job, model: nn.Module) -> Evaluation:
    """Measure a model on the validation data; nothing that training depends on changes."""
    meters = Meters(job.run.config.data.num_classes, job.prepare.device)
    epoch = job.loaders.val.epoch
    batches = mark_valid(islice(job.loaders.val, job.plan.limit), job.loaders.val.order, epoch)
    with aside(), evaluation_mode(model):
        on_device = to_device(batches, job.prepare.device, Clock())
        for batch in stoppable(job, on_device, job.loaders.val):
            images, labels = job.prepare.for_evaluation(batch)
            with autocast(job.prepare.device, job.trainer.precision):
                logits = model(images)
            meters.add(logits, labels, batch.get("valid"))
            job.clock.end_warmup()
    report_skipped(job.loaders.val, "validation")
    return meters.result()


def save(job: Job, state: State, ended: bool = False) -> None:
    """Write a checkpoint, at the end of an epoch also the best one."""
    state.progress = replace(state.progress, seconds=job.clock.seconds())
    with job.clock.phase("checkpoint"):
        write_checkpoints(job, state, ended)


def write_checkpoints(job: Job, state: State, ended: bool) -> None:
    """Write the last checkpoint, and the best one."""
    place = (state.epoch + 1, 0) if ended else (state.epoch, state.progress.num_batches)
    job.trackers.flush()  # what a kill loses is made again behind the checkpoint, not before it
    checkpoint = state.checkpoint()
    checkpoint["loader"] = {
        **job.loaders.train.state_dict(),  # which counts a batch as soon as it is taken
        **dict(zip(("epoch", "num_batches"), place, strict=True)),
    }
    if ended and state.best.epoch == state.epoch:
        job.run.save_checkpoint("best", checkpoint)
    job.run.save_checkpoint("last", checkpoint)
    wait_for_all()  # no rank ends before the file is whole
    state.saved = state.step


def save_if_due(job: Job, state: State) -> None:
    """Write a checkpoint where `checkpoint.every_steps` asks for one."""
    every = job.run.config.checkpoint.every_steps
    if every is not None and state.step // every > state.saved // every:
        save(job, state)


def log_if_due(job: Job, state: State) -> None:
    """Add a point to the training curves every `tracker.log_every` updates."""
    due = state.step % job.run.config.tracker.log_every == 0
    if due and state.step not in (0, state.point[0]):  # an update that fp16 skips is no step
        loss = mean_over_ranks(state.losses.read(state.epoch))
        state.point = (state.step, {"train/loss": loss, "train/lr": state.lr})
        job.trackers.scalars(state.point[1], state.step)


def write_row(job: Job, row: Row) -> Row:
    """Write an epoch down: in metrics.csv, in the trackers, on the screen.

    Its times reach from the row before to this one, so that none is lost: saving an epoch, which
    comes after its row, is a part of the next. Of several ranks they are those of the one that
    waited longest for its input, for which the others waited in their turn.
    """
    seconds = max(gather(job.clock.seconds()), key=lambda rank: rank["wait"])
    row = row | times(seconds)
    job.clock.start()
    job.run.add_metrics(columns(row))
    job.trackers.scalars(curves(row), row["step"])
    report_epoch(job.plan.epochs, row)
    return row


def stops_early(job: Job, state: State) -> bool:
    """Say whether so many evaluations brought no new best that the run ends."""
    patience = job.trainer.early_stopping
    if patience is None or state.best.num_since < patience:
        return False
    log.info("no new best in %d evaluations: the run ends early", patience)
    return True
