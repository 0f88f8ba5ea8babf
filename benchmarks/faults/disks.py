"""Disks and folders: damaged files, a full disk, a lost folder, a second run, a wrong clock."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.faults.trial import (
    FORMATS,
    PROJECT,
    SIZE,
    Tally,
    build,
    clean_run,
    in_child,
    open_dataset,
    open_loader,
)
from reuseloader import FOREVER, FolderInUseError, ReuseDataLoader, ReuseDataset, ReusePolicy
from reuseloader.requests import EpochBatch

NOBODY = 65534


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


def _go_on_unsaved(tally: Tally, loader: ReuseDataLoader) -> None:
    """Make passes in which samples cannot be stored."""
    save_errors = 0
    for _ in range(3):
        tally.go_through(loader)
        save_errors += loader.stats().save_errors
    assert save_errors > 0


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
    _go_on_unsaved(tally, loader)
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
            in_child(tally, _fill_disk, place, bool(number % 2), mounted)
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
    _go_on_unsaved(tally, loader)


def lost_folders(folder: Path, trials: int) -> Tally:
    """Make the folder read-only, or delete it, in the middle of an epoch."""
    tally = Tally()
    for number in range(trials):
        place = folder / str(number)
        place.mkdir()
        if os.geteuid() == 0:
            for owned in (folder.parent, folder, place):
                os.chown(owned, NOBODY, -1)
        in_child(tally, _lose_folder, place, bool(number % 2))
    return tally


def open_second(folder: Path) -> None:
    """Be refused in a folder that another process works in."""
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
            "import sys; from pathlib import Path; from benchmarks.faults.disks import open_second;"
            "open_second(Path(sys.argv[1]))"
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
