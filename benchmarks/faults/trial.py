"""A trial of a fault: samples, the clean run that they are compared with, and what is counted."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reuseloader import (
    FolderInUseError,
    ReuseDataLoader,
    ReuseDataset,
    ReuseKey,
    ReusePolicy,
    load_tensors,
    load_torch,
    save_tensors,
    save_torch,
)

PROJECT = Path(__file__).resolve().parents[2]
FORMATS: dict[str, Any] = {
    "torch": {"save": save_torch, "load": load_torch},
    "tensors": {"save": save_tensors, "load": load_tensors},
}
SIZE, LIFETIME = 64, 4
NUM_EPOCHS = 24  # of the clean run
fork = get_context("fork")


def build(key: ReuseKey) -> dict[str, Any]:
    """Make a sample of 12 kB from its key."""
    values = np.random.default_rng(key.seed).integers(0, 256, (3, 64, 64), dtype=np.uint8)
    return {"image": torch.from_numpy(values), "label": key.index}


@cache
def clean_run(lifetime: int) -> list[list[Any]]:
    """Return the samples of every epoch of a run that nothing happens to."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = ReuseDataset(build, SIZE, folder, ReusePolicy(lifetime, 7))
        epochs = []
        for epoch in range(NUM_EPOCHS if lifetime == LIFETIME else 1):
            dataset.set_epoch(epoch)
            epochs.append(list(dataset))
        return epochs


@dataclass
class Tally:
    """What came of a kind of fault."""

    trials: int = 0
    wrong: int = 0
    lost: int = 0
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Count a trial, and a run that is lost in it."""
        self.trials += 1
        try:
            yield
        except Exception as error:
            self.lost += 1
            self.notes.append(f"{type(error).__name__}: {error}")

    def look(self, dataset: ReuseDataset, epoch: int, indices: Any = range(SIZE)) -> None:
        """Count samples of an epoch that are not those of the clean run."""
        dataset.set_epoch(epoch)
        for index in indices:
            self.check(dataset[index], clean_run(dataset.policy.lifetime)[epoch][index])

    def go_through(self, loader: ReuseDataLoader) -> None:
        """Make a pass; count samples that are not those of the clean run, and missing ones."""
        clean = clean_run(loader.policy.lifetime)[loader.epoch]
        missing = set(range(SIZE))
        for batch in loader:
            for image, label in zip(batch["image"], batch["label"].tolist(), strict=True):
                self.check({"image": image, "label": label}, clean[label])
                missing.remove(label)  # KeyError: twice
        self.wrong += len(missing)

    def check(self, sample: Any, expected: Any) -> None:
        """Count a sample that is not the expected one."""
        same = torch.equal(sample["image"], expected["image"])
        self.wrong += not (same and sample["label"] == expected["label"])


def open_dataset(folder: Path) -> ReuseDataset:
    """Return the data set of the clean run, with samples of the fast format in a folder."""
    return ReuseDataset(build, SIZE, folder, ReusePolicy(LIFETIME, 7), **FORMATS["tensors"])


def open_loader(folder: Path, num_workers: int, build: Any = build) -> ReuseDataLoader:
    """Return a loader of the same samples, in batches of 4."""
    options = {"lifetime": LIFETIME, "seed": 7, "shuffle": True, "batch_size": 4}
    return ReuseDataLoader(
        build, SIZE, folder, num_workers=num_workers, **options, **FORMATS["tensors"]
    )


def when_free(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that opens a folder, as soon as no process works in that."""
    for _ in range(500):  # the system gives the lock back when the last worker is gone
        try:
            return function(*arguments)
        except FolderInUseError:
            time.sleep(0.02)
    return function(*arguments)


def in_child(tally: Tally, function: Callable[..., None], *arguments: Any) -> None:
    """Let a process of its own go through a trial and report."""
    queue = fork.SimpleQueue()

    def run() -> None:
        inner = Tally()
        with inner.trial():
            function(inner, *arguments)
        queue.put((inner.wrong, inner.lost, inner.notes))

    process = fork.Process(target=run)
    process.start()
    process.join()
    tally.trials += 1
    if process.exitcode != 0:
        tally.lost += 1
        return
    wrong, lost, notes = queue.get()
    tally.wrong, tally.lost, tally.notes = tally.wrong + wrong, tally.lost + lost, notes
