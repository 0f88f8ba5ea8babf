from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import (
    SIZE,
    batches_of,
    counts_of,
    draw,
    freshen,
    names,
    number,
    open_dataset,
    read,
    same,
    samples_of,
)
from torch.utils.data import DataLoader

from reuseloader import ReuseKey


@pytest.mark.parametrize("lifetime", [1, 2, 3, 20])
def test_every_epoch_holds_the_samples_of_its_keys(lifetime: int, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, lifetime, finish=freshen)
    for epoch in range(7):
        assert same(read(dataset, epoch), samples_of(dataset.policy, range(SIZE), epoch))


@pytest.mark.parametrize("lifetime", [1, 2, 3, 20])
def test_counts_are_those_of_the_schedule(lifetime: int, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, lifetime)
    expected = np.zeros(3, dtype=int)
    for epoch in range(7):
        read(dataset, epoch)
        expected += counts_of(SIZE, lifetime, epoch)
        stats = dataset.stats()
        assert [stats.built, stats.reused, stats.stored] == expected.tolist()
        assert (stats.damaged, stats.save_errors) == (0, 0)


def test_bytes_and_seconds_are_those_of_the_files(tmp_path: Path) -> None:
    def build(key: ReuseKey) -> dict[str, Any]:
        time.sleep(0.01)
        return draw(key)

    dataset = open_dataset(tmp_path, 20, build=build)
    read(dataset, 0)
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert (dataset.stats().written_bytes, dataset.stats().read_bytes) == (total, 0)
    assert 0.1 <= dataset.stats().build_s < 2
    assert dataset.stats().read_s == 0
    read(dataset, 0)
    assert (dataset.stats().written_bytes, dataset.stats().read_bytes) == (total, total)
    assert 0 < dataset.stats().read_s < 2


def test_a_sample_is_built_once_a_generation_in_any_order(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def build(key: ReuseKey) -> int:
        calls.append((key.index, key.generation))
        return key.seed

    dataset = open_dataset(tmp_path, 3, build=build)
    for epoch in range(6):
        dataset.set_epoch(epoch)
        for index in np.random.default_rng(epoch).permutation(SIZE):
            dataset[index]
    assert len(calls) == len(set(calls))
    assert set(calls) == {(i, (e + i % 3) // 3) for i in range(SIZE) for e in range(6)}


def test_one_file_an_index_and_never_more_files_than_samples(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, 3)
    read(dataset, 0)
    assert names(tmp_path) == [f"{i:08d}.pt" for i in range(SIZE) if i % 3 != 2]
    for epoch in range(1, 8):
        read(dataset, epoch)
        assert names(tmp_path) == [f"{i:08d}.pt" for i in range(SIZE)][: len(names(tmp_path))]


def test_a_lifetime_of_one_writes_nothing(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, 1)
    for epoch in range(3):
        read(dataset, epoch)
    assert names(tmp_path) == []
    assert (dataset.stats().stored, dataset.stats().written_bytes) == (0, 0)


@pytest.mark.parametrize("use", [0, 1, 2])
def test_only_a_sample_that_is_used_again_is_stored(use: int, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, 3)
    dataset.set_epoch(6 + use)
    dataset[3]
    assert names(tmp_path) == (["00000003.pt"] if use < 2 else [])


@pytest.mark.parametrize(
    "change",
    [{"lifetime": 4}, {"seed": 8}, {"fingerprint": "b"}, {"fingerprint": ""}, {"epoch": 3}],
)
def test_a_file_of_another_identity_is_made_again(change: dict[str, Any], tmp_path: Path) -> None:
    read(open_dataset(tmp_path, 3, fingerprint="a"), 0)
    options = {"lifetime": 3, "fingerprint": "a", **change}
    epoch = options.pop("epoch", 0)
    dataset = open_dataset(tmp_path, **options)
    dataset.set_epoch(epoch)
    assert same(dataset[0], draw(dataset.policy.key(0, epoch)))
    assert (dataset.stats().built, dataset.stats().reused, dataset.stats().damaged) == (1, 0, 0)
    assert (dataset[0]["index"], dataset.stats().reused) == (0, 1)  # in the same file
    assert "00000000.pt" in names(tmp_path)


def test_a_file_of_the_same_identity_is_read_by_a_later_dataset(tmp_path: Path) -> None:
    read(open_dataset(tmp_path, 20, fingerprint="a", seed=-1), 0)
    dataset = open_dataset(tmp_path, 20, fingerprint="a", seed=2**64 - 1)
    assert same(read(dataset, 0), [draw(dataset.policy.key(i, 0)) for i in range(SIZE)])
    assert (dataset.stats().built, dataset.stats().reused) == (0, SIZE)


def test_finish_runs_on_every_use_and_is_not_stored(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, 20, finish=freshen)
    read(dataset, 0)
    plain = open_dataset(tmp_path, 20)
    assert same(plain[4], draw(plain.policy.key(4, 0)))
    assert same(read(dataset, 1), samples_of(dataset.policy, range(SIZE), 1))


def test_a_save_sees_a_temporary_name_and_the_whole_old_file(tmp_path: Path) -> None:
    seen: list[tuple[str, list[str]]] = []

    def save(obj: Any, path: Any) -> None:
        seen.append((Path(path).name, names(tmp_path)))
        torch.save(obj, path)
        assert Path(path).parent == tmp_path

    def load(path: Any) -> Any:
        return torch.load(path, weights_only=False)

    dataset = open_dataset(tmp_path, 2, save=save, load=load)
    dataset[0]
    dataset.set_epoch(2)
    dataset[0]
    assert all(re.fullmatch(r"00000000\.pt\..+\.tmp", name) for name, _ in seen)
    assert [("00000000.pt" in before) for _, before in seen] == [False, True]
    assert names(tmp_path) == ["00000000.pt"]


@pytest.mark.parametrize("index", [SIZE, -1, SIZE + 5, -SIZE, np.int64(SIZE), np.int64(-1)])
def test_an_index_outside_is_an_index_error(index: int, tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        open_dataset(tmp_path)[index]


def test_a_list_of_the_dataset_ends(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, build=number)
    assert list(dataset) == [dataset.policy.key(index, 0).seed for index in range(SIZE)]
    assert len(dataset) == SIZE


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_numpy_indices_work(kind: Any, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path)
    assert same(dataset[kind(4)], draw(dataset.policy.key(4, 0)))
    assert type(dataset[kind(4)]["index"]) is int
    assert names(tmp_path) == ["00000004.pt"]


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_plain_loader_follows_set_epoch(
    num_workers: int, persistent: bool, tmp_path: Path
) -> None:
    dataset = open_dataset(tmp_path, 3, finish=freshen)
    loader = DataLoader(
        dataset, batch_size=4, num_workers=num_workers, persistent_workers=persistent
    )
    for epoch in [0, 1, 2, 5, 3]:
        dataset.set_epoch(epoch)
        assert same(list(loader), batches_of(dataset.policy, SIZE, epoch, 4, shuffle=False))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_spawned_persistent_workers_see_set_epoch(context: str, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, 3, finish=freshen)
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context=context,
    )
    for epoch in [0, 1, 5]:
        dataset.set_epoch(epoch)
        assert same(list(loader), batches_of(dataset.policy, SIZE, epoch, 4, shuffle=False))


@pytest.mark.parametrize("size", [0, -1, 1.5, "3", None])
def test_a_size_that_is_no_positive_integer_is_refused(size: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(f"size={size!r}")):
        open_dataset(tmp_path, size=size)


@pytest.mark.parametrize("epoch", [-1, 1.5, "3"])
def test_an_epoch_that_is_no_count_is_refused(epoch: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(f"epoch={epoch!r}")):
        open_dataset(tmp_path).set_epoch(epoch)
