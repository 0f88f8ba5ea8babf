from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from runs import make_config
from torch import nn

from training.checks import ConfigError
from training.optim import Plan
from training.progress import TrainLoss
from training.state import (
    Best,
    State,
    evaluation_mode,
    make_model,
    make_state,
)

CPU = torch.device("cpu")


class PartlyFrozen(nn.Sequential):
    """A model of which a user froze the first norm."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.Flatten())
        self[0].eval().requires_grad_(False)


def make_small(*overrides: str) -> State:
    config = make_config(*overrides)
    return make_state(config, make_model(config, CPU), CPU, Plan(epochs=1, num_batches=4))


@pytest.mark.parametrize(
    ("monitor", "values", "best_epochs"),
    [
        ("val_accuracy", [math.nan, 0.2, math.nan, 0.1, 0.3, math.nan], [1, 4]),
        ("val_loss", [math.nan, 0.2, math.nan, 0.3, 0.1, math.nan], [1, 4]),
    ],
)
def test_what_is_not_a_number_is_never_best(
    monitor: str, values: list[float], best_epochs: list[int]
) -> None:
    best = Best.of(monitor)

    assert best_epochs == [epoch for epoch, value in enumerate(values) if best.update(value, epoch)]
    assert (best.epoch, best.num_since) == (4, 1)


def test_an_equal_value_is_not_better() -> None:
    best = Best.of("val_accuracy")

    assert [best.update(0.5, 0), best.update(0.5, 1)] == [True, False]


def test_evaluation_gives_each_module_its_own_mode_back() -> None:
    model = PartlyFrozen()
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())

    assert [module.training for module in model.modules()] == [True, False, True, True]


def test_evaluation_gives_the_modes_back_after_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3))
    with pytest.raises(RuntimeError), evaluation_mode(model):
        raise RuntimeError

    assert model.training and model[0].training


def test_a_model_that_arrives_in_evaluation_mode_is_trained() -> None:
    config = make_config("model._target_=test_state.make_evaluating")

    assert make_model(config, CPU).training


@pytest.mark.parametrize("compiles", [False, True])
def test_the_model_is_compiled_in_place_where_asked_and_not_its_average(
    monkeypatch: pytest.MonkeyPatch, compiles: bool
) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda model: compiled.append(model), raising=False)

    state = make_small(f"trainer.compile={compiles}", "trainer.ema_decay=0.9")

    assert compiled == [state.model] * compiles


MULTISTEP = ("schedule=multistep", "schedule.step_each=update", "schedule.milestones=[2,5,7]")


@pytest.mark.parametrize("moved", [(False, True), (True, False), (True, True), (False, False)])
@pytest.mark.parametrize(
    "schedule",
    [
        ("schedule=onecycle", "schedule.max_lr=0.08"),  # which a recorded config holds resolved
        ("schedule=cosine", "schedule.warmup=0.3"),
        MULTISTEP,
        ("schedule=constant",),
    ],
)
def test_a_new_rate_holds_on_another_number_of_ranks_and_stays_with_the_next(
    schedule: tuple[str, ...], moved: tuple[bool, bool]
) -> None:
    def begun(lr: float) -> State:
        options = (*schedule, "optimizer=sgd", f"optimizer.lr={lr}")
        config = make_config(*options)
        return make_state(config, make_model(config, CPU), CPU, Plan(epochs=2, num_batches=4))

    def rates_of(state: State, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            rates.append(state.optimizer.param_groups[0]["lr"])
            state.optimizer.step()
            state.schedule.after_update()
            state.step += 1
        return rates

    whole = rates_of(begun(0.08), 8)
    state = begun(0.08)
    rates = rates_of(state, 3)
    for steps, is_moved in zip((2, 3), moved, strict=True):
        checkpoint, state = state.checkpoint(), begun(0.02)
        state.restore(checkpoint, checkpoint["step"] if is_moved else None)
        rates += rates_of(state, steps)

    assert rates == pytest.approx([*whole[:3], *(rate / 4 for rate in whole[3:])])


def make_evaluating(**_: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 10, 3)).eval()


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=runs.needs_fp16)])
def test_a_checkpoint_continues_where_it_was_saved(tmp_path: Path, precision: str) -> None:
    overrides = ["trainer.ema_decay=0.9", "schedule=cosine", f"trainer.precision={precision}"]
    first, second = make_small(*overrides), make_small(*overrides)
    steps(first, 3, precision)
    torch.save(first.checkpoint(), tmp_path / "state.pt")
    expected = steps(first, 3, precision)

    second.restore(torch.load(tmp_path / "state.pt", weights_only=True))

    assert expected == steps(second, 3, precision)
    assert (6, first.lr) == (second.step, second.lr)
    assert first.best == second.best
    for ours, theirs in zip(
        [*second.model.state_dict().values(), *second.evaluated.state_dict().values()],
        [*first.model.state_dict().values(), *first.evaluated.state_dict().values()],
        strict=True,
    ):
        assert torch.equal(theirs, ours)


def test_a_torch_that_cannot_scale_on_this_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.amp, "GradScaler", raising=False)

    with pytest.raises(ConfigError, match=r"^trainer.precision must be fp32 or bf16 on cpu with"):
        make_small("trainer.precision=fp16")


def random_images() -> torch.Tensor:
    return torch.randint(256, (4, 3, 64, 64), dtype=torch.uint8)


def steps(state: State, count: int, precision: str = "fp32") -> list[float]:
    """Train on random images; return the losses."""
    from training.device import Preprocess
    from training.loop import update

    config = make_config(f"trainer.precision={precision}")
    prepare = Preprocess(config, CPU)
    state.losses = TrainLoss()
    for _ in range(count):
        batch: dict[str, Any] = {"image": random_images(), "label": torch.arange(4)}
        update(config.trainer, state, prepare, [batch])
    state.best.update(0.1 * state.step, 0)
    return [loss.item() for loss, _, _ in state.losses.unread]


def test_a_frozen_part_stays_as_it_was_made(tmp_path: Path) -> None:
    model = "model._target_=test_loop.FrozenNorm"
    runs.train(tmp_path / "run", model, "trainer.ema_decay=0.5")

    weights = runs.load(tmp_path / "run")["model"]

    assert torch.equal(torch.ones(3), weights["norm.running_var"])
    assert torch.equal(torch.ones(3), weights["norm.weight"])


class Merging(nn.Linear):
    """Does in its modes what adapters of low rank do: merges for evaluation, and parts again."""

    merged = False

    def train(self, mode: bool = True) -> Merging:
        self.merged = not mode
        return super().train(mode)


def test_what_modules_do_for_an_evaluation_they_undo_after_it() -> None:
    learning, frozen = Merging(2, 2), Merging(2, 2).eval()
    model = nn.Sequential(learning, nn.Sequential(frozen, nn.Dropout(), Merging(2, 2)))
    model[1].training = False  # of its own: what lies in it learns, but for the frozen one
    for _ in range(2):
        with evaluation_mode(model):
            assert [module.training for module in model.modules()] == [False] * 6
            assert [one.merged for one in (learning, frozen, model[1][2])] == [True] * 3
        assert [module.training for module in model.modules()] == [
            *(True, True, False, False, True, True)
        ]
        assert [one.merged for one in (learning, frozen, model[1][2])] == [False, True, False]
