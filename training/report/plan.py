"""Which runs a sweep has, and what each is compared with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.checks import ConfigError
from training.report.history import History, is_run

PLAN = "sweep.json"
"""File of a sweep's folder: which jobs it has, and what each is compared with."""

NOT_RUN = "not run"
"""What the plan says of a job that has not begun."""

_NO_SETTING = ("seed", "hydra.", "cache.", "tracker", "report", "checkpoint.", "sweep")
_NO_PLAN: dict[str, Any] = {"jobs": [], "command": "", "notes": {}, "others": {}}


def read_plan(folder: Path) -> dict[str, Any]:
    """Return what a sweep wrote down of its jobs; no jobs where it wrote nothing.

    Raises:
        ConfigError: what is there cannot be read.
    """
    file = folder / PLAN
    if not file.exists():
        return {**_NO_PLAN}
    try:
        plan = json.loads(file.read_text(encoding="utf-8"))
        plan = {**_NO_PLAN, **plan, "jobs": plan["jobs"]}
        for job in plan["jobs"]:
            if not all(isinstance(job[name], str) for name in ("folder", "section", "setting")):
                raise TypeError(f"a job must have a folder, section and setting, but got {job!r}")
        for name in ("others", "notes"):
            plan[name] = plan[name] or {}
            if not isinstance(plan[name], dict):
                raise TypeError(f"{name} must hold names and values, but got {plan[name]!r}")
        plan["others"] = {job: float(share) for job, share in plan["others"].items()}
        return plan
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def run_folders(folder: Path) -> Iterator[Path]:
    """Yield the runs in a folder and in the folders in it, job 10 after job 9."""
    for inner in sorted(_folders(folder), key=_by_number):
        if is_run(inner):
            yield inner
        else:
            yield from filter(is_run, sorted(_folders(inner), key=_by_number))


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _by_number(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdigit() else -1, path.name)


def plan_of(found: dict[str, History | str]) -> list[dict[str, str]]:
    """Return the plan of a sweep that none is written of."""
    runs = {job: history for job, history in found.items() if isinstance(history, History)}
    names = setting_names([history.overrides for history in runs.values()])
    return [
        {"folder": job, "section": "", "setting": name}
        for job, name in zip(runs, names, strict=True)
    ]


def setting_names(overrides: list[list[str]]) -> list[str]:
    """Return for each run what was typed for it and not for all of them, but for the seed.

    Of a dotted name the last word stands for it where no other one ends with that.
    """
    kept = [
        [text for text in typed if not text.lstrip("+~").startswith(_NO_SETTING)]
        for typed in overrides
    ]
    common = set.intersection(*map(set, kept)) if kept else set()
    own = [[text for text in typed if text not in common] for typed in kept]
    keys = {text.partition("=")[0] for typed in own for text in typed}
    last_words = Counter(key.rpartition(".")[2] for key in keys)

    def short(text: str) -> str:
        key, equals, value = text.partition("=")
        word = key.rpartition(".")[2]
        return f"{word if last_words[word] == 1 else key}{equals}{value}"

    return [" ".join(map(short, typed)) or "as it is" for typed in own]
