"""What a `_target_` may name, and what is made of it."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from runs import compose_config
from torchvision.transforms import v2

from training import targets
from training.config import ConfigError, load_config
from training.targets import check_targets, make, make_function, source_file, target_of

FOREIGN = [
    # another package
    *("os.system", "builtins.open", "builtins.eval", "builtins.print", "subprocess.run"),
    *("torch.load", "torch.utils.collect_env.run", "torch.hub.load", "torch.nnx.Linear"),
    *("hydra.utils.instantiate", "omegaconf.OmegaConf.load", "functools.partial"),
    # one that is reached through an allowed module
    *("training.targets.pydoc.os.system", "training.targets.hydra.utils.instantiate"),
    *("training.records.shutil.rmtree", "training.records.OmegaConf.load"),
    *("training.environment.subprocess.run", "training.targets.importlib.import_module"),
    *("torch.nn.functional.importlib.import_module", "torch.nn.functional.torch.load"),
    *("torchvision.datasets.utils.urllib.request.urlopen", "torchvision.datasets.folder.os.remove"),
    # one that is reached through an object
    *("training.targets.PROJECT.rmdir", "training.records.log.setLevel"),
    *("torch.nn.Module.mro", "training.models.SmallConvNet.mro"),
    # no object that can be called, or no name at all
    *("torch.nn", "torch.nn.", "torch", "training", "training.targets.ALLOWED_PACKAGES"),
    *("", ".", "..", " ", "no_such_module.build", "__main__", "${nowhere}", "torch/nn"),
]


@pytest.mark.parametrize("path", FOREIGN)
def test_nothing_outside_the_list_is_made(path: str) -> None:
    for function in (make, make_function):
        with pytest.raises(ConfigError, match=r"^model\._target_ must (lie|exist)") as caught:
            function({"_target_": path}, "model")
        assert "\n" not in str(caught.value)


def test_a_refusal_says_where_a_package_is_allowed() -> None:
    with pytest.raises(ConfigError) as caught:
        make({"_target_": "os.system"}, "model")
    expected = "but got os.system; to allow a package, add it to ALLOWED_PACKAGES in training/"
    assert expected in str(caught.value)


NESTED: dict[str, Callable[[Any], Any]] = {
    "model.x.a": lambda node: {"a": node},
    "model.x[1]": lambda node: [0, node],
    "model.x[0][0].a": lambda node: [[{"a": node}]],
    "model.x.a.b[0].c": lambda node: {"a": {"_target_": "torch.nn.Identity", "b": [{"c": node}]}},
    "model.x": lambda node: node,
}


PRIVATE = [
    "training.environment._git",  # which runs what it is given
    "training.signals._kill",
    "training.models.SmallConvNet.__init__",
    "torch.nn.modules.module._load_from_state_dict",
    "torch.nn.Module.__class__",
]


@pytest.mark.parametrize("path", PRIVATE)
def test_what_is_private_is_no_target(path: str) -> None:
    with pytest.raises(ConfigError, match=r"^model\._target_ must be a public name, but got "):
        make({"_target_": path}, "model")


@pytest.mark.parametrize("path", ["tests.conftest.Process", "benchmarks.faults.disks.lost_folders"])
def test_tests_and_benchmarks_of_the_project_are_no_targets(path: str) -> None:
    with pytest.raises(ConfigError, match=r"^model\._target_ must (lie|exist)"):
        make({"_target_": path}, "model")


@pytest.mark.parametrize("place", NESTED)
def test_a_foreign_target_is_found_at_any_depth_and_never_called(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = {"_target_": "builtins.print", "_args_": ["called"]}
    node = {"_target_": "torch.nn.Identity", "x": NESTED[place](foreign)}
    for function in (make, make_function, check_targets):
        with pytest.raises(ConfigError) as caught:
            function(node, "model")
        assert str(caught.value).startswith(f"{place}._target_ must lie in this project")
    with pytest.raises(ConfigError):
        make({"_target_": "torch.nn.Identity", "_args_": [foreign]}, "model")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("resolver", ["oc.create", "oc.decode"])
@pytest.mark.parametrize("wrap", NESTED.values(), ids=NESTED)
def test_a_foreign_target_inside_a_text_is_never_called(
    resolver: str, wrap: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    node = "{_target_: builtins.print, _args_: [called]}"
    text = f"${{{resolver}:{node}}}" if resolver == "oc.create" else f"${{{resolver}:'{node}'}}"
    composed = compose_config()
    # Escaped, it is a text like any other: the config that is checked holds it as it stands.
    written = {"_target_": "torch.nn.Identity", "x": wrap("\\" + text)}
    OmegaConf.update(composed, "model", written, merge=False)
    model = load_config(composed).model
    assert model["x"] == wrap(text)
    make(model, "model")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["costs ${5", "${HOME}/data", "${a.b}", "$5"])
def test_a_text_reaches_its_target_as_it_is(text: str) -> None:
    made = make_function({"_target_": "training.build.build_image", "text": text}, "build")
    assert getattr(made, "keywords", None) == {"text": text}


@pytest.mark.parametrize(
    "node",
    [{}, {"a": 1}, {"_target_": 3}, {"_target_": None}, {"_target_": []}, "torch.nn", None, 3, []],
)
def test_a_node_needs_a_target(node: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model must have a _target_, but got model="):
        target_of(node, "model")


@pytest.mark.parametrize("node", [{"_target_": 3}, {"_target_": None}, {"_target_": ["os.system"]}])
def test_a_nested_target_must_be_a_name_too(node: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model\.x must have a _target_"):
        make({"_target_": "torch.nn.Identity", "x": node}, "model")


@pytest.mark.parametrize(
    "path", ["torch.nn.Linera", "training.nowhere.f", "training.build.nowhere", "timm.nowhere.f"]
)
def test_a_target_that_does_not_exist_is_named(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make({"_target_": path}, "model")
    expected = f"model._target_ must exist, but there is no {path}"
    assert str(caught.value).partition(";")[0] == expected


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("torch.nn.Linera", "there is no torch.nn.Linera; did you mean torch.nn.Linear?"),
        ("trainnig.build.f", "there is no trainnig.build.f"),
        ("training.build.biuld_image", "did you mean training.build.build_image?"),
        ("torchvision.transfroms.v2.Pad", "did you mean torchvision.transforms.v2.Pad?"),
        ("training.build", "but training.build is a module; one in it is named by training.build."),
    ],
)
def test_a_mistyped_target_is_answered_with_the_nearest_one(path: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^build\._target_ must exist") as caught:
        target_of({"_target_": path}, "build")
    assert text in str(caught.value)


def test_a_mistyped_module_of_the_users_own_is_answered_with_the_one_meant(project: Path) -> None:
    (project / "my_own_build.py").write_text("def build(): pass\n")
    with pytest.raises(ConfigError) as caught:
        target_of({"_target_": "my_onw_build.build"}, "build")
    expected = "build._target_ must exist, but there is no my_onw_build.build; did you mean "
    assert str(caught.value) == expected + "my_own_build.build?"


REFUSED: list[dict[str, Any]] = [
    {"_target_": "torch.nn.Linear"},
    {"_target_": "torch.nn.Linear", "widht": 3},
    {"_target_": "torch.nn.Linear", "in_features": "a", "out_features": 2},
    {"_target_": "torch.nn.Linear", "in_features": -1, "out_features": 2},
    {"_target_": "torchvision.transforms.v2.ColorJitter", "brightness": -1},
    {"_target_": "torchvision.transforms.v2.Pad", "padding": [1, 2, 3]},
    {"_target_": "torchvision.models.get_model", "name": "nope"},
    {"_target_": "torchvision.datasets.ImageFolder", "root": "/nowhere"},
    {"_target_": "torchvision.datasets.MNIST", "root": "/nowhere"},
    {"_target_": "training.data.digits.Digits", "split": "test"},
    {"_target_": "training.models.SmallConvNet", "num_classes": 10, "width": -2},
]


@pytest.mark.parametrize("node", REFUSED, ids=repr)
def test_arguments_that_are_refused_are_reported_in_a_line(node: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make(node, "data.train")
    start = "data.train"
    assert str(caught.value).startswith(start)
    assert len(str(caught.value)) > len(start)
    assert "\n" not in str(caught.value)


def raises(kind: str, text: str = "") -> None:
    raise getattr(builtins, kind)(text)


class NotCallable:
    pass


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("KeyError", "KeyError: 'the\\nname'"),
        ("AttributeError", "AttributeError: the name"),
        ("AssertionError", "AssertionError: the name"),
        ("NotImplementedError", "the name"),
        ("TypeError", "the name"),
    ],
)
def test_whatever_a_target_raises_is_a_line_that_names_the_key(kind: str, expected: str) -> None:
    node = {"_target_": "test_targets.raises", "kind": kind, "text": "the\nname"}
    with pytest.raises(ConfigError) as caught:
        make({"_target_": "torch.nn.Identity", "x": [node]}, "model")
    said = f"test_targets.raises refused its arguments: {expected}; given were kind={kind}"
    assert str(caught.value) == f"model.x[0]: {said}, text=the name"


def test_an_error_without_a_text_is_named() -> None:
    with pytest.raises(ConfigError, match=r"refused its arguments: RuntimeError; given were"):
        make({"_target_": "test_targets.raises", "kind": "RuntimeError"}, "model")


@pytest.mark.parametrize("value", [5, "ab", {"a": 1}, None])
def test_positional_arguments_are_a_list(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model\._args_ must be a list, but got model\._args_="):
        make({"_target_": "torch.nn.Identity", "_args_": value}, "model")


def test_nothing_is_made_before_every_target_has_been_checked() -> None:
    made: list[int] = []
    nodes = [{"_target_": "test_targets.note", "made": made}, {"_target_": "os.system"}]
    with pytest.raises(ConfigError, match=r"^model\.x\[1\]\._target_ must lie in"):
        make({"_target_": "torch.nn.Identity", "x": nodes}, "model")
    with pytest.raises(ConfigError, match=r"^model\._args_\[1\]\._target_ must lie in"):
        make({"_target_": "torch.nn.Identity", "_args_": nodes}, "model")
    assert made == []


def note(made: list[int]) -> None:
    made.append(1)


def test_a_class_whose_instances_cannot_be_called_makes_no_function() -> None:
    with pytest.raises(ConfigError) as caught:
        make_function({"_target_": "test_targets.NotCallable"}, "build")
    assert str(caught.value) == (
        "build._target_ must be a function, or a class with __call__, "
        "but got test_targets.NotCallable"
    )


def test_a_function_with_a_part_that_cannot_be_made_is_reported_in_a_line() -> None:
    node = {"_target_": "training.build.build_image", "x": {"_target_": "torch.nn.Linear"}}
    with pytest.raises(ConfigError, match=r"^build.* refused its arguments") as caught:
        make_function(node, "build")
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


def test_making_leaves_the_node_as_it_was() -> None:
    node = {"_target_": "torch.nn.Identity", "x": [{"_target_": "torch.nn.ReLU"}]}
    make(node, "model")
    assert node == {"_target_": "torch.nn.Identity", "x": [{"_target_": "torch.nn.ReLU"}]}


def test_a_function_is_bound_and_a_class_is_made() -> None:
    function = make_function({"_target_": "training.build.build_image", "extra": [1]}, "build")
    instance = make_function({"_target_": "torchvision.transforms.v2.Identity"}, "build")
    assert isinstance(function, functools.partial)
    assert function.keywords == {"extra": [1]}
    assert type(function.keywords["extra"]) is list
    assert isinstance(instance, v2.Identity)


@pytest.mark.parametrize("path", ["torchvision.models.googlenet", "torchvision.models.resnet18"])
def test_a_function_that_bears_the_name_of_its_module_is_found(path: str) -> None:
    assert target_of({"_target_": path}, "model").__name__ == path.rpartition(".")[2]


def test_modules_of_the_project_are_told_from_installed_ones() -> None:
    assert source_file("training.build") == targets.PROJECT / "training" / "build.py"
    for name in ("reuseloader", "train", "training.data"):
        assert source_file(name) is not None
    installed = ("torch", "torch.nn", "yaml", "omegaconf", "os", "sys", "pytest", "_pytest")
    for name in (*installed, "nowhere", "training.nowhere", "", ".", "a b"):
        assert source_file(name) is None


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that stands for the project, with a virtual environment in it."""
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    monkeypatch.setattr(targets, "PROJECT", tmp_path.resolve())
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(tmp_path))
    (installed / "reuse_test_installed.py").write_text("def f(): return 1\n")
    (tmp_path / "reuse_test_mine.py").write_text("def f(): return 2\n")
    (tmp_path / "reuse_test_folder").mkdir()
    (tmp_path / "reuse_test_folder" / "deep.py").write_text("def f(): return 3\n")
    yield tmp_path


def test_a_module_beside_train_py_counts_as_the_projects_own(project: Path) -> None:
    assert make({"_target_": "reuse_test_mine.f"}, "build") == 2


def test_a_folder_needs_no_init_file_to_be_the_projects_own(project: Path) -> None:
    assert make({"_target_": "reuse_test_folder.deep.f"}, "build") == 3


def test_what_is_installed_below_the_project_is_not_its_own(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"^build\._target_ must lie in this project"):
        make({"_target_": "reuse_test_installed.f"}, "build")


@pytest.mark.parametrize(
    "text", ["1/0", "def (", "raise ValueError('a\\nb')", "import nowhere_at_all", "f = 1"]
)
def test_a_module_that_cannot_be_imported_or_called_is_answered_in_a_line(
    project: Path, text: str
) -> None:
    name = f"reuse_test_broken_{text.encode().hex()}"
    (project / f"{name}.py").write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=r"^build\._target_") as caught:
        make_function({"_target_": f"{name}.f"}, "build")
    assert "\n" not in str(caught.value)


def test_an_argument_that_was_left_over_is_named_with_what_leaves_it_out() -> None:
    node = {"_target_": "torch.nn.Flatten", "width": 16}
    with pytest.raises(ConfigError, match=r"argument 'width'; ~model\.width leaves it out$"):
        make(node, "model")


def takes_two(first: int, second: int | None = 3) -> tuple[int, int | None]:
    return first, second


def takes_all(**entries: int | None) -> dict[str, int | None]:
    return entries


def test_a_null_of_another_target_is_left_out_and_one_of_its_own_is_not() -> None:
    node = {"_target_": "test_targets.takes_two", "first": 1, "limit": None}
    assert make(node, "data.train") == (1, 3)
    assert make({**node, "second": None}, "data.train") == (1, None)
    assert "limit" in node
    with pytest.raises(ConfigError, match="unexpected keyword argument 'limit'"):
        make({**node, "limit": 5}, "data.train")
    every = {"_target_": "test_targets.takes_all", "limit": None}
    assert make(every, "data.train") == {"limit": None}
