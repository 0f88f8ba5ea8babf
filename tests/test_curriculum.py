"""A table by first epoch: which parameters hold when."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from runs import compose_config

from training.config import ConfigError, load_config
from training.curriculum import Steps, apply_row, expand
from training.resolved import resolved
from training.targets import PROJECT


@pytest.fixture(scope="module")
def composed_once() -> DictConfig:
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        return compose("config")


@pytest.fixture
def composed(composed_once: DictConfig) -> DictConfig:
    return copy.deepcopy(composed_once)


def test_a_value_holds_until_the_next_begins() -> None:
    steps = Steps({0: "a", 4: "b", 5: "c"})
    values = [steps.at(epoch) for epoch in (0, 1, 3, 4, 5, 6, 10**9, 2**62)]
    assert values == ["a", "a", "a", "b", "c", "c", "c", "c"]
    assert [Steps({0: None}).at(epoch) for epoch in (0, 7)] == [None, None]


def test_a_function_is_applied_to_each_value_once() -> None:
    seen: list[str] = []
    steps = Steps({0: "a", 4: "b"}).map(lambda value: seen.append(value) or value.upper())
    assert [steps.at(epoch) for epoch in (0, 3, 4, 3)] == ["A", "A", "B", "A"]
    assert seen == ["a", "b"]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({}, "must begin at epoch 0, but its first is none"),
        ({1: 0}, "must begin at epoch 0, but its first is 1"),
        ({-1: 0, 0: 0}, "must begin at epoch 0, but its first is -1"),
        ({4: 0, 0: 0}, "must begin at epoch 0, but its first is 4"),
        ({0: 0, 4: 0, 2: 0}, "must have ascending epochs, but 2 follows 4"),
        ({0: 0, 4: 0, -2: 0}, "must have ascending epochs, but -2 follows 4"),
    ],
)
def test_a_table_begins_at_zero_and_ascends(table: dict[int, int], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Steps(table)
    assert str(caught.value) == f"curriculum.table {text}"


def test_a_knob_reaches_every_parameter_that_follows_it(composed: DictConfig) -> None:
    table = {0: {"magnitude": 0.5}, 3: {"magnitude": 1.0}, 7: {"magnitude": 0.0}}
    assert expand(composed, table) == {
        epoch: {
            "magnitude": magnitude,
            "stored.elastic.alpha": alpha,
            "stored.perspective.distortion_scale": distortion,
            "stored.affine.degrees": degrees,
            "stored.affine.shear": shear,
        }
        for epoch, magnitude, alpha, distortion, degrees, shear in (
            (0, 0.5, 20.0, 0.1, 5.0, 2.5),
            (3, 1.0, 40.0, 0.2, 10.0, 5.0),
            (7, 0.0, 0.0, 0.0, 0.0, 0.0),
        )
    }


@pytest.mark.parametrize(
    "row",
    [
        {"stored.affine.degrees": 3.0},
        {"stored.affine.scale": [1.0, 1.0]},
        {"stored.affine.scale": [0.5, 1.5], "stored.blur.sigma": [0.1, 0.2]},
        {"fresh.crop.padding": 2},
        {"fresh.brightness.brightness": 0.0, "stored.colour.contrast": 0.1},
    ],
)
def test_a_row_may_name_any_parameter_of_any_stage(
    composed: DictConfig, row: dict[str, Any]
) -> None:
    assert expand(composed, {0: row}) == {0: row}


def test_a_parameter_named_itself_stands_above_its_knob(composed: DictConfig) -> None:
    row = expand(composed, {0: {"magnitude": 0.5, "stored.elastic.alpha": 7.0}})[0]
    assert row["stored.elastic.alpha"] == 7.0
    assert row["stored.affine.degrees"] == 5.0


def test_a_parameter_that_follows_a_named_one_moves_with_it(composed: DictConfig) -> None:
    composed.augment.stored.affine.shear = "${times:2.0,${..affine.degrees}}"
    row = {"stored.affine.degrees": 3.0}
    assert expand(composed, {0: row}) == {0: row | {"stored.affine.shear": 6.0}}


@pytest.mark.parametrize("table", [None, {}])
def test_no_curriculum_changes_nothing(composed: DictConfig, table: Any) -> None:
    assert expand(composed, table) == {0: {}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("magnitud", "did you mean magnitude?"),
        ("stored.elastic.alhpa", "did you mean stored.elastic.alpha?"),
        ("elastic.alpha", "did you mean stored.elastic.alpha?"),
        ("stored.affine.scale.0", "did you mean stored.affine.scale?"),
        ("fresh.crop.size.width", ""),
        ("store_all", ""),
        ("stored.affine.fill", "; +augment.stored.affine.fill=VALUE makes it one"),
        ("stored.elastic", ""),
        ("stored", ""),
        ("", ""),
        ("stored.elastic._target_", ""),
        ("lifetime", ""),
    ],
)
@pytest.mark.parametrize("epoch", [0, 2])
def test_an_unknown_parameter_is_named_with_its_row(
    composed: DictConfig, name: str, text: str, epoch: int
) -> None:
    table = {0: {"magnitude": 1.0}, epoch: {name: 1.0}}
    with pytest.raises(ConfigError, match="is no parameter of augment; ") as caught:
        expand(composed, table)
    assert str(caught.value).startswith(f"curriculum.table, row {epoch}: {name} is no")
    assert str(caught.value).endswith(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("magnitude", "stored.elastic.alpha", "row 2 sets stored.elastic.alpha and row 0 sets mag"),
        ("magnitude", None, "row 2 sets none and row 0 sets magnitude"),
        (None, "magnitude", "row 2 sets magnitude and row 0 sets none"),
    ],
)
def test_every_row_sets_the_same_parameters(
    composed: DictConfig, first: str | None, second: str | None, text: str
) -> None:
    table = {0: {first: 1.0} if first else {}, 2: {second: 1.0} if second else {}}
    with pytest.raises(ConfigError, match="same parameters in every row") as caught:
        expand(composed, table)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        *(("magnitude", value, "a number") for value in ("abc", [1.0], None, True, {"a": 1})),
        ("magnitude", math.nan, "a finite number"),
        ("stored.affine.degrees", math.inf, "a finite number"),
        ("stored.affine.degrees", "abc", "like 10.0"),
        ("stored.affine.scale", "abc", "like [0.85, 1.15]"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_row(
    composed: DictConfig, name: str, value: Any, rule: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(composed, {0: {name: 1.0}, 3: {name: value}})
    expected = f"curriculum.table, row 3: {name} must be {rule}, but got {value}"
    assert expected == str(caught.value)


def test_what_does_not_fit_the_parameters_that_follow_it_is_named(composed: DictConfig) -> None:
    composed.augment.stored.affine.shear = "${times:2.0,${..affine.translate}}"
    composed.augment.stored.affine.translate = 0.1
    with pytest.raises(ConfigError) as caught:
        expand(composed, {0: {"stored.affine.translate": [0.1, 0.1]}})
    text = str(caught.value)
    assert text.startswith("curriculum.table, row 0: stored.affine.translate=[0.1, 0.1] does not")
    assert "augment.stored.affine.shear" in text and "\n" not in text


def test_the_order_of_the_names_in_a_row_does_not_matter(composed: DictConfig) -> None:
    row = {"magnitude": 0.5, "fresh.crop.padding": 2}
    assert (
        expand(composed, {0: row, 1: dict(reversed(row.items()))})[1]
        == expand(composed, {0: row})[0]
    )


@pytest.mark.parametrize(
    "table",
    [
        {0: {}},
        {0: {"magnitude": 1.0}},
        {0: {"magnitude": 0.3}, 4: {"magnitude": 1.0}},
        {0: {"magnitude": 0.3, "stored.elastic.alpha": 7.0}},
        {0: {"stored.affine.scale": [1.0, 1.0], "fresh.crop.padding": 2}},
        {0: {"stored.affine.degrees": 1.0}, 9: {"stored.affine.degrees": 10.0}},
    ],
)
def test_the_recorded_table_expands_to_itself(
    composed: DictConfig, table: dict[int, dict[str, Any]]
) -> None:
    composed.augment.stored.affine.shear = "${augment.stored.affine.degrees}"
    once = expand(composed, table)
    recorded = OmegaConf.create(resolved(composed))
    recorded.curriculum.table = once
    again = expand(recorded, load_config(recorded).curriculum.table)
    assert again == once
    assert [list(row) for row in again.values()] == [list(row) for row in once.values()]


def test_expanding_changes_neither_the_config_nor_the_table(composed: DictConfig) -> None:
    table = {0: {"magnitude": 0.5, "stored.affine.scale": [1.0, 1.0]}}
    before = OmegaConf.to_yaml(composed), copy.deepcopy(table)
    expand(composed, table)
    assert (OmegaConf.to_yaml(composed), table) == before


NODES = {"elastic": {"_target_": "x", "alpha": 1.0}, "crop": {"_target_": "y", "inner": {"a": 2}}}


@pytest.mark.parametrize("stage", ["stored", "fresh"])
def test_a_row_is_put_into_its_stage_alone(stage: str) -> None:
    nodes = copy.deepcopy(NODES)
    row = {"magnitude": 0.5, "stored.elastic.alpha": 20.0, "fresh.crop.inner.a": [3, 4]}
    stored = {"elastic": {"_target_": "x", "alpha": 20.0}, "crop": NODES["crop"]}
    fresh = {"elastic": NODES["elastic"], "crop": {"_target_": "y", "inner": {"a": [3, 4]}}}
    assert apply_row(nodes, row, stage) == {"stored": stored, "fresh": fresh}[stage]
    assert nodes == NODES
    assert apply_row(nodes, {}, stage) == NODES


def test_a_table_holds_no_reference_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_SIGMA", "0.77123")
    config = compose_config("augment=digits")
    config.curriculum.table = {0: {"magnitude": "${oc.env:SECRET_SIGMA}"}}
    with pytest.raises(ConfigError, match=r"curriculum\.table must hold plain values") as caught:
        expand(config, {0: {"magnitude": 0.77123}})
    assert "0.77" not in str(caught.value)
