"""Every option of the loop: alone and together it trains, and goes on to the same last bit."""

from __future__ import annotations

import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from runs import make_config, without_times

from training import loop
from training.checks import ConfigError
from training.options import TrackerConfig, TrainerConfig
from training.signals import Interrupted

TINY = ("data.train.limit=40", "data.val.limit=12", "batch_size=8", "model.width=2", "lifetime=3")
"""Five batches an epoch, the last one whole."""

ERASE = "{_target_: torchvision.transforms.v2.RandomErasing, p: 1.0}"

ALONE = [(), ("trainer.ema_decay=0.9",)]

ALONE_SLOW = [
    ("trainer.precision=bf16",),
    ("trainer.accumulate=2",),
    ("trainer.echo=2",),
    ("trainer.mixup_alpha=0.4",),
    ("trainer.compile=true",),
    ("trainer.precision=tf32",),
    ("trainer.precision=fp16",),
    ("trainer.channels_last=true",),
    ("trainer.clip_norm=0.1",),
    ("trainer.label_smoothing=0.1",),
    ("trainer.cutmix_alpha=1.0",),
    (f"+trainer.batch_transforms.erase={ERASE}",),
    ("trainer.monitor=val_loss", "schedule=plateau"),
    ("trainer.early_stopping=5",),
    ("trainer.evaluate_every=2",),
    ("trainer.limit_batches=3",),
    ("trainer.overfit_batches=3",),
    ("batch_size=9", "loader.drop_last=true"),
]

TOGETHER = [
    ("trainer.accumulate=3", "trainer.echo=2", "trainer.ema_decay=0.9", "trainer.clip_norm=0.5"),
    (
        *("trainer.precision=bf16", "trainer.channels_last=true", "trainer.mixup_alpha=0.4"),
        *("trainer.cutmix_alpha=1.0", "trainer.label_smoothing=0.1", "trainer.clip_norm=0.5"),
        *("trainer.echo=3", "trainer.accumulate=2", "trainer.limit_batches=4", "optimizer=sgd"),
    ),
    (
        *("trainer.precision=fp16", "trainer.accumulate=2", "trainer.ema_decay=0.5"),
        *(
            "schedule=cosine",
            "trainer.evaluate_every=2",
            f"+trainer.batch_transforms.erase={ERASE}",
        ),
    ),
]

TOGETHER_SLOW = [
    (
        *("trainer.compile=true", "trainer.precision=bf16", "trainer.channels_last=true"),
        *("trainer.accumulate=2", "trainer.echo=2", "trainer.ema_decay=0.9"),
        *("trainer.mixup_alpha=0.4", "trainer.clip_norm=0.5", "trainer.limit_batches=3"),
    ),
]


def stop_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let a signal come during an update of the process, counted from 1."""
    update, calls = loop.update, []

    def watched(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        update(*arguments)

    monkeypatch.setattr(loop, "update", watched)


def cases(fast: Any, slow: Any) -> list[Any]:
    """Return options as parameters, with the marks that they need."""
    marked = [(options, []) for options in fast]
    marked += [(options, [pytest.mark.slow]) for options in slow]
    return [
        pytest.param(options, marks=[*marks, *[runs.needs_fp16] * ("fp16" in str(options))])
        for options, marks in marked
    ]


def names(options: tuple[str, ...]) -> str:
    """Return a short name of options."""
    short = [re.sub(r"trainer\.|\{.*", "", option).strip("=+") for option in options]
    return ",".join(short) or "none"


@pytest.mark.parametrize(
    "options", cases([*ALONE, *TOGETHER], [*ALONE_SLOW, *TOGETHER_SLOW]), ids=names
)
def test_an_option_trains_and_goes_on_to_the_same_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    whole = runs.train(tmp_path / "whole", *TINY, *options)
    stop_at(monkeypatch, 2)
    with pytest.raises(Interrupted):
        runs.train(tmp_path / "parts", *TINY, *options)
    parts = runs.train(tmp_path / "parts", *TINY, *options, f"resume={tmp_path / 'parts'}")

    assert without_times(whole) == without_times(parts)
    ours, theirs = (runs.load(tmp_path / name) for name in ("whole", "parts"))
    for part in ("model", "ema"):
        for name, value in (ours[part] or {}).items():
            assert value.isfinite().all() and torch.equal(value, theirs[part][name]), name
    assert len(whole) == 2
    assert all(math.isfinite(row["train_loss"]) for row in whole)
    assert math.isfinite(whole[-1]["val_loss"])


ENDS = [
    (),
    ("trainer.accumulate=2",),
    ("trainer.echo=3", "trainer.accumulate=2"),
    ("trainer.limit_batches=3",),
    ("batch_size=9", "loader.drop_last=true"),
    ("batch_size=13",),  # a last batch of one, which BatchNorm cannot use
    ("batch_size=12", "trainer.accumulate=3"),
]

ENDS_SLOW = [
    ("trainer.echo=3",),
    ("trainer.accumulate=8",),
    ("trainer.overfit_batches=2", "trainer.limit_batches=9"),
    ("epochs=3", "batch_size=11"),
]


@pytest.mark.parametrize("options", cases(ENDS, ENDS_SLOW), ids=names)
@pytest.mark.parametrize("preset", ["cosine", "onecycle"])
def test_the_rate_ends_exactly_at_its_minimum(
    tmp_path: Path, preset: str, options: tuple[str, ...]
) -> None:
    *_, row = runs.train(tmp_path, *TINY, "epochs=1", f"schedule={preset}", *options)

    checkpoint = runs.load(tmp_path)
    lowest = {"cosine": 0.0, "onecycle": 0.01 / 25 / 1e4}[preset]
    rates = [group["lr"] for group in checkpoint["optimizer"]["param_groups"]]
    if preset == "onecycle":  # reaches it with the last update, and a cosine right after it
        assert (lowest, checkpoint["scheduler"]["total_steps"]) == (row["lr"], row["step"])
    else:
        assert checkpoint["scheduler"]["last_epoch"] == row["step"]
    assert [lowest, lowest] == rates


def test_smoothing_spreads_the_target_in_training_alone(tmp_path: Path) -> None:
    state = {}
    for smoothing in (0.0, 0.3):
        config = make_config(f"trainer.label_smoothing={smoothing}", "data.num_classes=3")
        with runs.begin(tmp_path / str(smoothing), f"trainer.label_smoothing={smoothing}") as run:
            model, loaders, device = runs.prepare(run)
            plan = loop.Plan.of(config, loaders.num_batches)
            state[smoothing] = loop.make_state(config, model, device, plan)
    output, label = torch.tensor([[2.0, 0.0, 1.0]], requires_grad=True), torch.tensor([0])
    logs = output.detach().log_softmax(1)[0]

    assert state[0.0].loss(output, label).item() == pytest.approx(-logs[0].item())
    expected = -(0.7 * logs[0] + 0.1 * logs.sum()).item()
    assert state[0.3].loss(output, label).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        *(("fp32", "float32"), ("tf32", "float32"), ("bf16", "bfloat16")),
        pytest.param("fp16", "float16", marks=runs.needs_fp16),
    ],
)
def test_precision_is_that_of_training_and_of_evaluation_and_not_of_what_is_saved(
    tmp_path: Path, precision: str, dtype: str
) -> None:
    seen: list[tuple[bool, torch.dtype]] = []
    with runs.begin(tmp_path, *TINY, f"trainer.precision={precision}", "epochs=1") as run:
        model, loaders, device = runs.prepare(run)
        model.register_forward_hook(lambda m, _, logits: seen.append((m.training, logits.dtype)))
        loop.fit(run, model, loaders, device)

    assert {(True, getattr(torch, dtype)), (False, getattr(torch, dtype))} == set(seen)
    checkpoint = runs.load(tmp_path)
    saved = [*checkpoint["model"].values(), *checkpoint["optimizer"]["state"][0].values()]
    assert {torch.float32} == {value.dtype for value in saved if value.is_floating_point()}


def test_channels_last_holds_for_weights_and_images(tmp_path: Path) -> None:
    seen: list[bool] = []
    with runs.begin(tmp_path, *TINY, "trainer.channels_last=true", "epochs=1") as run:
        model, loaders, device = runs.prepare(run)
        model.register_forward_pre_hook(
            lambda _, inputs: seen.append(
                inputs[0].is_contiguous(memory_format=torch.channels_last)
            )
        )
        loop.fit(run, model, loaders, device)

    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert len(seen) == 9 and all(seen)  # two of them before the first step, to try the model


WRONG = {
    "precision": ("fp8", "one of fp32, tf32, bf16, fp16"),
    "accumulate": (0, "a positive integer"),
    "echo": (0, "a positive integer"),
    "clip_norm": (0.0, "null or a finite positive number"),
    "ema_decay": (1.0, "null or a number in [0, 1)"),
    "label_smoothing": (1.0, "a number in [0, 1)"),
    "mixup_alpha": (-0.1, "0, or a number from 0.01 to 1,000,000"),
    "cutmix_alpha": (-0.1, "0, or a number from 0.01 to 1,000,000"),
    "monitor": ("val_top1", "one of val_accuracy, val_loss"),
    "early_stopping": (0, "null or a positive integer"),
    "evaluate_every": (0, "a positive integer"),
    "limit_batches": (0, "null or a positive integer"),
    "overfit_batches": (0, "null or a positive integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_outside_its_range_is_a_line_that_names_the_rule(name: str) -> None:
    value, rule = WRONG[name]
    for bad in (value, math.nan) if isinstance(value, float) else (value,):
        with pytest.raises(ConfigError) as raised:
            TrainerConfig(**{name: bad})
        assert str(raised.value) == f"trainer.{name} must be {rule}, but got trainer.{name}={bad}"


@pytest.mark.parametrize("value", [math.inf, -math.inf, -1.0])
def test_a_norm_that_clips_nothing_or_everything_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=rf"finite positive number, but got .*clip_norm={value}$"):
        TrainerConfig(clip_norm=value)


@pytest.mark.parametrize(("name", "value"), [("log_every", 0), ("num_pictures", -1)])
def test_trackers_have_ranges_too(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"^tracker\.{name} must be .* but got .*={value}$"):
        TrackerConfig(**{name: value})


def test_everything_is_off_or_neutral_by_default() -> None:
    assert make_config().trainer == TrainerConfig()
