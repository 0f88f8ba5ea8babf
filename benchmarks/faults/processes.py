"""Processes that are killed: a whole run, or a worker of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.faults.trial import FORMATS, Tally, fork, open_dataset, open_loader, when_free
from reuseloader import FOREVER, ReuseDataLoader, ReuseKey, ReusePolicy

LARGE_SIZE, LARGE_SIDE = 16, 320  # 4 of these go through shared memory: they are over 1 MB


def build_large(key: ReuseKey) -> dict[str, Any]:
    """Make a sample of 307 kB from its key."""
    shape = (3, LARGE_SIDE, LARGE_SIDE)
    values = np.random.default_rng(key.seed).integers(0, 256, shape, dtype=np.uint8)
    return {"image": torch.from_numpy(values), "label": key.index}


def _cache_forever(folder: Path, said: Any) -> None:
    os.setsid()  # a group of its own, with the workers
    loader = open_loader(folder, num_workers=4)
    while True:
        for _ in loader:
            said.set()


def kills(folder: Path, trials: int) -> Tally:
    """Kill a process and its 4 workers at a random moment of an epoch that stores samples."""
    tally = Tally()
    for _ in range(trials):
        with tally.trial():
            said = fork.Event()
            process = fork.Process(target=_cache_forever, args=(folder, said))
            process.start()
            assert said.wait(120)
            time.sleep(random.uniform(0, 0.1))
            os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
            process.join()
            epoch = random.randrange(8)
            dataset = when_free(open_dataset, folder)
            tally.look(dataset, epoch)
            del dataset
            loader = when_free(open_loader, folder, 0)  # reads into the memory of batches
            loader.set_epoch(epoch + random.randrange(2))
            tally.go_through(loader)
            del loader
    return tally


def lost_workers(folder: Path, trials: int) -> Tally:
    """Kill a worker in the middle of an epoch: it is said, and the next pass is right."""
    tally = Tally()
    for number in range(trials):
        with tally.trial():
            loader = open_loader(folder / str(number), num_workers=2)
            iterator = iter(loader)
            next(iterator)
            _kill_worker(iterator, 0)
            with torch_s_handler_off():
                del iterator, loader
            tally.look(when_free(open_dataset, folder / str(number)), epoch=1)
    return tally


def _kill_worker(iterator: Any, number: int) -> list[Any]:
    """Kill a worker; return the batches that come before that is said."""
    batches = []
    try:
        iterator.iterator._workers[number].kill()
        for batch in iterator:
            batches.append(batch)
    except RuntimeError as error:
        assert "worker" in str(error), error
    return batches


@contextmanager
def torch_s_handler_off() -> Iterator[None]:
    """Let workers end without torch telling once more of the one that was killed."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)


def lost_workers_of_large_batches(folder: Path, trials: int) -> Tally:
    """Kill a worker, or break a pass off, while the user holds batches of shared memory.

    What is held has to stay as it was, and the next passes have to be right.
    """
    tally = Tally()
    for number in range(trials):
        with tally.trial():
            held: list[Any] = []
            for attempt in range(3):  # reading begins with the second pass
                loader = when_free(_open_large, folder / str(number))
                iterator = iter(loader)
                held += [next(iterator) for _ in range(random.randrange(1, 4))]
                if (number + attempt) % 2:
                    held += _kill_worker(iterator, number % 2)
                else:
                    held += [batch for batch, _ in zip(loader, range(2), strict=False)]
                with torch_s_handler_off():
                    del iterator, loader
            loader = when_free(_open_large, folder / str(number))
            for _ in range(3):
                held += list(loader)
            del loader
            for batch in held:
                for image, label in zip(batch["image"], batch["label"].tolist(), strict=True):
                    tally.check({"image": image, "label": label}, _large_samples()[label])
    return tally


@cache
def _large_samples() -> list[Any]:
    policy = ReusePolicy(FOREVER, 7)
    return [build_large(policy.key(index, 0)) for index in range(LARGE_SIZE)]


def _open_large(folder: Path) -> ReuseDataLoader:
    return ReuseDataLoader(
        build_large,
        LARGE_SIZE,
        folder,
        lifetime=FOREVER,
        seed=7,
        shuffle=True,
        batch_size=4,
        num_workers=2,
        persistent_workers=True,
        **FORMATS["tensors"],
    )
