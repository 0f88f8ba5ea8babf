"""Errors and failed saves, in this process and in workers."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from builds import (
    SIZE,
    FailAt,
    bad_pixels,
    check_told,
    disk_full,
    draw,
    expected,
    names,
    open_loader,
    refuse_renames,
    same,
    stop,
    told,
    two_arguments,
)

from reuseloader import ReuseDataLoader, ReuseKey


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("role", ["build", "finish"])
@pytest.mark.parametrize("make_error", [bad_pixels, two_arguments, stop])
def test_an_error_in_a_worker_tells_its_text_and_key(
    make_error: Any, role: str, num_workers: int, tmp_path: Path
) -> None:
    loader = open_loader(
        tmp_path, **{role: FailAt(5, make_error)}, start_epoch=4, num_workers=num_workers
    )
    kinds = {bad_pixels: ValueError, stop: RuntimeError}
    before = set(multiprocessing.active_children())
    with pytest.raises(kinds.get(make_error, Exception)) as caught:
        list(loader)
    assert set(multiprocessing.active_children()) <= before  # the error is kept, they are not
    assert ("StopIteration" if make_error is stop else "bad pixels") in told(caught.value)
    check_told(caught.value, index=5, epoch=4, generation=2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_failed_batch_leaves_no_counts_to_the_next_pass(num_workers: int, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    def build(key: ReuseKey) -> dict[str, Any]:
        if key.index == 5 and broken.exists():
            raise ValueError("bad pixels")
        return draw(key)

    loader = open_loader(
        tmp_path / "cache", build=build, shuffle=False, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="bad pixels"):
        list(loader)
    broken.unlink()
    list(loader)
    assert loader.stats().built + loader.stats().reused == SIZE


def test_a_look_at_one_sample_is_not_counted_in_the_next_pass(tmp_path: Path) -> None:
    loader = open_loader(tmp_path)
    assert loader.dataset[3]["index"] == 3
    list(loader)
    assert loader.stats().built + loader.stats().reused == SIZE


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("fault", ["disk full", "folder gone", "rename refused"])
def test_a_failed_save_is_no_stop_and_is_counted(
    fault: str, num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    options = {"save": disk_full} if fault == "disk full" else {}
    loader = open_loader(folder, num_workers=num_workers, **options)
    if fault == "rename refused":
        refuse_renames(monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(3):
            if fault == "folder gone" and epoch == 0:
                shutil.rmtree(folder)
            assert same(list(loader), expected(epoch))
            kept = sum((epoch + index % 3) % 3 < 2 for index in range(SIZE))
            assert (loader.stats().built, loader.stats().save_errors) == (SIZE, kept)
    (message,) = [str(item.message) for item in caught if item.category is UserWarning]
    assert str(folder) in message
    if folder.exists():
        assert names(folder) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_folder_removed_midway_is_no_stop(num_workers: int, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    loader = open_loader(folder, num_workers=num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epoch in range(4):
            received = []
            for batch in loader:
                received.append(batch)
                if epoch == 1:
                    shutil.rmtree(folder, ignore_errors=True)
            assert same(received, expected(epoch))
    assert loader.stats().built == SIZE
    assert loader.stats().save_errors > 0


WARNINGS = """
import sys
import time
from pathlib import Path
from builds import draw, save_json
from reuseloader import ReuseDataLoader
folder = Path(sys.argv[1])
options = dict(lifetime=20, num_workers=2, shuffle=True)
list(ReuseDataLoader(draw, 10, folder, **options))
for index in (2, 5):
    (folder / f"0000000{index}.pt").write_bytes(b"")
(folder / "00000003.pt").unlink()
(folder / "00000004.pt").unlink()
loader = ReuseDataLoader(draw, 10, folder, **options, save=save_json)  # tensors are no JSON
for _ in range(2):
    list(loader)
    print(loader.stats().damaged, loader.stats().save_errors)
"""


def test_warnings_in_workers_reach_the_screen_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WARNINGS, str(tmp_path)],
        env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["2", "4", "2", "4"], done.stderr
    lines = [line for line in done.stderr.splitlines() if "Warning:" in line]
    assert len(lines) == 3, done.stderr  # two damaged files and one for all failed saves
    assert all(any(name in line for line in lines) for name in ("00000002.pt", "00000005.pt"))


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset by peer"), EOFError()])
@pytest.mark.parametrize("killed", [True, False])
def test_of_a_killed_worker_it_is_said_that_it_was(
    killed: bool, error: Exception, tmp_path: Path
) -> None:
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    worker.start()
    loader = ReuseDataLoader(draw, 4, tmp_path, lifetime=1, batch_size=2, num_workers=1)
    batches = iter(loader)
    next(batches)

    class Broken:
        """What it does when the memory of a batch is of a process that is gone."""

        _workers = (worker,)

        def __next__(self) -> Any:
            raise error

    batches.iterator = Broken()
    if killed:
        worker.kill()
        worker.join()
    expected = RuntimeError if killed else type(error)
    with pytest.raises(expected, match=rf"killed \(pid {worker.pid}\)" if killed else None):
        next(batches)
    worker.kill()
    worker.join()
