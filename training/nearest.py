"""Did you mean: the name of a function or class that is nearest to one that does not exist."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any


def nearest_target(path: str, packages: tuple[str, ...], project: Path) -> str | None:
    """Return a dotted name like `path` that exists; None where nothing is like it.

    Args:
        path: the name that does not exist.
        packages: what may be looked into, by dotted names.
        project: its modules may be as well.
    """
    parts = path.split(".")
    heads = {package.partition(".")[0] for package in packages} | set(_modules(project))
    head = _like(parts[0], heads)
    if head is None:
        return None
    found, here = head, _module(head)
    for part in parts[1:]:
        name = None if here is None else _like(part, _names(here))
        if name is None:
            return None
        found = f"{found}.{name}"
        inside = any(found.startswith(package) or package.startswith(found) for package in packages)
        if head not in _modules(project) and not inside:
            return None
        here = getattr(here, name, None) or _module(found)
    return found if callable(here) else None


def _like(word: str, known: set[str]) -> str | None:
    if word in known:
        return word
    same = [name for name in sorted(known) if name.lower() == word.lower()]
    near = same or difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.7)
    return near[0] if near else None


def _modules(folder: Path) -> set[str]:
    names = {file.stem for file in folder.glob("*.py")}
    return names | {file.parent.name for file in folder.glob("*/*.py")}


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # whatever a broken module raises: there is nothing to suggest in it
        return None


def _names(module: Any) -> set[str]:
    inner = {item.name for item in pkgutil.iter_modules(getattr(module, "__path__", []))}
    return inner | {name for name in dir(module) if not name.startswith("_")}
