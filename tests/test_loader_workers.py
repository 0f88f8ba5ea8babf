"""The same batches from every number and kind of workers, however the passes are mixed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from builds import batches_of, counts_of, draw, freshen, same

from reuseloader import ReuseDataLoader, ReusePolicy

SIZE, BATCH, LIFETIME = 14, 3, 2
POLICY = ReusePolicy(LIFETIME, seed=7)

# More workers than cores are a question of speed, which is not the question here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

slow = pytest.mark.slow
WORKERS = [
    (0, None, False),
    (1, "fork", False),
    (2, "fork", False),
    (2, "fork", True),
    (4, "fork", False),
    (4, "fork", True),
    (1, "spawn", True),
    (2, "forkserver", True),
    pytest.param((2, "spawn", False), marks=slow),
    pytest.param((4, "spawn", True), marks=slow),
    pytest.param((1, "forkserver", False), marks=slow),
    pytest.param((4, "forkserver", True), marks=slow),
]
FORKED = [case for case in WORKERS[:6] if case != (1, "fork", False)]


def make(folder: Path, workers: tuple[int, str | None, bool], **options: Any) -> ReuseDataLoader:
    num_workers, context, persistent = workers
    return ReuseDataLoader(
        draw, SIZE, folder, lifetime=LIFETIME, seed=7, shuffle=True, finish=freshen,
        batch_size=BATCH, num_workers=num_workers, multiprocessing_context=context,
        persistent_workers=persistent, **options,
    )  # fmt: skip


def expected(epoch: int) -> list[Any]:
    return batches_of(POLICY, SIZE, epoch, BATCH)


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_all_kinds_of_workers_give_the_batches_of_the_schedule(
    workers: tuple[int, str | None, bool], tmp_path: Path
) -> None:
    loader = make(tmp_path, workers)
    for epoch in range(2):
        assert same(list(loader), expected(epoch))
        stats = loader.stats()
        assert (stats.built, stats.reused, stats.stored) == counts_of(SIZE, LIFETIME, epoch)
    for batch in loader:
        assert same(batch, expected(2)[0])
        break
    assert same(list(loader), expected(3))
    stats = loader.stats()
    assert stats.built + stats.reused == SIZE
    left = sorted(path.name for path in tmp_path.iterdir())
    assert set(left) <= {f"{index:08d}.pt" for index in range(SIZE)}


@pytest.mark.parametrize("workers", FORKED, ids=str)
def test_two_live_passes_keep_their_epochs(
    workers: tuple[int, str | None, bool], tmp_path: Path
) -> None:
    loader = make(tmp_path, workers)
    passes = [iter(loader), iter(loader)]
    received: list[list[Any]] = [[], []]
    for _ in range(len(loader)):
        for batches, got in zip(passes, received, strict=True):
            got.append(next(batches))
    assert same(received[0], expected(0))
    assert same(received[1], expected(1))
    for batches in passes:
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize("workers", FORKED, ids=str)
def test_a_pass_begun_within_a_pass_keeps_both_epochs(
    workers: tuple[int, str | None, bool], tmp_path: Path
) -> None:
    loader = make(tmp_path, workers)
    outer = []
    for batch in loader:
        outer.append(batch)
        if len(outer) == 2:
            assert same(list(loader), expected(1))
    assert same(outer, expected(0))
    assert same(list(loader), expected(2))


@pytest.mark.parametrize("workers", FORKED, ids=str)
def test_passes_broken_off_one_after_the_other_keep_their_epochs(
    workers: tuple[int, str | None, bool], tmp_path: Path
) -> None:
    loader = make(tmp_path, workers)
    for epoch in range(5):
        batches = iter(loader)
        for number in range(epoch):
            assert same(next(batches), expected(epoch)[number])
    del batches
    gc.collect()
    assert same(list(loader), expected(5))


def test_two_loaders_over_one_folder_take_nothing_wrong_from_each_other(tmp_path: Path) -> None:
    workers = (2, "fork", True)
    first, second = make(tmp_path, workers), make(tmp_path, workers, start_epoch=3)
    for epoch in range(3):
        pairs = list(zip(first, second, strict=True))
        assert same([pair[0] for pair in pairs], expected(epoch))
        assert same([pair[1] for pair in pairs], expected(epoch + 3))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_two_live_passes_of_spawned_workers_keep_their_epochs(context: str, tmp_path: Path) -> None:
    test_two_live_passes_keep_their_epochs((1, context, True), tmp_path)
    test_two_live_passes_keep_their_epochs((1, context, False), tmp_path)


def test_a_larger_prefetch_changes_nothing(tmp_path: Path) -> None:
    loader = make(tmp_path, (2, "fork", True), prefetch_factor=5)
    for epoch in range(3):
        assert same(list(loader), expected(epoch))
