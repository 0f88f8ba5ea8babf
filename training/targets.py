"""Making objects from `_target_` nodes, of a short list of packages only.

A recorded config is data from disk, and a `_target_` runs code.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import pydoc
import re
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

from training.checks import check, reason
from training.config import ConfigError
from training.nearest import nearest_target
from training.sections import Node
from training.signature import check_entries, parameters_of

PROJECT = Path(__file__).resolve().parent.parent

_MAX_GIVEN = 60  # characters of an entry in a message
_META = ("_target_", "_args_", "_partial_", "_convert_", "_recursive_")

ALLOWED_PACKAGES = (
    "timm",
    "torch.nn",
    "torch.optim",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.transforms",
)
"""Where a `_target_` may lie, besides the modules of this project; add your packages here."""

_NOT_FOR_RUNS = ("benchmarks", "tests")  # of this project: they start processes and remove files


def make(node: Node, place: str, *arguments: Any, **keywords: Any) -> Any:
    """Call the target of a node with its own entries and what is given here.

    Nested nodes are made first; lists arrive as Python lists, texts as they are written. Entries
    with other meanings: `_args_` are positional arguments, `_partial_: true` binds and calls not.

    Args:
        node: a mapping with `_target_`.
        place: where the node stands in the config, for messages.

    Raises:
        ConfigError: the target is not allowed, does not exist, or refuses its arguments.
    """
    check_targets(node, place)  # all of them, before the first is called
    return _make(node, place, *arguments, **keywords)


def _make(node: Node, place: str, *arguments: Any, **keywords: Any) -> Any:
    # Not by hydra.utils.instantiate: it reads texts as interpolations once more, and through
    # ${oc.create:...} a text can become a node that nobody has checked.
    target = target_of(node, place)
    own = {
        name: _made(value, f"{place}.{name}") for name, value in node.items() if name not in _META
    }
    own = _without_nulls_of_others(target, own)
    listed = node.get("_args_", [])
    check(f"{place}._args_", listed, isinstance(listed, (list, tuple)), "a list")
    check_entries(target, {name: node[name] for name in own}, place)
    positional = [*arguments, *_made(listed, f"{place}._args_")]
    call = functools.partial(target, *positional, **own, **keywords)
    if node.get("_partial_"):
        return call
    try:
        return call()
    except Exception as error:  # a mistake in the values, most often; train.log has the traceback
        raise ConfigError(
            f"{place}: {node['_target_']} refused its arguments: {reason(error)}"
            f"{_left_over(error, own, place)}{_given(error, own, place)}"
        ) from error


def _without_nulls_of_others(target: Any, entries: Node) -> Node:
    """Leave out what is null and no argument of the target.

    It stands in a file of conf/ for the target there, and Hydra's `~` deletes nothing that is null.
    """
    parameters = parameters_of(target)
    if parameters is None:
        return entries
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return entries
    return {n: value for n, value in entries.items() if value is not None or n in parameters}


def _left_over(error: Exception, own: Node, place: str) -> str:
    """Return how to leave out an entry that another target had, where that is what is wrong."""
    match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if not isinstance(error, TypeError) or match is None or match[1] not in own:
        return ""
    return f"; ~{place}.{match[1]} leaves it out"


def _given(error: Exception, entries: Node, place: str) -> str:
    """Return the entries where an error tells of none of them what it is.

    Those of a source may hold a secret.
    """
    named = any(f"{name}=" in str(error) or f"'{name}'" in str(error) for name in entries)
    return "" if named or place.startswith(("data.train", "data.val")) else given_in(entries)


def given_in(node: Node) -> str:
    """Return the plain entries of a node, for the end of a message."""
    plain = (bool, int, float, str, list, type(None))
    given = [
        f"{name}={shorten(str(value), _MAX_GIVEN, placeholder=' ...')}"
        for name, value in node.items()
        if name not in _META and isinstance(value, plain)
    ]
    return f"; given were {', '.join(given)}" if given else ""


def _made(value: Any, place: str) -> Any:
    if isinstance(value, dict):
        if "_target_" in value:
            return _make(value, place)
        return {name: _made(item, f"{place}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_made(item, f"{place}[{number}]") for number, item in enumerate(value)]
    return value


def make_function(node: Node, place: str) -> Callable[..., Any]:
    """Return a function with the node's entries bound, or, for a class, a callable instance."""
    bind = not inspect.isclass(target_of(node, place))
    function = make({**node, "_partial_": True} if bind else node, place)
    if not callable(function):
        raise ConfigError(
            f"{place}._target_ must be a function, or a class with __call__, "
            f"but got {node['_target_']}"
        )
    bound: Callable[..., Any] = function
    return bound


def check_targets(node: Any, place: str) -> None:
    """Refuse a node that names, at any depth, something outside the allowed packages."""
    if isinstance(node, dict):
        if "_target_" in node:
            target_of(node, place)
        for name, value in node.items():
            check_targets(value, f"{place}.{name}")
    elif isinstance(node, (list, tuple)):
        for number, value in enumerate(node):
            check_targets(value, f"{place}[{number}]")


def target_of(node: Node, place: str) -> Any:
    """Return the object that `_target_` names, after checking where it was defined.

    Raises:
        ConfigError: there is no such object, or it is not of an allowed package.
    """
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        may_lack = place.startswith(("augment.", "data.prepare.", "trainer.batch_transforms."))
        remedy = f"; ~{place} leaves it out" if may_lack else ""
        raise ConfigError(f"{place} must have a _target_, but got {place}={node!r}{remedy}")
    path = node["_target_"]
    if not _is_allowed(path):
        raise _refusal(place, path)
    if any(name.startswith("_") for name in path.split(".")):
        # training.environment._git, for one, runs what it is given.
        raise ConfigError(f"{place}._target_ must be a public name, but got {path}")
    try:
        target = pydoc.locate(path)
    except pydoc.ErrorDuringImport as error:
        reason = " ".join(f"{error.exc.__name__}: {error.value}".split())  # type: ignore[union-attr]
        raise ConfigError(f"{place}._target_={path} cannot be imported: {reason}") from error
    if target is None:
        raise _absent(place, path)
    if isinstance(target, ModuleType):  # Python 3.13 finds it before a function of its name
        package, _, name = path.rpartition(".")
        target = getattr(sys.modules.get(package), name, target)
    if isinstance(target, ModuleType):
        raise ConfigError(
            f"{place}._target_ must exist as a function or class, but {path} is a module; "
            f"one in it is named by {path}.NAME"
        )
    # A path like training.targets.Path.unlink begins well and ends elsewhere.
    home = getattr(target, "__module__", None)
    if not callable(target) or not isinstance(home, str) or not _is_allowed(home):
        raise _refusal(place, path)
    return target


def _is_allowed(path: str) -> bool:
    if any(path == name or path.startswith(f"{name}.") for name in ALLOWED_PACKAGES):
        return True
    head = path.partition(".")[0]
    return head not in _NOT_FOR_RUNS and _in_project(head)


def source_file(module: str) -> Path | None:
    """Return the file of a module or package of this project; None for any other."""
    spec = _find(module)
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    file = Path(spec.origin).resolve()
    return file if _is_inside(file) else None


def _in_project(module: str) -> bool:
    spec = _find(module)
    if spec is None:
        return False
    if spec.origin is not None:
        return source_file(module) is not None
    folders = spec.submodule_search_locations or []  # a folder without __init__.py
    return bool(folders) and all(_is_inside(Path(folder).resolve()) for folder in folders)


def _find(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _is_inside(path: Path) -> bool:
    return path.is_relative_to(PROJECT) and "site-packages" not in path.parts


def _absent(place: str, path: str) -> ConfigError:
    remedy = f"; did you mean {near}?" if (near := _near(path)) else ""
    if path.startswith("timm.") and _find("timm") is None:
        remedy = "; pip install -e '.[timm]'"
    return ConfigError(f"{place}._target_ must exist, but there is no {path}{remedy}")


def _near(path: str) -> str | None:
    return nearest_target(path, ALLOWED_PACKAGES, PROJECT)


def _refusal(place: str, path: str) -> ConfigError:
    head, dot, _ = path.partition(".")
    heads = {package.partition(".")[0] for package in ALLOWED_PACKAGES}
    if (dot and _find(head) is None) or (head in heads and _near(path) not in (None, path)):
        return _absent(place, path)
    return ConfigError(
        f"{place}._target_ must lie in this project or in one of {', '.join(ALLOWED_PACKAGES)}, "
        f"but got {path}; to allow a package, add it to ALLOWED_PACKAGES in training/targets.py"
    )
