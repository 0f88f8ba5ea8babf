"""The schedule of the rate: torch's schedulers, stepped after updates or after epochs."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from training.checks import ConfigError, check
from training.optim import Plan
from training.options import MONITORS
from training.schedule_rules import behind_end, check_entries
from training.sections import Node
from training.targets import make, target_of

_RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # what schedulers set in a group
_NEEDED = ("optimizer", "step", "state_dict", "load_state_dict")
_MOMENTA = ("momentum", "betas")  # by which OneCycleLR knows an optimizer that has one
_FIRST_FACTOR = {LinearLR: "start_factor", ConstantLR: "factor"}


class Schedule:
    """A scheduler of torch, stepped after updates or after epochs as its node says.

    Attributes:
        notes: what the user should know of it.

    Args:
        node: a scheduler's node, and `step_each`: `update` (where left out) or `epoch`.
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
            best = MONITORS[monitor]
            rule = f"{best} with trainer.monitor={monitor}"
            check("schedule.mode", node.setdefault("mode", best), node["mode"] == best, rule)
        epochs = plan.schedule_end or plan.epochs
        total = plan.steps_before(epochs) if self.each == "update" else epochs
        self.total = math.inf if plan.schedule_end is None else total
        self.notes = list(behind_end(node, total, f"{self.each}s"))
        self.scheduler = make_scheduler(node, "schedule", optimizer, total)
        missing = [name for name in _NEEDED if not hasattr(self.scheduler, name)]
        if not any(hasattr(one, "last_epoch") for one in _with_inner(self.scheduler)):
            missing.append("last_epoch")
        if missing:
            raise ConfigError(
                f"schedule._target_ must make a scheduler like those of torch, but "
                f"{node['_target_']} made {type(self.scheduler).__name__}, without {missing[0]}"
            )
        self._first = [
            {name: group[name] for name in _RATES if name in group}
            for group in optimizer.param_groups
        ]

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
            for name in _RATES:
                if name in group:
                    group[name] *= factor
        for scheduler in _with_inner(self.scheduler):
            for name in ("base_lrs", "max_lrs", "_last_lr"):
                if hasattr(scheduler, name):
                    rates = [rate * factor for rate in getattr(scheduler, name)]
                    setattr(scheduler, name, rates)

    def advance(self, num_updates: int) -> None:
        """Stand where a schedule of updates is after so many of them, from its start on.

        Rates that were scaled since, as the groups of the optimizer say, are so here: a schedule
        may name a rate of its own, which a new one of the optimizer leaves.
        """
        groups = self.scheduler.optimizer.param_groups
        own = self._first[0].get("initial_lr")
        factor = groups[0].get("initial_lr", own) / own if own else 1.0
        for group, first in zip(groups, self._first, strict=True):
            group.update(first)
        self.scale(factor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of steps of the schedule before one of the optimizer
            for _ in range(num_updates):
                self._step()

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state, such that it loads with `weights_only=True`."""
        state: dict[str, Any] = _plain(self.scheduler.state_dict())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.scheduler.load_state_dict(state)
        for scheduler in _with_inner(self.scheduler):
            if isinstance(scheduler, MultiStepLR):
                scheduler.milestones = Counter(scheduler.milestones)
        # The updates before were made by another process; without this, torch (2.1 by the second
        # name) warns of a scheduler that is stepped before its optimizer.
        optimizer: Any = self.scheduler.optimizer
        optimizer._opt_called, optimizer._step_count = True, 1

    def _step(self) -> None:
        num_steps = next(
            s.last_epoch for s in _with_inner(self.scheduler) if hasattr(s, "last_epoch")
        )
        if num_steps + 1 < min(_num_rates(self.scheduler), self.total + 1):
            self.scheduler.step()


def make_scheduler(node: Node, place: str, optimizer: Optimizer, total: int) -> LRScheduler:
    """Make a scheduler, and before it those inside it.

    In a node, the word `total_steps` stands for the number of times that its scheduler is stepped;
    in a sequence that is what lies between its milestones. What spans no step is left out.

    Args:
        node: `_target_` and arguments other than the optimizer.
        place: where it stands in the config.
        optimizer: whose rate it sets.
        total: how often it is stepped in the run.

    Raises:
        ConfigError: the node cannot be made.
    """
    node = {name: total if value == "total_steps" else value for name, value in node.items()}
    target = target_of(node, place)
    check_entries(node, place)
    if target in _FIRST_FACTOR and node.get("total_iters") == 0:
        node[_FIRST_FACTOR[target]] = node.get("end_factor", 1.0)  # torch would stay at the first
    inner = node.get("schedulers")
    if not isinstance(inner, list):
        scheduler: LRScheduler = make(node, place, optimizer)
        return scheduler
    spans = [total] * len(inner)
    if target is SequentialLR and len(node.get("milestones", [])) == len(inner) - 1:
        ends = [*node["milestones"], total]
        spans = [end - start for start, end in pairwise([0, *ends])]
        node["milestones"] = [end for end, span in zip(ends, spans, strict=True) if span > 0][:-1]
    node["schedulers"] = [
        make_scheduler(part, f"{place}.schedulers[{number}]", optimizer, span)
        for number, (part, span) in enumerate(zip(inner, spans, strict=True))
        if span > 0
    ]
    arguments = () if target is ChainedScheduler else (optimizer,)
    outer: LRScheduler = make(node, place, *arguments)
    return outer


def _with_inner(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and those inside it."""
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _with_inner(inner)


def _num_rates(scheduler: Any) -> float:
    """Return how many rates a scheduler has: OneCycleLR climbs again when asked for one more."""
    if not hasattr(scheduler, "_schedulers"):
        return float(getattr(scheduler, "total_steps", math.inf))
    milestones = getattr(scheduler, "_milestones", [])
    last = scheduler._schedulers[-1:] if milestones else scheduler._schedulers
    return sum(milestones[-1:]) + min(map(_num_rates, last))


def _plain(value: Any) -> Any:
    """Return a state without what torch 2.1 does not load as weights: functions and counters."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if not callable(item)}
    return [_plain(item) for item in value] if isinstance(value, list) else value


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
    """Return torch's OneCycleLR, also where the climb is one step long, or none.

    Args:
        optimizer: whose rate it sets.
        total_steps: number of rates.
        max_lr: the full rate.
        pct_start: share of the steps that the climb takes; 0 starts at the full rate.
        options: everything else that OneCycleLR takes. Without `cycle_momentum` the momentum goes
            along where the optimizer has one.
    """
    options.setdefault("cycle_momentum", not optimizer.defaults.keys().isdisjoint(_MOMENTA))
    if pct_start == 0:
        pct_start = (1 - 1e-9) / total_steps  # with 0 itself torch begins behind the full rate
    elif pct_start * total_steps == 1:
        pct_start *= 1 + 1e-9  # torch 2.14 divides by the length of the climb less one
    return OneCycleLR(optimizer, max_lr, total_steps, pct_start=pct_start, **options)


def _check_share(name: str, value: float, below: bool) -> None:
    if not (value >= 0 and below):
        raise ValueError(f"{name} must be a share of 1, but got {name}={value}")
