"""How long an epoch takes at a lifetime and a number of workers, from what its parts cost."""

from __future__ import annotations

from dataclasses import dataclass

LIFETIMES = (1, 2, 3, 4, 8, 16)

COMPUTE_IS_THE_BOUND = 1.05
"""Times as long as computing alone, up to which an epoch counts as bound by compute."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """What a number of workers does, with nothing beside them.

    Attributes:
        num_workers: 0 for the training process alone.
        built_per_s: samples a second where every one is built, as at lifetime 1.
        stored_per_s: the same where each is stored as well.
        reused_per_s: samples a second where every one is read.
        built_cpu_s, stored_cpu_s, reused_cpu_s: processor seconds a sample for each of these, of
            workers and training process.
        receive_s: processor seconds of the training process for a batch that was read.
        start_s: seconds from the start of a pass to its first batch, where all is read.
        building, reading: where every sample is built, and where every one is read, times as
            long as it should that a batch takes with training beside: processes on
            several cores slow one another down.
        memory_bytes: of all workers; None where the system does not say.
    """

    num_workers: int
    built_per_s: float
    stored_per_s: float
    reused_per_s: float
    built_cpu_s: float
    stored_cpu_s: float
    reused_cpu_s: float
    receive_s: float
    start_s: float = 0.0
    building: float = 1.0
    reading: float = 1.0
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the parts of an epoch cost, beside its input.

    Attributes:
        num_samples, num_batches: of an epoch.
        num_cores: of this machine.
        step_s, step_cpu_s: seconds, and processor seconds of the host, to train on a batch.
        eval_s, checkpoint_s: seconds an epoch.
        rest_s, rest_batch_s: seconds of the training process for all else, an epoch and a batch.
        inputs: for each number of workers that was tried.
    """

    num_samples: int
    num_batches: int
    num_cores: int
    step_s: float
    step_cpu_s: float
    eval_s: float
    checkpoint_s: float
    inputs: list[Input]
    rest_s: float = 0.0
    rest_batch_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """An epoch after the first, at one lifetime and number of workers.

    Attributes:
        epoch_s: seconds, with evaluation, checkpoint and the rest.
        bound: input, compute, or cores: those that workers and training share.
        train_s: seconds of training with its input.
        compute_s: seconds of training if no input had to be waited for.
    """

    lifetime: int
    num_workers: int
    epoch_s: float
    bound: str
    train_s: float
    compute_s: float

    @property
    def is_bound_by_compute(self) -> bool:
        """Whether input costs next to nothing any more."""
        return self.bound == "compute"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A batch of training.

    Attributes:
        num_samples: of the batch.
        step_s, cpu_s: seconds, and processor seconds of the host, that training on it takes.
        num_cores: of the machine.
    """

    num_samples: float
    step_s: float
    cpu_s: float
    num_cores: int

    def parts(self, given: Input, share: float, stored: bool = False) -> tuple[float, ...]:
        """Return the seconds of input, of computing, and of all the work over the cores.

        Args:
            given: the input.
            share: of the samples that are built.
            stored: whether these are stored as well.
        """
        built_per_s = given.stored_per_s if stored else given.built_per_s
        built_cpu_s = given.stored_cpu_s if stored else given.built_cpu_s
        input_s = self.num_samples * (share / built_per_s + (1 - share) / given.reused_per_s)
        if given.num_workers == 0:
            return input_s, self.step_s, 0.0
        work_s = self.num_samples * (share * built_cpu_s + (1 - share) * given.reused_cpu_s)
        return input_s, self.step_s + given.receive_s, (work_s + self.cpu_s) / self.num_cores

    def seconds(self, given: Input, share: float, stored: bool = False) -> float:
        """Return how long it takes: the longest of the parts, or without workers their sum."""
        input_s, compute_s, cores_s = self.parts(given, share, stored)
        return max(input_s, compute_s, cores_s) if given.num_workers else input_s + compute_s


def slowdown(measured_s: float | None, expected_s: float) -> float:
    """Return how many times as long something takes; at least once, as nothing can be faster."""
    return 1.0 if measured_s is None else max(1.0, measured_s / expected_s)


def predict(costs: Costs, lifetime: int, given: Input) -> Prediction:
    """Predict an epoch after the first.

    It takes as long as the slowest of three: the workers, who build 1 of `lifetime` samples and
    read the others; the training process; and all the work of both over the cores of the machine.
    All of it is slowed down as it was where it was tried: where every sample is built, and where
    every one is read. The first batch of an epoch is computed on only when it is there, and the
    last one only when the workers have ended.
    """
    step = Step(
        num_samples=costs.num_samples / costs.num_batches,
        step_s=costs.step_s + costs.rest_batch_s,
        cpu_s=costs.step_cpu_s + costs.rest_batch_s,
        num_cores=costs.num_cores,
    )
    share, stored = 1 / lifetime, lifetime > 1
    input_s, compute_s, cores_s = step.parts(given, share, stored)
    slower = costs.num_batches * (share * given.building + (1 - share) * given.reading)
    if given.num_workers:
        hand_over_s = given.start_s - step.num_samples * given.num_workers / given.reused_per_s
        train_s = max(0.0, hand_over_s) + max(
            slower * input_s + compute_s,
            slower * compute_s + input_s * given.num_workers,  # a worker makes the first batch
            slower * cores_s + compute_s,
        )
        bound = "input" if input_s >= max(cores_s, compute_s) else "cores"
        near = slower * max(input_s, cores_s, compute_s)
    else:
        train_s = near = slower * (input_s + compute_s)
        bound = "input"
    least_s = costs.num_batches * compute_s
    return Prediction(
        lifetime=lifetime,
        num_workers=given.num_workers,
        epoch_s=train_s + costs.eval_s + costs.checkpoint_s + costs.rest_s,
        bound="compute" if near <= COMPUTE_IS_THE_BOUND * least_s else bound,
        train_s=train_s,
        compute_s=least_s,
    )


def predict_all(costs: Costs) -> list[list[Prediction]]:
    """Return for each lifetime the predictions by number of workers."""
    return [[predict(costs, lifetime, given) for given in costs.inputs] for lifetime in LIFETIMES]


def choose(table: list[list[Prediction]]) -> Prediction:
    """Return the smallest lifetime, and for it the fewest workers, that make compute the bound.

    Where nothing does, the fastest; of those within 2 % of it the smallest lifetime, and the
    fewest workers.
    """
    everything = [prediction for row in table for prediction in row]
    enough = [prediction for prediction in everything if prediction.is_bound_by_compute]
    if enough:
        return enough[0]
    fastest = min(prediction.epoch_s for prediction in everything)
    return next(one for one in everything if one.epoch_s <= 1.02 * fastest)
