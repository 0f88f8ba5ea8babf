"""What the benchmarks share: where they ran, loaders, alternating measurements, and tables."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(
    0, str(ROOT)
)  # for `training`, which is not installed, and this library before others

from reuseloader import ReuseDataLoader, load_tensors, save_tensors  # noqa: E402

T = TypeVar("T")
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


def alternate(contenders: dict[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Measure contenders in turn, each round beginning with another one.

    Returns:
        For each name its ``repeats`` values, of which the n-th were measured side by side.
    """
    names = list(contenders)
    values: dict[str, list[T]] = {name: [] for name in names}
    for number in range(repeats):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            values[name].append(contenders[name]())
    return values


def processor_s() -> float:
    """Return the processor time of this process and of all that it started, so far."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + sum(map(_running_s, _with_descendants(os.getpid())))


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += _with_descendants(int(child))
    return found


def _running_s(pid: int) -> float:
    paths = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in paths) / 1e9


def ratio(values: Sequence[float], to: Sequence[float]) -> float:
    """Return the median of the ratios of values that were measured side by side."""
    return statistics.median(a / b for a, b in zip(values, to, strict=True))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def shuffled(build: Any, size: Any, folder: Path, **options: Any) -> ReuseDataLoader:
    """Return a loader in the fast format whose order is new in each pass."""
    formats = {"save": save_tensors, "load": load_tensors}
    return ReuseDataLoader(build, size, folder, shuffle=True, **formats, **options)


def say_where() -> None:
    """Print hardware, versions, commit, date and load."""
    print("\n" + "\n".join(f"{name}: {value}" for name, value in environment().items()))


def one_thread() -> None:
    """Give this process one thread, as DataLoader gives its workers."""
    torch.set_num_threads(1)


def keep(path: Path, kept: dict[str, Any]) -> None:
    """Write down what was measured, with the load after it."""
    kept["environment"]["load after"] = f"{os.getloadavg()[0]:.1f}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1))


def show(path: Path, report: Callable[[Any], str], plot: Callable[[Any, Path], None]) -> None:
    """Print what was kept, and draw it beside the file."""
    kept = json.loads(path.read_text())
    print(report(kept["results"]))
    print("\n" + "; ".join(f"{key}: {value}" for key, value in kept["environment"].items()))
    try:
        plot(kept["results"], path.with_suffix(".png"))
    except ImportError as error:
        print(f"no picture: {error}")
