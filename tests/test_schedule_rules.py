"""Values of schedules that torch takes without a word, and that make no sense."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from runs import make_config
from torch import device

from training.checks import ConfigError
from training.optim import Plan
from training.schedule_rules import behind_end, check_entries
from training.state import make_model, make_state

TORCH = "torch.optim.lr_scheduler."
OWN = "training.schedule."


@pytest.mark.parametrize(
    ("target", "name", "values", "rule"),
    [
        (f"{TORCH}MultiStepLR", "milestones", ["two", 3, [2, 1], [-1], [1.5]], "a list of ste"),
        (f"{TORCH}MultiStepLR", "gamma", [0, -1, math.nan, "two"], "a positive number"),
        (f"{TORCH}ReduceLROnPlateau", "factor", [0, 1, -1, math.nan], "a number between 0 and 1"),
        (f"{TORCH}ReduceLROnPlateau", "patience", [-1, 1.5, "two", None], "an integer from 0 up"),
        (f"{TORCH}ReduceLROnPlateau", "min_lr", [-1, [], [0.1, -1]], "a rate from 0 up"),
        (f"{TORCH}ReduceLROnPlateau", "threshold", [math.inf], "a finite number"),
        (f"{TORCH}ConstantLR", "factor", [-1, 1.5], "a share, a number from 0 to 1"),
        (f"{TORCH}LinearLR", "total_iters", [-1, 1.5], "an integer from 0 up"),
        (f"{OWN}one_cycle", "max_lr", [-1, math.inf, "two", True], "a rate from 0 up"),
        (f"{OWN}one_cycle", "pct_start", [-1, 1.5, "two"], "a share, a number from 0 to 1"),
        (f"{OWN}one_cycle", "total_steps", [0, -1, True, 1.5], "a positive integer"),
        (f"{OWN}warmup_cosine", "warmup", [-1, 1.5, math.nan], "a share, a number from 0 to 1"),
    ],
)
def test_a_value_without_a_meaning_is_named_with_its_rule(
    target: str, name: str, values: list[Any], rule: str
) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            check_entries({"_target_": target, name: value}, "schedule")
        assert str(caught.value).startswith(f"schedule.{name} must be {rule}")
        given = "null" if value is None else value
        assert str(caught.value).endswith(f", but got schedule.{name}={given}")


def test_of_a_schedule_of_ones_own_nothing_is_known() -> None:
    check_entries({"_target_": "mine.schedule", "gamma": "two", "milestones": -1}, "schedule")


def test_a_step_behind_the_end_is_said() -> None:
    node = {"milestones": [1, 8, 12], "total_iters": 3, "total_steps": "total_steps"}
    assert list(behind_end(node, 5, "epochs")) == [
        "schedule.milestones: 8, 12 lies behind the last of 5 epochs: the rate never gets there"
    ]
    assert list(behind_end(node, 12, "epochs")) == []


@pytest.mark.parametrize(("dev", "num_warnings"), [("false", 1), ("true", 0)])
def test_it_is_a_warning_before_the_run_unless_that_is_a_try(
    caplog: pytest.LogCaptureFixture, dev: str, num_warnings: int
) -> None:
    config = make_config("schedule=multistep", f"trainer.fast_dev_run={dev}")
    cpu = device("cpu")
    with caplog.at_level(logging.WARNING, "training"):
        make_state(config, make_model(config, cpu), cpu, Plan(epochs=2, num_batches=4))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == num_warnings
    assert all("8, 12 lies behind the last of 2 epochs" in line for line in said)


def test_a_plateau_watches_what_the_run_watches() -> None:
    config = make_config("schedule=plateau", "+schedule.mode=max", "trainer.monitor=val_loss")
    cpu = device("cpu")
    expected = "^schedule.mode must be min with trainer.monitor=val_loss, but got schedule.mode=max"
    with pytest.raises(ConfigError, match=expected):
        make_state(config, make_model(config, cpu), cpu, Plan(epochs=2, num_batches=4))
