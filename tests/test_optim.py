from __future__ import annotations

import math
import re
import sys
from typing import Any

import pytest
import torch
from runs import make_config
from torch import nn

from training.checks import ConfigError
from training.optim import Plan, make_optimizer, moving_average, parameter_groups

SGD = {"_target_": "torch.optim.SGD", "lr": 1.0}


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
    assert (steps_per_epoch, 3 * steps_per_epoch) == (plan.steps_in(0), plan.total_steps)


def test_a_plan_is_shortened_as_the_config_asks() -> None:
    limited = Plan.of(make_config("trainer.limit_batches=3"), {0: 10})
    larger = Plan.of(make_config("trainer.limit_batches=30"), {0: 10})
    dev = Plan.of(make_config("trainer.fast_dev_run=true", "epochs=9"), {0: 10})

    assert (limited.epochs, limited.num_batches) == (2, 3)
    assert larger.num_batches == 10
    assert (dev.epochs, dev.num_batches, dev.total_steps) == (1, 1, 1)


def test_the_last_epoch_is_always_evaluated() -> None:
    plan = Plan(epochs=8, num_batches=1, evaluate_every=3)

    assert [epoch for epoch in range(8) if plan.evaluates(epoch)] == [2, 5, 7]


@pytest.mark.parametrize(
    ("accumulate", "echo", "updates", "batches"),
    [(1, 1, 1, 1), (2, 1, 1, 2), (1, 3, 3, 1), (2, 3, 3, 2), (3, 2, 2, 3), (4, 2, 1, 2)],
)
def test_a_run_can_be_continued_after_updates_that_use_whole_batches(
    accumulate: int, echo: int, updates: int, batches: int
) -> None:
    plan = Plan(epochs=1, num_batches=12, accumulate=accumulate, echo=echo)

    assert (updates, batches) == (plan.whole_updates, plan.batches_used(updates))
    for fewer in range(1, updates):  # a batch is half used after each of them
        assert fewer * accumulate % echo != 0


def test_a_limit_beyond_all_counting_is_none() -> None:
    plan = Plan.of(make_config(f"trainer.limit_batches={10**23}"), {0: 10})

    assert (plan.num_batches, plan.limit) == (10, sys.maxsize)


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^optimizer\._target_ must make .* made Linear$"):
        make_optimizer({"_target_": "test_optim.no_optimizer"}, nn.Linear(2, 2))


def no_optimizer(groups: object) -> nn.Module:
    return nn.Linear(1, 1)


def test_a_buffer_that_counts_is_copied_and_one_of_numbers_averaged() -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("count", torch.tensor(0))
    model.register_buffer("flag", torch.tensor(False))
    model.register_buffer("mean", torch.tensor(0.0))
    ema = moving_average(model, 0.5)
    for number in range(1, 4):
        model.count, model.flag, model.mean = (
            torch.tensor(number),
            torch.tensor(number == 3),
            torch.tensor(float(number)),
        )
        ema.update_parameters(model)

    assert (ema.module.count.item(), ema.module.flag.item()) == (3, True)
    assert ema.module.mean.item() == 2.25  # 1, then half way to 2, then half way to 3


@pytest.mark.parametrize("lr", ["abc", None, True])
def test_a_rate_is_a_number(lr: object) -> None:
    with pytest.raises(ConfigError) as caught:
        make_optimizer(SGD | {"lr": lr}, nn.Linear(2, 2))
    given = "null" if lr is None else lr
    assert (
        str(caught.value) == f"optimizer.lr must be a finite number, but got optimizer.lr={given}"
    )


def test_a_number_that_no_float_holds_is_refused_by_its_name() -> None:
    for name in ("lr", "weight_decay", "momentum", "dampening"):
        with pytest.raises(ConfigError, match=rf"^optimizer\.{name} must be a finite number, but"):
            make_optimizer(SGD | {name: math.inf}, nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"^optimizer\.momentum must be a number in \[0, 1"):
        make_optimizer(SGD | {"momentum": 1.5}, nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LBFGS", "LBFGS doesn't support per-parameter options"),
        ("SparseAdam", "SparseAdam does not support dense gradients"),
        ("Muon", "Muon only supports 2D parameters"),
    ],
)
def test_an_optimizer_that_cannot_train_every_parameter_is_refused_with_one_that_can(
    name: str, said: str
) -> None:
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    with pytest.raises(ConfigError) as caught:
        make_optimizer({"_target_": f"torch.optim.{name}", "lr": 0.1}, nn.Linear(2, 2))
    expected = f"optimizer._target_ must train .*, but torch.optim.{name} does not: {said}.*; "
    assert re.fullmatch(f"{expected}torch.optim.AdamW does", str(caught.value))


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    for model, target in (
        (nn.Linear(2, 2, bias=False), "torch.optim.LBFGS"),  # a single group, which it takes
        (nn.Linear(2, 2), "test_optim.Closing"),
    ):
        with pytest.raises(ConfigError, match=rf"but {target} does not: .*'closure'; torch\.optim"):
            make_optimizer({"_target_": target, "lr": 0.1}, model)


class Closing(torch.optim.SGD):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


def test_a_step_that_fails_is_said_with_the_arguments() -> None:
    node = {"_target_": "torch.optim.Adam", "lr": 0.1, "capturable": True}  # not on a CPU
    with pytest.raises(
        ConfigError, match=r"^optimizer: .*Adam cannot make a step: .* capturable=T"
    ):
        make_optimizer(node, nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop", "Adafactor", "Rprop", "NAdam"])
def test_trying_a_step_leaves_the_model_and_the_optimizer_as_they_are(name: str) -> None:
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 2))
    before = [weight.clone() for weight in model.parameters()]
    optimizer = make_optimizer({"_target_": f"torch.optim.{name}", "lr": 0.1}, model)

    assert all(map(torch.equal, before, model.parameters()))
    assert all(weight.grad is None for weight in model.parameters())
    assert optimizer.state_dict()["state"] == {}


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_a_model_that_cannot_be_copied_has_no_average() -> None:
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)))
    with pytest.raises(ConfigError) as caught:
        moving_average(model, 0.9)
    said = str(caught.value)
    assert said.startswith(
        "trainer.ema_decay must be null for a model that copy.deepcopy cannot copy, but got "
        "trainer.ema_decay=0.9, and of Sequential: "
    )
    assert said.endswith("that can be, or trainer.ema_decay=null trains without")
    moving_average(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))), 0.9)
