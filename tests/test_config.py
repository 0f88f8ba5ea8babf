"""The typed config: what composes is checked once, and mistakes are named."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from runs import compose_config, make_config

from training.config import Config, ConfigError, load_config, unknown_key
from training.targets import PROJECT

CONF = PROJECT / "conf"
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.name not in ("hydra",))
OPTIONS = {
    group: [f"{group}={file.stem}" for file in sorted((CONF / group).glob("*.yaml"))]
    for group in GROUPS
    if (CONF / group).is_dir()
}


NEEDED = {
    "data=image_folder": ["data.root=."],
    "data=remote": ["data.url=https://host/folder", "data.num_classes=3"],
    "data=hdf5": ["data.path=a.h5", "data.num_classes=3"],
}


def all_pairs() -> Iterator[list[str]]:
    """Yield few choices of a file from each group, in which every two files meet once.

    Groups refer to each other by interpolations between two of them, so pairs are all there is.
    """
    groups = [name for name in OPTIONS if name != "experiment"]
    missing = {
        frozenset(pair)
        for a, b in itertools.combinations(groups, 2)
        for pair in itertools.product(OPTIONS[a], OPTIONS[b])
    }
    while missing:
        row = sorted(min(missing, key=sorted))
        for group in groups:
            if not any(choice in row for choice in OPTIONS[group]):
                gain = [sum({c, r} in missing for r in row) for c in OPTIONS[group]]
                row.append(OPTIONS[group][gain.index(max(gain))])
        missing -= {frozenset(pair) for pair in itertools.combinations(row, 2)}
        yield row


@pytest.mark.parametrize("choices", [*all_pairs(), *([e] for e in OPTIONS["experiment"])])
def test_the_files_of_all_groups_compose_to_a_checked_config(choices: list[str]) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        needed = [word for data in choices for word in NEEDED.get(data, [])]
        config = load_config(compose("config", overrides=[*choices, *needed]))
    assert isinstance(config, Config)


@pytest.fixture(scope="module")
def composed_once() -> DictConfig:
    return compose_config()


@pytest.fixture
def composed(composed_once: DictConfig) -> DictConfig:
    return copy.deepcopy(composed_once)


def entries(schema: type, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield every value of the schema: its key, its type, and whether it may be null."""
    for name, hint in typing.get_type_hints(schema).items():
        if dataclasses.is_dataclass(hint):
            yield from entries(typing.cast(type, hint), f"{prefix}{name}.")
            continue
        optional = isinstance(hint, UnionType)
        kind = next(k for k in typing.get_args(hint) if k is not type(None)) if optional else hint
        yield prefix + name, kind, optional


WRONG = {
    int: ["two", "1.5", 1.0, True, [1], {"a": 1}],
    float: ["two", True, [1.0], {"a": 1.0}],
    bool: ["perhaps", 1.0, [True], {"a": True}],
    str: [["cpu"], {"a": "cpu"}],
}
RULES = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
TYPED = [(key, kind, optional) for key, kind, optional in entries(Config) if kind in WRONG]


@pytest.mark.parametrize(("key", "kind", "optional"), TYPED)
def test_a_value_of_another_type_is_named_with_its_rule(
    composed: DictConfig, key: str, kind: type, optional: bool
) -> None:
    for value in [*WRONG[kind], *([] if optional else [None])]:
        OmegaConf.update(composed, key, value, merge=False, force_add=True)
        with pytest.raises(ConfigError) as caught:
            load_config(composed)
        given = "null" if value is None else value
        assert str(caught.value) == f"{key} must be {RULES[kind]}, but got {key}={given}"


MAPPINGS = [
    *("data", "augment", "curriculum", "loader", "cache", "trainer", "tracker"),
    *(key for key, kind, _ in entries(Config) if typing.get_origin(kind) is dict),
]
LISTS = [key for key, kind, _ in entries(Config) if typing.get_origin(kind) is list]


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (MAPPINGS, 3),
        (MAPPINGS, "word"),
        (MAPPINGS, [1]),
        (LISTS, 3),
        (LISTS, "word"),
        (LISTS, {"a": 1}),
    ],
)
def test_a_mapping_a_list_and_a_value_are_not_taken_for_each_other(
    composed: DictConfig, keys: list[str], value: Any
) -> None:
    messages = {}
    for key in keys:
        changed = copy.deepcopy(composed)
        OmegaConf.update(changed, key, value, merge=False, force_add=True)
        with pytest.raises(ConfigError) as caught:
            load_config(changed)
        messages[key] = str(caught.value)
    assert {k: text for k, text in messages.items() if not text.startswith(f"{k} must be ")} == {}


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("build", "my_build.build", "a mapping, like build._target_=my_build.build"),
        ("data.train", "mine.Photos", "a mapping, like data.train._target_=mine.Photos"),
        ("model", 3, "a mapping"),
        ("loader", 3, "a mapping, like loader.prefetch_factor=..."),
        ("data.std", 0.3, "a list of numbers"),
        ("data.storage_options", 3, "null or a mapping, like {key: value}"),
        ("tracker.wandb", [1], "null or a mapping, like {key: value}"),
        *(
            ("curriculum.table", table, "rows by first epoch, like {0: {magnitude: 0.3}, 4: {ma")
            for table in (3, [1], {0: 3}, {0: None}, {"a": {"magnitude": 1}}, {0.5: {}})
        ),
    ],
)
def test_the_shape_that_a_value_must_have_is_shown(
    composed: DictConfig, key: str, value: Any, rule: str
) -> None:
    OmegaConf.update(composed, key, value, merge=False, force_add=True)
    with pytest.raises(ConfigError) as caught:
        load_config(composed)
    assert str(caught.value).startswith(f"{key} must be {rule}")
    assert str(caught.value).endswith(f", but got {key}={OmegaConf.select(composed, key)}")


LIFETIMES = "null or two or more positive whole numbers, each once, like [1,2,4]"
SEEDS, EQUAL = "whole numbers, each once, like [0,1,2]", "a list, [epochs] or [epochs,wall_time]"


@pytest.mark.parametrize(
    ("key", "rule", "values"),
    [
        (
            "sweep.lifetimes",
            LIFETIMES,
            [[1.5], [1, "x"], [1, [2]], [], [2], [0, 1], [1, 1], [-1, 2], 3, "epochs", {"a": 1}],
        ),
        ("sweep.seeds", SEEDS, [[1.5], ["x"], [[1]], [], [1, 1], 3, "x", None]),
        ("sweep.equal", EQUAL, ["epochs", ["time"], [], ["epochs"] * 2, [["epochs"]], 3, None]),
        ("tracker.wandb", "null or a mapping, like {key: value}", [3, "x", [1]]),
    ],
)
def test_the_whole_of_a_list_is_shown_with_its_rule(
    composed: DictConfig, key: str, rule: str, values: list[Any]
) -> None:
    for value in values:
        changed = copy.deepcopy(composed)
        OmegaConf.update(changed, key, value, merge=False, force_add=True)
        with pytest.raises(ConfigError) as caught:
            load_config(changed)
        given = "null" if value is None else value
        assert str(caught.value) == f"{key} must be {rule}, but got {key}={given}"


def test_a_number_of_a_list_is_checked_as_well(composed: DictConfig) -> None:
    composed.data.mean = [0.1, "much", 0.3]
    with pytest.raises(ConfigError, match=r"^data\.mean\[1\] must be"):
        load_config(composed)


def test_the_result_is_frozen_at_every_depth_and_holds_plain_python() -> None:
    config = make_config()
    parts = [config, config.data, config.augment, config.curriculum, config.loader, config.cache]
    for part in [*parts, config.trainer, config.tracker]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, dataclasses.fields(part)[0].name, 3)

    def kinds(value: Any) -> set[type]:
        inner = value.values() if isinstance(value, dict) else value
        nested = [kinds(v) for v in inner] if isinstance(value, (dict, list, tuple)) else []
        return {type(value)}.union(*nested)

    assert kinds(dataclasses.asdict(config)) <= {dict, list, str, int, float, bool, type(None)}
    assert config.data.prepare["resize"]["size"] == [64, 64]


def test_the_composed_config_is_left_as_it_was(composed: DictConfig) -> None:
    before = OmegaConf.to_yaml(composed)
    load_config(composed)
    assert OmegaConf.to_yaml(composed) == before


@pytest.mark.parametrize("value", [-1, 0, 2**64, -(2**70)])
def test_every_integer_is_a_seed(composed: DictConfig, value: int) -> None:
    composed.seed = value
    assert load_config(composed).seed == value


@pytest.mark.parametrize("name", ["lifetime", "epochs", "batch_size", "num_threads"])
@pytest.mark.parametrize("value", [0, -(2**70)])
def test_a_count_begins_at_one(composed: DictConfig, name: str, value: int) -> None:
    composed[name] = value
    with pytest.raises(ConfigError) as caught:
        load_config(composed)
    assert str(caught.value) == f"{name} must be a positive integer, but got {name}={value}"


@pytest.mark.parametrize(
    ("key", "values", "rule"),
    [
        ("num_workers", [-1], "an integer from 0 up"),
        ("device", ["gpu", "", "CPU", " cpu", "0"], "one of auto, cpu, cuda, mps"),
        (
            "data.std",
            [[0.1, 0.0, 0.1], [-1.0], [math.nan], [math.inf]],
            "a list of positive numbers",
        ),
        ("data.mean", [[0.1, math.nan, 0.1], [-math.inf, 0.1, 0.1]], "a list of finite numbers"),
        ("augment.magnitude", [math.nan, math.inf, -math.inf], "a finite number"),
        (
            "trainer.mixup_alpha",
            [-0.1, math.nan, math.inf],
            "0, or a number from 0.01 to 1,000,000",
        ),
        ("data.mean", [[0.1], []], "as long as data.std (3 channels)"),
        ("data.num_classes", [1, 0, -1], "at least 2"),
        ("loader.prefetch_factor", [0, -1], "a positive integer"),
        ("loader.multiprocessing_context", ["thread", ""], "null, fork, spawn or forkserver"),
        ("trainer.label_smoothing", [1.0, -0.1, float("nan")], "a number in [0, 1)"),
    ],
)
def test_a_value_outside_its_range_is_named_with_its_rule(
    composed: DictConfig, key: str, values: list[Any], rule: str
) -> None:
    for value in values:
        changed = copy.deepcopy(composed)
        OmegaConf.update(changed, key, value, merge=False)
        with pytest.raises(ConfigError) as caught:
            load_config(changed)
        assert str(caught.value) == f"{key} must be {rule}, but got {key}={value}"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lifetme", "lifetime"),
        ("Lifetime", "lifetime"),
        ("sead", "seed"),
        ("trian.epochs", "trainer"),
        ("loader.prefetch", "loader.prefetch_factor"),
        ("cache.dir", "cache.directory"),
        ("data.num_clases", "data.num_classes"),
        ("curriculum.tabel", "curriculum.table"),
        ("tracker.tensorbord", "tracker.tensorboard"),
    ],
)
def test_an_unknown_key_is_answered_with_the_one_meant(
    composed: DictConfig, key: str, meant: str
) -> None:
    OmegaConf.update(composed, key, 1, force_add=True)
    with pytest.raises(ConfigError) as caught:
        load_config(composed)
    named = key.removesuffix(".epochs")  # the schema knows of nothing below an unknown key
    assert str(caught.value) == f"{named} is not a key of the config; did you mean {meant}?"


def test_a_key_added_on_the_command_line_is_unknown_as_well() -> None:
    with pytest.raises(ConfigError) as caught:
        make_config("+lifetme=2")
    expected = "lifetme is not a key of the config; did you mean lifetime?"
    assert str(caught.value) == expected


def test_an_unknown_key_like_nothing_is_answered_with_what_there_is() -> None:
    assert str(unknown_key("zzzz")).endswith("; `python train.py --help` lists them")
    assert str(unknown_key("loader.zzzz")).partition("; known: ")[2].startswith("loader.")


@pytest.mark.parametrize("key", ["lifetime", "model.width", "data.std"])
@pytest.mark.parametrize(
    "value",
    ["${nowhere}", "${nope:1}", "${times:a,b}", "${times:1}", "${oc.env:UNSET_VARIABLE}", "???"],
)
def test_a_value_that_leads_nowhere_is_named_in_a_line(
    composed: DictConfig, key: str, value: str
) -> None:
    OmegaConf.update(composed, key, value, merge=False)
    with pytest.raises(ConfigError, match=rf"^{key}(:| must be given)") as caught:
        load_config(composed)
    assert "\n" not in str(caught.value)


def test_a_value_that_refers_to_itself_is_named(composed: DictConfig) -> None:
    composed.model.width = "${model.width}"
    with pytest.raises(ConfigError, match=r"^model\.width: Recursive interpolation"):
        load_config(composed)


def test_an_interpolation_is_checked_by_what_it_gives(composed: DictConfig) -> None:
    composed.lifetime = "${optimizer.lr}"
    with pytest.raises(ConfigError, match=r"lifetime must be an integer, but got lifetime=0\.01"):
        load_config(composed)
    composed.lifetime = "${epochs}"
    assert load_config(composed).lifetime == 2


def test_every_top_level_value_and_no_other_is_explained_by_help() -> None:
    page = yaml.safe_load((CONF / "hydra" / "help" / "train.yaml").read_text())["template"]
    listed = page.partition("Values:\n")[2].partition("\n\n")[0]
    explained = {line.split("=")[0].strip(): line.split(None, 1)[1] for line in listed.splitlines()}
    values = yaml.safe_load((CONF / "config.yaml").read_text())
    assert explained.keys() == values.keys() - {"defaults", "hydra"}
    assert all(len(text.split()) >= 2 for text in explained.values())
