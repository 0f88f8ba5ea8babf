"""The typed config: what composes is checked once, and mistakes are named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from runs import compose_config, make_config

from training.config import Config, ConfigError, load_config, unknown_key
from training.targets import PROJECT

CONF = PROJECT / "conf"
GROUPS = ("augment", "curriculum", "data", "model", "optimizer", "schedule", "trainer", "tracker")
OPTIONS = [(group, file.stem) for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_file_of_a_group_composes_to_a_checked_config(group: str, option: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        needed = ["data.root=."] if option == "image_folder" else []
        config = load_config(compose("config", overrides=[f"{group}={option}", *needed]))
    assert isinstance(config, Config)


def test_the_result_is_frozen_and_holds_plain_python() -> None:
    config = make_config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lifetime = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.data.num_classes = 3  # type: ignore[misc]
    assert type(config.data.mean) is list
    assert type(config.data.prepare["resize"]["size"]) is list
    assert type(config.model) is dict


@pytest.mark.parametrize("name", ["lifetime", "epochs", "batch_size", "num_workers", "num_threads"])
@pytest.mark.parametrize("value", ["two", 1.5, None, [1], -1, {"a": 1}])
def test_an_integer_must_be_one(name: str, value: Any) -> None:
    composed = compose_config()
    OmegaConf.update(composed, name, value, merge=False)
    with pytest.raises(ConfigError, match=f"{name} must be") as caught:
        load_config(composed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [-1, 0, 2**64, -(2**70)])
def test_every_integer_is_a_seed(value: int) -> None:
    composed = compose_config()
    composed.seed = value
    assert load_config(composed).seed == value


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("data.std", [0.1, 0.0, 0.1], "data.std must be a list of positive numbers"),
        ("data.mean", [0.1], "data.mean must be as long as data.std"),
        ("data.num_classes", 0, "data.num_classes must be a positive integer"),
        ("loader.prefetch_factor", 0, "loader.prefetch_factor must be a positive integer"),
        ("loader.multiprocessing_context", "thread", "must be null, fork, spawn or forkserver"),
        ("device", "gpu", "device must be one of auto, cpu, cuda, mps"),
        ("trainer.label_smoothing", 1.0, "trainer.label_smoothing must be"),
        ("deterministic", "perhaps", "deterministic must be true or false"),
        ("augment.magnitude", "strong", "augment.magnitude must be a number"),
        ("optimizer", None, "optimizer must be"),
    ],
)
def test_a_value_outside_its_range_is_named(key: str, value: Any, text: str) -> None:
    composed = compose_config()
    OmegaConf.update(composed, key, value, merge=False)
    with pytest.raises(ConfigError, match=text):
        load_config(composed)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lifetme", "lifetime"),
        ("sead", "seed"),
        ("trian.epochs", "trainer"),
        ("loader.prefetch", "loader.prefetch_factor"),
        ("cache.dir", "cache.directory"),
        ("data.num_clases", "data.num_classes"),
    ],
)
def test_an_unknown_key_is_answered_with_the_one_meant(key: str, meant: str) -> None:
    composed = compose_config()
    OmegaConf.update(composed, key, 1, force_add=True)
    with pytest.raises(ConfigError, match=f"is not a key of the config; did you mean {meant}"):
        load_config(composed)


def test_an_unknown_key_like_nothing_points_to_the_help() -> None:
    assert "train.py --help" in str(unknown_key("zzzz"))


def test_an_interpolation_that_leads_nowhere_is_named() -> None:
    composed = compose_config()
    OmegaConf.update(composed, "model.width", "${nowhere}", merge=False)
    with pytest.raises(ConfigError, match=r"model\.width"):
        load_config(composed)


def test_every_top_level_value_is_explained_by_help() -> None:
    page = (CONF / "hydra" / "help" / "train.yaml").read_text()
    values = yaml.safe_load((CONF / "config.yaml").read_text())
    for name in values.keys() - {"defaults", "hydra"}:
        assert f"    {name}=" in page
