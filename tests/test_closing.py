"""A loader that is closed: its workers have ended, its folder is free, and nothing comes of it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builds import batches_of, draw, freshen, same, sleepy

from reuseloader import FolderInUseError, ReuseDataLoader, ReuseDataset, ReusePolicy, folder

OPEN = """
from builds import draw
from reuseloader import ReuseDataset, ReusePolicy
held = ReuseDataset(draw, 4, {!r}, ReusePolicy(9))
"""
WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    pytest.param(
        {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
        marks=pytest.mark.slow,
    ),
]


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Let what is referred to in a circle stay where it is."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make(directory: Path, build: Callable[..., Any] = draw, **options: Any) -> ReuseDataLoader:
    return ReuseDataLoader(build, 6, directory, lifetime=9, batch_size=2, **options)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("num_batches", [0, 1, 3])
def test_workers_end_and_another_process_may_use_the_folder(
    options: dict[str, Any], num_batches: int, start: Callable[..., Any], tmp_path: Path
) -> None:
    other = start()
    loader = make(tmp_path, **options)
    running = iter(loader)
    circle = [loader, running]
    circle.append(circle)  # type: ignore[arg-type]
    for _ in range(num_batches):
        next(running)
    pids = [worker.pid for worker in getattr(running.iterator, "_workers", [])]
    assert len(pids) == options["num_workers"]
    with pytest.raises(RuntimeError, match="FolderInUseError"):
        other.run(OPEN.format(str(tmp_path)))
    loader.close()
    assert not any(alive(pid) for pid in pids)
    other.run(OPEN.format(str(tmp_path)))
    with pytest.raises(FolderInUseError):
        make(tmp_path)


def test_two_passes_over_the_same_workers_and_one_over_its_own_end_together(tmp_path: Path) -> None:
    loader = make(tmp_path, num_workers=1, persistent_workers=True)
    passes = [iter(loader) for _ in range(3)]
    pids = {worker.pid for one in passes for worker in one.iterator._workers}  # type: ignore[attr-defined]
    assert len(pids) == 3
    loader.close()
    assert not any(alive(pid) for pid in pids)
    for one in passes:
        with pytest.raises(ValueError, match="closed"):
            next(one)


@pytest.mark.parametrize("options", WORKERS[:3], ids=str)
def test_nothing_can_be_asked_of_a_closed_loader(options: dict[str, Any], tmp_path: Path) -> None:
    loader = make(tmp_path, **options)
    running = iter(loader)
    next(running)
    state, stats = loader.state_dict(), loader.stats()
    loader.close()
    said = re.escape(f"this loader or dataset over {tmp_path} is closed; make a new one")
    for use in (
        lambda: next(running),
        lambda: iter(loader),
        lambda: loader.dataset[0],
        lambda: loader.dataset.__getitems__([0]),  # type: ignore[attr-defined]
        lambda: loader.dataset.set_epoch(3),  # type: ignore[attr-defined]
        lambda: loader.__enter__(),
    ):
        with pytest.raises(ValueError, match=said):
            use()
    assert (loader.state_dict(), loader.stats()) == (state, stats)


def test_closing_twice_is_closing_once_and_a_new_loader_goes_on(tmp_path: Path) -> None:
    first = make(tmp_path, seed=7, finish=freshen)
    assert same(list(first), batches_of(ReusePolicy(9, 7), 6, 0, 2, shuffle=False))
    state = first.state_dict()
    first.close()
    first.close()
    with make(tmp_path, seed=7, finish=freshen) as second:
        second.load_state_dict(state)
        assert same(list(second), batches_of(ReusePolicy(9, 7), 6, 1, 2, shuffle=False))
        assert (second.stats().built, second.stats().reused) == (0, 6)
    with pytest.raises(ValueError, match="closed"):
        iter(second)


@pytest.mark.parametrize(
    "make_one", [make, lambda folder: ReuseDataset(draw, 6, folder, ReusePolicy(9))]
)
def test_a_block_closes_at_its_end_and_when_it_is_left_by_an_error(
    make_one: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    other = start()
    with pytest.raises(KeyError), make_one(tmp_path) as one:
        raise KeyError("of the user")
    other.run(OPEN.format(str(tmp_path)))
    del one


def test_what_one_closes_the_other_keeps(start: Callable[..., Any], tmp_path: Path) -> None:
    other = start()
    first, second = make(tmp_path), make(tmp_path)
    first.close()
    first.close()
    with pytest.raises(RuntimeError, match="FolderInUseError"):
        other.run(OPEN.format(str(tmp_path)))
    assert len(list(second)) == 3
    second.close()
    other.run(OPEN.format(str(tmp_path)))


def test_a_closed_dataset_is_in_nobodys_way(tmp_path: Path) -> None:
    # With a warning, which is an error here, where both were open.
    first, second = (ReuseDataset(draw, 6, tmp_path, ReusePolicy(9, seed)) for seed in (1, 2))
    first.set_epoch(0)
    first.close()
    second.set_epoch(0)
    second.set_epoch(1)


@pytest.mark.parametrize("through", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_does_not_give_back_what_it_does_not_hold(
    through: Callable[[Any], Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    other = start()
    before = set(folder._holds)  # what tests before this one have left
    dataset = ReuseDataset(draw, 6, tmp_path, ReusePolicy(9))
    copied = through(dataset)
    assert copied[3]["index"] == 3
    copied.close()
    with pytest.raises(ValueError, match="closed"):
        copied[3]
    del copied
    with pytest.raises(RuntimeError, match="FolderInUseError"):
        other.run(OPEN.format(str(tmp_path)))
    assert dataset[3]["index"] == 3
    dataset.close()
    other.run(OPEN.format(str(tmp_path)))
    assert set(folder._holds) <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_forked_child_closes_its_parent_goes_on_with(
    persistent: bool, start: Callable[..., Any], tmp_path: Path, deadline: None
) -> None:
    other = start()
    loader = make(tmp_path, num_workers=2, persistent_workers=persistent)
    running = iter(loader)
    first = next(running)
    if (child := os.fork()) == 0:
        try:
            loader.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len([first, *running]) == 3
    assert len(list(loader)) == 3
    with pytest.raises(RuntimeError, match="FolderInUseError"):
        other.run(OPEN.format(str(tmp_path)))
    loader.close()
    other.run(OPEN.format(str(tmp_path)))


def test_closing_does_not_wait_for_a_build(tmp_path: Path, deadline: None) -> None:
    loader = make(tmp_path, sleepy, num_workers=1)
    running = iter(loader)
    (worker,) = running.iterator._workers  # type: ignore[attr-defined]
    loader.close()
    assert not alive(worker.pid)
