"""A table by first epoch: which parameters hold when."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from training.config import ConfigError
from training.curriculum import Steps, apply_row, expand
from training.records import resolved
from training.targets import PROJECT


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def test_a_value_holds_until_the_next_begins() -> None:
    steps = Steps({0: "a", 4: "b", 5: "c"})
    assert [steps.at(epoch) for epoch in (0, 3, 4, 5, 6, 10**9)] == ["a", "a", "b", "c", "c", "c"]
    assert steps.map(str.upper).at(4) == "B"


@pytest.mark.parametrize("table", [{}, {1: 0}, {0: 0, 4: 0, 2: 0}, {-1: 0, 0: 0}])
def test_a_table_begins_at_zero_and_ascends(table: dict[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"curriculum\.table must"):
        Steps(table)


def test_a_knob_reaches_every_parameter_that_follows_it() -> None:
    table = expand(composed(), {0: {"magnitude": 0.5}, 3: {"magnitude": 1.0}})
    assert table[0] == {
        "magnitude": 0.5,
        "stored.elastic.alpha": 20.0,
        "stored.perspective.distortion_scale": 0.1,
        "stored.affine.degrees": 5.0,
        "stored.affine.shear": 2.5,
    }
    assert table[3]["stored.elastic.alpha"] == 40.0


def test_a_row_may_name_any_parameter_of_any_stage() -> None:
    row = {"stored.affine.scale": [1.0, 1.0], "fresh.crop.padding": 2}
    assert expand(composed(), {0: row}) == {0: row}


def test_no_curriculum_changes_nothing() -> None:
    assert expand(composed(), None) == {0: {}}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"magnitud": 1.0}, "did you mean magnitude"),
        ({"stored.elastic.alhpa": 1.0}, "did you mean stored.elastic.alpha"),
        ({"stored.elastic": {}}, "is no parameter of augment"),
        ({"stored.elastic._target_": "os.system"}, "is no parameter of augment"),
        ({"lifetime": 2}, "is no parameter of augment"),
    ],
)
def test_an_unknown_parameter_is_named(row: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        expand(composed(), {0: row})
    assert "\n" not in str(caught.value)


def test_every_row_sets_the_same_parameters() -> None:
    with pytest.raises(ConfigError, match="same parameters in every row"):
        expand(composed(), {0: {"magnitude": 1.0}, 2: {"stored.elastic.alpha": 1.0}})


def test_the_expanded_table_expands_to_itself_without_interpolations() -> None:
    config = composed()
    table = expand(config, {0: {"magnitude": 0.3}, 4: {"magnitude": 1.0}})
    recorded = OmegaConf.create(resolved(config))
    assert expand(recorded, table) == table
    assert list(expand(recorded, table)[0]) == list(table[0])


def test_a_row_is_put_into_its_stage_alone() -> None:
    nodes = {"elastic": {"_target_": "x", "alpha": 1.0}}
    before = copy.deepcopy(nodes)
    row = {"magnitude": 0.5, "stored.elastic.alpha": 20.0, "fresh.elastic.alpha": 3.0}
    assert apply_row(nodes, row, "stored")["elastic"]["alpha"] == 20.0
    assert apply_row(nodes, {}, "stored") == nodes == before
