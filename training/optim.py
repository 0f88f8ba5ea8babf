"""How the weights are updated: parameter groups, optimizer, and the schedule of the rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from training.checks import ConfigError, check
from training.config import Config, Node
from training.options import MONITORS
from training.targets import make, target_of


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a run is.

    Attributes:
        epochs: passes over the training data.
        num_batches: batches of the loader that an epoch uses.
        limit: most batches of an epoch, in training and in validation; None for all.
        accumulate: batches an update, repetitions of a batch counted.
        echo: uses of a batch.
        evaluate_every: epochs between evaluations.
        schedule_end: epochs that the schedule spans; past them the rate stays. None for all.
    """

    epochs: int
    num_batches: int
    limit: int | None = None
    accumulate: int = 1
    echo: int = 1
    evaluate_every: int = 1
    schedule_end: int | None = None

    @classmethod
    def of(cls, config: Config, num_batches: int) -> Plan:
        """Shorten what the loader holds as the config asks."""
        trainer = config.trainer
        limit = 1 if trainer.fast_dev_run else trainer.limit_batches
        return cls(
            epochs=1 if trainer.fast_dev_run else config.epochs,
            num_batches=num_batches if limit is None else min(num_batches, limit),
            limit=limit,
            accumulate=trainer.accumulate,
            echo=trainer.echo,
            evaluate_every=trainer.evaluate_every,
            schedule_end=None if trainer.fast_dev_run else config.schedule_end,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Updates in an epoch; the last one may have fewer batches."""
        return math.ceil(self.num_batches * self.echo / self.accumulate)

    @property
    def total_steps(self) -> int:
        """Updates in the run."""
        return self.epochs * self.steps_per_epoch

    def evaluates(self, epoch: int) -> bool:
        """Say whether an epoch ends with an evaluation; the last one always does."""
        last = (self.epochs, self.schedule_end)
        return (epoch + 1) % self.evaluate_every == 0 or epoch + 1 in last


def make_optimizer(node: Node, model: nn.Module) -> Optimizer:
    """Make the optimizer over the parameters that learn.

    Raises:
        ConfigError: no parameter learns, or the node cannot be made.
    """
    groups = parameter_groups(model.named_parameters())
    if not groups:
        raise ConfigError("model must have a parameter that requires grad, but it has none")
    optimizer: Optimizer = make(node, "optimizer", groups)
    return optimizer


def parameter_groups(named: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """Split parameters so that weight decay spares those of norms, and biases.

    These are the ones of fewer than two dimensions (as timm has it). Frozen ones are left out.
    """
    learning = [parameter for _, parameter in named if parameter.requires_grad]
    decayed = [parameter for parameter in learning if parameter.ndim >= 2]
    spared = [parameter for parameter in learning if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class Schedule:
    """A scheduler of torch, stepped after updates or after epochs as its node says.

    Args:
        node: a scheduler's node; `step_each` is `update` (where left out) or `epoch`, and the
            word `total_steps` as a value stands for the number of steps in the run.
        optimizer: whose rate it sets.
        plan: how long the run is.
        monitor: decides whether a plateau is one of the smallest or of the largest value.

    Raises:
        ConfigError: the node cannot be made.
    """

    def __init__(self, node: Node, optimizer: Optimizer, plan: Plan, monitor: str) -> None:
        node = dict(node)
        self.each = node.pop("step_each", "update")
        check("schedule.step_each", self.each, self.each in ("update", "epoch"), "update or epoch")
        self.watches = target_of(node, "schedule") is ReduceLROnPlateau
        if self.watches:
            rule = "epoch for a schedule that watches an evaluation"
            check("schedule.step_each", self.each, self.each == "epoch", rule)
            node.setdefault("mode", MONITORS[monitor])
        epochs = plan.schedule_end or plan.epochs
        total = epochs * plan.steps_per_epoch if self.each == "update" else epochs
        self.total = math.inf if plan.schedule_end is None else total
        node = {name: total if value == "total_steps" else value for name, value in node.items()}
        self.scheduler: LRScheduler = make(node, "schedule", optimizer)

    def after_update(self) -> None:
        """Step a schedule of updates."""
        if self.each == "update":
            self._step()

    def after_epoch(self, value: float | None) -> None:
        """Step a schedule of epochs; `value` is what is monitored, None without evaluation."""
        if self.each == "epoch" and not self.watches:
            self._step()
        elif self.watches and value is not None:
            self.scheduler.step(value)

    def scale(self, factor: float) -> None:
        """Multiply every rate that the scheduler knows of, the present and the coming ones."""
        if factor == 1:
            return
        for group in self.scheduler.optimizer.param_groups:
            for name in ("lr", "initial_lr", "max_lr", "min_lr"):
                if name in group:
                    group[name] *= factor
        for name in ("base_lrs", "max_lrs", "_last_lr"):
            if hasattr(self.scheduler, name):
                rates = [rate * factor for rate in getattr(self.scheduler, name)]
                setattr(self.scheduler, name, rates)

    def _step(self) -> None:
        # OneCycleLR has this many rates; asked for one more it begins to climb again, as cosines
        # do after `total` steps.
        num_rates = getattr(self.scheduler, "total_steps", math.inf)
        if self.scheduler.last_epoch + 1 < min(num_rates, self.total + 1):
            self.scheduler.step()


def warmup_cosine(
    optimizer: Optimizer,
    total_steps: int,
    warmup: float = 0.0,
    start_factor: float = 0.1,
    min_factor: float = 0.0,
) -> LambdaLR:
    """Let the rate climb along a line, then fall along a cosine (Loshchilov & Hutter, 2017).

    After `total_steps` steps the rate is exactly `min_factor` times the full one, and stays.

    Args:
        optimizer: whose rate it sets.
        total_steps: a positive integer.
        warmup: share of the steps that the climb takes, in [0, 1); 0 starts at the full rate.
        start_factor: the first rate of the climb, as a share of the full one, in [0, 1].
        min_factor: the last rate, as a share of the full one, in [0, 1].

    Raises:
        ValueError: an argument breaks a rule above.
    """
    _check_share("warmup", warmup, warmup < 1)
    _check_share("start_factor", start_factor, start_factor <= 1)
    _check_share("min_factor", min_factor, min_factor <= 1)
    num_climbing = round(warmup * total_steps)

    def factor(step: int) -> float:
        if step < num_climbing:
            return start_factor + (1 - start_factor) * step / num_climbing
        progress = (step - num_climbing) / max(1, total_steps - num_climbing)
        height = (1 + math.cos(math.pi * min(1.0, progress))) / 2
        return min_factor + (1 - min_factor) * height

    return LambdaLR(optimizer, factor)


def one_cycle(
    optimizer: Optimizer, total_steps: int, max_lr: float, pct_start: float = 0.25, **options: Any
) -> OneCycleLR:
    """Return torch's OneCycleLR, also where the climb is exactly one step long.

    Args:
        optimizer: whose rate it sets.
        total_steps: number of rates.
        max_lr: the full rate.
        pct_start: share of the steps that the climb takes.
        options: everything else that OneCycleLR takes.
    """
    if pct_start * total_steps == 1:
        pct_start *= 1 + 1e-9  # torch 2.14 divides by the length of the climb less one
    return OneCycleLR(optimizer, max_lr, total_steps, pct_start=pct_start, **options)


def _check_share(name: str, value: float, below: bool) -> None:
    if not (value >= 0 and below):
        raise ValueError(f"{name} must be a share of 1, but got {name}={value}")
