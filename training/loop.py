"""The training loop, from top to bottom: batches become updates, epochs become rows.

fit -> train -> run_epoch -> train_epoch -> update
                          -> evaluate_epoch -> evaluate
                          -> write_row, save

Each batch of an update is normalised and mixed (MixUp, CutMix), goes forward and backward; then,
once an update: clip, step, rate, moving average (EMA). All of that stands in `update`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import nn

from training.console import (
    describe,
    progress_bar,
    report_end,
    report_epoch,
    report_evaluation,
    report_skipped,
)
from training.device import Batch, Preprocess, autocast, repeat, to_device, windows
from training.distributed import gather
from training.loaders import Loaders
from training.metrics import Evaluation, Meters, monitored
from training.models import forward
from training.optim import Plan, scale_gradients
from training.options import TrainerConfig
from training.parallel import exchanging_last, mark_valid, mean_over_ranks, seed_rank, share_buffers
from training.pictures import show_confusion, show_samples
from training.profiling import NoProfiler, make_profiler
from training.progress import Measurement
from training.randomness import aside
from training.records import Run
from training.resume import restore, write_checkpoints
from training.rows import Row, columns, curves, open_trackers, times, training_row
from training.signals import Interrupted
from training.state import State, evaluation_mode, make_state
from training.timing import Clock
from training.tracking import Trackers
from training.trial import try_training
from training.workers import begin_pass

log = logging.getLogger("training")

SMALLEST_SCALE = 1e-6  # of the loss, in fp16: 36 overflows in a row after the first 65,536


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the steps of a run share, and do not change."""

    run: Run
    plan: Plan
    loaders: Loaders
    prepare: Preprocess
    trackers: Trackers
    clock: Clock = field(default_factory=Clock)
    profiler: NoProfiler = field(default_factory=NoProfiler)

    @property
    def trainer(self) -> TrainerConfig:
        """The options of the loop."""
        return self.run.config.trainer


def fit(run: Run, model: nn.Module, loaders: Loaders, device: torch.device) -> float:
    """Train to the end; return the best value of `trainer.monitor`, an accuracy as a fraction.

    Args:
        run: its config says what to do; results go to its folder.
        model: on the device.
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
    try_training(run.config, model, state.loss, loaders, prepare)
    rows = restore(run, state, loaders, plan) if run.config.resume else []
    if rows is None:  # nothing is left to train
        return state.best.value
    with open_trackers(run, state, rows) as trackers:
        clock = Clock.of(device)
        job = Job(
            run=run,
            plan=plan,
            loaders=loaders,
            prepare=prepare,
            trackers=trackers,
            clock=clock,
            profiler=make_profiler(run, loaders, clock, state.epoch, plan.epochs),
        )
        describe(run.config, plan, loaders, model, device)
        show_samples(trackers, loaders, run.config.tracker.num_pictures, state.step)
        clock.start(state.progress.seconds)
        train(job, state, rows)
        show_confusion(trackers, state.best.confusion, loaders.classes, state.step)
    report_end(run, state.best, rows, device)
    return state.best.value


def train(job: Job, state: State, rows: list[Row]) -> None:
    """Train to the last epoch, or until nothing gets better; add a row of each epoch to `rows`.

    Raises:
        Interrupted: a signal came; what was trained until then is saved.
    """
    try:
        for epoch in range(state.epoch, job.plan.epochs):
            rows.append(run_epoch(job, state, epoch))
            if state.best.is_stale(job.trainer.early_stopping):
                log.info("no new best in %d evaluations: the run ends early", state.best.num_since)
                break
    except Interrupted as interruption:
        save(job, state)
        interruption.run = job.run.directory
        raise


def run_epoch(job: Job, state: State, epoch: int) -> Row:
    """Train an epoch, or the rest of it; evaluate and write it down, then save."""
    if epoch != state.epoch:
        state.begin_epoch(epoch)
    with job.profiler.epoch(epoch, job.plan.steps_in(epoch)):
        row = train_epoch(job, state)
    if job.plan.evaluates(epoch):
        row |= evaluate_epoch(job, state)
    state.schedule.after_epoch(monitored(row, job.trainer.monitor) if "val_loss" in row else None)
    row = write_row(job, row)
    save(job, state, ended=True)  # after the row: a run that goes on writes the later rows anew
    return row


def train_epoch(job: Job, state: State) -> Row:
    """Train one epoch, or the rest of it; return what is known of it without an evaluation."""
    first, last = state.progress.num_batches, job.plan.batches_in(state.epoch)
    measured = Measurement(state.progress, job.loaders.train.stats)
    job.clock.begin_warmup("train")
    for number, window in enumerate(windows_of(job, state.epoch, first, last), 1):
        with job.clock.phase("compute"):
            update(job.trainer, state, job.prepare, window)
        job.clock.end_warmup()
        job.profiler.step()
        log_if_due(job, state)
        if number % job.plan.whole_updates == 0:
            used = min(first + job.plan.batches_used(number), last)  # the last one may have fewer
            state.progress = measured.progress(used)
            save_if_due(job, state)
    state.losses.read(state.epoch)
    state.check_weights()
    state.progress = measured.progress(last)
    report_skipped(job.loaders.train, "training")
    return training_row(state, job.clock.seconds())


def windows_of(job: Job, epoch: int, first: int, last: int) -> Iterator[Iterator[Batch]]:
    """Yield the batches of each update, on the device: those of an epoch from `first` to `last`.

    Raises:
        Interrupted: a signal came, and no batch is half used.
    """
    loader = job.loaders.train  # goes on with the batch `first`
    taken = islice(begin_pass(loader), None if job.plan.limit is None else last - first)
    bar = progress_bar(taken, epoch, last - first)
    uses = repeat(to_device(bar, job.prepare.device, job.clock), job.plan.echo)
    signals, accumulate = job.run.signals, job.plan.accumulate
    return signals.between(
        windows(uses, accumulate), loader.num_workers > 0, job.plan.whole_updates
    )


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
            loss = state.loss(forward(state.parallel, images), labels)
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
    """Step the optimizer; say whether it moved: fp16 skips an update whose gradient overflowed.

    Raises:
        FloatingPointError: so many in a row did that the loss is scaled to nothing.
    """
    scale = state.scaler.get_scale()
    state.scaler.step(state.optimizer)
    state.scaler.update()
    after = state.scaler.get_scale()
    if after < SMALLEST_SCALE:
        raise FloatingPointError(
            f"no gradient of the latest updates is finite: the loss scale of fp16 has fallen to "
            f"{after:.1g} at step {state.step} of epoch {state.epoch}; "
            "trainer.precision=bf16 has none"
        )
    return after >= scale  # a smaller one is the scaler's answer to an overflow


def evaluate_epoch(job: Job, state: State) -> Row:
    """Evaluate after an epoch, and take note if it is the best."""
    share_buffers(state.model, state.ema)  # each rank evaluates a part, and rank 0 saves
    with job.clock.phase("eval"):
        job.clock.begin_warmup("eval")
        evaluation = evaluate(job, state.evaluated)
    values = evaluation.columns()
    if state.best.update(monitored(values, job.trainer.monitor), state.epoch):
        state.best.confusion = evaluation.confusion
    return values


@torch.no_grad()
def evaluate(job: Job, model: nn.Module) -> Evaluation:
    """Measure a model on the validation data; nothing that training depends on changes."""
    loader = job.loaders.val
    meters = Meters(job.run.config.data.num_classes, job.prepare.device)
    batches = mark_valid(islice(begin_pass(loader), job.plan.limit), loader.order, loader.epoch)
    on_device = to_device(batches, job.prepare.device, Clock())
    with aside(), evaluation_mode(model):
        for batch in job.run.signals.between(on_device, loader.num_workers > 0):
            images, labels = job.prepare.for_evaluation(batch)
            with autocast(job.prepare.device, job.trainer.precision):
                logits = forward(model, images)
            meters.add(logits, labels, batch.get("valid"))
            job.clock.end_warmup()
    report_skipped(loader, "validation")
    result = meters.result()
    report_evaluation(result)
    return result


def save(job: Job, state: State, ended: bool = False) -> None:
    """Write a checkpoint, at the end of an epoch also the best one."""
    state.progress = replace(state.progress, seconds=job.clock.seconds())
    with job.clock.phase("checkpoint"):
        job.trackers.flush()  # what a kill loses is made again behind the checkpoint, not before it
        write_checkpoints(job.run, state, job.loaders.train, ended)


def save_if_due(job: Job, state: State) -> None:
    """Write a checkpoint where `checkpoint.every_steps` asks for one."""
    every = job.run.config.checkpoint.every_steps
    if every is not None and state.step // every > state.saved // every:
        save(job, state)


def log_if_due(job: Job, state: State) -> None:
    """Add a point to the training curves every `tracker.log_every` updates."""
    due = state.step % job.run.config.tracker.log_every == 0
    if due and state.step not in (0, state.point[0]):  # an update that fp16 skips is no step
        loss = mean_over_ranks(state.losses.window(state.epoch))
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
