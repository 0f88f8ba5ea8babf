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
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the parts of an epoch cost, beside its input.

    Attributes:
        num_samples, num_batches: of an epoch.
        num_cores: of this machine.
        step_s, step_cpu_s: seconds, and processor seconds of the host, to train on a batch.
        eval_s, checkpoint_s: seconds an epoch.
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


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """An epoch after the first, at one lifetime and number of workers.

    Attributes:
        epoch_s: seconds, evaluation and checkpoint included.
        bound: input, compute, or cores: those that workers and training share.
        compute_s: seconds of training if no input had to be waited for.
    """

    lifetime: int
    num_workers: int
    epoch_s: float
    bound: str
    compute_s: float

    @property
    def is_bound_by_compute(self) -> bool:
        """Whether input costs next to nothing any more."""
        return self.bound == "compute"


def predict(costs: Costs, lifetime: int, given: Input) -> Prediction:
    """Predict an epoch after the first.

    It takes as long as the slowest of three: the workers, who build 1 of `lifetime` samples and
    read the others; the training process; and all the work of both over the cores of the machine.
    The first batch of an epoch is computed on only when it is there, and the last one only when
    the workers have ended.
    """
    share = 1 / lifetime
    built_per_s, built_cpu_s = given.built_per_s, given.built_cpu_s
    if lifetime > 1:
        built_per_s, built_cpu_s = given.stored_per_s, given.stored_cpu_s
    sample_s = share / built_per_s + (1 - share) / given.reused_per_s
    input_s = costs.num_samples * sample_s
    step_s = costs.step_s + (given.receive_s if given.num_workers else 0.0)
    compute_s = costs.num_batches * step_s
    rest_s = costs.eval_s + costs.checkpoint_s
    if given.num_workers == 0:  # one after the other, in one process
        return Prediction(
            lifetime=lifetime,
            num_workers=0,
            epoch_s=input_s + compute_s + rest_s,
            bound="compute" if input_s < (COMPUTE_IS_THE_BOUND - 1) * compute_s else "input",
            compute_s=compute_s,
        )
    cpu_s = share * built_cpu_s + (1 - share) * given.reused_cpu_s
    cores_s = costs.num_samples * cpu_s + costs.num_batches * costs.step_cpu_s
    cores_s /= costs.num_cores
    first_s = costs.num_samples / costs.num_batches * sample_s * given.num_workers
    bound = "input" if input_s >= cores_s else "cores"
    if max(input_s, cores_s) <= COMPUTE_IS_THE_BOUND * compute_s:
        bound = "compute"
    return Prediction(
        lifetime=lifetime,
        num_workers=given.num_workers,
        epoch_s=max(input_s + step_s, compute_s + first_s, cores_s) + rest_s,
        bound=bound,
        compute_s=compute_s,
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
