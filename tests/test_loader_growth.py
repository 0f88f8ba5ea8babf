"""A set that grows from epoch to epoch, and blocks: through the loader, its workers and states."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from builds import draw, samples_of
from torch.utils.data import DataLoader

from reuseloader import ReuseDataLoader, ReuseDataset, ReusePolicy, ReuseSampler

TABLE = {0: 6, 2: 15, 3: 15, 4: 22}
SIZES = [6, 6, 15, 15, 22, 22]
BATCH, LIFETIME = 4, 3
POLICY = ReusePolicy(LIFETIME, seed=7)


def make(folder: Path, **options: Any) -> ReuseDataLoader:
    settings = {"lifetime": LIFETIME, "seed": 7, "shuffle": True, "batch_size": BATCH} | options
    return ReuseDataLoader(draw, settings.pop("size", TABLE), folder, **settings)


def used(batches: list[Any]) -> list[int]:
    return [index for batch in batches for index in batch["index"].tolist()]


def expected(epoch: int) -> list[int]:
    return [POLICY.order(p, epoch, SIZES[epoch]) for p in range(SIZES[epoch])]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_pass_holds_the_samples_there_are_in_its_epoch(
    num_workers: int, tmp_path: Path
) -> None:
    loader = make(tmp_path, num_workers=num_workers, persistent_workers=num_workers > 0)
    for epoch, size in enumerate(SIZES):
        assert len(loader) == -(-size // BATCH)
        batches = iter(loader)
        assert len(batches) == -(-size // BATCH)  # type: ignore[arg-type]
        received = list(batches)
        assert len(batches) == len(received)  # type: ignore[arg-type]
        assert used(received) == expected(epoch)
        rows = [row for batch in received for row in batch["x"].tolist()]
        samples = samples_of(POLICY, expected(epoch), epoch)
        assert [sample["x"].tolist() for sample in samples] == rows
        # New: what begins a generation, and what was not there before.
        before = SIZES[epoch - 1] if epoch else 0
        new = [i for i in range(size) if (epoch + i % LIFETIME) % LIFETIME == 0 or i >= before]
        assert (len(new), size - len(new)) == (loader.stats().built, loader.stats().reused)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("least", [1, 2, 3, 4, 9])
def test_a_last_batch_of_fewer_samples_than_wanted_is_left_out(
    least: int, num_workers: int, tmp_path: Path
) -> None:
    sizes = [2, 4, 9, 11, 13]  # the last batches have 2, 4, 1, 3 and 1 samples
    loader = make(
        tmp_path, size=dict(enumerate(sizes)), min_batch_size=least, num_workers=num_workers
    )
    for epoch, size in enumerate(sizes):
        order = [POLICY.order(p, epoch, size) for p in range(size)]
        wanted = [order[start : start + BATCH] for start in range(0, size, BATCH)]
        if 0 < size % BATCH < least:
            wanted = wanted[:-1]
        assert (len(loader), loader.num_batches(epoch)) == (len(wanted), len(wanted))
        state = loader.state_dict()
        batches = [batch["index"].tolist() for batch in loader]
        assert batches == wanted
        assert loader.stats().built + loader.stats().reused == sum(map(len, wanted))
        if len(wanted) > 1:  # and so it is for a run that goes on within the epoch
            loader.load_state_dict({**state, "num_batches": len(wanted) - 1})
            assert [batch["index"].tolist() for batch in loader] == wanted[-1:]


def test_a_smallest_batch_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^min_batch_size must be a positive integer, but got "):
        make(tmp_path, min_batch_size=0)


def test_the_length_is_that_of_the_next_pass_and_each_pass_knows_its_own(tmp_path: Path) -> None:
    loader = make(tmp_path, start_epoch=1)
    assert (len(loader), len(loader.batch_sampler)) == (2, 2)
    passes = [iter(loader), iter(loader)]
    assert (len(loader), [len(batches) for batches in passes]) == (4, [2, 4])  # type: ignore[arg-type]
    loader.set_epoch(4)
    assert (len(loader), len(loader.batch_sampler)) == (6, 6)
    assert [len(list(batches)) for batches in passes] == [2, 4]


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"drop_last": True}, [1, 1, 3, 3, 5, 5]),
        ({"batch_size": None}, SIZES),
        ({"shuffle": False}, [2, 2, 4, 4, 6, 6]),
        ({"num_replicas": 4, "rank": 3}, [1, 1, 1, 1, 2, 2]),
        ({"num_replicas": 4, "drop_uneven": True, "batch_size": 1}, [1, 1, 3, 3, 5, 5]),
        ({"block_size": 5}, [2, 2, 4, 4, 6, 6]),
    ],
)
def test_every_kind_of_order_grows(
    options: dict[str, Any], lengths: list[int], tmp_path: Path
) -> None:
    loader = make(tmp_path, **options)
    found = []
    for _ in SIZES:
        found.append(len(loader))
        assert len(list(loader)) == found[-1]
    assert lengths == found


def test_the_dataset_is_as_long_as_in_the_epoch_of_the_pass(tmp_path: Path) -> None:
    loader = make(tmp_path, start_epoch=2)
    iter(loader)
    assert len(loader.dataset) == 15
    assert ReuseDataset(draw, TABLE, tmp_path, POLICY).size == 22


@pytest.mark.parametrize(("epoch", "taken"), [(1, 0), (1, 1), (1, 2), (2, 1), (2, 4), (4, 3)])
def test_a_state_continues_across_the_growth(epoch: int, taken: int, tmp_path: Path) -> None:
    first = make(tmp_path / "first", start_epoch=epoch)
    received = list(islice(iter(first), taken))
    state = json.loads(json.dumps(first.state_dict()))
    assert (state["size"], state["num_batches"]) == (SIZES[epoch], taken)
    second = make(tmp_path / "second")
    second.load_state_dict(state)
    assert used(received) + used(list(second)) == expected(epoch)
    assert second.epoch == epoch + 1
    assert used(list(second)) == expected(epoch + 1)


def test_rows_may_be_added_for_the_epochs_to_come(tmp_path: Path) -> None:
    short = make(tmp_path, size={0: 6, 2: 15})
    short.set_epoch(4)
    state = short.state_dict()
    assert (state["epoch"], state["num_batches"], state["size"]) == (4, 0, 15)
    longer = make(tmp_path)  # which grows in this very epoch
    longer.load_state_dict(state)
    assert used(list(longer)) == expected(4)


@pytest.mark.parametrize(
    ("change", "size"),
    [({"epoch": 4, "num_batches": 1}, 15), ({"epoch": 3, "num_batches": 0}, 22), ({}, 5)],
)
def test_a_state_of_another_size_in_its_epoch_is_refused(
    change: dict[str, int], size: int, tmp_path: Path
) -> None:
    loader = make(tmp_path)
    with pytest.raises(ValueError, match=f"the size of this loader, .*, but got size={size}$"):
        loader.load_state_dict(loader.state_dict() | change | {"size": size})


def test_a_position_behind_the_end_of_its_epoch_is_refused(tmp_path: Path) -> None:
    loader = make(tmp_path)
    state = loader.state_dict() | {"epoch": 3, "size": 15}
    loader.load_state_dict(state | {"num_batches": 4})
    with pytest.raises(ValueError, match="num_batches must be at most 4, but got num_batches=5"):
        loader.load_state_dict(state | {"num_batches": 5})


def test_an_index_that_is_not_there_yet_is_refused(tmp_path: Path) -> None:
    loader = make(tmp_path, sampler=[3, 14], shuffle=False)
    with pytest.raises(IndexError, match=r"index must be in \[0, 6\), but got index=14"):
        list(loader)
    loader.set_epoch(2)
    assert used(list(loader)) == [3, 14]


def test_a_data_loader_of_the_users_own_grows_too(tmp_path: Path) -> None:
    dataset = ReuseDataset(draw, TABLE, tmp_path, POLICY)
    sampler = ReuseSampler(POLICY, TABLE)
    shuffled = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    plain = DataLoader(dataset, batch_size=BATCH)
    for epoch, size in enumerate(SIZES):
        dataset.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert len(shuffled) == len(plain) == -(-size // BATCH)
        assert used(list(shuffled)) == expected(epoch)
        assert used(list(plain)) == list(range(size))
        assert [sample["index"] for sample in dataset] == list(range(size))


def test_a_table_that_falls_is_refused_before_the_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape("never fall, but got size={0: 6, 1: 5}")):
        make(tmp_path / "cache", size={0: 6, 1: 5})
    assert not (tmp_path / "cache").exists()


# blocks


def test_the_batches_of_blocks_are_continued(tmp_path: Path) -> None:
    whole = [list(loader) for loader in [make(tmp_path / "a", size=23, block_size=5)] * 2]
    assert sorted(used(whole[1])) == list(range(23))
    loader = make(tmp_path / "b", size=23, block_size=5)
    loader.load_state_dict(loader.state_dict() | {"epoch": 1, "num_batches": 2})
    assert used(list(loader)) == used(whole[1][2:])


def test_a_block_is_opened_once_an_epoch(tmp_path: Path) -> None:
    loader = make(tmp_path, size=40, block_size=8, batch_size=8)
    for _ in range(3):
        blocks = [{index // 8 for index in batch["index"].tolist()} for batch in loader]
        assert sorted(block for [block] in blocks) == [0, 1, 2, 3, 4]
