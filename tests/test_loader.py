from __future__ import annotations

import random
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import (
    BATCH,
    POLICY,
    SIZE,
    counts_of,
    draw,
    expected,
    names,
    open_loader,
    same,
    samples_of,
)
from torch.utils.data import DataLoader, default_collate

from reuseloader import ReuseDataLoader, ReusePolicy, ReuseSampler


def test_it_is_a_data_loader(tmp_path: Path) -> None:
    loader = open_loader(tmp_path, drop_last=True)
    assert isinstance(loader, DataLoader)
    assert (len(loader), loader.epoch, loader.policy) == (3, 0, POLICY)
    assert len(loader.dataset) == SIZE
    assert (loader.batch_size, loader.drop_last, loader.pin_memory) == (BATCH, True, False)
    assert len(open_loader(tmp_path)) == 4


def test_the_epoch_rises_at_each_started_pass(tmp_path: Path) -> None:
    loader = open_loader(tmp_path, start_epoch=5)
    assert (loader.epoch, len(loader)) == (5, 4)
    batches = iter(loader)
    assert loader.epoch == 6
    next(batches)
    assert loader.epoch == 6
    for _ in loader:
        break
    assert loader.epoch == 7
    assert same(list(loader), expected(7))
    assert loader.epoch == 8


@pytest.mark.parametrize("lifetime", [1, 2, 3, 20])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_pass_holds_the_samples_of_its_epoch(
    lifetime: int, shuffle: bool, tmp_path: Path
) -> None:
    loader = open_loader(tmp_path, lifetime=lifetime, shuffle=shuffle)
    for epoch in range(6):
        assert same(list(loader), expected(epoch, ReusePolicy(lifetime, seed=7), shuffle))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("lifetime", [1, 2, 3])
def test_stats_are_those_of_the_last_pass_over_all_workers(
    lifetime: int, num_workers: int, tmp_path: Path
) -> None:
    loader = open_loader(tmp_path, lifetime=lifetime, num_workers=num_workers)
    for epoch in range(4):
        sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        assert len(list(loader)) == 4
        stats = loader.stats()
        assert (stats.built, stats.reused, stats.stored) == counts_of(SIZE, lifetime, epoch)
        assert (stats.damaged, stats.save_errors) == (0, 0)
        assert (stats.build_s > 0, stats.read_s > 0) == (stats.built > 0, stats.reused > 0)
        assert (stats.written_bytes > 0, stats.read_bytes > 0) == (
            stats.stored > 0,
            stats.reused > 0,
        )
        assert stats.read_bytes <= sum(sizes.values())
        assert len(names(tmp_path)) <= SIZE
        assert all(re.fullmatch(r"0000000\d\.pt", name) for name in names(tmp_path))
    assert lifetime > 1 or names(tmp_path) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stats_of_a_broken_pass_count_the_received_batches(
    num_workers: int, tmp_path: Path
) -> None:
    loader = open_loader(tmp_path, num_workers=num_workers)
    for epoch in range(2):
        for count, _ in enumerate(loader, start=1):
            stats = loader.stats()
            assert stats.built + stats.reused == min(count * BATCH, SIZE)
            if count == 2:
                break
        stats = loader.stats()
        assert stats.built + stats.reused == 2 * BATCH
        assert epoch > 0 or stats.built == 2 * BATCH


def test_stats_of_a_new_pass_start_at_zero(tmp_path: Path) -> None:
    loader = open_loader(tmp_path)
    assert (loader.stats().built, loader.stats().reused) == (0, 0)
    list(loader)
    batches = iter(loader)
    assert (loader.stats().built, loader.stats().reused) == (0, 0)
    next(batches)
    assert loader.stats().built + loader.stats().reused == BATCH


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three epochs left on the disk."""
    folder = tmp_path_factory.mktemp("stored")
    loader = open_loader(folder)
    for _ in range(3):
        list(loader)
    return folder


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("left", ["all", "half", "none", "damaged"])
def test_a_resume_equals_the_uninterrupted_run(
    left: str, num_workers: int, stored: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    shutil.copytree(stored, folder)
    for path in sorted(folder.iterdir())[:: 1 if left == "none" else 2]:
        if left == "damaged":
            path.write_bytes(path.read_bytes()[:100])
        elif left != "all":
            path.unlink()
    loader = open_loader(folder, start_epoch=3, num_workers=num_workers)
    for epoch in range(3, 7):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if left == "damaged" else "error")
            assert same(list(loader), expected(epoch))
        if left == "all":
            counts = (loader.stats().built, loader.stats().reused, loader.stats().stored)
            assert counts == counts_of(SIZE, 3, epoch)
        # Two of the five are at their last use in epoch 3, and so replaced in epoch 4 alone.
        assert loader.stats().damaged == ({3: 5, 4: 2}.get(epoch, 0) if left == "damaged" else 0)


def test_a_start_far_on_with_an_empty_folder_is_the_schedule(tmp_path: Path) -> None:
    loader = open_loader(tmp_path, start_epoch=37)
    for epoch in range(37, 40):
        assert same(list(loader), expected(epoch))


def test_the_reuse_sampler_follows_the_order_of_the_policy() -> None:
    sampler = ReuseSampler(POLICY, SIZE)
    assert len(sampler) == SIZE
    for epoch in [0, 1, 5]:
        sampler.set_epoch(epoch)
        order = [POLICY.order(position, epoch, SIZE) for position in range(SIZE)]
        assert list(sampler) == list(sampler) == order
        assert {type(index) for index in sampler} == {int}


class Backwards:
    """A sampler of the user's own, with numpy indices and repetitions."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[np.int64]:
        return iter(np.array(self.indices))

    def __len__(self) -> int:
        return len(self.indices)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_of_the_users_own_is_followed(num_workers: int, tmp_path: Path) -> None:
    indices = [9, 3, 3, 0, 8]
    loader = open_loader(
        tmp_path, sampler=Backwards(indices), shuffle=False, num_workers=num_workers
    )
    assert len(loader) == 2
    for epoch in range(4):
        samples = samples_of(POLICY, indices, epoch)
        assert same(list(loader), [default_collate(samples[:3]), default_collate(samples[3:])])
        assert loader.stats().built + loader.stats().reused == 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_sampler_of_the_users_own_is_followed(num_workers: int, tmp_path: Path) -> None:
    batches = [[1, 2], [9], [0, 5, 1]]
    options: dict[str, Any] = {"batch_size": 1, "shuffle": False, "batch_sampler": batches}
    loader = open_loader(tmp_path, num_workers=num_workers, **options)
    assert len(loader) == 3
    for epoch in range(4):
        assert same(
            list(loader), [default_collate(samples_of(POLICY, batch, epoch)) for batch in batches]
        )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_function_of_the_users_own_is_called(num_workers: int, tmp_path: Path) -> None:
    loader = open_loader(tmp_path, collate_fn=tuple, shuffle=False, num_workers=num_workers)
    samples = samples_of(POLICY, range(SIZE), 0)
    assert same(list(loader), [tuple(samples[i : i + BATCH]) for i in range(0, SIZE, BATCH)])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_a_batch_size_the_samples_come_one_by_one(num_workers: int, tmp_path: Path) -> None:
    loader = open_loader(tmp_path, batch_size=None, num_workers=num_workers)
    assert len(loader) == SIZE
    for epoch in range(3):
        order = [POLICY.order(position, epoch, SIZE) for position in range(SIZE)]
        assert same(list(loader), samples_of(POLICY, order, epoch))
        assert loader.stats().built + loader.stats().reused == SIZE


def test_drop_last_drops_the_short_batch(tmp_path: Path) -> None:
    loader = open_loader(tmp_path, drop_last=True)
    assert same(list(loader), expected(0)[:3])
    assert loader.stats().built == 9


@pytest.mark.skipif(torch.cuda.is_available(), reason="batches would be pinned")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_pin_memory_goes_through(tmp_path: Path) -> None:
    assert same(list(open_loader(tmp_path, pin_memory=True)), expected(0))


@pytest.mark.parametrize(
    "options", [{"sampler": [1]}, {"num_workers": -1}, {"prefetch_factor": 2}, {"batch_size": 0}]
)
def test_what_data_loader_refuses_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        open_loader(tmp_path, **options)


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="num_wrokers"):
        open_loader(tmp_path, num_wrokers=2)


def global_state() -> tuple[Any, ...]:
    _, keys, *rest = np.random.get_state()
    return random.getstate(), keys.tolist(), rest, torch.get_rng_state().tolist()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_global_generators_stay_as_they_were(
    num_workers: int, persistent: bool, tmp_path: Path
) -> None:
    loader = open_loader(
        tmp_path, num_workers=num_workers, persistent_workers=persistent and num_workers > 0
    )
    before = global_state()
    list(loader)
    next(iter(loader))
    list(loader)
    assert global_state() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lifetime", 0), ("lifetime", -1), ("lifetime", 1.5), ("lifetime", "3"),
        ("lifetime", None), ("size", 0), ("size", -4), ("size", 2.5), ("start_epoch", -1),
        ("start_epoch", 0.5), ("seed", "abc"), ("seed", 1.5), ("seed", None),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_its_rule_and_value(
    field: str, value: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"lifetime": 2, field: value}
    size = options.pop("size", SIZE)
    with pytest.raises(ValueError, match=rf"^{field} must be .+, but got {field}={value!r}"):
        ReuseDataLoader(draw, size, tmp_path / "cache", **options)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("first", "second"), [(-1, 2**64 - 1), (5, 5 + 2**64), (np.int64(5), 5)])
def test_seeds_are_taken_modulo_two_to_the_64(first: Any, second: Any, tmp_path: Path) -> None:
    assert same(
        list(open_loader(tmp_path / "a", seed=first)),
        list(open_loader(tmp_path / "b", seed=second)),
    )


def test_numpy_integers_are_integers(tmp_path: Path) -> None:
    loader = open_loader(tmp_path, lifetime=np.int64(3), start_epoch=np.int32(2))
    assert same(list(loader), expected(2))
