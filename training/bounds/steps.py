"""Trains on one batch in memory: alone, and beside the workers of a loader."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from reuseloader import ReuseDataLoader
from training.bounds.passes import timed, trained_pass
from training.config import Config
from training.device import Batch, Preprocess, repeat, to_device, windows
from training.loaders import Loaders
from training.loop import update
from training.optim import Plan
from training.records import Run
from training.state import make_state
from training.timing import Clock

_MANY_EPOCHS = 10**5  # so that the schedule of the rate does not end


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """What training on a batch costs with nothing beside it.

    Attributes:
        step_s, cpu_s: seconds, and processor seconds of the host, of a batch.
        warmup_s: seconds of the first steps, with compiling.
        checkpoint_s: seconds to save.
    """

    step_s: float
    cpu_s: float
    warmup_s: float
    checkpoint_s: float


class Steps:
    """Makes updates of a model from one batch, as the loop does.

    Args:
        config: says how.
        model: on the device.
        device: where to compute.
        run: into whose folder a checkpoint is saved.
        loaders: from whose first samples the batch is made.

    Attributes:
        config, device, run, loaders: as given.
        state: of the training.
        batch: that is trained on.
    """

    def __init__(
        self, config: Config, model: nn.Module, device: torch.device, run: Run, loaders: Loaders
    ) -> None:
        self.config, self.device, self.run, self.loaders = config, device, run, loaders
        plan = Plan.of(config, loaders.num_batches)
        plan = replace(plan, epochs=_MANY_EPOCHS, schedule_end=None)
        self.state = make_state(config, model, device, plan)
        self._prepare = Preprocess(config, device)
        self.batch = make_batch(loaders, config.batch_size, device)

    def train(self, num_batches: int) -> None:
        """Train on the batch so many times, and wait for the device."""
        trainer = self.config.trainer
        batches = to_device((self.batch for _ in range(num_batches)), self.device, Clock())
        for window in windows(repeat(batches, trainer.echo), trainer.accumulate):
            update(trainer, self.state, self._prepare, window)
        self.state.losses.unread.clear()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _save(self) -> None:
        content = {**self.state.checkpoint(), "loader": self.loaders.train.state_dict()}
        self.run.save_checkpoint("last", content)

    def alone(self, until_s: float) -> StepCosts:
        """Measure with nothing beside it, for about so many seconds."""
        some = 5 * self.config.trainer.accumulate
        warmup_s = timed(lambda: self.train(2 * self.config.trainer.accumulate))
        self._save()
        checkpoint_s = timed(self._save)
        num_batches, start, cpu_start = 0, time.perf_counter(), time.process_time()
        while num_batches == 0 or time.perf_counter() - start < until_s:
            self.train(some)
            num_batches += some
        return StepCosts(
            step_s=(time.perf_counter() - start) / num_batches,
            cpu_s=(time.process_time() - cpu_start) / num_batches,
            warmup_s=warmup_s,
            checkpoint_s=checkpoint_s,
        )

    def beside(self, loader: ReuseDataLoader, until_s: float, num_passes: int = 1) -> float | None:
        """Return the seconds of a batch of training while a loader works.

        Args:
            loader: its batches are taken and put away; they may be smaller than those of training.
            until_s: stop after so many seconds, inside a pass or behind one.
            num_passes: or after so many passes.

        Returns:
            The seconds that pass from the end of an update to the end of a later one, for each
            batch of training; None where there were too few batches for that.
        """
        seconds, num_batches, start = 0.0, 0.0, time.perf_counter()
        size, accumulate = len(self.batch["label"]), self.config.trainer.accumulate
        while num_passes and time.perf_counter() - start < until_s:
            added_s, added = trained_pass(loader, size, accumulate, self.train, until_s)
            seconds, num_batches = seconds + added_s, num_batches + added
            num_passes -= 1
        return seconds / num_batches if num_batches else None


def make_batch(loaders: Loaders, batch_size: int, device: torch.device) -> Batch:
    """Return a batch of the training loader's size, made of a few samples."""
    policy, size = loaders.train.policy, loaders.num_train
    keys = [policy.key(index, 0) for index in range(min(loaders.num_first, batch_size, 8))]
    samples = [loaders.make(key)[1] for key in keys]
    length = min(size, batch_size)
    batch: Batch = torch.utils.data.default_collate(
        [samples[number % len(samples)] for number in range(length)]
    )
    if device.type == "cuda":
        batch = {
            name: value.pin_memory() if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
    return batch
