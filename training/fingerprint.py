"""A mark of everything that a stored sample depends on besides its key."""

from __future__ import annotations

import ast
import dataclasses
import json
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torchvision

from training.config import Config
from training.sections import Node, Table
from training.targets import PROJECT, source_file

LOCATION_KEYS = ("root", "path", "directory", "url")
"""Entries of a source's node that say where the data lies: their content counts instead."""

ACCESS_KEYS = (
    *("download", "cache_bytes", "storage_options"),
    *("timeout_s", "num_attempts", "num_fetches", "pause_s"),
)
"""Entries of a source's node that say how the data is got at."""


def fingerprint(config: Config, table: Table, node: Node, content: str, stored: bool) -> str:
    """Return 16 hex digits that change whenever the build does.

    They cover the build and source nodes, the transforms and the curriculum table, the content of
    the data, the text of the project's modules that build and source come from (with those that
    these import), and the versions of torch and torchvision. They do not cover paths and times.

    Args:
        config: the run's config; `config.fingerprint`, when given, is returned as it is.
        table: the expanded curriculum.
        node: the source's node in the config.
        content: what the identity of that source is.
        stored: whether the stored transforms and the curriculum apply (they do in training).
    """
    if config.fingerprint is not None:
        return config.fingerprint
    augment = config.augment
    left_out = () if augment.store_all else ("fresh.",)
    rows = {
        epoch: {name: value for name, value in row.items() if not name.startswith(left_out)}
        for epoch, row in table.items()
    }
    for (_, row), (epoch, later) in pairwise(list(rows.items())):
        if later == row:  # what changes nothing stored does not count
            del rows[epoch]
    # As lists, because the order of transforms counts and that of other entries does not.
    transforms = {"stored": list(augment.stored.items()), "table": rows} if stored else {}
    if stored and augment.replaces_prepare:
        transforms["replaces_prepare"] = True
    if stored and augment.store_all:
        transforms["fresh"] = list(augment.fresh.items())
    apart = LOCATION_KEYS + ACCESS_KEYS
    parts = {
        "build": config.build,
        "source": {name: value for name, value in node.items() if name not in apart},
        "content": content,
        "prepare": list(config.data.prepare.items()),
        **transforms,
        "code": code_of([config.build, node, config.data.prepare, transforms]),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    }
    text = json.dumps(parts, sort_keys=True, default=repr)
    return sha256(text.encode()).hexdigest()[:16]


def code_of(nodes: Any) -> dict[str, str]:
    """Return module -> digest of its text, for the targets in `nodes` and all they import."""
    files: dict[str, Path] = {}
    for target in _targets(nodes):
        _follow(target, files)
    return {name: sha256(file.read_bytes()).hexdigest() for name, file in sorted(files.items())}


def _targets(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["_target_"]] if "_target_" in node else []
        return own + [name for value in node.values() for name in _targets(value)]
    if isinstance(node, (list, tuple)):
        return [name for value in node for name in _targets(value)]
    return []


def _follow(path: str, files: dict[str, Path]) -> None:
    """Add the module that a dotted path begins with, and what it imports of this project."""
    file = source_file(path)
    while file is None and "." in path:
        path = path.rpartition(".")[0]  # from training.build.build_image to training.build
        file = source_file(path)
    if file is None or path in files:
        return
    files[path] = file
    if "." in path:
        _follow(path.rpartition(".")[0], files)  # the package is imported first
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                _follow(alias.name, files)
        elif isinstance(node, ast.ImportFrom):
            package = path if file.name == "__init__.py" else path.rpartition(".")[0]
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                _follow(f"{module}.{alias.name}", files)


def project_code(config: Config) -> str:
    """Return a mark of the text of the project's modules, wherever the project lies.

    It covers the pipeline itself, and what the config names besides, with all that this imports.
    """
    folders = [PROJECT / "training", PROJECT / "reuseloader"]
    files = [PROJECT / "train.py", *(file for folder in folders for file in folder.rglob("*.py"))]
    names = sorted(file.relative_to(PROJECT).as_posix() for file in files)
    texts = [f"{name} {sha256((PROJECT / name).read_bytes()).hexdigest()}" for name in names]
    own = code_of(dataclasses.asdict(config))
    texts += [f"{name} {digest}" for name, digest in own.items()]
    return sha256("\n".join(texts).encode()).hexdigest()[:16]
