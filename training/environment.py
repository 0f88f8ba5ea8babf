"""What a run was made with: versions, hardware, and the state of the code."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import distributions
from typing import Any

import numpy as np
import torch
import torchvision

from training.distributed import ranks
from training.targets import PROJECT


def describe() -> dict[str, Any]:
    """Return a JSON-ready description of Python, packages, hardware and git commit.

    Environment variables are left out: they hold secrets.
    """
    whole = [item for item in distributions() if "Name" in item.metadata]  # else half installed
    packages = {item.metadata["Name"]: item.version for item in whole}
    own = ranks()
    several = {"ranks": {"world_size": own.world_size, "num_nodes": own.num_nodes}}
    return ({} if own.is_single else several) | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
        "torch": {
            "version": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "num_threads": torch.get_num_threads(),
        },
        "cpu": {"model": _cpu_model(), "num_cores": os.cpu_count()},
        "gpu": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "git": _git_state(),
        "command": sys.argv,
    }


def versions() -> dict[str, str]:
    """Return the versions that a result depends on most."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "torchvision": torchvision.__version__,
    }


def git_diff() -> str:
    """Return what differs from the commit; empty where nothing does or there is no git."""
    return _git("diff", "HEAD") or ""


def _git_state() -> dict[str, Any] | None:
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = (_git("status", "--porcelain") or "").splitlines()
    untracked = [line[3:] for line in changed if line.startswith("??")]
    return {"commit": commit.strip(), "dirty": bool(changed), "untracked": untracked}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(PROJECT), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
