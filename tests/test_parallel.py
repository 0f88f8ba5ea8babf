from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import runs
import torch
from processes import RankGroup
from runs import make_config
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey
from training import loop
from training.data.digits import Digits
from training.device import Preprocess, windows
from training.distributed import ranks
from training.loop import update
from training.metrics import Meters
from training.models import SmallConvNet
from training.optim import Plan
from training.options import TrainerConfig
from training.parallel import (
    distribute,
    exchanging_last,
    mark_valid,
    mean_over_ranks,
    seed_rank,
    share_buffers,
)
from training.schedule import Schedule
from training.state import Best, State, make_scaler

CPU = torch.device("cpu")
BATCH_NORM = ("augment=none", "lifetime=2", "batch_size=8", "trainer.ema_decay=0.9")


def small_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))


def data(num_samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (num_samples, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return images, torch.arange(num_samples) % 4


def make_state(model: nn.Module) -> State:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    constant = {"_target_": "torch.optim.lr_scheduler.ConstantLR", "factor": 1.0}
    plan = Plan(epochs=1, num_batches=3)
    return State(
        model=model,
        optimizer=optimizer,
        schedule=Schedule(constant, optimizer, plan, "val_accuracy"),
        scaler=make_scaler(CPU, enabled=False),
        best=Best.of("val_accuracy"),
        distributed=distribute(model, CPU),
    )


def train_windows(num_samples: int, accumulate: int, clip: float | None) -> list[Any]:
    """Train on this rank's part of each batch; return the weights, and what was exchanged."""
    state = make_state(small_model())
    exchanged: list[int] = []
    # A lambda, because torch wants none or real annotations, and here they are text.
    state.distributed.register_comm_hook(  # type: ignore[union-attr, operator]
        None, lambda _, bucket: exchanged.append(state.step) or allreduce_hook(None, bucket)
    )
    images, labels = data(num_samples)
    own = slice(ranks().rank, None, ranks().world_size)
    batches = [
        {"image": image, "label": label}
        for image, label in zip(images[own].split(4), labels[own].split(4), strict=True)
    ]
    prepare = Preprocess(make_config("data.num_classes=10"), CPU)
    for window in windows(batches, accumulate):
        update(TrainerConfig(accumulate=accumulate, clip_norm=clip), state, prepare, window)
    return [[p.flatten().tolist() for p in state.model.parameters()], exchanged]


def initial_weights() -> list[Any]:
    torch.manual_seed(ranks().rank)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(ranks().rank)
    distribute(model, CPU)
    return [value.tolist() for value in model.state_dict().values()]


def follow_buffers() -> list[Any]:
    model = nn.Sequential(nn.BatchNorm1d(2))
    model.register_buffer("flag", torch.tensor(ranks().is_main))
    ema = AveragedModel(model, use_buffers=True)
    for module in (model, ema.module):
        module[0].running_mean.fill_(ranks().rank + 0.5)  # type: ignore[index]
        module[0].num_batches_tracked.fill_(10 + ranks().rank)  # type: ignore[index]
    share_buffers(model, None, ema)
    return [value.tolist() for module in (model, ema) for value in module.buffers()]


def draws(seed: int, step: int) -> list[float]:
    runs.set_up(make_config(f"seed={seed}"))
    seed_rank(seed, step)
    return [torch.rand(()).item(), random.random(), np.random.rand()]


def build_number(key: ReuseKey) -> dict[str, Any]:
    return {"image": torch.full((1, 1, 1), key.index, dtype=torch.uint8), "label": 0}


def evaluate_squares(folder: str, size: int, batch_size: int) -> list[Any]:
    """Evaluate samples whose losses are the squares of their indices."""
    own = ranks()
    loader = ReuseDataLoader(
        build_number,
        size,
        Path(folder, str(own.rank)),
        lifetime=FOREVER,
        num_replicas=own.world_size,
        rank=own.rank,
        batch_size=batch_size,
    )
    meters = Meters(2, CPU)
    seen = []
    for batch in mark_valid(loader, loader.order, loader.epoch):
        square = batch["image"].flatten().double() ** 2
        # Of the logits (0, x) the first has the loss log(1 + exp(x)).
        logits = torch.stack([torch.zeros_like(square), torch.log(torch.expm1(square))], dim=1)
        meters.add(logits, batch["label"], batch.get("valid"))
        seen += batch["image"].flatten().tolist()
    result = meters.result()
    return [result.loss, int(result.confusion.sum()), seen]


def train(folder: str, *overrides: str) -> list[Any]:
    """Train a small run; return what this rank has at its end."""
    kept: list[State] = []
    make = loop.make_state
    loop.make_state = lambda *arguments: kept.append(make(*arguments)) or kept[-1]  # type: ignore[func-returns-value]
    try:
        runs.train(Path(folder), *overrides)
    finally:
        loop.make_state = make
    (state,) = kept
    weights = [value.double().sum().item() for value in state.model.state_dict().values()]
    averaged = [] if state.ema is None else [v.double().sum().item() for v in state.ema.buffers()]
    return [state.best.value, state.best.epoch, state.best.num_since, state.step, weights, averaged]


class Told(Meters):
    """Measures losses that it was told, whatever the model says."""

    table: ClassVar[list[list[float]]] = []  # by rank and evaluation
    num_made = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.loss = self.table[ranks().rank][Told.num_made]
        Told.num_made += 1

    def add(self, logits: Tensor, labels: Tensor, valid: Tensor | None = None) -> None:
        # Of the logits (0, x, -inf ...) the first has the loss log(1 + exp(x)).
        told = torch.full((len(labels), 10), -1e4)
        told[:, 0] = 0.0
        told[:, 1] = math.log(math.expm1(self.loss))
        super().add(told, torch.zeros_like(labels), valid)


def train_told(folder: str, table: list[list[float]], *overrides: str) -> list[Any]:
    """Train with losses of validation as told; return what this rank makes of them."""
    Told.table, Told.num_made = table, 0
    loop.Meters = Told  # type: ignore[misc]
    try:
        value, epoch, *_ = train(folder, *overrides)
    finally:
        loop.Meters = Meters  # type: ignore[misc]
    return [round(value, 4), epoch, Told.num_made]


def limits(folder: str, options: list[list[str]]) -> list[Any]:
    """Train runs whose ends are uneven; return the updates and samples of the last epoch."""
    results = []
    for number, overrides in enumerate(options):
        runs.train(Path(folder, str(number)), "epochs=1", "augment=none", *overrides)
    if ranks().is_main:
        for number in range(len(options)):
            (row,) = runs.rows(Path(folder, str(number)))
            results.append([row["step"], row["built"] + row["reused"]])
    return results


def test_a_process_alone_goes_through_its_model_itself() -> None:
    model = small_model()
    batches = [{"label": torch.zeros(1)}] * 3
    assert distribute(model, CPU) is None
    assert list(exchanging_last(model, iter(batches))) == batches
    assert mean_over_ranks(0.1) == 0.1
    state = torch.get_rng_state()
    seed_rank(42)
    assert torch.equal(torch.get_rng_state(), state)


def test_all_ranks_begin_with_the_weights_and_buffers_of_rank_0(rank_group: RankGroup) -> None:
    first, second = rank_group.of(2).call(initial_weights)
    torch.manual_seed(0)
    assert first == second
    assert nn.Linear(2, 2).weight.tolist() == first[0]


@pytest.mark.parametrize(
    ("num_samples", "accumulate", "steps"),
    [(48, 2, [0, 1, 2]), (36, 2, [0, 1, 2]), (20, 2, [0, 1]), (24, 1, [0, 1, 2])],
)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_two_ranks_equal_one_process_with_the_whole_batch(
    rank_group: RankGroup, num_samples: int, accumulate: int, steps: list[int], clip: float | None
) -> None:
    answers = rank_group.of(2).call(train_windows, num_samples, accumulate, clip)
    assert answers[0] == answers[1]
    weights, exchanged = answers[0]
    assert steps == exchanged  # once an update, not once a batch

    model = small_model()  # the same by hand: plain steps on the whole windows
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    config = make_config()
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (config.data.mean, config.data.std))
    images, labels = data(num_samples)
    size = 2 * 4 * accumulate
    for image, label in zip(images.split(size), labels.split(size), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model((image / 255 - mean) / std), label).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    for expected, value in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(torch.tensor(value), expected.flatten(), rtol=0, atol=1e-6)


def test_buffers_are_those_of_rank_0_whatever_their_type(rank_group: RankGroup) -> None:
    first, second = rank_group.of(2).call(follow_buffers)
    assert first == second
    assert first[:4] == [True, [0.5, 0.5], [1.0, 1.0], 10]


def test_ranks_draw_apart_and_rank_0_as_one_process_alone(rank_group: RankGroup) -> None:
    first, second = rank_group.of(2).call(draws, 5, 0)
    assert [first, second] == rank_group.of(2).call(draws, 5, 0)
    assert len({*first, *second}) == 6
    assert second != rank_group.of(2).call(draws, 6, 0)[1]
    assert second != rank_group.of(2).call(draws, 5, 9)[1]
    runs.set_up(make_config("seed=5"))
    assert [torch.rand(()).item(), random.random(), np.random.rand()] == first


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("world_size", [2, 3])
def test_an_evaluation_counts_every_sample_once(
    rank_group: RankGroup, tmp_path: Path, world_size: int, batch_size: int
) -> None:
    answers = rank_group.of(world_size).call(evaluate_squares, tmp_path, 5, batch_size)
    assert len({(loss, count) for loss, count, _ in answers}) == 1
    assert (pytest.approx(6.0, abs=1e-6), 5) == tuple(answers[0][:2])
    assert len({len(seen) for _, _, seen in answers}) == 1  # so that no rank waits for another
    assert {0, 1, 2, 3, 4} == {index for *_, seen in answers for index in seen}


@pytest.fixture(scope="module")
def pair(rank_group: RankGroup, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run on two ranks, of an uneven number of samples, and what each rank had at its end."""
    folder = tmp_path_factory.mktemp("pair")
    overrides = (*BATCH_NORM, "data.train.limit=61", "data.val.limit=37", "trainer.mixup_alpha=0.4")
    return folder, rank_group.of(2).call(train, folder, *overrides)


def test_the_ranks_end_with_one_model_and_one_best(pair: tuple[Path, Any]) -> None:
    _, (first, second) = pair
    assert first == second


def test_one_rank_writes_and_counts_are_of_all(pair: tuple[Path, Any]) -> None:
    folder, _ = pair
    rows = runs.rows(folder)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names - {"environment.diff"} == {
        *("checkpoints/best.pt", "checkpoints/last.pt", "config.yaml", "curriculum.yaml"),
        *("environment.json", "inputs.json", "metrics.csv", "overrides", "status.json"),
        "train.log",
    }
    # 31 samples a rank: with two of them one sample is used twice.
    assert [row["built"] + row["reused"] for row in rows] == [62.0, 62.0]
    assert rows[0]["built"] in (61.0, 62.0)
    assert [row["step"] for row in rows] == [4.0, 8.0]
    assert [
        int(runs.load(folder, name)["best"]["confusion"].sum()) for name in ("best", "last")
    ] == [37] * 2
    log = (folder / "train.log").read_text()
    assert log.count("epoch 1 of 2") == 1
    assert "2 ranks on gloo: 16 samples an update, 8 a rank" in log


def test_a_checkpoint_of_two_ranks_reproduces_its_loss_on_one(
    pair: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, _ = pair
    (row,) = runs.train(
        tmp_path,
        *("data.train.limit=61", "data.val.limit=37"),
        f"trainer.evaluate={folder}/checkpoints/last.pt",
    )
    last = runs.rows(folder)[-1]
    assert pytest.approx(last["val_loss"], abs=1e-6) == row["val_loss"]
    assert last["val_accuracy"] == row["val_accuracy"]


def test_a_checkpoint_has_the_names_of_the_model(pair: tuple[Path, Any]) -> None:
    checkpoint = runs.load(pair[0])
    assert list(SmallConvNet(10, width=4).state_dict()) == list(checkpoint["model"])
    assert all(name.startswith("module.") or name == "n_averaged" for name in checkpoint["ema"])
    assert not any("module.module" in name for name in checkpoint["ema"])
    assert len(checkpoint["others"]) == 1
    assert not torch.equal(checkpoint["random"]["torch"], checkpoint["others"][0]["torch"])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        # Rank 0 alone would have stopped after epoch 1; together each epoch is better.
        ([[1.0, 2.0, 3.0], [9.0, 6.0, 3.0]], [3.0, 2, 3]),
        # Rank 0 alone would have gone on, with its best in the last epoch.
        ([[4.0, 3.0, 2.0], [1.0, 4.0, 9.0]], [2.5, 0, 2]),
    ],
)
def test_the_best_epoch_and_an_early_stop_follow_from_the_value_of_all_ranks(
    rank_group: RankGroup, tmp_path: Path, losses: list[list[float]], expected: list[Any]
) -> None:
    overrides = ("epochs=3", "trainer.monitor=val_loss", "trainer.early_stopping=1")
    small = ("data.train.limit=8", "batch_size=4", "data.val.limit=6")
    answers = rank_group.of(2).call(train_told, tmp_path, losses, *overrides, *small)
    assert [expected] * 2 == answers
    _, best_epoch, num_epochs = expected
    assert runs.load(tmp_path, "best")["loader"]["epoch"] == best_epoch + 1
    means = [sum(column) / 2 for column in zip(*losses, strict=True)][:num_epochs]
    assert [row["val_loss"] for row in runs.rows(tmp_path)] == pytest.approx(means)


def test_options_that_change_a_batch_or_an_update_work_together_on_two_ranks(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    overrides = (
        *("epochs=3", "batch_size=4", "lifetime=2", "trainer.precision=bf16", "trainer.echo=2"),
        *("trainer.ema_decay=0.9", "trainer.mixup_alpha=0.4", "trainer.cutmix_alpha=1.0"),
        *("trainer.accumulate=3", "trainer.clip_norm=1.0", "trainer.limit_batches=6"),
        *("trainer.evaluate_every=2", "trainer.label_smoothing=0.1", "trainer.channels_last=true"),
    )
    first, second = rank_group.of(2).call(train, tmp_path, *overrides)
    assert first == second
    rows = runs.rows(tmp_path)
    assert [row["step"] for row in rows] == [4.0, 8.0, 12.0]  # 6 batches twice, 3 an update
    assert [row["built"] + row["reused"] for row in rows] == [48.0] * 3
    assert [row["val_loss"] is None for row in rows] == [True, False, False]


def test_without_an_average_a_checkpoint_reproduces_its_loss_as_well(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    small = ("data.train.limit=48", "data.val.limit=21", "epochs=1", "batch_size=8")
    rank_group.of(2).call(train, tmp_path / "two", *small)
    (row,) = runs.rows(tmp_path / "two")
    checkpoint = tmp_path / "two" / "checkpoints" / "last.pt"
    (again,) = runs.train(tmp_path / "one", *small, f"trainer.evaluate={checkpoint}")
    assert pytest.approx(row["val_loss"], abs=1e-6) == again["val_loss"]
    assert any("running_mean" in name for name in runs.load(tmp_path / "two")["model"])


@pytest.mark.slow
def test_a_compiled_model_trains_on_two_ranks_and_is_saved_under_its_own_names(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    small = ("data.train.limit=32", "data.val.limit=16", "epochs=2", "batch_size=8")
    first, second = rank_group.of(2).call(train, tmp_path, "trainer.compile=true", *small)
    assert first == second
    assert list(SmallConvNet(10, width=4).state_dict()) == list(runs.load(tmp_path)["model"])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_ranks_on_two_gpus_end_with_one_model_that_one_evaluates(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    options = (*BATCH_NORM, "data.train.limit=61", "data.val.limit=37", "device=cuda")
    first, second = rank_group.anew(2).call(train, tmp_path / "two", *options)
    assert first == second
    log = (tmp_path / "two" / "train.log").read_text()
    assert "2 ranks on NCCL: 16 samples an update, 8 a rank" in log
    checkpoint = tmp_path / "two" / "checkpoints" / "last.pt"
    evaluate = (*options[1:], f"trainer.evaluate={checkpoint}")
    (row,) = runs.train(tmp_path / "one", *evaluate)
    last = runs.rows(tmp_path / "two")[-1]
    assert pytest.approx(last["val_loss"], abs=1e-4) == row["val_loss"]  # cuDNN may choose anew


def test_uneven_ends_do_not_hang(rank_group: RankGroup, tmp_path: Path) -> None:
    cases = {
        ("data.train.limit=33", "batch_size=16"): [1, 32],  # 17 a rank: a last batch of one
        ("data.train.limit=35", "batch_size=16"): [2, 36],
        ("data.train.limit=35", "batch_size=16", "loader.drop_last=true"): [1, 32],
        ("data.train.limit=61", "trainer.limit_batches=1", "data.val.limit=7"): [1, 32],
        ("data.train.limit=61", "trainer.overfit_batches=1", "batch_size=8"): [1, 16],
        ("data.train.limit=61", "trainer.echo=3", "trainer.accumulate=2", "batch_size=8"): [6, 62],
        ("data.train.limit=2", "data.val.limit=2", "model._target_=test_parallel.Flat"): [1, 2],
    }
    answers = rank_group.of(2).call(limits, tmp_path, [list(case) for case in cases])
    assert list(cases.values()) == answers[0]


class Prepared(Digits):
    """Digits that have to be made first; notes when, and by which rank."""

    def __init__(self, split: str, limit: int, notes: str) -> None:
        with open(notes, "a", encoding="utf-8") as file:
            print("begins", ranks().rank, file=file, flush=True)
            time.sleep(0.1)
            print("ends", ranks().rank, file=file)
        super().__init__(split, limit)


def test_a_source_is_made_by_one_rank_while_the_others_wait(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    sources = [
        word
        for split in ("train", "val")
        for word in (
            f"data.{split}._target_=test_parallel.Prepared",
            f"+data.{split}.notes={tmp_path}/notes",
        )
    ]
    rank_group.of(2).call(train, tmp_path / "run", "epochs=1", *sources)
    lines = (tmp_path / "notes").read_text().splitlines()
    assert lines == [f"{what} {rank}" for rank in (0, 1) for what in ("begins", "ends") * 2]


class Flat(nn.Module):
    """A model that can train on a batch of one."""

    def __init__(self, num_classes: int = 10, **_: Any) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.mean((2, 3)))
