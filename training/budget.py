"""How much of the disk the stored samples may take, and which share of them that is."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from reuseloader import ReuseDataLoader, ReuseKey, Substitute, resident_share, save_tensors
from training.distributed import ranks, wait_for_all
from training.randomness import aside

_SHARE_OF_FREE = 0.8
_MOST_SAMPLES, _MOST_S = 8, 2.0  # built to predict a size: so many, or as many as this time allows
_BLOCK_BYTES = 4096  # of a file system: a file takes a multiple


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Samples that a loader stores.

    Attributes:
        name: of the samples, for messages.
        loader: gets the share of them that is resident.
        build: makes one.
        size: how many there are, in the largest epoch.
    """

    name: str
    loader: ReuseDataLoader
    build: Callable[[ReuseKey], Any]
    size: int

    def needs(self, folder: Path) -> int | None:
        """Return how many bytes a sample takes, by the first that can be built; None without."""
        if self.loader.policy.lifetime == 1:
            return 0
        return predicted_bytes(self.build, self.loader, self.size, folder)


def share_in(folder: Path) -> float:
    """Return which share of the ranks work in a folder: 1 where all see it, less on local disks."""
    if ranks().is_single:
        return 1.0
    folder.mkdir(parents=True, exist_ok=True)
    names = [folder / f"rank-{rank}.here" for rank in range(ranks().world_size)]
    names[ranks().rank].touch()
    wait_for_all()
    share = sum(name.exists() for name in names) / len(names)
    wait_for_all()
    names[ranks().rank].unlink(missing_ok=True)
    return share


def keep_within(
    folder: Path, max_bytes: float | None, kept: list[Kept], share: float = 1.0
) -> tuple[str, bool]:
    """Let each loader store as many samples as fit; the first ones have precedence.

    What a sample holds does not depend on it: one that is not resident is built at each use.

    Args:
        folder: of the stored samples.
        max_bytes: that they may take; None is 80 % of what is free there and what they take now.
        kept: the samples.
        share: of them that the ranks use which work in this folder.

    Returns:
        What the user should know, and whether all of them fit.
    """
    if max_bytes is None:
        max_bytes = _SHARE_OF_FREE * (shutil.disk_usage(folder).free + stored_bytes(folder))
    left, total, said = int(max_bytes), 0, []
    for part in kept:
        each = part.needs(folder)
        if each is None:
            return "no sample could be built to predict what stored ones will take", True
        here = math.ceil(part.size * share)
        total += each * here
        fitting = here if each == 0 else min(here, left // each)
        left -= fitting * each
        if fitting == here:
            part.loader.resident = 1.0
            continue
        if share < 1:  # the kept ones are not dealt to the ranks in exactly equal parts
            fitting = max(0, fitting - math.ceil(3 * math.sqrt(fitting)))
        part.loader.resident = resident_share(
            int(fitting / share), part.size, part.loader.policy.seed
        )
        percent = f"{100 * fitting / here:.0f} %"
        said.append(f"{percent} of those for {part.name} are kept, the others built at each use")
    need = f"stored samples need about {_human(total)}, and may take {_human(max_bytes)}"
    return "; ".join([need, *said]), not said


def predicted_bytes(
    build: Callable[[ReuseKey], Any], loader: ReuseDataLoader, size: int, folder: Path
) -> int | None:
    """Return the mean size of a stored sample on the disk, by some of them; None without any."""
    sizes, end = [], perf_counter() + _MOST_S
    path = folder / f"predict-{os.getpid()}.tmp"
    with aside():
        for index in range(0, size, -(-size // _MOST_SAMPLES)):
            try:
                sample = build(loader.policy.key(index, 0))
                if isinstance(sample, Substitute):
                    sample = sample.sample
                save_tensors(sample, path)
                sizes.append(-(-(path.stat().st_size + 200) // _BLOCK_BYTES) * _BLOCK_BYTES)
            except Exception:  # which the first epoch will meet again, and tell with its index
                continue
            finally:
                path.unlink(missing_ok=True)
            if perf_counter() > end:
                break
    return -(-sum(sizes) // len(sizes)) if sizes else None


def stored_bytes(folder: Path) -> int:
    """Return what the files below a folder take."""
    return sum(file.stat().st_size for file in folder.rglob("*.pt"))


def _human(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
