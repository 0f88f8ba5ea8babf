"""How often the weights are updated, and by what."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from training.checks import ConfigError, check, is_finite, reason
from training.config import Config
from training.sections import Node
from training.targets import given_in, make


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a run is.

    Attributes:
        epochs: passes over the training data.
        num_batches: batches of the loader that an epoch uses, at first.
        limit: most batches of an epoch, in training and in validation; None for all.
        accumulate: batches an update, repetitions of a batch counted.
        echo: uses of a batch.
        evaluate_every: epochs between evaluations.
        schedule_end: epochs that the schedule spans; past them the rate stays. None for all.
        growth: batches that an epoch uses, from an epoch on: (first epoch, batches), ascending.
    """

    epochs: int
    num_batches: int
    limit: int | None = None
    accumulate: int = 1
    echo: int = 1
    evaluate_every: int = 1
    schedule_end: int | None = None
    growth: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, config: Config, num_batches: Mapping[int, int]) -> Plan:
        """Shorten what the loader holds as the config asks.

        Args:
            config: the run's.
            num_batches: first epoch -> batches of the loader in an epoch from there on.
        """
        trainer = config.trainer
        limit = 1 if trainer.fast_dev_run else trainer.limit_batches
        limit = None if limit is None else min(limit, sys.maxsize)  # of what a loop can count
        most = math.inf if limit is None else limit
        (_, first), *later = [(epoch, int(min(num, most))) for epoch, num in num_batches.items()]
        return cls(
            epochs=1 if trainer.fast_dev_run else config.epochs,
            num_batches=first,
            growth=tuple(later),
            limit=limit,
            accumulate=trainer.accumulate,
            echo=trainer.echo,
            evaluate_every=trainer.evaluate_every,
            schedule_end=None if trainer.fast_dev_run else config.schedule_end,
        )

    def batches_in(self, epoch: int) -> int:
        """Return the batches of the loader that an epoch uses."""
        return [self.num_batches, *(num for first, num in self.growth if first <= epoch)][-1]

    def steps_in(self, epoch: int) -> int:
        """Return the updates in an epoch; the last one may have fewer batches."""
        return math.ceil(self.batches_in(epoch) * self.echo / self.accumulate)

    def steps_before(self, epoch: int) -> int:
        """Return the updates in all epochs before one."""
        starts = [0, *(first for first, _ in self.growth)]
        ends = [*starts[1:], epoch]
        spans = ((first, min(end, epoch) - first) for first, end in zip(starts, ends, strict=True))
        return sum(self.steps_in(first) * length for first, length in spans if length > 0)

    @property
    def total_steps(self) -> int:
        """Updates in the run."""
        return self.steps_before(self.epochs)

    def num_updates(self, epoch: int, num_batches: int) -> int:
        """Return the updates before a batch of an epoch."""
        in_epoch = math.ceil(num_batches * self.echo / self.accumulate)
        return self.steps_before(epoch) + in_epoch

    @property
    def whole_updates(self) -> int:
        """Updates after which no batch is half used, so that a run can be continued there."""
        return math.lcm(self.echo, self.accumulate) // self.accumulate

    def batches_used(self, num_updates: int) -> int:
        """Return the batches of so many updates from the start of an epoch on, whole ones."""
        return num_updates * self.accumulate // self.echo

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
    for name, value in node.items():
        if name in ("lr", "weight_decay", "momentum") or isinstance(value, float):
            check(f"optimizer.{name}", value, is_finite(value), "a finite number")
        if name == "momentum":
            check("optimizer.momentum", value, 0 <= value < 1, "a number in [0, 1)")
    optimizer: Optimizer = _made(node, groups)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"optimizer._target_ must make a torch.optim.Optimizer, but {node['_target_']} made "
            f"{type(optimizer).__name__}"
        )
    _check_step(optimizer, node)
    return optimizer


def _made(node: Node, groups: list[dict[str, Any]]) -> Any:
    try:
        return make(node, "optimizer", groups)
    except ConfigError as error:
        # LBFGS and Muon of torch do not take what they are given here, whatever their arguments.
        text = str(error.__cause__)
        if "parameter groups" in text or "2D parameters" in text:
            raise _unsuitable(node, text) from error
        raise


def _check_step(optimizer: Optimizer, node: Node) -> None:
    """Refuse an optimizer whose step needs something else than a dense gradient.

    What torch's own say of it is found by a step with parameters like those of the model, smaller.

    Raises:
        ConfigError: it does.
    """
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError as error:
        raise _unsuitable(node, f"its step needs more than gradients, {error}") from error
    if not type(optimizer).__module__.startswith("torch."):
        return
    try:
        _made(node, [_stand_in(group) for group in optimizer.param_groups]).step()
    except Exception as error:
        if "dense gradients" in str(error):
            raise _unsuitable(node, reason(error)) from error
        raise ConfigError(
            f"optimizer: {node['_target_']} cannot make a step: {reason(error)}{given_in(node)}"
        ) from error


def check_sparse(node: Node, model: nn.Module) -> None:
    """Refuse an optimizer of torch's that cannot make a step by the sparse gradients of a model.

    Args:
        node: of the optimizer.
        model: a copy, after a backward pass; the step changes it.

    Raises:
        ConfigError: names a parameter that has a sparse gradient, and what torch says.
    """
    sparse = [
        (name, weight)
        for name, weight in model.named_parameters()
        if weight.grad is not None and weight.grad.is_sparse
    ]
    if not sparse:
        return
    optimizer = _made(node, parameter_groups(sparse))
    if not type(optimizer).__module__.startswith("torch."):
        return
    try:
        optimizer.step()
    except Exception as error:
        raise ConfigError(
            f"optimizer must take sparse gradients, which {sparse[0][0]} of the model has, but "
            f"{node['_target_']} does not: {reason(error)}; SGD and Adagrad of torch.optim do "
            "without weight decay, and sparse=false in the module makes dense ones"
        ) from error


def _stand_in(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group with one small parameter for all of as many dimensions."""
    alike = {parameter.ndim: parameter for parameter in group["params"]}
    small = []
    for parameter in alike.values():
        value = parameter.new_ones([min(side, 2) for side in parameter.shape])
        small.append(nn.Parameter(value))
        small[-1].grad = torch.zeros_like(value)
    return {"params": small, "weight_decay": group.get("weight_decay", 0.0)}


def _unsuitable(node: Node, text: str) -> ConfigError:
    return ConfigError(
        "optimizer._target_ must train each parameter by its gradient, in groups with and without "
        f"weight decay, but {node['_target_']} does not: {text}; torch.optim.AdamW does"
    )


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """Return an average of a model's weights and buffers that forgets (EMA).

    What counts or marks something, a buffer of integers or of true and false, has no average, and
    is that of the latest update.

    Raises:
        ConfigError: the model cannot be copied.
    """
    blend = get_ema_multi_avg_fn(decay)

    def update(averages: Any, values: Any, num_averaged: Any) -> None:
        if averages[0].is_floating_point() or averages[0].is_complex():
            blend(averages, values, num_averaged)
            return
        for average, value in zip(averages, values, strict=True):
            average.copy_(value)

    try:
        return AveragedModel(model, multi_avg_fn=update, use_buffers=True)
    except Exception as error:  # whatever a part of the user's raises when it is copied
        norm = "torch.nn.utils.parametrizations has a weight_norm that can be, or "
        raise ConfigError(
            "trainer.ema_decay must be null for a model that copy.deepcopy cannot copy, but got "
            f"trainer.ema_decay={decay}, and of {type(model).__name__}: {reason(error)}; "
            f"{norm if 'weight_norm' in str(error) else ''}trainer.ema_decay=null trains without"
        ) from error


def parameter_groups(named: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """Split parameters so that weight decay spares those of norms, and biases.

    These are the ones of fewer than two dimensions (as timm has it). Frozen ones are left out.
    """
    learning = [parameter for _, parameter in named if parameter.requires_grad]
    decayed = [parameter for parameter in learning if parameter.ndim >= 2]
    spared = [parameter for parameter in learning if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def scale_gradients(model: nn.Module, factor: float) -> None:
    """Multiply the gradient of every parameter."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
