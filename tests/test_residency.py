"""Which indices are kept where not all fit: a function of (seed, index), and of nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from builds import batches_of, draw, freshen, same

from reuseloader import ReuseDataLoader, ReusePolicy, mix, resident_share
from reuseloader.residency import Residency

SIZE, BATCH, LIFETIME, SEED = 40, 5, 3, 7
POLICY = ReusePolicy(LIFETIME, SEED)


def make(folder: Path, **options: Any) -> ReuseDataLoader:
    defaults = {"lifetime": LIFETIME, "seed": SEED, "shuffle": True, "batch_size": BATCH}
    return ReuseDataLoader(draw, SIZE, folder, finish=freshen, **{**defaults, **options})


def kept(seed: int, share: float, size: int) -> set[int]:
    residency = Residency(seed, share)
    return {index for index in range(size) if residency.keeps(index)}


def stored(folder: Path) -> set[int]:
    return {int(path.stem) for path in folder.glob("*.pt")}


def check_pass(loader: ReuseDataLoader) -> None:
    epoch = loader.epoch
    expected = batches_of(POLICY, SIZE, epoch, BATCH)
    assert all(same(a, b) for a, b in zip(loader, expected, strict=True))


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.4, 1.0])
def test_an_index_is_kept_where_its_hash_lies_below_the_share(seed: int, share: float) -> None:
    expected = {i for i in range(500) if mix(seed, 8, i) / 2**64 < share}
    assert expected == kept(seed, share, 500)


def test_the_choice_is_pinned() -> None:
    assert kept(0, 0.25, 20) == {9, 3, 5, 17}


def test_a_smaller_share_is_part_of_a_larger_one() -> None:
    sets = [kept(3, share / 20, 400) for share in range(21)]
    assert all(a < b for a, b in itertools.pairwise(sets))
    assert [len(sets[0]), len(sets[20])] == [0, 400]
    assert all(abs(len(s) - 20 * n) < 40 for n, s in enumerate(sets))


@pytest.mark.parametrize("size", [1, 2, 10, 999])
def test_a_share_can_be_had_for_an_exact_number(size: int) -> None:
    for num_kept in {0, 1, size // 3, size - 1, size, size + 5}:
        share = resident_share(num_kept, size, seed=5)
        assert min(num_kept, size) == len(kept(5, share, size))


def test_of_very_many_indices_about_so_many_are_kept() -> None:
    assert resident_share(3 * 10**8, 10**9) == 0.3


@pytest.mark.parametrize("share", [-0.1, 1.1, True, "all", None, float("nan")])
def test_what_is_no_share_is_refused(share: Any, tmp_path: Path) -> None:
    rule = "resident must be a share from 0 to 1, but got resident="
    with pytest.raises(ValueError, match=rule):
        make(tmp_path, resident=share)
    loader = make(tmp_path)
    with pytest.raises(ValueError, match=rule):
        loader.resident = share
    assert loader.resident == 1.0


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_kept_ones_are_reused_and_the_others_built_at_each_use(
    share: float, tmp_path: Path
) -> None:
    loader = make(tmp_path, resident=share)
    mine = kept(SEED, share, SIZE)
    for epoch in range(5):
        check_pass(loader)
        first = [i for i in range(SIZE) if epoch == 0 or (epoch + i % LIFETIME) % LIFETIME == 0]
        built = len(set(first) | (set(range(SIZE)) - mine))
        assert (built, SIZE - built) == (loader.stats().built, loader.stats().reused)
        assert stored(tmp_path) <= mine
    last_use_in_epoch_0 = {i for i in mine if i % LIFETIME == LIFETIME - 1}
    assert stored(tmp_path) == mine  # each has been stored by now
    assert last_use_in_epoch_0 <= stored(tmp_path)


def test_the_share_may_change_between_epochs_and_under_running_workers(tmp_path: Path) -> None:
    loader = make(tmp_path, num_workers=2, persistent_workers=True, prefetch_factor=2)
    for share in (1.0, 0.2, 0.6, 0.0, 1.0):
        loader.resident = share
        assert share == loader.resident
        check_pass(loader)
        assert stored(tmp_path) <= kept(SEED, share, SIZE)  # what a larger share left is gone
    check_pass(loader)
    assert loader.stats().reused > 0


def test_a_run_that_goes_on_with_another_share_has_the_same_batches(tmp_path: Path) -> None:
    for start_epoch, share in enumerate((1.0, 0.3, 0.7, 0.0)):
        loader = make(tmp_path, start_epoch=start_epoch, resident=share)
        check_pass(loader)
        del loader


def test_a_damaged_file_of_an_index_that_is_left_out_is_not_read(tmp_path: Path) -> None:
    loader = make(tmp_path)
    check_pass(loader)
    for path in tmp_path.glob("*.pt"):
        path.write_bytes(b"damaged")
    loader.resident = 0.0
    check_pass(loader)
    assert (loader.stats().damaged, loader.stats().reused) == (0, 0)
    assert set() == stored(tmp_path)
