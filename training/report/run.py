"""The report of one run: what came out, where the time went, and what bounded it."""

from __future__ import annotations

import math
import shlex
from typing import Any

from training.advice import advise
from training.report.history import History
from training.report.text import duration, percent, table
from training.report.trained import trained

PHASE_NAMES = {
    "compute": "compute",
    "wait": "waiting for input",
    "copy": "copy to the device",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
    "other": "other",
    "warmup": "warm-up",
}


def describe_run(history: History, picture: str | None) -> str:
    """Return the report as Markdown.

    Args:
        history: of the run.
        picture: name of the picture's file beside the report; None where there is none.
    """
    parts = [f"# {history.directory.name}", _opening(history), f"Trained: {trained([history])}."]
    if history.error:
        parts.append(f"It failed: `{' '.join(history.error.split())}`")
    if picture is not None:
        parts.append(f"![what came out, and where the time went]({picture})")
    if history.rows:
        parts += ["## What came out", table(("", ""), _results(history)), *_time(history)]
    if any(row for row in history.curriculum.values()):
        parts += ["## The curriculum", *_curriculum(history)]
    parts += ["## How it was made", table(("", ""), _making(history))]
    return "\n\n".join(parts) + "\n"


def verdict(history: History) -> str:
    """Return what bounded the run, in a line; empty where that is not known."""
    work = history.work()
    return "" if work is None else advise(work)


def _opening(history: History) -> str:
    ended = len(history.rows)
    of = history.config.get("epochs", "?")
    state = f"Status: {history.status}, {ended} of {of} epochs ended."
    said = verdict(history)
    return f"{state} **{said[0].upper()}{said[1:]}.**" if said else state


def _results(history: History) -> list[tuple[str, str]]:
    rows = [("last training loss", f"{history.column('train_loss')[-1]:.4f}")]
    points = history.evaluations()
    if points:
        best = max(points, key=lambda point: point[2])
        rows += [
            ("accuracy, last", f"{percent(points[-1][2])} after epoch {points[-1][0]}"),
            (
                "accuracy, best",
                f"{percent(best[2])} after epoch {best[0]}, in {duration(best[1])} without warm-up",
            ),
        ]
    losses = history.evaluations("val_loss")
    if losses:
        rows.append(("validation loss, last", f"{losses[-1][2]:.4f}"))
    if not points and not losses:
        rows.append(("accuracy", "there was no evaluation"))
    built, reused = history.total("built"), history.total("reused")
    rows += [
        ("samples built", f"{built:,.0f}"),
        ("samples reused", f"{reused:,.0f}, {percent(reused / max(1, built + reused), 0)} of all"),
        ("time", f"{duration(history.times_s[-1])} and {duration(history.warmup_s)} of warm-up"),
    ]
    return rows


def _time(history: History) -> list[str]:
    phases = history.phases()
    if not phases:
        return []
    steady = [int(row["epoch"] or 0) for row in history.steady_rows()]
    chosen = [number for number, epoch in enumerate(history.epochs) if epoch in steady]
    whole = sum(map(math.fsum, phases.values()))
    rows = []
    for name, title in PHASE_NAMES.items():
        if name in phases:
            total = math.fsum(phases[name])
            mean = math.fsum(phases[name][number] for number in chosen) / len(chosen)
            rows.append((title, f"{total:.2f} s", percent(total / whole, 1), f"{mean:.3f} s"))
    which = "after epoch 0" if len(chosen) < len(history.rows) else "of all"
    head = ("", "in all", "share", f"mean epoch {which}")
    return ["## Where the time went", table(head, rows)]


def _curriculum(history: History) -> list[str]:
    names = sorted({name for row in history.curriculum.values() for name in row})
    rows = [
        (epoch, *(row.get(name, "") for name in names)) for epoch, row in history.curriculum.items()
    ]
    return [table(("from epoch", *(f"`{name}`" for name in names)), rows)]


def _making(history: History) -> list[tuple[str, Any]]:
    config, environment = history.config, history.environment
    cpu = environment.get("cpu", {})
    gpus = ", ".join(environment.get("gpu", [])) or "none"
    versions = {"python": environment.get("python"), **_versions(environment)}
    commit = (environment.get("git") or {}).get("commit")
    rows = [
        ("typed", f"`{shlex.join(history.overrides)}`" if history.overrides else "nothing"),
        ("seed", config.get("seed")),
        ("CPU", f"{cpu.get('model', 'unknown')}, {cpu.get('num_cores', '?')} cores"),
        ("GPU", gpus),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", commit or "unknown"),
    ]
    if history.sessions:
        rows.append(("began", f"{history.sessions[0][0]:%Y-%m-%d %H:%M:%S %Z}"))
    if history.num_continued:
        often = "once" if history.num_continued == 1 else f"{history.num_continued} times"
        rows.append(("continued", f"{often}; times are added up, without what a kill lost"))
    return rows


def _versions(environment: dict[str, Any]) -> dict[str, str]:
    packages = environment.get("packages", {})
    return {name: packages[name] for name in ("torch", "torchvision") if name in packages}
