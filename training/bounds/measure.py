"""Measures on the user's own config what building, reading and computing cost here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from reuseloader import FOREVER
from training.bounds.passes import Times, read_times, timed, timed_pass, workers_memory
from training.bounds.prediction import Costs, Input, Step, slowdown
from training.bounds.rest import measure_rest
from training.bounds.steps import StepCosts, Steps
from training.config import Config, ConfigError
from training.device import Preprocess, choose_device, set_up
from training.loaders import Loaders, make_loaders
from training.loop import Job, evaluate
from training.models import has_batch_norm
from training.optim import Plan
from training.records import Record, Run
from training.sections import Table
from training.state import make_model
from training.tracking import Trackers
from training.workers import num_cores

_PART_S = 2.0  # seconds that each part is measured for, about: a minute for all of them
_BATCH_S = 0.5  # a worker's batch that is to take no longer is made smaller


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """All that was measured.

    Attributes:
        build, read: times of single samples, in one process.
        costs: what follows from them for an epoch.
        batch_size: samples of a training step.
        warmup_s: the first steps, with compiling.
        cache_bytes: what the stored samples of training and validation will take.
    """

    build: Times
    read: Times
    costs: Costs
    batch_size: int
    warmup_s: float
    cache_bytes: int


def check_counted(num_samples: int, num_train: int, num_workers: int) -> None:
    """Refuse data of which nothing is left to be timed once every worker has made a batch.

    Raises:
        ConfigError: says how many samples there are.
    """
    if num_samples == 0:
        raise ConfigError(
            "data.train must have more samples than fill a batch for each worker, to be measured, "
            f"but it has {num_train} for {num_workers} workers; use more samples, or a smaller "
            "batch_size"
        )


class Bench:
    """Makes loaders of a config in a folder of its own, and measures them.

    Args:
        config: the user's.
        table: the expanded curriculum.
        folder: empty; the caller removes it.
        say: called with a line when a part begins.
    """

    def __init__(
        self, config: Config, table: Table, folder: Path, say: Callable[[str], None]
    ) -> None:
        cache = replace(config.cache, directory=None)
        self.config = replace(config, cache=cache)
        self.device = choose_device(config.device)
        self._table, self._folder, self._say = table, folder, say
        self._count = 0
        set_up(self.config)
        self._model = make_model(self.config, self.device)

    def measure(self) -> Bounds:
        """Measure everything; takes about a minute."""
        self._say("building samples, one by one")
        run, loaders = self.loaders()
        build = self.build_times(loaders)
        num_batches = Plan.of(self.config, loaders.num_batches).num_batches
        num_samples = min(loaders.num_train, num_batches * self.config.batch_size)
        self._say("training on a batch in memory")
        steps = Steps(self.config, self._model, self.device, run, loaders)
        alone = steps.alone(_PART_S)
        self._say("training short epochs")
        rest = measure_rest(steps, _PART_S, alone.step_s)
        self._say("evaluating")
        eval_s, val_bytes = self.evaluation()
        inputs, sizes = [], []
        for num_workers in worker_counts(self.config.num_workers, num_cores()):
            self._say(f"loading with num_workers={num_workers}")
            given, sample_bytes, read = self.input(num_workers, build.median, steps, alone)
            inputs.append(given)
            sizes.append(sample_bytes)
        return Bounds(
            build=build,
            read=read,
            costs=Costs(
                num_samples=num_samples,
                num_batches=num_batches,
                num_cores=num_cores(),
                step_s=alone.step_s,
                step_cpu_s=alone.cpu_s,
                eval_s=eval_s / self.config.trainer.evaluate_every,
                checkpoint_s=alone.checkpoint_s,
                rest_s=rest.epoch_s,
                rest_batch_s=rest.batch_s,
                inputs=inputs,
            ),
            batch_size=self.config.batch_size,
            warmup_s=alone.warmup_s,
            cache_bytes=round(loaders.num_train * max(sizes) + loaders.num_val * val_bytes),
        )

    def loaders(self, **changes: Any) -> tuple[Run, Loaders]:
        """Make the loaders of the config with some changes, over an empty folder."""
        self._count += 1
        config = replace(self.config, **changes)
        record = Record(config={}, overrides=[], curriculum=self._table)
        run = Run(self._folder / str(self._count), config, record)
        drop_single = has_batch_norm(self._model)
        return run, make_loaders(run, self.device, drop_single=drop_single)

    def build_times(self, loaders: Loaders) -> Times:
        """Build samples from all over the data, in this process; the first one warms it up."""
        policy, size = loaders.train.policy, loaders.num_first
        values: list[float] = []
        start = time.perf_counter()
        for number in range(min(size, 1000)):
            key = policy.key(int(policy.order(number, 0, size)), 0)
            before = time.perf_counter()
            loaders.build(key)
            now = time.perf_counter()
            values.append(now - before)
            if now - start > _PART_S and number >= 4:
                break
        return Times(values=values[1:] or values)

    def evaluation(self) -> tuple[float, float]:
        """Return seconds of an evaluation, and bytes of a stored validation sample."""
        run, loaders = self.loaders()
        plan = Plan.of(self.config, loaders.num_batches)
        whole = len(loaders.val) if plan.limit is None else min(len(loaders.val), plan.limit)
        few = min(whole, max(20, 2 * self.config.num_workers))
        job = Job(
            run=run,
            plan=replace(plan, limit=few),
            loaders=loaders,
            prepare=Preprocess(self.config, self.device),
            trackers=Trackers({}),
        )
        evaluate(job, self._model)  # builds the samples, and imports what it needs
        eval_s = timed(lambda: evaluate(job, self._model)) * whole / few
        return eval_s, _mean_bytes(run.cache / "val")

    def input(
        self, num_workers: int, build_s: float, steps: Steps, alone: StepCosts
    ) -> tuple[Input, float, Times]:
        """Measure loading, alone and with training beside it.

        Returns:
            What was measured, the bytes of a stored sample, and times of single reads.
        """
        batch_size, side = self.config.batch_size, max(1, num_workers)
        slow = max(1, min(batch_size, int(_BATCH_S / build_s)))  # where a batch takes long
        _, loaders = self.loaders(lifetime=1, num_workers=num_workers, batch_size=slow)
        built = timed_pass(loaders.train, side, _PART_S)
        check_counted(built.num_samples, loaders.num_train, side)
        memory_bytes = workers_memory() if num_workers else 0
        built_beside_s = steps.beside(loaders.train, _PART_S)
        loaders.close()
        # As many samples as are built in that time, in as many batches for each worker.
        num_samples = max(2 * slow * side, int(built.per_s * _PART_S))
        size = batch_size if num_samples >= 2 * batch_size * side else slow
        rounds = max(2, num_samples // (size * side))
        trainer = replace(self.config.trainer, overfit_batches=rounds * side, limit_batches=None)
        run, loaders = self.loaders(
            lifetime=FOREVER, num_workers=num_workers, batch_size=size, trainer=trainer
        )
        stored = timed_pass(loaders.train, side)
        check_counted(stored.num_samples, loaders.num_train, side)
        reused = [timed_pass(loaders.train)]
        while sum(one.seconds for one in reused) < _PART_S / 2 and len(reused) < 20:
            reused.append(timed_pass(loaders.train))
        reused_beside_s = steps.beside(loaders.train, _PART_S, num_passes=20)
        given = Input(
            num_workers=num_workers,
            built_per_s=built.per_s,
            stored_per_s=stored.per_s,
            reused_per_s=float(np.median([one.per_s for one in reused])),
            built_cpu_s=built.cpu_s / built.num_samples,
            stored_cpu_s=stored.cpu_s / stored.num_samples,
            reused_cpu_s=float(np.median([one.cpu_s / one.num_samples for one in reused])),
            receive_s=float(np.median([one.main_cpu_s / one.num_batches for one in reused])),
            start_s=float(np.median([one.start_s for one in reused])),
            memory_bytes=memory_bytes,
        )
        step = Step(
            num_samples=batch_size, step_s=alone.step_s, cpu_s=alone.cpu_s, num_cores=num_cores()
        )
        given = replace(
            given,
            building=slowdown(built_beside_s, step.seconds(given, 1.0)),
            reading=slowdown(reused_beside_s, step.seconds(given, 0.0)),
        )
        files = list(islice((run.cache / "train").glob("*.pt"), 1000))
        loaders.close()
        return given, _mean_bytes(run.cache / "train"), read_times(files)


def _mean_bytes(folder: Path) -> float:
    """Return the mean size of the stored samples in a folder; 0 of none."""
    sizes = [file.stat().st_size for file in islice(folder.glob("*.pt"), 1000)]
    return sum(sizes) / max(1, len(sizes))


def worker_counts(own: int, cores: int) -> list[int]:
    """Return the numbers of workers that are tried: 1, 2, 4 ... the cores, and the user's own."""
    powers = {2**n for n in range(cores.bit_length()) if 2**n <= cores}
    return sorted(powers | {cores, own})
