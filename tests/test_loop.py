from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from runs import make_config, without_times
from torch import Tensor, nn

from reuseloader import FOREVER, ReuseKey
from training import loop
from training.checks import ConfigError
from training.data.digits import Digits
from training.device import Preprocess, repeat, windows
from training.loop import update
from training.models import SmallConvNet
from training.optim import Plan
from training.options import TrainerConfig
from training.schedule import Schedule
from training.state import Best, State, make_scaler
from training.timing import PHASES, Clock

CPU = torch.device("cpu")
CONSTANT = {"_target_": "torch.optim.lr_scheduler.ConstantLR", "factor": 1.0}
HALVING = {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.5}


class Scalar(nn.Module):
    """A weight w, which starts at 0; the output is w - x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x.flatten()


class FrozenNorm(nn.Module):
    """A model of which a user froze a norm; notes its mode at every training step."""

    modes: list[tuple[bool, bool]]

    def __init__(self, num_classes: int = 10, **_: Any) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3).eval().requires_grad_(False)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(3, num_classes)
        FrozenNorm.modes = []

    def forward(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            FrozenNorm.modes.append((self.training, self.norm.training))
        return self.head(self.dropout(self.norm(images).mean((2, 3))))


class DrawsInEvaluation(SmallConvNet):
    """A model that draws random numbers whenever it is evaluated, and uses them in training."""

    def forward(self, input: Tensor) -> Tensor:
        noise = torch.rand(len(input), 1)
        return super().forward(input) + (0.1 * noise if self.training else 0)


class NormOverOnePixel(nn.Sequential):
    """A model that cannot train on a batch of one: its norm sees one value a channel."""

    def __init__(self, num_classes: int = 10, **_: Any) -> None:
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        super().__init__(*pool, nn.BatchNorm1d(3), nn.Linear(3, num_classes))


def build_number(key: ReuseKey, *, source: Any, transforms: Any) -> dict[str, Any]:
    """Return a sample whose pixels are its index."""
    return {"image": torch.full((3, 1, 1), key.index, dtype=torch.uint8), "label": 0}


class LosesWhatItSees(nn.Module):
    """A model whose loss on a sample of class 0 is the value of the sample's first pixel."""

    def __init__(self, num_classes: int = 10, **_: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.num_classes = num_classes

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.full((len(images), self.num_classes), -1e9)
        logits[:, 0] = 0
        logits[:, 1] = self.scale * torch.expm1(images[:, 0, 0, 0]).log().clamp(min=-1e9)
        return logits


class FakeScaler:
    """Notes what is asked of it; skips the updates whose numbers are given."""

    def __init__(self, skip: tuple[int, ...] = ()) -> None:
        self.calls: list[str] = []
        self.skip, self.number, self.value = skip, 0, 65536.0

    def scale(self, loss: Tensor) -> Tensor:
        self.calls.append("scale")
        return loss * self.value

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls.append("unscale")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.value)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls.append("step")
        if self.number not in self.skip:
            optimizer.step()

    def update(self) -> None:
        self.value *= 0.5 if self.number in self.skip else 1.0
        self.number += 1

    def get_scale(self) -> float:
        return self.value


def make_state(schedule: dict[str, Any] = CONSTANT, **changes: Any) -> State:
    model = changes.pop("model", None) or Scalar()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = Plan(epochs=1, num_batches=5)
    return State(
        model=model,
        optimizer=optimizer,
        schedule=Schedule(schedule, optimizer, plan, "val_accuracy"),
        scaler=changes.pop("scaler", make_scaler(CPU, enabled=False)),
        best=Best.of("val_accuracy"),
        loss=lambda output, _: output.square().mean(),
        **changes,
    )


def plain_batches(batch_size: int = 2) -> list[dict[str, Tensor]]:
    """Return x = 0..9 in order."""
    parts = torch.arange(10, dtype=torch.uint8).split(batch_size)
    return [{"image": part.view(-1, 1, 1, 1), "label": torch.zeros(len(part))} for part in parts]


def train_scalar(state: State, batches: list[dict[str, Tensor]], **options: Any) -> State:
    trainer = TrainerConfig(**options)
    # Bytes become x / 255, and with this deviation x again, but for the last bits.
    prepare = Preprocess(make_config("data.mean=[0.0]", f"data.std=[{1 / 255}]"), CPU)
    for window in windows(repeat(batches, trainer.echo), trainer.accumulate):
        update(trainer, state, prepare, window)
    return state


@pytest.mark.parametrize(("accumulate", "steps", "w"), [(2, 3, 2.772), (8, 1, 0.9), (5, 1, 0.9)])
def test_a_short_last_window_is_the_mean_over_its_samples(
    accumulate: int, steps: int, w: float
) -> None:
    state = train_scalar(make_state(), plain_batches(), accumulate=accumulate)

    assert (steps, w) == (state.step, pytest.approx(state.model.w.item(), abs=1e-6))
    assert steps == state.schedule.scheduler.last_epoch


@pytest.mark.parametrize("accumulate", [2, 3])
def test_a_ragged_last_batch_weighs_what_it_holds(accumulate: int) -> None:
    state = train_scalar(make_state(), plain_batches(batch_size=4), accumulate=accumulate)

    w, xs = 0.0, list(range(10))
    for start in range(0, 10, 4 * accumulate):  # the same by hand: plain gradient descent
        window = xs[start : start + 4 * accumulate]
        w -= 0.1 * sum(2 * (w - x) for x in window) / len(window)
    assert w == pytest.approx(state.model.w.item(), abs=1e-6)


def test_accumulation_equals_the_large_batch() -> None:
    large = train_scalar(make_state(), plain_batches(batch_size=6))
    small = train_scalar(make_state(), plain_batches(batch_size=2), accumulate=3)

    assert large.model.w.item() == pytest.approx(small.model.w.item(), abs=1e-6)


def test_an_update_is_made_of_unscaled_and_then_clipped_gradients_once() -> None:
    scaler = FakeScaler()
    state = train_scalar(make_state(scaler=scaler), plain_batches(), accumulate=2, clip_norm=1.0)

    assert scaler.calls == ["scale", "scale", "unscale", "step"] * 2 + ["scale", "unscale", "step"]
    # Each gradient is far longer than 1, so that each update moves by exactly the rate.
    assert pytest.approx(state.model.w.item(), abs=1e-6) == 0.3


def test_a_gradient_below_the_largest_norm_is_left_alone() -> None:
    clipped = train_scalar(make_state(), plain_batches(), accumulate=2, clip_norm=1000.0)

    assert pytest.approx(clipped.model.w.item(), abs=1e-6) == 2.772


def test_an_update_that_fp16_skips_moves_neither_rate_nor_step_nor_average() -> None:
    model = Scalar()
    state = make_state(HALVING, model=model, scaler=FakeScaler(skip=(1, 2, 4)))
    state.ema = torch.optim.swa_utils.AveragedModel(model)
    seen = []
    for batch in plain_batches():
        train_scalar(state, [batch])
        rate = state.optimizer.param_groups[0]["lr"]
        seen.append((state.step, rate, int(state.ema.n_averaged), state.ema.module.w.item()))

    assert [step for step, *_ in seen] == [1, 1, 1, 2, 2]
    assert seen[0] == seen[1] == seen[2]
    assert seen[3] == seen[4] != seen[2]
    assert [seen[0][1], seen[3][1]] == [0.05, 0.025]


@runs.needs_fp16
def test_a_gradient_that_overflows_is_skipped_by_the_real_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    state = make_state(HALVING, scaler=scaler)
    batches = plain_batches()

    train_scalar(state, batches[1:3])

    assert (
        state.step,
        state.optimizer.param_groups[0]["lr"],
        state.model.w.item(),
    ) == (0, 0.1, 0.0)
    assert scaler.get_scale() == 2.0**125


def test_the_moving_average_follows_the_weights_after_each_update() -> None:
    state = make_state()
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    state.ema = torch.optim.swa_utils.AveragedModel(state.model, multi_avg_fn=average)
    expected = None
    for batch in plain_batches():
        train_scalar(state, [batch])
        w = state.model.w.item()
        expected = w if expected is None else 0.5 * expected + 0.5 * w

    assert expected == pytest.approx(state.evaluated.w.item(), abs=1e-6)


def test_echo_uses_each_batch_so_often_and_in_a_row() -> None:
    seen: list[float] = []
    state = make_state()
    state.loss = lambda output, _: seen.append(output.numel()) or output.square().mean()  # type: ignore[func-returns-value]

    train_scalar(state, plain_batches(batch_size=4), echo=3)

    assert seen == [4, 4, 4, 4, 4, 4, 2, 2, 2]
    assert state.step == 9


def test_echo_draws_device_augmentation_anew_at_every_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "try_training", lambda *_: None)  # which the spy would see as well
    inputs: list[Tensor] = []

    class Spy(SmallConvNet):
        def forward(self, input: Tensor) -> Tensor:
            if self.training:
                inputs.append(input)
            return super().forward(input)

    with runs.begin(tmp_path, "trainer.echo=2", "trainer.mixup_alpha=1.0", "epochs=1") as run:
        _, loaders, device = runs.prepare(run)
        loop.fit(run, Spy(10, width=4), loaders, device)

    assert len(inputs) == 8
    for first, second in zip(inputs[::2], inputs[1::2], strict=True):
        assert not torch.equal(first, second)
    assert [row["step"] for row in runs.rows(tmp_path)] == [8.0]


def test_evaluating_less_often_does_not_change_training(tmp_path: Path) -> None:
    options = ["model._target_=test_loop.DrawsInEvaluation", "trainer.mixup_alpha=0.4", "epochs=4"]
    every = runs.train(tmp_path / "1", *options)
    third = runs.train(tmp_path / "3", *options, "trainer.evaluate_every=3")

    assert [row["train_loss"] for row in every] == [row["train_loss"] for row in third]
    assert [row["val_loss"] for row in third[:2]] == [None, None]
    assert [every[2]["val_loss"], every[3]["val_loss"]] == [row["val_loss"] for row in third[2:]]
    assert torch.equal(
        runs.load(tmp_path / "1")["random"]["torch"], runs.load(tmp_path / "3")["random"]["torch"]
    )


def test_validation_is_the_mean_over_samples_whatever_the_batches_hold(tmp_path: Path) -> None:
    options = ["build._target_=test_loop.build_number", "batch_size=4", "data.val.limit=10"]
    options += ["model._target_=test_loop.LosesWhatItSees", "data.mean=[0,0,0]"]
    deviation = f"data.std=[{1 / 255},{1 / 255},{1 / 255}]"  # what is seen is the byte
    with runs.begin(tmp_path, *options, deviation) as run:
        model, loaders, device = runs.prepare(run)
        job = loop.Job(
            run=run,
            plan=Plan(epochs=1, num_batches=1),
            loaders=loaders,
            prepare=Preprocess(run.config, device),
            trackers=loop.Trackers({}),
        )
        evaluation = loop.evaluate(job, model)

    assert (10, pytest.approx(4.5)) == (evaluation.confusion.sum(), evaluation.loss)


def test_every_training_step_is_in_training_mode_and_frozen_parts_stay_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_update = loop.update
    monkeypatch.setattr(loop, "try_training", lambda *_: None)  # one more pass in this mode
    with runs.begin(tmp_path, "model._target_=test_loop.FrozenNorm") as run:
        model, loaders, device = runs.prepare(run)

        def evaluate_then_update(*arguments: Any) -> None:
            job = loop.Job(
                run=run,
                plan=Plan(epochs=1, num_batches=1),
                loaders=loaders,
                prepare=Preprocess(run.config, device),
                trackers=loop.Trackers({}),
            )
            loop.evaluate(job, model)
            make_update(*arguments)

        monkeypatch.setattr(loop, "update", evaluate_then_update)
        loop.fit(run, model, loaders, device)

    assert FrozenNorm.modes == [(True, False)] * 8


def test_the_same_command_gives_the_same_metrics_whatever_ran_before(tmp_path: Path) -> None:
    options = ["trainer.cutmix_alpha=1.0", "trainer.ema_decay=0.5", "schedule=cosine"]
    alone = runs.train(tmp_path / "alone", *options)
    runs.train(
        tmp_path / "other",
        "deterministic=false",
        "trainer.precision=bf16",
        "num_threads=2",
        "seed=7",
    )

    assert without_times(alone) == without_times(runs.train(tmp_path / "again", *options))


def test_logging_does_not_change_training(tmp_path: Path) -> None:
    quiet = runs.train(tmp_path / "quiet", "trainer.mixup_alpha=1.0")
    loud = runs.train(
        tmp_path / "loud", "trainer.mixup_alpha=1.0", "tracker=tensorboard", "tracker.log_every=1"
    )

    assert without_times(quiet) == without_times(loud)


def test_the_columns_of_metrics_csv_keep_their_order(tmp_path: Path) -> None:
    (first, *_) = runs.train(tmp_path)

    assert ",".join(first) == (
        "epoch,train_loss,val_loss,val_accuracy,lr,built,reused,wait_s,epoch_s,samples_per_s,"
        "val_top5_accuracy,step,copy_s,compute_s,eval_s,checkpoint_s,warmup_s,other_s,build_s,read_s"
    )


def test_the_phases_of_an_epoch_add_up_to_it_and_the_epochs_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**9))  # each look at the clock is a second later
    monkeypatch.setattr(loop.Clock, "of", lambda device: Clock(lambda: float(next(ticks))))
    rows = runs.train(tmp_path, "epochs=3", "checkpoint.every_steps=3", "lifetime=2")

    phases = [f"{name}_s" for name in PHASES]
    assert [sum(row[name] for name in phases) for row in rows] == [row["epoch_s"] for row in rows]
    # What comes after the last row is in none: closing the run, with two looks at the clock a
    # checkpoint and a few more.
    whole = next(ticks)
    assert whole - 10 <= sum(row["epoch_s"] for row in rows) <= whole
    assert [row["warmup_s"] > 0 for row in rows] == [True, False, False]
    assert all(row["wait_s"] > 0 and row["compute_s"] > 0 and row["eval_s"] > 0 for row in rows)


def test_workers_time_what_they_build_and_read(tmp_path: Path) -> None:
    first, second = runs.train(tmp_path, "lifetime=2")

    assert first["build_s"] > 0 and first["read_s"] == 0
    assert second["build_s"] > 0 and second["read_s"] > 0


def test_the_end_says_what_bounded_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs.train(tmp_path, "epochs=1", "batch_size=4")  # 16 batches, enough to be judged

    (line,) = [
        line for line in (tmp_path / "train.log").read_text().splitlines() if "-bound" in line
    ]
    assert re.search(r"INFO time           (input|compute)-bound: ", line)


def test_a_last_batch_of_one_is_left_out_with_a_word_and_validation_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ["model._target_=test_loop.NormOverOnePixel", "data.train.limit=33"]
    options += ["data.val.limit=33", "epochs=3"]
    rows = runs.train(tmp_path, *options)

    log = (tmp_path / "train.log").read_text()
    assert [row["step"] for row in rows] == [2.0, 4.0, 6.0]
    assert runs.load(tmp_path)["best"]["confusion"].sum() == 33
    assert log.index("leaves out its last batch, of one sample") < log.index("epoch 0 of 3")


class Growing(Digits):
    """Digits of which epochs use the first ones alone.

    Args:
        table: their number, by first epoch.
        options: of the digits.
    """

    def __init__(self, table: dict[int, int], **options: Any) -> None:
        super().__init__(**options)
        self.size_table = table


@pytest.mark.parametrize(
    ("table", "batch_size", "seen", "said"),
    [
        ({0: 20, 2: 29}, 28, [20, 20, 28], "an epoch of 29 samples leaves out"),
        ({0: 11, 9: 13}, 6, [11, 11, 11], ""),  # which this run never comes to
        ({0: 13, 1: 25, 2: 26}, 12, [12, 24, 26], "an epoch of 13 or 25 samples leaves out"),
        ({0: 13, 2: 25}, 12, [12, 12, 24], "each epoch leaves out"),
        ({0: 12, 1: 13}, 13, [12, 13, 13], ""),
    ],
)
def test_of_a_set_that_grows_only_last_batches_of_one_are_left_out(
    table: dict[int, int], batch_size: int, seen: list[int], said: str, tmp_path: Path
) -> None:
    options = ["data.train._target_=test_loop.Growing", f"+data.train.table={table}"]
    rows = runs.train(tmp_path, *options, f"batch_size={batch_size}", "epochs=3", "lifetime=2")

    assert [row["built"] + row["reused"] for row in rows] == seen
    log = (tmp_path / "train.log").read_text()
    assert ("leaves out its last batch" in log) == bool(said) and said in log
    assert f"{max(table[first] for first in table if first < 3)} samples for training" in log


def test_without_a_norm_over_the_batch_no_sample_is_left_out(tmp_path: Path) -> None:
    options = ["model._target_=test_loop.FrozenNorm", "data.train.limit=33", "epochs=1"]

    assert [row["step"] for row in runs.train(tmp_path, *options)] == [3.0]


def test_a_batch_size_above_the_data_with_drop_last_is_said_before_training(
    tmp_path: Path,
) -> None:
    options = ["batch_size=65", "loader.drop_last=true"]
    with pytest.raises(ConfigError) as raised, runs.begin(tmp_path, *options) as run:
        runs.prepare(run)

    assert str(raised.value) == (
        "batch_size must be at most the number of training samples, 64, with "
        "loader.drop_last=true, but got batch_size=65"
    )


def test_a_class_that_validation_lacks_is_said_before_training(tmp_path: Path) -> None:
    runs.train(tmp_path, "data.val.limit=6", "epochs=1")

    log = (tmp_path / "train.log").read_text()
    assert log.index("validation holds no sample of class ") < log.index("epoch 0 of 1")


def script_evaluations(monkeypatch: pytest.MonkeyPatch, **values: list[float]) -> None:
    """Let evaluations, one after the other, come to the values that are given by their name."""
    coming = {name: iter(each) for name, each in values.items()}
    evaluate = loop.evaluate

    def scripted(*arguments: Any) -> Any:
        return replace(evaluate(*arguments), **{name: next(each) for name, each in coming.items()})

    monkeypatch.setattr(loop, "evaluate", scripted)


def test_an_evaluation_without_a_loss_is_no_progress_to_a_plateau_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, accuracies = [0.5, math.nan, 0.5], [0.1, 0.9, 0.2]
    script_evaluations(monkeypatch, loss=losses, accuracy=accuracies)
    rows = runs.train(tmp_path, "schedule=plateau", "schedule.patience=0", "epochs=3")

    assert rows[0]["lr"] == rows[1]["lr"] > rows[2]["lr"]


def test_training_ends_early_after_so_many_evaluations_without_a_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_evaluations(monkeypatch, loss=[0.5, 0.4, math.nan, 0.45, 0.1, 0.1])
    options = ["trainer.early_stopping=2", "trainer.monitor=val_loss", "epochs=6"]
    rows = runs.train(tmp_path, *options)

    best = runs.load(tmp_path, "best")
    assert [0.5, 0.4, pytest.approx(math.nan, nan_ok=True), 0.45] == [r["val_loss"] for r in rows]
    assert (best["best"]["value"], best["best"]["epoch"], best["epoch"]) == (0.4, 1, 1)
    assert runs.load(tmp_path)["best"]["num_since"] == 2


def test_a_training_loss_that_is_not_finite_stops_and_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(trainer: Any, state: State, *rest: Any) -> None:
        if state.step == 6:
            next(iter(state.model.parameters())).data.fill_(math.nan)
        update(trainer, state, *rest)

    monkeypatch.setattr(loop, "update", diverge)
    with pytest.raises(FloatingPointError, match="training loss is nan in epoch 1, step 6"):
        runs.train(tmp_path)

    checkpoint = runs.load(tmp_path)
    assert (checkpoint["epoch"], checkpoint["step"]) == (0, 4)
    assert all(bool(value.isfinite().all()) for value in checkpoint["model"].values())


def test_weights_that_the_last_update_of_an_epoch_spoilt_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(trainer: Any, state: State, *rest: Any) -> None:
        update(trainer, state, *rest)
        if state.step == 8:
            next(iter(state.model.parameters())).data[0] = math.inf

    monkeypatch.setattr(loop, "update", spoil)
    with pytest.raises(FloatingPointError, match="not finite at the end of epoch 1, step 8"):
        runs.train(tmp_path)

    assert runs.load(tmp_path)["epoch"] == 0


def test_limited_epochs_count_what_they_use(tmp_path: Path) -> None:
    rows = runs.train(tmp_path, "trainer.limit_batches=2", "epochs=3")

    assert [row["step"] for row in rows] == [2.0, 4.0, 6.0]
    assert [row["built"] + row["reused"] for row in rows] == [32.0] * 3
    assert runs.load(tmp_path)["best"]["confusion"].sum() == 32


def test_a_limited_epoch_leaves_no_worker_behind(tmp_path: Path) -> None:
    options = ["trainer.limit_batches=1", "num_workers=2", "epochs=3"]
    with runs.begin(tmp_path, *options) as run:
        model, loaders, device = runs.prepare(run)
        loop.fit(run, model, loaders, device)
        assert len(torch.multiprocessing.active_children()) == 4  # two for training, two beside
    del loaders


def test_overfitting_sees_the_same_samples_in_every_epoch(tmp_path: Path) -> None:
    options = ["trainer.overfit_batches=2", "epochs=3", f"lifetime={FOREVER}"]
    rows = runs.train(tmp_path, *options)

    assert [(r["built"], r["reused"]) for r in rows] == [(32.0, 0.0), (0.0, 32.0), (0.0, 32.0)]


def test_a_fast_dev_run_is_one_batch_of_everything(tmp_path: Path) -> None:
    (row,) = runs.train(tmp_path, "trainer.fast_dev_run=true", "epochs=9", "tracker=tensorboard")

    assert (row["epoch"], row["step"]) == (0.0, 1.0)
    assert runs.load(tmp_path)["best"]["confusion"].sum() == 16


def test_the_moving_average_is_what_is_evaluated_and_it_is_saved(tmp_path: Path) -> None:
    plain = runs.train(tmp_path / "plain")
    averaged = runs.train(tmp_path / "averaged", "trainer.ema_decay=0.9")

    checkpoint = runs.load(tmp_path / "averaged")
    assert [row["train_loss"] for row in plain] == [row["train_loss"] for row in averaged]
    assert [row["val_loss"] for row in plain] != [row["val_loss"] for row in averaged]
    assert checkpoint["ema"]["n_averaged"] == 8
    assert not torch.equal(checkpoint["ema"]["module.0.weight"], checkpoint["model"]["0.weight"])


def test_an_update_that_fp16_skips_is_no_point_of_a_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step_optimizer, calls = loop.step_optimizer, iter(range(8))
    skipped = (0, 3, 4)
    monkeypatch.setattr(
        loop,
        "step_optimizer",
        lambda state: step_optimizer(state) and next(calls) not in skipped,
    )
    monkeypatch.setattr(
        loop.Trackers,
        "scalars",
        lambda _, values, step: steps.append(step) if "train/loss" in values else None,
    )
    rows = runs.train(tmp_path, "+tracker.log_every=1")

    assert steps == [1, 2, 3, 4, 5]
    assert [row["step"] for row in rows] == [2.0, 5.0]


@pytest.mark.slow
def test_a_compiled_model_trains_and_its_checkpoint_has_the_plain_names(tmp_path: Path) -> None:
    runs.train(tmp_path / "plain", "epochs=1")
    runs.train(tmp_path / "compiled", "epochs=1", "trainer.compile=true", "trainer.ema_decay=0.9")

    plain, compiled = (runs.load(tmp_path / name)["model"] for name in ("plain", "compiled"))
    assert list(plain) == list(compiled)
    for name, value in plain.items():
        torch.testing.assert_close(value, compiled[name], rtol=1e-3, atol=1e-3)


def test_windows_are_lazy_and_the_last_may_be_shorter() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[Any]:
        for number in range(5):
            taken.append(number)
            yield number

    sizes = []
    for window in windows(numbers(), 2):
        assert 2 * len(sizes) + 1 == len(taken)
        sizes.append(len(list(window)))

    assert sizes == [2, 2, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_cuda_trains_in_every_precision(tmp_path: Path, precision: str) -> None:
    options = ["device=cuda", f"trainer.precision={precision}", "trainer.channels_last=true"]
    options += ["trainer.mixup_alpha=0.2", "trainer.ema_decay=0.9", "trainer.accumulate=2"]
    first = runs.train(tmp_path / "first", *options)

    assert without_times(first) == without_times(runs.train(tmp_path / "second", *options))


@runs.needs_fp16
def test_gradients_that_are_never_finite_end_a_run_of_fp16_in_one_line() -> None:
    state = make_state(scaler=torch.amp.GradScaler("cpu"))
    state.loss = lambda output, _: (output * math.nan).mean()
    with pytest.raises(FloatingPointError, match=r"^no gradient of the latest updates is finite: "):
        for _ in range(8):
            train_scalar(state, plain_batches())

    assert (state.step, state.model.w.item()) == (0, 0.0)


def test_saving_changes_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []
    monkeypatch.setattr(
        loop.Trackers,
        "scalars",
        lambda _, values, step: (
            seen.append((step, values["train/loss"])) if "train/loss" in values else None
        ),
    )
    runs.train(tmp_path / "plain", "+tracker.log_every=3")
    plain, seen[:] = list(seen), []
    runs.train(tmp_path / "saving", "+tracker.log_every=3", "checkpoint.every_steps=1")

    assert [step for step, _ in plain] == [3, 6]
    assert plain == seen


def test_a_weight_that_does_not_learn_may_be_infinite() -> None:
    state = make_state()
    mask = nn.Parameter(torch.tensor(-math.inf), requires_grad=False)
    state.model.register_parameter("mask", mask)
    state.check_weights()
    mask.requires_grad_(True)
    with pytest.raises(FloatingPointError):
        state.check_weights()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda images, labels: images, "but got Tensor$"),
        (lambda images, labels: (images[:, :1], labels), r"but got \[\(2, 1, 4, 4\), \(2,\)\]$"),
        (lambda images, labels: (images, labels[:1]), r"but got \[\(2, 3, 4, 4\), \(1,\)\]$"),
        (lambda images: images, "must take images N x C x H x W and labels: "),
    ],
)
def test_a_batch_transform_leaves_a_batch(made: Any, said: str) -> None:
    prepare = Preprocess(make_config(), CPU)
    prepare._transforms = [made]
    batch = {"image": torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "label": torch.zeros(2).long()}
    with pytest.raises(ConfigError, match=said):
        prepare.for_training(batch)
