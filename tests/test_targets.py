"""What a `_target_` may name, and what is made of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

from training.config import ConfigError
from training.targets import check_targets, make, make_function, source_file, target_of

FOREIGN = [
    "os.system",
    "builtins.open",
    "builtins.eval",
    "subprocess.run",
    "torch.load",
    "torch.utils.collect_env.run",
    "torch.hub.load",
    "hydra.utils.instantiate",
    "training.targets.pydoc.os.system",
    "training.targets.hydra.utils.instantiate",
    "training.records.shutil.rmtree",
    "torch.nn.functional.importlib.import_module",
    "torchvision.datasets.utils.urllib.request.urlopen",
    "no_such_module.build",
]


@pytest.mark.parametrize("path", FOREIGN)
def test_nothing_outside_the_list_is_made(path: str) -> None:
    with pytest.raises(ConfigError, match=r"model\._target_ must") as caught:
        make({"_target_": path}, "model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrap", [lambda n: {"a": n}, lambda n: [n], lambda n: {"a": [{"b": n}]}])
def test_a_foreign_target_is_found_at_any_depth(wrap: Any) -> None:
    node = {"_target_": "torch.nn.Linear", "x": wrap({"_target_": "os.system"})}
    with pytest.raises(ConfigError, match=r"model\.x.*_target_ must"):
        check_targets(node, "model")


@pytest.mark.parametrize("node", [{}, {"_target_": 3}, {"_target_": None}, "torch.nn.Linear", None])
def test_a_node_needs_a_target(node: Any) -> None:
    with pytest.raises(ConfigError, match="model must have a _target_"):
        target_of(node, "model")


def test_a_target_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no torch\.nn\.Linera"):
        make({"_target_": "torch.nn.Linera"}, "model")


def test_arguments_that_are_refused_are_reported_in_a_line() -> None:
    with pytest.raises(ConfigError, match=r"model: torch\.nn\.Linear refused") as caught:
        make({"_target_": "torch.nn.Linear", "widht": 3}, "model")
    assert "\n" not in str(caught.value)


def test_nested_nodes_are_made_and_lists_are_lists() -> None:
    inner = {"_target_": "torchvision.transforms.v2.Resize", "size": [4, 4]}
    made = make({"_target_": "torchvision.transforms.v2.Compose", "transforms": [inner]}, "x")
    assert isinstance(made.transforms[0], v2.Resize)
    assert type(made.transforms[0].size) is list


def test_what_is_given_in_code_reaches_the_target_untouched() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    groups = [{"params": [parameter], "lr": 0.5}]
    optimizer = make({"_target_": "torch.optim.SGD", "lr": 0.1}, "optimizer", groups)
    assert optimizer.param_groups[0]["params"][0] is parameter


def test_a_function_is_bound_and_a_class_is_made() -> None:
    function = make_function({"_target_": "training.build.build_image", "extra": 1}, "build")
    instance = make_function({"_target_": "torchvision.transforms.v2.RGB"}, "build")
    assert isinstance(function, functools.partial)
    assert function.keywords == {"extra": 1}
    assert isinstance(instance, v2.RGB)


def test_modules_of_the_project_are_told_from_installed_ones() -> None:
    assert source_file("training.build") is not None
    assert source_file("reuseloader") is not None
    assert source_file("train") is not None
    for name in ("torch", "yaml", "os", "sys", "nowhere", "training.nowhere"):
        assert source_file(name) is None
