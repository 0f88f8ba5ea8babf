"""What the benchmarks share: where they ran, alternating measurements, and tables."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
PACKAGES = ["torch", "numpy", "xxhash", "tensordict", "diskcache", "litdata", "monai"]


def environment() -> dict[str, str]:
    """Return hardware, versions, commit, date and load, as they stand under a table."""
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _commit() -> str:
    def git(*words: str) -> str:
        run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return run.stdout.strip()

    dirty = " and changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + dirty


def alternate(contenders: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Measure contenders in turn, each round beginning with another one.

    Returns:
        For each name its ``repeats`` values, of which the n-th were measured side by side.
    """
    names = list(contenders)
    values: dict[str, list[float]] = {name: [] for name in names}
    for number in range(repeats):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            values[name].append(contenders[name]())
    return values


def ratio(values: Sequence[float], to: Sequence[float]) -> float:
    """Return the median of the ratios of values that were measured side by side."""
    return statistics.median(a / b for a, b in zip(values, to, strict=True))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def one_thread() -> None:
    """Give this process one thread, as DataLoader gives its workers."""
    torch.set_num_threads(1)
