"""What an epoch takes beside input, computing, evaluation and checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from reuseloader import ReuseStats
from training.bounds.steps import Steps
from training.device import Batch, Preprocess
from training.loop import Job, train_epoch, write_row
from training.optim import Plan
from training.timing import Clock
from training.tracking import Trackers

_NUM_EPOCHS = 3  # of each length
_SHORT, _LONG = 2, 24  # updates of an epoch, and how many more one of the others has


@dataclass(frozen=True, kw_only=True)
class Rest:
    """Seconds that the loop counts as `other`: records, curves, the progress bar.

    Attributes:
        epoch_s: of an epoch, however long it is.
        batch_s: of a batch.
    """

    epoch_s: float = 0.0
    batch_s: float = 0.0


def rest_of(short: list[float], num_short: int, long: list[float], num_long: int) -> Rest:
    """Return what follows from the seconds of epochs of two lengths; of one, all is the epoch's."""
    if not long:
        return Rest(epoch_s=median(short))
    batch_s = max(0.0, (median(long) - median(short)) / (num_long - num_short))
    return Rest(epoch_s=max(0.0, median(short) - num_short * batch_s), batch_s=batch_s)


class _Repeated:
    """Stands for the training loader: a batch in memory, so many times."""

    num_workers = 0

    def __init__(self, batch: Batch, num_batches: int) -> None:
        self._batch, self._num_batches = batch, num_batches

    def __iter__(self) -> Iterator[Batch]:
        return (dict(self._batch) for _ in range(self._num_batches))

    def stats(self) -> ReuseStats:
        """Return counts of nothing."""
        return ReuseStats()


def measure_rest(steps: Steps, until_s: float, step_s: float) -> Rest:
    """Train a few short epochs by the loop itself, on a batch in memory; nothing is saved.

    Args:
        steps: what is trained, and on which batch.
        until_s: seconds that it may take, about; no less than a few updates.
        step_s: seconds of a batch.

    Returns:
        Nothing where a loss became infinite, as it may on one batch.
    """
    accumulate = steps.config.trainer.accumulate
    num_short = _SHORT * accumulate
    num_more = int(until_s / (_NUM_EPOCHS * step_s)) // accumulate * accumulate
    num_long = num_short + min(num_more, _LONG * accumulate)
    lengths = [num_short] * (1 + _NUM_EPOCHS)  # the first one warms everything up
    lengths += [num_long] * _NUM_EPOCHS if num_more else []
    files = replace(steps.config.tracker, wandb=None, mlflow=None, profile=False)
    seconds, clock = [], Clock.of(steps.device)
    try:
        with Trackers.of(steps.run.directory, files, None) as trackers:
            for epoch, length in enumerate(lengths, 1):
                job = _job(steps, length, trackers, clock)
                steps.state.begin_epoch(epoch)
                seconds.append(write_row(job, train_epoch(job, steps.state))["other_s"])
    except FloatingPointError:
        return Rest()
    measured = 1 + _NUM_EPOCHS
    return rest_of(seconds[1:measured], num_short, seconds[measured:], num_long)


def _job(steps: Steps, num_batches: int, trackers: Trackers, clock: Clock) -> Job:
    plan = Plan.of(steps.config, steps.loaders.num_batches)
    repeated = _Repeated(steps.batch, num_batches)
    return Job(
        run=steps.run,
        plan=replace(plan, num_batches=num_batches, limit=None, growth=()),
        loaders=replace(steps.loaders, train=repeated),  # type: ignore[arg-type]
        prepare=Preprocess(steps.config, steps.device),
        trackers=trackers,
        clock=clock,
    )
