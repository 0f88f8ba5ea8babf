"""Values that make no sense, field by field: each is refused before anything is trained."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from runs import compose_config, is_old
from torch import device

from training.checks import ConfigError
from training.config import load_config
from training.curriculum import apply_row, expand
from training.device import Preprocess
from training.optim import Plan
from training.state import make_model, make_state
from training.targets import make, make_function

CPU = device("cpu")
HUGE = 10**21  # more than torch can count


def check_all(composed: DictConfig) -> None:
    """Make everything that a config names, and read and train nothing."""
    config = load_config(composed)
    for row in expand(composed, config.curriculum.table).values():
        for stage in ("stored", "fresh"):
            nodes = apply_row(getattr(config.augment, stage), row, stage)
            make_all(nodes, f"augment.{stage}")
    make_all(config.data.prepare, "data.prepare")
    make(config.data.train, "data.train")
    make(config.data.val, "data.val")
    make_function(config.build, "build")
    Preprocess(config, CPU)
    make_state(config, make_model(config, CPU), CPU, Plan(epochs=2, num_batches=4))


def make_all(nodes: dict[str, Any], place: str) -> None:
    for name, node in nodes.items():
        make(node, f"{place}.{name}")


@pytest.fixture(scope="module")
def composed() -> Callable[[tuple[str, ...]], DictConfig]:
    """Compose each choice of files once; return a copy of its own to every test."""
    known: dict[tuple[str, ...], DictConfig] = {}

    def copied(choice: tuple[str, ...]) -> DictConfig:
        if choice not in known:
            known[choice] = compose_config("data.train.limit=8", "data.val.limit=8", *choice)
        return copy.deepcopy(known[choice])

    return copied


NO_COUNT = (0, -1, math.nan, math.inf, 1.5, "two", "", [], [1], {}, {"a": 1}, True, None)
NO_COUNT_OR_NONE = NO_COUNT[:-1]
NO_FLAG = (-1, 2, math.nan, 1.5, "two", "", [], {}, None, HUGE)
NO_NUMBER = (math.nan, "two", "", [], [1], {}, {"a": 1}, True)
NO_TEXT = ([], [1], {}, {"a": 1})
NO_SHARE = (-1, 1.5, math.inf, *NO_NUMBER, None)
NO_PATH = (0, 1.5, "", [], {}, True, None, HUGE)
NO_NODE = (0, "two", [], [1], {}, {"a": 1}, True, None)

WRONG: dict[tuple[str, ...], dict[str, tuple[Any, ...]]] = {
    (): {
        "lifetime": NO_COUNT,
        "epochs": NO_COUNT,
        "batch_size": NO_COUNT,
        "num_threads": NO_COUNT,
        "schedule_end": NO_COUNT_OR_NONE,
        "seed": NO_COUNT[2:],
        "deterministic": NO_FLAG,
        "device": ("gpu", "", 0, *NO_TEXT, None),
        "fingerprint": NO_TEXT,
        "trainer.precision": ("fp8", "", 32, *NO_TEXT, None),
        "trainer.compile": NO_FLAG,
        "trainer.channels_last": NO_FLAG,
        "trainer.accumulate": NO_COUNT,
        "trainer.echo": NO_COUNT,
        "trainer.clip_norm": (0, -1, math.inf, *NO_NUMBER),
        "trainer.ema_decay": (1, 1.5, -0.1, math.inf, *NO_NUMBER),
        "trainer.label_smoothing": (1, 1.5, -0.1, math.inf, *NO_NUMBER, None),
        "trainer.mixup_alpha": (-1, 1e-6, 0.009, math.inf, HUGE, *NO_NUMBER, None),
        "trainer.cutmix_alpha": (-1, 1e-6, 0.009, math.inf, HUGE, *NO_NUMBER, None),
        "trainer.batch_transforms": (0, "two", [], [1], {"a": 1}, True, None),
        "trainer.evaluate_every": NO_COUNT,
        "trainer.monitor": ("val_top1", "", 0, *NO_TEXT, None),
        "trainer.early_stopping": NO_COUNT_OR_NONE,
        "trainer.limit_batches": NO_COUNT_OR_NONE,
        "trainer.overfit_batches": NO_COUNT_OR_NONE,
        "trainer.fast_dev_run": NO_FLAG,
        "model": NO_NODE,
        "model._target_": NO_PATH,
        "model.num_classes": (*NO_COUNT, HUGE),
        "model.width": (*NO_COUNT, HUGE),
        "optimizer._target_": NO_PATH,
        "optimizer.lr": (-1, math.inf, *NO_NUMBER, None),
        "optimizer.weight_decay": (-1, math.inf, *NO_NUMBER, None),
        "schedule._target_": NO_PATH,
        "schedule.step_each": ("day", "", 0, None, [], {}),
        "schedule.max_lr": (-1, math.inf, *NO_NUMBER, None),
        "schedule.total_steps": NO_COUNT,
        "schedule.pct_start": NO_SHARE,
        "data.train": NO_NODE,
        "data.train._target_": NO_PATH,
        "data.train.split": ("all", "", 0, None, [], {}),
        "data.train.limit": NO_COUNT_OR_NONE,
        "data.prepare": (0, "two", [], [1], {"a": 1}, True, None),
        "data.prepare.resize": NO_NODE,
        "data.prepare.resize.size": (math.nan, math.inf, 1.5, "two", [], {}, HUGE, [HUGE]),
        "data.prepare.resize.antialias": (-1, math.nan, 1.5, "two", [], {}, HUGE),
        "data.image_size": (*NO_COUNT, 2**15 + 1, HUGE),
        "data.num_classes": (1, *NO_COUNT, HUGE),
        "data.mean": (0, "two", [], [1], {}, [math.nan] * 3, ["a"] * 3, True, None),
        "data.std": (0, "two", [], [1], {}, [0, 1, 1], [-1] * 3, [math.inf] * 3, True, None),
        "data.on_error": ("ignore", "", 0, *NO_TEXT, None),
        "data.download": NO_FLAG,
        "data.cache_bytes": (*NO_COUNT_OR_NONE[1:], HUGE),
        "data.storage_options": (0, "two", [], [1], True),
        "augment.magnitude": (math.inf, *NO_NUMBER, None),
        "augment.store_all": NO_FLAG,
        "augment.stored": (0, "two", [], [1], {"a": 1}, True, None),
        "curriculum.table": (0, "two", [1], {"a": 1}, {1: {"magnitude": 1}}, {0: {"no": 1}}, True),
        "build": NO_NODE,
        "build._target_": NO_PATH,
        "loader.prefetch_factor": (*NO_COUNT, HUGE),
        "loader.persistent_workers": NO_FLAG,
        "loader.multiprocessing_context": ("thread", "", 0, *NO_TEXT),
        "loader.drop_last": NO_FLAG,
        "cache.directory": NO_TEXT,
        "cache.keep": NO_FLAG,
        "cache.max_bytes": (-1, math.inf, *NO_NUMBER),
        "cache.verify": NO_SHARE,
        "checkpoint.every_steps": NO_COUNT_OR_NONE,
        "checkpoint.keep": NO_COUNT[1:],
        "tracker.tensorboard": NO_FLAG,
        "tracker.log_every": NO_COUNT,
        "tracker.num_pictures": NO_COUNT[1:],
        "tracker.mlflow": (0, "two", [], [1], True),
        "tracker.wandb": (0, "two", [], [1], True),
        "tracker.profile": NO_FLAG,
        "report.enabled": NO_FLAG,
        "report.target": (0, -1, 1.5, math.inf, *NO_NUMBER),
        "sweep.lifetimes": (0, "two", [], [1], [1, 1], [0, 1], {}, True),
        "sweep.seeds": (0, "two", [], [1, 1], {}, True, None),
        "sweep.equal": (0, "two", [], ["time"], {}, True, None),
        "sweep.fresh": NO_FLAG,
    },
    ("optimizer=sgd",): {
        "optimizer.momentum": (-1, 1, 1.5, math.inf, HUGE, *NO_NUMBER, None),
        "optimizer.nesterov": (-1, math.nan, 1.5, "two", [], {}, None, HUGE),
        "optimizer.lr": (HUGE,),
        "optimizer.weight_decay": (HUGE,),
    },
    ("schedule=cosine",): {name: NO_SHARE for name in ("schedule.warmup", "schedule.start_factor")}
    | {"schedule.min_factor": NO_SHARE, "schedule.total_steps": NO_COUNT},
    ("schedule=constant",): {"schedule.factor": NO_SHARE},
    ("schedule=multistep",): {
        "schedule.milestones": (0, "two", [2, 1], [-1], [1.5], [math.nan], {}, True, None),
        "schedule.gamma": (0, -1, math.inf, *NO_NUMBER, None),
    },
    ("schedule=plateau",): {
        "schedule.step_each": ("update", "day", None),
        "schedule.factor": (0, 1, *NO_SHARE),
        "schedule.patience": NO_COUNT[1:],
    },
    ("augment=digits",): {
        "augment.stored.elastic": NO_NODE,
        "augment.stored.elastic._target_": NO_PATH,
        "augment.stored.elastic.alpha": (math.nan, math.inf, "two", "", [], {}, None, HUGE),
        "augment.stored.perspective.p": (-1, 1.5, math.nan, "two", [], None),
        "augment.stored.affine.degrees": (-1, math.nan, math.inf, "two", [], {}, None, HUGE),
        "augment.stored.blur.sigma": (0, -1, math.nan, math.inf, "two", [], {}, None, HUGE),
        "augment.fresh.crop.size": ("two", math.nan, math.inf, [], {}, None, HUGE),
        "augment.fresh.crop.padding": ("two", math.nan, 1.5, [], {}, HUGE),
    },
    ("augment=small_photos",): {
        "augment.stored.randaugment.num_ops": (-1, 1.5, "two", [], {}, True, None),
        "augment.stored.randaugment.magnitude": (1.5, "two", [], {}, True, None),
    },
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("choice", "key"),
    [(choice, key) for choice, keys in WRONG.items() for key in keys],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "default",
)
def test_a_value_that_makes_no_sense_is_a_line_that_names_the_field(
    composed: Callable[[tuple[str, ...]], DictConfig], choice: tuple[str, ...], key: str, every: int
) -> None:
    said = {}
    for value in WRONG[choice][key][::every]:
        changed = composed(choice)
        OmegaConf.update(changed, key, value, merge=False, force_add=True)
        try:
            check_all(changed)
        except ConfigError as error:
            said[repr(value)] = str(error)
        else:
            said[repr(value)] = "nothing"
    place, _, name = key.rpartition(".")
    if is_old and key in ("optimizer.nesterov", "augment.stored.randaugment.num_ops"):
        said = {value: text for value, text in said.items() if text != "nothing"}
    unclear = {
        value: text
        for value, text in said.items()
        if "\n" in text or name not in text.lower() or not text.startswith((key, place or key))
    }
    assert unclear == {}


def test_the_files_themselves_pass(
    composed: Callable[[tuple[str, ...]], DictConfig],
) -> None:
    for choice in WRONG:
        check_all(composed(choice))
