from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from runs import make_config
from torch import nn

from training.checks import ConfigError
from training.optim import (
    Plan,
    Schedule,
    make_optimizer,
    one_cycle,
    parameter_groups,
    warmup_cosine,
)

SGD = {"_target_": "torch.optim.SGD", "lr": 1.0}
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


def test_weight_decay_spares_norms_and_biases() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    node = {"_target_": "torch.optim.AdamW", "lr": 0.1, "weight_decay": 0.5}

    decayed, spared = make_optimizer(node, model).param_groups

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [names[id(p)] for p in decayed["params"]] == ["0.weight", "3.weight"]
    assert [names[id(p)] for p in spared["params"]] == ["0.bias", "1.weight", "1.bias", "3.bias"]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)


def test_frozen_parameters_are_no_concern_of_the_optimizer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    model[0].requires_grad_(False)

    (group,) = parameter_groups(model.named_parameters())

    assert group["params"][0] is model[1].weight


def test_a_model_that_cannot_learn_is_an_error_at_once() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)

    with pytest.raises(ConfigError, match=r"^model must have a parameter that requires grad"):
        make_optimizer(SGD, model)


def test_warm_up_climbs_along_a_line_and_then_falls_along_a_cosine() -> None:
    optimizer = make_sgd()
    node = {
        "_target_": "training.optim.warmup_cosine",
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
        "_target_": "training.optim.one_cycle",
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


@pytest.mark.parametrize(
    ("plan", "steps_per_epoch"),
    [
        (Plan(epochs=3, num_batches=5), 5),
        (Plan(epochs=3, num_batches=5, accumulate=2), 3),
        (Plan(epochs=3, num_batches=5, accumulate=8), 1),
        (Plan(epochs=3, num_batches=5, echo=3), 15),
        (Plan(epochs=3, num_batches=5, echo=3, accumulate=2), 8),
    ],
)
def test_total_steps_are_the_updates_after_accumulation_and_echo(
    plan: Plan, steps_per_epoch: int
) -> None:
    assert (steps_per_epoch, 3 * steps_per_epoch) == (plan.steps_per_epoch, plan.total_steps)


def test_a_plan_is_shortened_as_the_config_asks() -> None:
    limited = Plan.of(make_config("trainer.limit_batches=3"), 10)
    larger = Plan.of(make_config("trainer.limit_batches=30"), 10)
    dev = Plan.of(make_config("trainer.fast_dev_run=true", "epochs=9"), 10)

    assert (limited.epochs, limited.num_batches) == (2, 3)
    assert larger.num_batches == 10
    assert (dev.epochs, dev.num_batches, dev.total_steps) == (1, 1, 1)


def test_the_last_epoch_is_always_evaluated() -> None:
    plan = Plan(epochs=8, num_batches=1, evaluate_every=3)

    assert [epoch for epoch in range(8) if plan.evaluates(epoch)] == [2, 5, 7]


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
    torch.save(schedule.scheduler.state_dict(), file)
    file.seek(0)
    schedule.scheduler.load_state_dict(torch.load(file, weights_only=True))
