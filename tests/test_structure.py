"""The shape of the project: imports point one way, modules stay short, everything is documented."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parent.parent
LIBRARY = sorted((PROJECT / "reuseloader").glob("*.py"))
TRAINING = sorted((PROJECT / "training").rglob("*.py"))
ENTRY = PROJECT / "train.py"
PROJECT_FILES = [ENTRY, *LIBRARY, *TRAINING]
ARITHMETIC = ("checks", "mixing", "permutation", "policy")  # with no torch
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(file: Path) -> str:
    """Return the dotted name of a module."""
    parts = file.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imported(file: Path) -> set[str]:
    """Return all that a file imports, anywhere in it: `a.b` and `a.b.c` for `from a.b import c`."""
    package = name_of(file) if file.name == "__init__.py" else name_of(file).rpartition(".")[0]
    names = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def graph(files: list[Path]) -> dict[str, set[str]]:
    """Return module -> the modules among `files` that it imports."""
    modules = {name_of(file) for file in files}
    # A package that is only passed through on the way to its module does not count.
    return {
        name_of(file): {
            name
            for name in imported(file) & modules
            if not any(other.startswith(f"{name}.") for other in imported(file) & modules)
        }
        for file in files
    }


def reached(edges: dict[str, set[str]], module: str) -> set[str]:
    """Return all that a module imports, directly or not."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("file", LIBRARY, ids=name_of)
def test_the_library_imports_torch_and_numpy_alone(file: Path) -> None:
    packages = {name.partition(".")[0] for name in imported(file)} - sys.stdlib_module_names
    assert packages <= {"torch", "numpy", "reuseloader", "xxhash"}  # the last one where it is there


@pytest.mark.parametrize("file", TRAINING, ids=name_of)
def test_the_pipeline_imports_neither_the_entry_point_nor_what_surrounds_it(file: Path) -> None:
    packages = {name.partition(".")[0] for name in imported(file)}
    assert packages.isdisjoint({"train", "tests", "benchmarks", "conf"})


def test_the_policy_is_arithmetic_alone() -> None:
    for name in ARITHMETIC:
        packages = {name.partition(".")[0] for name in imported(PROJECT / f"reuseloader/{name}.py")}
        assert packages - sys.stdlib_module_names <= {"numpy", "reuseloader"}


@pytest.mark.parametrize("files", [LIBRARY, TRAINING], ids=["reuseloader", "training"])
def test_no_module_imports_itself_through_others(files: list[Path]) -> None:
    assert set(TopologicalSorter(graph(files)).static_order()) >= graph(files).keys()


def test_the_layers_of_the_library_rest_on_those_below_them() -> None:
    edges = graph(LIBRARY)
    below = {name.partition(".")[2]: reached(edges, name) for name in edges}
    names = {layer: f"reuseloader.{layer}" for layer in below}
    arithmetic = {names[layer] for layer in ARITHMETIC}
    assert below["policy"] == arithmetic - {names["policy"]}
    for middle in ("sample", "store", "folder"):
        assert below[middle] <= arithmetic
    assert names["loader"] not in below["dataset"]
    assert {names[layer] for layer in ("policy", "sample", "store", "folder")} <= below["dataset"]
    assert names["dataset"] in below["loader"]


def test_the_entry_point_fits_on_a_screen() -> None:
    assert len(ENTRY.read_text().splitlines()) < 60


@pytest.mark.parametrize("file", PROJECT_FILES, ids=name_of)
def test_a_module_stays_short(file: Path) -> None:
    num_lines = len(file.read_text().splitlines())
    assert num_lines < 320


def public(parent: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield the public functions and classes of a module, and the methods of the classes."""
    for node in parent.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{node.name}.")


@pytest.mark.parametrize("file", PROJECT_FILES, ids=name_of)
def test_what_is_public_is_documented(file: Path) -> None:
    tree = tree_of(file)
    assert ast.get_docstring(tree) or not tree.body
    # A method that implements a protocol of the same module is documented there.
    said = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and ast.get_docstring(node)
    }
    silent = [
        name
        for name, node in public(tree)
        if isinstance(node, (*FUNCTIONS, ast.ClassDef))
        and not ast.get_docstring(node)
        and node.name not in said
        and not any("overload" in ast.dump(item) for item in node.decorator_list)
    ]
    assert silent == []


@pytest.mark.parametrize("file", PROJECT_FILES, ids=name_of)
def test_every_signature_is_annotated(file: Path) -> None:
    bare = []
    for node in ast.walk(tree_of(file)):
        if not isinstance(node, FUNCTIONS):
            continue
        a = node.args
        rest = [a.vararg, a.kwarg]
        named = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(item for item in rest if item)]
        names = [item.arg for item in named if item.annotation is None]
        bare += [f"{node.name}({name})" for name in names if name not in ("self", "cls")]
        bare += [] if node.returns is not None else [f"{node.name} ->"]
    assert bare == []


def test_every_yaml_of_conf_parses() -> None:
    files = sorted((PROJECT / "conf").rglob("*.yaml"))
    assert len(files) > 10
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text()), dict), file
