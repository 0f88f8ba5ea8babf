"""A recorded config is data from disk: nothing is made of it that is not allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from runs import compose_config

from training.checks import ConfigError
from training.recorded import (
    changes,
    default_place,
    quoted,
    read_config,
    rewrite_command,
    with_places,
)
from training.resolved import resolved

HOSTILE = {"_target_": "builtins.open", "file": "/etc/passwd"}
WAYS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda node: node,
    "in a list": lambda node: [0, [node]],
    "under a name": lambda node: {"a": {"b": node}},
    "as an argument": lambda node: {
        "_target_": "torch.nn.Sequential",
        "_args_": [{"_target_": "torch.nn.Identity", "inner": node}],
    },
    "in part": lambda node: {**node, "_partial_": True},
}


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return resolved(compose_config("augment=digits", "curriculum=ramp"))


def record(folder: Path, config: Any, head: str = "") -> Path:
    (folder / "config.yaml").write_text(head + yaml.safe_dump(config, sort_keys=False))
    return folder


def test_a_config_is_read_as_it_was_written(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read_config(record(tmp_path, config), "resume") == config


@pytest.mark.parametrize("way", WAYS)
def test_a_foreign_target_is_refused_wherever_it_is_hidden(
    tmp_path: Path, config: dict[str, Any], way: str
) -> None:
    node = WAYS[way](HOSTILE)
    places = [[name] for name in config if name != "hydra"]
    places += [
        [name, inner]
        for name, part in config.items()
        if isinstance(part, dict)
        for inner in part
        if inner != "_target_"
    ]
    places += [["curriculum", "table", 0, "magnitude"], ["hydra", "run", "dir"]]
    assert len(places) > 60
    for *path, last in places:
        changed: Any = yaml.safe_load(yaml.safe_dump(config))
        part = changed
        for name in path:
            part = part.setdefault(name, {})
        part[last] = node
        with pytest.raises(
            ConfigError, match=r"but got builtins\.open|hydra\.\w+ must not"
        ) as caught:
            read_config(record(tmp_path, changed), "replay")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hydra": {"callbacks": {}}}, "hydra.callbacks must not be in a recorded config"),
        ({"hydra": {"launcher": {}}}, "hydra.launcher must not be in a recorded config"),
        ({"defaults": ["/etc/passwd"]}, "defaults is not a key of the config"),
        ({"lifetme": 3}, "lifetme is not a key of the config"),
    ],
)
def test_what_hydra_would_act_on_is_refused(
    tmp_path: Path, config: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(record(tmp_path, config | change), "resume")


def test_a_config_does_not_say_where_it_goes(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = record(tmp_path, config, head="# @package hydra.callbacks\n")
    with pytest.raises(ConfigError, match="must not say into which package it goes"):
        read_config(folder, "resume")


def test_a_command_is_rewritten_to_one_that_composes_the_record(tmp_path: Path) -> None:
    words = rewrite_command("resume", tmp_path, ["epochs=3", "+a.b=2", "~c"], "'x'")
    assert words == [
        *("--config-path", str(tmp_path), "--config-name", "config", "hydra/job_logging=none"),
        *("hydra.output_subdir=null", "hydra.run.dir='x'", f"++resume='{tmp_path}'"),
        *("++epochs=3", "++a.b=2", "~c"),
    ]
    words = rewrite_command("replay", tmp_path, ["hydra.run.dir=mine"], "'x'")
    assert "hydra.run.dir=mine" in words
    assert "++cache.directory=null" in words


@pytest.mark.parametrize(
    "text", ["plain", "with space", "it's", "a=b,c", "\\", "a\\'b", "\\\\'", "{x}", "$y", "é\\"]
)
def test_a_quoted_text_is_read_as_it_was(text: str) -> None:
    override = OverridesParser.create().parse_override(f"key={quoted(text)}")
    assert override.value() == text


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, {}),
        ({"a": 1.0, "b": {"c": (1, 2)}}, {}),
        ({"a": True, "b": {"c": [1, 2]}}, {"a": (1, True)}),
        (
            {"a": 2, "b": {"c": [2, 1], "d": 3}},
            {"a": (1, 2), "b.c": ([1, 2], [2, 1]), "b.d": (None, 3)},
        ),
        ({"b": {"_target_": "x"}}, {"a": (1, None), "b._target_": (None, "x")}),
        ({"a": 1, "b": {"c": [1, 2]}, "hydra": {"run": 1}, "resume": "x", "replay": "y"}, {}),
    ],
)
def test_changes_are_found_by_name(given: dict[str, Any], found: dict[str, Any]) -> None:
    recorded = {"a": 1, "b": {"c": [1, 2]}}
    assert {name: tuple(pair) for name, pair in changes(recorded, given).items()} == found


def test_a_new_place_of_the_data_is_that_of_both_sources_unless_they_had_their_own() -> None:
    node = {"root": "a", "val_share": 0.2}
    recorded = {"data": {"root": "a", "train": dict(node), "val": dict(node)}}
    both = ["data.train.root=b", "data.val.root=b"]
    assert with_places(["epochs=3", "data.root=b"], recorded) == [*both, "epochs=3", "data.root=b"]
    own = ["data.val.root=c", "+data.root=b"]
    assert with_places(own, recorded) == [*both, *own]  # of two, the later one counts
    recorded["data"]["val"] = {"root": "other"}
    assert with_places(["data.root=b"], recorded) == ["data.train.root=b", "data.root=b"]
    for other in ("data.val_share=1", "data.train.root=b", "root=b", "data.root"):
        assert with_places([other], recorded) == [other]
    remote = {"data": {"storage_options": {"key": "x"}, "train": {"storage_options": {"key": "x"}}}}
    given = "data.storage_options.key=y"
    assert with_places([given], remote) == ["data.train.storage_options.key=y", given]


def test_where_a_sweep_goes_is_read_from_the_files_that_a_job_is_composed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, snapshot = tmp_path / "conf", tmp_path / "conf-1"
    for folder, text in ((live, "hydra: {sweep: {dir: live}}"), (snapshot, "a: 1")):
        folder.mkdir()
        (folder / "config.yaml").write_text(text)
    monkeypatch.setattr("training.recorded.PROJECT", tmp_path)
    assert default_place("sweep") == {"dir": "live"}
    assert default_place("sweep", snapshot) == {"dir": "live"}  # a config of one's own, without it
    (snapshot / "config.yaml").write_text("hydra: {sweep: {dir: kept}}")
    (live / "config.yaml").write_text("hydra: {half: [edited")
    assert default_place("sweep", snapshot) == {"dir": "kept"}
