"""What goes wrong on real machines, done on purpose: python -m benchmarks.faults

Each trial is followed by a look at samples: every bit has to be that of a clean run, in a folder of
its own that nothing happens to. `wrong` counts samples that were not; `lost` counts runs that could
not go on, or that were not told what happened.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import environment
from reuseloader import (
    FOREVER,
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
from reuseloader.requests import EpochBatch

PROJECT = Path(__file__).resolve().parent.parent
FORMATS: dict[str, Any] = {
    "torch": {"save": save_torch, "load": load_torch},
    "tensors": {"save": save_tensors, "load": load_tensors},
}
SIZE, LIFETIME, NOBODY = 64, 4, 65534
NUM_EPOCHS = 24  # of the clean run
LARGE_SIZE, LARGE_SIDE = 16, 320  # 4 of these go through shared memory: they are over 1 MB
fork = get_context("fork")


def build(key: ReuseKey) -> dict[str, Any]:
    """Make a sample of 12 kB from its key."""
    values = np.random.default_rng(key.seed).integers(0, 256, (3, 64, 64), dtype=np.uint8)
    return {"image": torch.from_numpy(values), "label": key.index}


def build_large(key: ReuseKey) -> dict[str, Any]:
    """Make a sample of 307 kB from its key."""
    shape = (3, LARGE_SIDE, LARGE_SIDE)
    values = np.random.default_rng(key.seed).integers(0, 256, shape, dtype=np.uint8)
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


def open_dataset(folder: Path, form: str = "tensors", build: Any = build) -> ReuseDataset:
    return ReuseDataset(build, SIZE, folder, ReusePolicy(LIFETIME, 7), **FORMATS[form])


def open_loader(folder: Path, num_workers: int, build: Any = build) -> ReuseDataLoader:
    options = {"lifetime": LIFETIME, "seed": 7, "shuffle": True, "batch_size": 4}
    return ReuseDataLoader(
        build, SIZE, folder, num_workers=num_workers, **options, **FORMATS["tensors"]
    )


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
            dataset = _when_free(open_dataset, folder)
            tally.look(dataset, epoch)
            del dataset
            loader = _when_free(open_loader, folder, 0)  # reads into the memory of batches
            loader.set_epoch(epoch + random.randrange(2))
            tally.go_through(loader)
            del loader
    return tally


def _when_free(function: Callable[..., Any], *arguments: Any) -> Any:
    for _ in range(500):  # the system gives the lock back when the last worker is gone
        try:
            return function(*arguments)
        except FolderInUseError:
            time.sleep(0.02)
    return function(*arguments)


def _damage(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    kind = random.choice(("flip", "cut", "zero", "foreign"))
    place = random.randrange(len(data))
    if kind == "flip":
        data[place] ^= 1 << random.randrange(8)
    elif kind == "cut":
        del data[place:]
    elif kind == "zero":
        end = min(len(data), place + random.randrange(1, 4096))
        data[place:end] = bytes(end - place)
    else:
        data = bytearray(random.choice((other.read_bytes(), random.randbytes(999), b"{}")))
    path.write_bytes(data)


def damages(folder: Path, trials: int) -> Tally:
    """Change a stored file: a bit, its length, a piece of zeros, another file in its place.

    Samples of the fast format are read by themselves and, every second time, with three others
    into the memory of a batch.
    """
    tally = Tally()
    for form in FORMATS:
        dataset = ReuseDataset(build, SIZE, folder / form, ReusePolicy(FOREVER, 7), **FORMATS[form])
        tally.look(dataset, 0)
        collate = dataset.read_batches()
        files = sorted((folder / form).glob("*.pt"))
        for number in range(trials // len(FORMATS)):
            with tally.trial():
                indices = random.sample(range(SIZE), 4 if number % 2 else 1)
                _damage(files[random.choice(indices)], random.choice(files))
                if number % 2:
                    _look_at_batch(tally, dataset, collate, indices)
                else:
                    tally.look(dataset, 0, indices)
    return tally


def _look_at_batch(tally: Tally, dataset: ReuseDataset, collate: Any, indices: list[int]) -> None:
    batch = collate(dataset.__getitems__(EpochBatch(0, indices)))
    dataset.hand_over()
    for image, label, index in zip(batch["image"], batch["label"], indices, strict=True):
        expected = clean_run(FOREVER)[0][index]
        tally.check({"image": image, "label": int(label)}, expected)


def _in_child(tally: Tally, function: Callable[..., None], *arguments: Any) -> None:
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


def _fill_disk(tally: Tally, folder: Path, midway: bool, mounted: bool) -> None:
    loader = open_loader(folder, num_workers=2 if mounted else 0)
    if midway and not mounted:
        tally.go_through(loader)
    if not mounted:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))  # of the 12 kB of a sample
    elif not midway:
        with suppress(OSError), open(folder / "filler", "wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
    save_errors = 0
    for _ in range(3):
        tally.go_through(loader)
        save_errors += loader.stats().save_errors
    assert save_errors > 0
    assert not list(folder.glob("*.tmp"))


@contextmanager
def small_disk(folder: Path, wanted: bool) -> Iterator[bool]:
    """Mount a disk that holds half of the samples, where that is possible; say whether it was."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE * 12 // 2}k", "tmpfs", str(folder)]
    possible = wanted and os.geteuid() == 0 and shutil.which("mount") is not None
    mounted = possible and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def full_disks(folder: Path, trials: int) -> Tally:
    """Let every write fail from the start, or from some moment on.

    By turns on a small disk of its own, where one can be mounted, and by RLIMIT_FSIZE.
    """
    tally = Tally()
    for number in range(trials):
        place = folder / str(number)
        place.mkdir()
        with small_disk(place, wanted=number % 4 >= 2) as mounted:
            _in_child(tally, _fill_disk, place, bool(number % 2), mounted)
    return tally


def _lose_folder(tally: Tally, folder: Path, delete: bool) -> None:
    if os.geteuid() == 0 and not delete:  # who is root may write everywhere
        os.setuid(NOBODY)
    loader = open_loader(folder, num_workers=2)
    for number, _ in enumerate(loader):
        if number == SIZE // 8:  # of twice as many batches
            break
    if delete:
        shutil.rmtree(folder)
    else:
        folder.chmod(0o500)
    save_errors = 0
    for _ in range(3):
        tally.go_through(loader)
        save_errors += loader.stats().save_errors
    assert save_errors > 0


def lost_folders(folder: Path, trials: int) -> Tally:
    """Make the folder read-only, or delete it, in the middle of an epoch."""
    tally = Tally()
    for number in range(trials):
        place = folder / str(number)
        place.mkdir()
        if os.geteuid() == 0:
            for owned in (folder.parent, folder, place):
                os.chown(owned, NOBODY, -1)
        _in_child(tally, _lose_folder, place, bool(number % 2))
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
            tally.look(_when_free(open_dataset, folder / str(number)), epoch=1)
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
                loader = _when_free(_open_large, folder / str(number))
                iterator = iter(loader)
                held += [next(iterator) for _ in range(random.randrange(1, 4))]
                if (number + attempt) % 2:
                    held += _kill_worker(iterator, number % 2)
                else:
                    held += [batch for batch, _ in zip(loader, range(2), strict=False)]
                with torch_s_handler_off():
                    del iterator, loader
            loader = _when_free(_open_large, folder / str(number))
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


def memory_errors(folder: Path, trials: int) -> Tally:
    """Let the build fail as it does when memory runs out: it is said where, and can go on."""
    tally = Tally()
    for number in range(trials):
        bad = random.randrange(SIZE)

        def fail(key: ReuseKey, bad: int = bad) -> Any:
            if key.index == bad:
                raise MemoryError("no memory left")
            return build(key)

        with tally.trial():
            loader = open_loader(folder / str(number), num_workers=2 * (number % 2), build=fail)
            try:
                list(loader)
                raise AssertionError("the error is lost")
            except MemoryError as error:
                assert f"index={bad}" in str(error)
            del loader
            tally.look(_when_free(open_dataset, folder / str(number)), epoch=0)
    return tally


def _open_second(tally: Tally, folder: Path) -> None:
    try:
        open_dataset(folder)
    except FolderInUseError as error:
        assert str(folder) in str(error)
        return
    raise AssertionError("nobody noticed")


def two_runs(folder: Path, trials: int) -> Tally:
    """Start a second run in the folder of a first: it is refused, and the first goes on."""
    tally = Tally()
    first = open_dataset(folder)
    for number in range(trials):
        tally.look(first, number, range(SIZE // 2))
        command = (
            "import sys; from pathlib import Path; from benchmarks import faults;"
            "tally = faults.Tally(); faults._open_second(tally, Path(sys.argv[1]))"
        )
        done = subprocess.run([sys.executable, "-c", command, str(folder)], cwd=PROJECT)
        tally.trials += 1
        tally.lost += done.returncode != 0
        tally.look(first, number)
    return tally


def clocks(folder: Path, trials: int) -> Tally:
    """Let files be from the future, as after a clock was set back, or from 1970."""
    tally = Tally()
    dataset = ReuseDataset(build, SIZE, folder, ReusePolicy(FOREVER, 7))
    tally.look(dataset, 0)
    for number in range(trials):
        with tally.trial():
            for path in folder.iterdir():
                os.utime(path, (4e9 * (number % 2), 4e9 * (number % 2)))
            tally.look(dataset, 0)
    assert dataset.stats().built == SIZE
    return tally


def bad_losses(folder: Path, trials: int) -> Tally:
    """Let training diverge: it stops with epoch and step, and the last checkpoint is good."""
    tally = Tally()
    small = ("data.train.limit=64", "data.val.limit=20", "num_workers=0", "tracker=csv")
    rate = ("schedule=multistep", "schedule.milestones=[1]", "schedule.gamma=1e20")  # in epoch 1
    wild = ("augment=none", "optimizer=sgd", *rate, "checkpoint.every_steps=1", "epochs=3")
    for number in range(trials):
        with tally.trial():
            run = folder / str(number)
            command = [sys.executable, "train.py", *small, *wild, f"hydra.run.dir={run}"]
            done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
            error = json.loads((run / "status.json").read_text())["error"]
            assert done.returncode == 1 and "epoch 1, step" in error, error
            last = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
            step = int(error.rpartition("step ")[2].split()[0])
            assert 2 <= last["step"] <= step  # of epoch 0, or of the update before it
            tally.wrong += not all(bool(value.isfinite().all()) for value in last["model"].values())
    return tally


KINDS: dict[str, tuple[Callable[[Path, int], Tally], int]] = {
    "SIGKILL in a caching epoch, 4 workers": (kills, 200),
    "bit flip, cut, zeros, foreign file; both formats": (damages, 10_000),
    "full disk, from the start and midway": (full_disks, 20),
    "folder read-only or deleted midway": (lost_folders, 20),
    "worker killed": (lost_workers, 20),
    "worker killed, pass broken off, while batches over 1 MB are held": (
        lost_workers_of_large_batches,
        20,
    ),
    "MemoryError in build": (memory_errors, 20),
    "two runs on one folder": (two_runs, 20),
    "clock set back": (clocks, 20),
    "NaN loss": (bad_losses, 3),
}


def run_kind(name: str, trials: int | None = None) -> Tally:
    """Do so many trials of a kind in a new folder."""
    function, usual = KINDS[name]
    with tempfile.TemporaryDirectory() as parent, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(parent) / "samples"
        folder.mkdir()
        return function(folder, usual if trials is None else trials)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of trials")
    parser.add_argument("--only", default="", help="kinds whose name holds this text")
    options = parser.parse_args()
    share = options.share
    for name, value in environment().items():
        print(f"{name}: {value}")
    print("\n| fault | trials | wrong samples | runs lost |\n|---|---:|---:|---:|")
    failed = False
    for name, (_, trials) in KINDS.items():
        if options.only not in name:
            continue
        tally = run_kind(name, max(1, round(share * trials)))
        print(f"| {name} | {tally.trials} | {tally.wrong} | {tally.lost} |", flush=True)
        for note in tally.notes[:3]:
            print(note, file=sys.stderr)
        failed = failed or bool(tally.wrong or tally.lost)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
