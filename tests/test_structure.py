"""The shape of the project: imports point one way, modules stay short, everything is documented."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parent.parent
LIBRARY = sorted((PROJECT / "reuseloader").glob("*.py"))
TRAINING = sorted((PROJECT / "training").rglob("*.py"))
BELOW = {"dataset": {"loader"}, "policy": {"dataset", "folder", "loader", "sample", "store"}}


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("file", LIBRARY, ids=lambda file: file.stem)
def test_the_library_imports_nothing_of_the_template(file: Path) -> None:
    packages = {name.partition(".")[0] for name in imported(file)}
    assert packages.isdisjoint({"hydra", "omegaconf", "training", "train", "tqdm", "yaml"})
    if file.stem == "policy":
        assert "torch" not in packages
    forbidden = {f"reuseloader.{name}" for name in BELOW.get(file.stem, set())}
    assert imported(file).isdisjoint(forbidden)


@pytest.mark.parametrize("file", TRAINING, ids=lambda file: file.stem)
def test_the_pipeline_does_not_import_the_entry_point(file: Path) -> None:
    assert "train" not in imported(file)


def test_the_entry_point_fits_on_a_screen() -> None:
    assert len((PROJECT / "train.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("file", [*LIBRARY, *TRAINING], ids=lambda file: file.stem)
def test_what_is_public_is_documented_and_every_signature_annotated(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree), f"{file} has no docstring"
    # A method that implements a protocol is documented there.
    documented = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
    }
    public = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    for parent in public:
        for node in parent.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                overload = any("overload" in ast.dump(item) for item in node.decorator_list)
                hidden = node.name.startswith("_") or getattr(parent, "name", "x").startswith("_")
                said = ast.get_docstring(node) or node.name in documented
                assert hidden or overload or said, f"{file}: {node.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]
            bare = [
                a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")
            ]
            assert not bare, f"{file}: {node.name}({bare})"
            assert node.returns is not None, f"{file}: {node.name}"


def test_every_yaml_of_conf_parses() -> None:
    files = sorted((PROJECT / "conf").rglob("*.yaml"))
    assert len(files) > 10
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text()), dict)
