"""Many ranks: each finds what it reuses in its own folder, or all of them in one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builds import draw, same, samples_of
from torch.utils.data import BatchSampler, RandomSampler

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey, ReusePolicy, ReuseSampler
from reuseloader.mixing import mix

SEED = 7
CASES = [(24, 2, 3), (23, 2, 2), (23, 4, 3), (31, 3, 4), (12, 3, 1)]  # size, ranks, lifetime


def ranks_of(
    folders: list[Path], size: Any, lifetime: int, **options: Any
) -> list[ReuseDataLoader]:
    """The loaders of all ranks, with a folder each."""
    settings = {"lifetime": lifetime, "seed": SEED, "shuffle": True, "batch_size": 4} | options
    build = settings.pop("build", draw)
    return [
        ReuseDataLoader(build, size, folder, num_replicas=len(folders), rank=rank, **settings)
        for rank, folder in enumerate(folders)
    ]


def used(batches: list[Any]) -> list[int]:
    return [index for batch in batches for index in batch["index"].tolist()]


def starts(index: int, epoch: int, lifetime: int) -> bool:
    return epoch == 0 or (epoch + index % lifetime) % lifetime == 0


@pytest.mark.parametrize(
    ("size", "num", "lifetime", "num_workers"),
    [*((*case, 0) for case in CASES), (*CASES[1], 2)],
)
def test_each_rank_finds_every_sample_of_a_running_generation_in_its_own_folder(
    size: int, num: int, lifetime: int, num_workers: int, tmp_path: Path
) -> None:
    folders = [tmp_path / str(rank) for rank in range(num)]
    for epoch in range(2 * lifetime + 1):
        # Made anew: what a rank knows of earlier epochs is in its folder alone.
        loaders = ranks_of(folders, size, lifetime, start_epoch=epoch, num_workers=num_workers)
        for loader in loaders:
            indices = used(list(loader))
            new = sum(starts(index, epoch, lifetime) for index in indices)
            assert (new, len(indices) - new) == (loader.stats().built, loader.stats().reused)
            assert len(indices) == -(-size // num)


@pytest.mark.parametrize(("size", "num", "lifetime"), [(24, 2, 3), (48, 4, 2), (24, 3, 1)])
def test_a_folder_of_ones_own_holds_what_is_used_again_and_nothing_else(
    size: int, num: int, lifetime: int, tmp_path: Path
) -> None:
    policy = ReusePolicy(lifetime, SEED)
    folders = [tmp_path / str(rank) for rank in range(num)]
    plain = ranks_of([tmp_path / f"plain-{rank}" for rank in range(num)], size, lifetime)
    for _ in range(3 * lifetime):
        epoch = plain[0].epoch
        loaders = ranks_of(folders, size, lifetime, start_epoch=epoch, remove_used=True)
        for folder, loader, other in zip(folders, loaders, plain, strict=True):
            batches = list(loader)
            assert all(map(same, batches, other))
            assert loader.stats().built == other.stats().built
            kept = [i for i in used(batches) if not policy.key(i, epoch).is_last_use]
            assert {path.name for path in folder.iterdir()} == {f"{i:08d}.pt" for i in kept}
            assert len(kept) <= size // num


@pytest.mark.parametrize(("size", "num", "lifetime"), [(24, 2, 3), (24, 4, 2)])
def test_in_a_shared_folder_a_sample_is_built_once_a_generation_by_one_of_them(
    size: int, num: int, lifetime: int, tmp_path: Path
) -> None:
    builds: Counter[tuple[int, int]] = Counter()

    def count(key: ReuseKey) -> dict[str, Any]:
        builds[key.index, key.generation] += 1
        return draw(key)

    num_epochs = 2 * lifetime + 1
    loaders = ranks_of([tmp_path] * num, size, lifetime, build=count)
    for _ in range(num_epochs):
        for batches in zip(*loaders, strict=True):  # the ranks go side by side
            assert len(batches) == num
    policy = ReusePolicy(lifetime, SEED)
    generations = {
        (index, policy.key(index, epoch).generation)
        for index in range(size)
        for epoch in range(num_epochs)
    }
    assert builds == dict.fromkeys(generations, 1)
    assert sum(loader.stats().damaged for loader in loaders) == 0


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_ranks_together_give_the_samples_of_the_epoch(shuffle: bool, tmp_path: Path) -> None:
    loaders = ranks_of([tmp_path / str(r) for r in range(3)], 31, 2, shuffle=shuffle)
    for epoch in range(3):
        seen: dict[int, list[float]] = {}
        for loader in loaders:
            assert loader.order is not None
            batches = list(loader)
            indices = used(batches)[: loader.order.num_real(epoch)]
            rows = [row for batch in batches for row in batch["x"].tolist()]
            seen |= dict(zip(indices, rows, strict=False))
            assert (len(batches), len(batches[-1]["index"])) == (3, 3)
        expected = samples_of(ReusePolicy(2, SEED), range(31), epoch)
        assert {s["index"]: s["x"].tolist() for s in expected} == seen


def test_validation_prepared_once_is_found_again_by_every_rank(tmp_path: Path) -> None:
    folders = [tmp_path / str(rank) for rank in range(2)]
    for loader in ranks_of(folders, 5, FOREVER, shuffle=False):
        list(loader)
        assert (loader.stats().built, loader.stats().reused) == (3, 0)
        list(loader)
        assert (loader.stats().built, loader.stats().reused) == (0, 3)
    first, second = ranks_of(folders, 5, FOREVER, shuffle=False)
    assert (used(list(first)), used(list(second))) == ([0, 2, 4], [1, 3, 0])
    assert first.order is not None and second.order is not None
    assert (first.order.num_real(0), second.order.num_real(0)) == (3, 2)


def test_uneven_samples_and_short_batches_are_dropped_by_options_of_their_own(
    tmp_path: Path,
) -> None:
    def lengths(**options: Any) -> list[tuple[int, list[int]]]:
        folders = [tmp_path / str(rank) for rank in range(3)]
        loaders = ranks_of(folders, 29, 2, **options)
        return [(len(loader), [len(batch["index"]) for batch in loader]) for loader in loaders]

    assert lengths() == [(3, [4, 4, 2])] * 3
    assert lengths(drop_uneven=True) == [(3, [4, 4, 1])] * 3
    assert lengths(drop_last=True) == [(2, [4, 4])] * 3
    assert lengths(drop_last=True, drop_uneven=True, batch_size=9) == [(1, [9])] * 3
    assert lengths(drop_last=True, batch_size=10) == [(1, [10])] * 3


def test_the_sampler_follows_the_order_of_its_rank() -> None:
    policy = ReusePolicy(3, SEED)
    samplers = [
        ReuseSampler(policy, 70_001, num_replicas=3, rank=rank, drop_last=True) for rank in range(3)
    ]
    for sampler in samplers:
        sampler.set_epoch(4)
        assert len(sampler) == sampler.num_real == 23_333
        indices = list(sampler)
        assert [sampler.order.index(p, 4) for p in range(0, 23_333, 997)] == indices[::997]
        assert {type(index) for index in indices} == {int}
    assert len(set().union(*samplers)) == 69_999
    padded = [ReuseSampler(policy, 10, num_replicas=4, rank=rank) for rank in range(4)]
    assert [(len(sampler), sampler.num_real) for sampler in padded] == [
        (3, 3), (3, 3), (3, 2), (3, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("name", ["num_replicas", "block_size"])
def test_a_sampler_of_the_users_own_leaves_no_ranks_or_blocks_to_the_loader(
    kind: str, name: str, tmp_path: Path
) -> None:
    order = RandomSampler(range(12))
    value: Any = order if kind == "sampler" else BatchSampler(order, 4, False)
    with pytest.raises(ValueError, match=f"^{name} must be 1 with a sampler .*, but got {name}=2$"):
        ReuseDataLoader(draw, 12, tmp_path / "cache", lifetime=2, **{kind: value, name: 2})
    assert not (tmp_path / "cache").exists()
    loader = ReuseDataLoader(draw, 12, tmp_path, lifetime=2, **{kind: value})
    assert loader.order is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_replicas": 13}, "num_replicas must be at most the number of samples, 12"),
        ({"num_replicas": 2, "rank": 2}, r"rank must be in \[0, 2\), but got rank=2"),
        ({"num_replicas": 0}, "num_replicas must be a positive integer, but got num_replicas=0"),
        ({"block_size": 0}, "block_size must be a positive integer, but got block_size=0"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_folder_is_made(
    options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=text):
        ReuseDataLoader(draw, 12, tmp_path / "cache", lifetime=2, **options)
    assert not (tmp_path / "cache").exists()


def test_the_workers_of_each_rank_have_global_seeds_of_their_own(tmp_path: Path) -> None:
    loaders = ranks_of([tmp_path / str(rank) for rank in range(3)], 24, 2, start_epoch=5)
    for loader in loaders:
        iter(loader)
    seeds = [loader.generator.initial_seed() for loader in loaders]
    assert [mix(SEED, 4, 5) >> 1, mix(SEED, 4, 5, 1) >> 1, mix(SEED, 4, 5, 2) >> 1] == seeds
    assert len(set(seeds)) == 3
