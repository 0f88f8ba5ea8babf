"""Nothing may grow with the number of samples; memory is counted, never time."""

import gc
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reuseloader import (
    FOREVER,
    ReuseDataLoader,
    ReuseKey,
    ReusePolicy,
    ReuseSampler,
    load_tensors,
    save_tensors,
)
from reuseloader.requests import EpochBatch

BILLION = 10**9
MIB = 2**20


def build(key: ReuseKey) -> torch.Tensor:
    return torch.tensor(key.index)


def peak_bytes(work: Callable[[], Any]) -> int:
    """Most memory that ``work`` held at once; NumPy's arrays are counted too."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def take(iterator: Any, num: int) -> list[Any]:
    return [next(iterator) for _ in range(num)]


def test_the_first_indices_of_a_large_order_need_a_block_alone() -> None:
    sampler = ReuseSampler(ReusePolicy(2, 7), BILLION)
    assert peak_bytes(lambda: take(iter(sampler), 10)) < MIB


def test_an_epoch_of_an_order_needs_a_block_alone() -> None:
    size = 300_000
    sampler = ReuseSampler(ReusePolicy(2, 7), size)
    seen = np.zeros(size, dtype=bool)

    def run() -> None:
        for index in sampler:
            seen[index] = True

    # A list of all would take 12 MB, and what the rounds hold beside it as much again.
    assert peak_bytes(run) < 8 * MIB
    assert seen.all()


def test_the_memory_of_an_order_does_not_grow_with_its_size() -> None:
    def peak(size: int) -> int:
        iterator = iter(ReuseSampler(ReusePolicy(2, 7), size))
        return peak_bytes(lambda: [next(iterator) for _ in range(200_000)].clear())

    assert peak(BILLION) < 1.2 * peak(10**6)


def test_the_order_in_blocks_is_the_order() -> None:
    policy = ReusePolicy(3, 11)
    size = 70_001
    sampler = ReuseSampler(policy, size)
    sampler.set_epoch(4)
    assert list(sampler) == policy.order(np.arange(size), 4, size).tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_of_a_billion_samples_needs_little(shuffle: bool, tmp_path: Path) -> None:
    def run() -> None:
        loader = ReuseDataLoader(
            build, BILLION, tmp_path, lifetime=2, shuffle=shuffle, batch_size=4
        )
        take(iter(loader), 3)

    assert peak_bytes(run) < MIB


def test_later_epochs_hold_no_more_than_earlier_ones(tmp_path: Path) -> None:
    loader = ReuseDataLoader(build, 96, tmp_path, lifetime=2, shuffle=True, batch_size=8)

    def run() -> None:
        for _ in loader:
            pass

    run()
    run()
    gc.collect()
    tracemalloc.start()
    try:
        run()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            run()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 16_384


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system tells no PSS")
def test_workers_hold_no_more_after_later_epochs(tmp_path: Path) -> None:
    loader = ReuseDataLoader(
        build, 2000, tmp_path, lifetime=2, shuffle=True, batch_size=50,
        num_workers=2, persistent_workers=True, save=save_tensors, load=load_tensors,
    )  # fmt: skip

    def pss_bytes() -> int:
        workers = loader._iterator._workers  # type: ignore[union-attr]
        lines = [Path(f"/proc/{w.pid}/smaps_rollup").read_text() for w in workers]
        return sum(int(text.split("Pss:")[1].split()[0]) for text in lines)

    sizes = []
    for _ in range(4):
        for _ in loader:
            pass
        sizes.append(pss_bytes())
    assert sizes[3] <= 1.05 * sizes[1]


@pytest.mark.parametrize("lifetime", [1, 2, 3, 7, FOREVER, 2**70])
@pytest.mark.parametrize("seed", [0, 5, 2**64 - 3])
def test_keys_of_a_batch_are_the_keys_of_its_samples(lifetime: int, seed: int) -> None:
    policy = ReusePolicy(lifetime, seed)
    indices = [0, 1, 2, 12, 5, 5, 10**9, 2**63, 2**64 + 5]
    for epoch in (0, 1, 6, 10**6, 2**65):
        keys = policy.keys(indices, epoch)
        expected = [policy.key(index, epoch) for index in indices]
        assert keys == expected
        assert [key.use_seed for key in keys] == [key.use_seed for key in expected]
        assert [hash(key) for key in keys] == [hash(key) for key in expected]
        assert list(map(repr, keys)) == list(map(repr, expected))


def test_keys_of_a_batch_refuse_what_a_key_refuses() -> None:
    policy = ReusePolicy(2)
    assert policy.keys([], 3) == []
    assert policy.keys([np.int64(3)], 3) == [policy.key(3, 3)]
    for indices, epoch in [([-1], 0), ([1.5], 0), ([True], 0), ([0], -1), ([0], "1")]:
        with pytest.raises(ValueError, match="must be an integer from 0 up"):
            policy.keys(indices, epoch)  # type: ignore[arg-type]


def test_a_batch_of_indices_travels_as_numbers_alone() -> None:
    batch = EpochBatch(3, list(range(64)))
    assert len(pickle.dumps(batch)) < 64 * 3 + 200
