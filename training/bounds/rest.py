"""What an epoch takes beside input, computing, evaluation and checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import nn

from reuseloader import ReuseStats
from training.config import Config
from training.device import Batch, Preprocess
from training.loaders import Loaders
from training.loop import Job, run_epoch
from training.optim import Plan
from training.records import Run
from training.state import make_state
from training.timing import Clock
from training.tracking import Trackers

_MANY_EPOCHS = 10**5  # so that the last one, which is evaluated, does not come
_NUM_EPOCHS = 3  # of each length
_SHORT, _LONG = 2, 24  # updates of an epoch


@dataclass(frozen=True, kw_only=True)
class Rest:
    """Seconds that the loop counts as `other`: records, curves, the progress bar.

    Attributes:
        epoch_s: of an epoch, however long it is.
        batch_s: of a batch.
    """

    epoch_s: float
    batch_s: float

    @classmethod
    def of(cls, short: list[float], long: list[float], num_more: int) -> Rest:
        """Return what follows from short epochs, and from such with so many batches more."""
        batch_s = max(0.0, (median(long) - median(short)) / num_more) if long else 0.0
        return cls(epoch_s=median(short), batch_s=batch_s)


class _Repeated:
    """Stands for the training loader: a batch in memory, for so many times an epoch.

    Attributes:
        num_batches: of an epoch.
    """

    num_workers = 0

    def __init__(self, batch: Batch, loader: Any) -> None:
        self.num_batches = 0
        self._batch, self._loader = batch, loader

    def __iter__(self) -> Iterator[Batch]:
        return (dict(self._batch) for _ in range(self.num_batches))

    def stats(self) -> ReuseStats:
        """Return counts of nothing."""
        return ReuseStats()

    def state_dict(self) -> dict[str, int]:
        """Return what a checkpoint holds of the loader."""
        state: dict[str, int] = self._loader.state_dict()
        return state


def measure_rest(
    config: Config,
    model: nn.Module,
    device: torch.device,
    run: Run,
    loaders: Loaders,
    batch: Batch,
    until_s: float,
    step_s: float,
) -> Rest:
    """Train a few short epochs by the loop itself, on a batch in memory.

    Args:
        config: says how; curves go to files alone.
        model: is trained on.
        device: where to compute.
        run: into whose folder all is written.
        loaders: of which none is used.
        batch: on the device or not, as a loader gives it.
        until_s: seconds that it may take, about; no less than a few updates.
        step_s: seconds of an update.
    """
    accumulate = config.trainer.accumulate
    num_more = int(until_s / (_NUM_EPOCHS * step_s)) // accumulate * accumulate
    num_more = min(num_more, _LONG * accumulate)
    lengths = [_SHORT * accumulate] * (1 + _NUM_EPOCHS)  # the first one warms everything up
    if num_more:
        lengths += [_SHORT * accumulate + num_more] * _NUM_EPOCHS
    repeated = _Repeated(batch, loaders.train)
    plan = replace(
        Plan.of(config, loaders.num_batches),
        epochs=_MANY_EPOCHS,
        evaluate_every=_MANY_EPOCHS,
        schedule_end=None,
        limit=None,
        growth=(),
    )
    state = make_state(config, model, device, plan)
    files = replace(config.tracker, wandb=None, mlflow=None, profile=False)
    seconds, clock = [], Clock.of(device)
    with Trackers.of(run.directory, files, None) as trackers:
        for epoch, length in enumerate(lengths):
            repeated.num_batches = length
            job = Job(
                run=run,
                plan=replace(plan, num_batches=length),
                loaders=replace(loaders, train=repeated),  # type: ignore[arg-type]
                prepare=Preprocess(config, device),
                trackers=trackers,
                clock=clock,
            )
            seconds.append(run_epoch(job, state, epoch)["other_s"])
    return Rest.of(seconds[1 : 1 + _NUM_EPOCHS], seconds[1 + _NUM_EPOCHS :], num_more)
