from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from runs import make_config
from torch import nn

from training.checks import ConfigError
from training.optim import Plan, make_optimizer
from training.schedule import Schedule, one_cycle, warmup_cosine

pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch 2.1 in SequentialLR

TEN_STEPS = Plan(epochs=2, num_batches=5)


def make_sgd(lr: float = 1.0) -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr)


def rates_of_updates(schedule: Schedule, optimizer: torch.optim.Optimizer, steps: int) -> list[Any]:
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.after_update()
    return rates


def test_warm_up_climbs_along_a_line_and_then_falls_along_a_cosine() -> None:
    optimizer = make_sgd()
    node = {
        "_target_": "training.schedule.warmup_cosine",
        "total_steps": "total_steps",
        "warmup": 0.4,
        "start_factor": 0.1,
    }
    schedule = Schedule(node, optimizer, TEN_STEPS, "val_accuracy")

    rates = rates_of_updates(schedule, optimizer, 10)

    expected = [0.1, 0.325, 0.55, 0.775, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067]
    assert expected == pytest.approx(rates, abs=5e-4)
    assert optimizer.param_groups[0]["lr"] == 0.0


def test_no_warm_up_starts_at_the_full_rate() -> None:
    optimizer = make_sgd(0.3)
    warmup_cosine(optimizer, total_steps=10, warmup=0)

    assert optimizer.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("name", ["Adagrad", "ASGD", "Adadelta", "Rprop", "SGD", "AdamW"])
def test_one_cycle_goes_with_optimizers_that_have_no_momentum_too(name: str) -> None:
    optimizer = getattr(torch.optim, name)([nn.Parameter(torch.zeros(1))], lr=0.1)
    node = {"_target_": "training.schedule.one_cycle", "max_lr": 0.1, "total_steps": "total_steps"}
    rates = rates_of_updates(Schedule(node, optimizer, TEN_STEPS, "val_accuracy"), optimizer, 10)
    sgd = make_sgd()
    assert rates == rates_of_updates(Schedule(node, sgd, TEN_STEPS, "val_accuracy"), sgd, 10)
    group = optimizer.param_groups[0]  # at the end torch gives back the largest momentum
    momenta = [group[key] for key in ("momentum", "betas") if key in group]
    assert momenta == {"SGD": [0.95], "AdamW": [(0.95, 0.999)]}.get(name, [])


@pytest.mark.parametrize("total_steps", [1, 2, 7, 1000])
def test_a_cosine_ends_exactly_at_its_minimum_and_stays_there(total_steps: int) -> None:
    optimizer = make_sgd(0.5)
    scheduler = warmup_cosine(optimizer, total_steps, warmup=0.05, min_factor=0.25)

    for step in range(total_steps + 3):
        optimizer.step()
        scheduler.step()
        if step >= total_steps - 1:
            assert optimizer.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize("name", ["warmup", "start_factor", "min_factor"])
def test_shares_outside_their_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a share of 1, but got {name}=1.5"):
        warmup_cosine(make_sgd(), 10, **{name: 1.5})


@pytest.mark.parametrize("total_steps", [1, 2, 3, 4, 5, 8, 100])
def test_one_cycle_works_for_any_number_of_steps_and_ends_low(total_steps: int) -> None:
    optimizer = make_sgd()
    node = {
        "_target_": "training.schedule.one_cycle",
        "max_lr": 1.0,
        "total_steps": "total_steps",
        "cycle_momentum": False,
    }
    plan = Plan(epochs=1, num_batches=total_steps)
    schedule = Schedule(node, optimizer, plan, "val_accuracy")

    rates = rates_of_updates(schedule, optimizer, total_steps)

    assert pytest.approx(rates[-1], rel=1e-6) == 4e-6
    assert rates[-1] == optimizer.param_groups[0]["lr"]  # and it does not climb again


def test_one_cycle_is_torch_s_own() -> None:
    ours, theirs = make_sgd(), make_sgd()
    options = {"max_lr": 1.0, "total_steps": 9, "pct_start": 0.3, "cycle_momentum": False}
    pair = (one_cycle(ours, **options), torch.optim.lr_scheduler.OneCycleLR(theirs, **options))
    for _ in range(8):
        for optimizer, scheduler in zip((ours, theirs), pair, strict=True):
            optimizer.step()
            scheduler.step()
        assert theirs.param_groups[0]["lr"] == ours.param_groups[0]["lr"]


def test_milestones_in_epochs_are_not_reached_by_updates() -> None:
    optimizer = make_sgd()
    node = {
        "_target_": "torch.optim.lr_scheduler.MultiStepLR",
        "step_each": "epoch",
        "milestones": [1, 2],
        "gamma": 0.1,
    }
    schedule = Schedule(node, optimizer, TEN_STEPS, "val_accuracy")

    rates = []
    for _ in range(3):
        rates += rates_of_updates(schedule, optimizer, 2)
        schedule.after_epoch(None)

    assert pytest.approx(rates) == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]


@pytest.mark.parametrize(
    ("monitor", "values"),
    [
        ("val_accuracy", [0.5, 0.6, 0.6, math.nan, None, 0.7]),
        ("val_loss", [0.5, 0.4, 0.4, math.nan, None, 0.3]),
    ],
)
def test_a_plateau_counts_evaluations_without_a_better_value(
    monitor: str, values: list[float | None]
) -> None:
    optimizer = make_sgd()
    node = {
        "_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau",
        "step_each": "epoch",
        "factor": 0.5,
        "patience": 1,
    }
    schedule = Schedule(node, optimizer, TEN_STEPS, monitor)

    rates = []
    for value in values:
        schedule.after_epoch(value)
        rates.append(optimizer.param_groups[0]["lr"])

    assert rates == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]


def test_a_plateau_cannot_be_stepped_by_updates() -> None:
    node = {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"}

    with pytest.raises(ConfigError, match=r"^schedule.step_each must be epoch for a schedule that"):
        Schedule(node, make_sgd(), TEN_STEPS, "val_loss")


def test_an_unknown_step_is_named() -> None:
    node = {"_target_": "torch.optim.lr_scheduler.ConstantLR", "step_each": "day"}

    with pytest.raises(ConfigError, match=r"must be update or epoch, but got .*=day"):
        Schedule(node, make_sgd(), TEN_STEPS, "val_loss")


@pytest.mark.parametrize("preset", ["constant", "cosine", "multistep", "onecycle", "plateau"])
@pytest.mark.parametrize("optimizer_preset", ["adamw", "sgd"])
def test_every_preset_runs_and_its_state_loads_without_code(
    preset: str, optimizer_preset: str
) -> None:
    config = make_config(f"schedule={preset}", f"optimizer={optimizer_preset}")
    optimizer = make_optimizer(config.optimizer, nn.Linear(2, 2))
    schedule = Schedule(config.schedule, optimizer, TEN_STEPS, "val_accuracy")
    for _ in range(2):
        rates_of_updates(schedule, optimizer, 5)
        schedule.after_epoch(0.5)

    file = io.BytesIO()
    torch.save(schedule.state_dict(), file)
    file.seek(0)
    schedule.load_state_dict(torch.load(file, weights_only=True))
    rates_of_updates(schedule, optimizer, 1)


LINEAR = {"_target_": "torch.optim.lr_scheduler.LinearLR", "start_factor": 0.1}
COSINE = {
    "_target_": "torch.optim.lr_scheduler.CosineAnnealingLR",
    "T_max": "total_steps",
    "eta_min": 0.25,
}


def in_sequence(*schedulers: dict[str, Any], milestones: list[int]) -> dict[str, Any]:
    target = "torch.optim.lr_scheduler.SequentialLR"
    return {"_target_": target, "schedulers": list(schedulers), "milestones": milestones}


@pytest.mark.parametrize("start_factor", [0.1, 1.0])
@pytest.mark.parametrize("climbing", [0, 1, 4, 9])
def test_schedulers_in_a_sequence_know_their_own_span(climbing: int, start_factor: float) -> None:
    climb = {**LINEAR, "start_factor": start_factor, "total_iters": "total_steps"}
    node = in_sequence(climb, COSINE, milestones=[climbing])
    optimizer = make_sgd()

    rates = rates_of_updates(
        Schedule(node, optimizer, TEN_STEPS, "val_accuracy"), optimizer, TEN_STEPS.total_steps
    )

    expected = [start_factor + (1 - start_factor) * i / climbing for i in range(climbing)]
    falling = 10 - climbing
    expected += [
        0.25 + 0.75 * (1 + math.cos(math.pi * step / falling)) / 2 for step in range(falling)
    ]
    assert expected == pytest.approx(rates)
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_a_sequence_that_is_longer_than_the_run_is_cut() -> None:
    optimizer = make_sgd()
    node = in_sequence({**LINEAR, "total_iters": 4}, COSINE, milestones=[4])
    plan = Plan(epochs=1, num_batches=2)

    rates = rates_of_updates(Schedule(node, optimizer, plan, "val_accuracy"), optimizer, 2)

    assert pytest.approx(rates) == [0.1, 0.325]


def test_a_cycle_at_the_end_of_a_sequence_stays_low() -> None:
    cycle = {"_target_": "training.schedule.one_cycle", "max_lr": 1.0, "cycle_momentum": False}
    cycle["total_steps"] = "total_steps"
    optimizer = make_sgd()
    node = in_sequence({**LINEAR, "total_iters": 4}, cycle, milestones=[4])
    schedule = Schedule(node, optimizer, TEN_STEPS, "val_accuracy")

    rates = rates_of_updates(schedule, optimizer, 13)

    assert pytest.approx(rates[9:], rel=1e-6) == [4e-6] * 4


def test_schedulers_may_be_chained() -> None:
    optimizer = make_sgd()
    decay = {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.5}
    node = {
        "_target_": "torch.optim.lr_scheduler.ChainedScheduler",
        "schedulers": [{**LINEAR, "start_factor": 0.5, "total_iters": 2}, decay],
    }
    schedule = Schedule(node, optimizer, TEN_STEPS, "val_accuracy")

    rates = rates_of_updates(schedule, optimizer, 4)

    assert pytest.approx(rates) == [0.5, 0.375, 0.25, 0.125]


def test_a_mistake_inside_a_sequence_is_named() -> None:
    node = in_sequence({"_target_": "os.system"}, COSINE, milestones=[3])
    with pytest.raises(ConfigError, match=r"^schedule\.schedulers\[0\]\._target_ must lie in"):
        Schedule(node, make_sgd(), TEN_STEPS, "val_loss")
    node = in_sequence(LINEAR, COSINE, milestones=[3, 4])
    with pytest.raises(ConfigError, match=r"^schedule: .*SequentialLR refused its arguments: "):
        Schedule(node, make_sgd(), TEN_STEPS, "val_loss")


@pytest.mark.parametrize("name", ["LinearLR", "ConstantLR", "PolynomialLR"])
def test_a_warm_up_of_no_steps_starts_at_the_full_rate_and_stays(name: str) -> None:
    optimizer = make_sgd(0.3)
    node = {"_target_": f"torch.optim.lr_scheduler.{name}", "total_iters": 0}
    schedule = Schedule(node, optimizer, TEN_STEPS, "val_accuracy")

    assert rates_of_updates(schedule, optimizer, 4) == [0.3] * 4


@pytest.mark.parametrize("preset", ["cosine", "onecycle"])
def test_without_a_climb_a_preset_starts_at_the_full_rate_and_ends_at_its_lowest(
    preset: str,
) -> None:
    climb = {"cosine": "schedule.warmup=0", "onecycle": "schedule.pct_start=0"}[preset]
    config = make_config(f"schedule={preset}", climb)
    optimizer = make_optimizer(config.optimizer, nn.Linear(2, 2))
    schedule = Schedule(config.schedule, optimizer, TEN_STEPS, "val_accuracy")

    rates = rates_of_updates(schedule, optimizer, 10)

    assert rates[0] == 0.01
    assert rates == sorted(rates, reverse=True)
    assert optimizer.param_groups[0]["lr"] == {"cosine": 0.0, "onecycle": 0.01 / 25 / 1e4}[preset]


def test_a_new_rate_reaches_the_schedulers_inside_a_sequence() -> None:
    node = in_sequence({**LINEAR, "total_iters": 4}, COSINE | {"eta_min": 0.0}, milestones=[4])
    plain, scaled = make_sgd(), make_sgd()
    schedules = [Schedule(node, sgd, TEN_STEPS, "val_accuracy") for sgd in (plain, scaled)]

    schedules[1].scale(0.5)

    expected = rates_of_updates(schedules[0], plain, 10)
    assert pytest.approx([rate / 2 for rate in expected]) == rates_of_updates(
        schedules[1], scaled, 10
    )


@pytest.mark.parametrize("num_steps", [2, 4, 7])
def test_a_sequence_goes_on_from_its_state(num_steps: int) -> None:
    steps = {"_target_": "torch.optim.lr_scheduler.MultiStepLR", "milestones": [2, 4]}
    node = in_sequence({**LINEAR, "total_iters": 4}, steps, milestones=[4])
    first, second = make_sgd(), make_sgd()
    whole, rest = (Schedule(node, sgd, TEN_STEPS, "val_accuracy") for sgd in (first, second))
    rates_of_updates(whole, first, num_steps)
    file = io.BytesIO()
    torch.save([whole.state_dict(), first.state_dict()], file)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    rest.load_state_dict(states[0])
    second.load_state_dict(states[1])

    assert rates_of_updates(whole, first, 4) == rates_of_updates(rest, second, 4)


class Bare:
    """Looks like a scheduler, but counts nothing."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def no_schedule(optimizer: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Bare", "made Bare, without last_epoch"),
        ("no_schedule", "made NoneType, without optimizer"),
    ],
)
def test_what_is_no_scheduler_is_refused_with_what_it_lacks(name: str, said: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    node = {"_target_": f"test_schedule.{name}"}
    with pytest.raises(ConfigError, match=rf"^schedule\._target_ must make .*{said}$"):
        Schedule(node, optimizer, Plan(epochs=1, num_batches=2), "val_accuracy")
