"""A pass goes on where a state was taken, batch by batch, as if it had never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import draw
from torch.utils.data import BatchSampler, RandomSampler

from reuseloader import ReuseDataLoader

SIZE, BATCH_SIZE, LIFETIME = 23, 4, 3  # 6 batches an epoch, the last of 3
NUM_BATCHES = 6


def make(folder: Path, **options: Any) -> ReuseDataLoader:
    settings = {"lifetime": LIFETIME, "seed": 7, "shuffle": True, "batch_size": BATCH_SIZE}
    return ReuseDataLoader(draw, SIZE, folder, **(settings | options))


def indices(batches: list[Any]) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def whole_run(folder: Path, epochs: int, **options: Any) -> list[list[Any]]:
    loader = make(folder, **options)
    return [list(loader) for _ in range(epochs)]


def same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("taken", range(NUM_BATCHES + 1))
def test_the_next_pass_continues_with_the_following_batch(
    taken: int, num_workers: int, tmp_path: Path
) -> None:
    epochs = whole_run(tmp_path / "whole", 5)
    first = make(tmp_path / "first", start_epoch=1, num_workers=num_workers)
    iterator = iter(first)
    for _ in range(taken):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    del iterator, first
    second = make(tmp_path / "second", num_workers=num_workers)  # nothing was kept
    second.load_state_dict(state)
    assert second.epoch == 1
    assert same(list(second), epochs[1][taken:])
    assert same(list(second), epochs[2])
    assert second.state_dict() == state | {"epoch": 3, "num_batches": 0}


def test_start_last_batch_and_end_of_an_epoch_are_told_apart(tmp_path: Path) -> None:
    loader = make(tmp_path)
    places = [loader.state_dict()]
    iterator = iter(loader)
    places.append(loader.state_dict())
    for _ in range(NUM_BATCHES):
        next(iterator)
    places.append(loader.state_dict())
    assert next(iterator, None) is None
    places.append(loader.state_dict())
    assert next(iterator, None) is None  # asking again ends nothing further
    places.append(loader.state_dict())
    found = [(place["epoch"], place["num_batches"]) for place in places]
    assert found == [(0, 0), (0, 0), (0, NUM_BATCHES), (1, 0), (1, 0)]


def test_batches_prepared_ahead_are_not_counted(tmp_path: Path) -> None:
    loader = make(tmp_path, num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["num_batches"] == 1


def test_what_was_passed_is_neither_built_nor_read(tmp_path: Path) -> None:
    loader = make(tmp_path)
    state = loader.state_dict() | {"num_batches": 4}
    loader.load_state_dict(state)
    list(loader)
    assert loader.stats().built == SIZE - 4 * BATCH_SIZE
    assert loader.stats().reused == 0


def test_a_huge_order_is_entered_anywhere(tmp_path: Path) -> None:
    loader = ReuseDataLoader(draw, 10**9, tmp_path, lifetime=1, shuffle=True, batch_size=2, seed=7)
    loader.load_state_dict(loader.state_dict() | {"epoch": 5, "num_batches": 400_000_000})
    expected = [loader.policy.order(position, 5, 10**9) for position in (8 * 10**8, 8 * 10**8 + 1)]
    assert next(iter(loader))["index"].tolist() == expected


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler", "plain", "single"])
def test_every_way_of_ordering_is_continued(kind: str, tmp_path: Path) -> None:
    def options() -> dict[str, Any]:
        order = RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(3))
        return {
            "sampler": {"shuffle": False, "sampler": order},
            "batch_sampler": {
                "shuffle": False,
                "batch_size": 1,
                "batch_sampler": BatchSampler(order, 4, False),
            },
            "plain": {"shuffle": False},
            "single": {"batch_size": None},
        }[kind]

    whole = list(make(tmp_path / "whole", **options()))
    loader = make(tmp_path / "part", **options())
    loader.load_state_dict(loader.state_dict() | {"num_batches": 2})
    rest = list(loader)
    assert [str(batch["index"]) for batch in rest] == [str(b["index"]) for b in whole[2:]]


def test_setting_the_epoch_it_has_keeps_the_position(tmp_path: Path) -> None:
    loader = make(tmp_path)
    state = loader.state_dict() | {"epoch": 2, "num_batches": 3}
    loader.load_state_dict(state)
    loader.set_epoch(2)  # as trainers do after they loaded a state
    assert loader.state_dict() == state
    assert len(list(loader)) == NUM_BATCHES - 3
    loader.load_state_dict(state)
    loader.set_epoch(4)
    assert loader.epoch == 4
    assert len(list(loader)) == NUM_BATCHES


def test_a_running_pass_is_not_moved_by_a_loaded_state(tmp_path: Path) -> None:
    loader = make(tmp_path)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict() | {"epoch": 3, "num_batches": 2})
    assert len(list(iterator)) == NUM_BATCHES - 1
    state = loader.state_dict()
    assert (state["epoch"], state["num_batches"]) == (3, 2)


@pytest.mark.parametrize(
    "name", ["version", "seed", "lifetime", "size", "batch_size", "block_size", "shuffle"]
)
def test_a_state_of_other_settings_is_refused_by_name(name: str, tmp_path: Path) -> None:
    loader = make(tmp_path)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=f"state must have the {name} of this loader") as caught:
        loader.load_state_dict(state | {name: state[name] + 1})
    assert "\n" not in str(caught.value)
    assert loader.state_dict() == state


def test_the_state_of_a_plain_order_does_not_continue_a_shuffled_one(tmp_path: Path) -> None:
    plain = make(tmp_path / "plain", shuffle=False)
    next(iter(plain))
    with pytest.raises(ValueError, match=r"the shuffle of this loader, 1, but got shuffle=0$"):
        make(tmp_path / "shuffled").load_state_dict(plain.state_dict())


@pytest.mark.parametrize(
    "change", [{"epoch": -1}, {"num_batches": 7}, {"num_batches": -1}, {"epoch": "1"}, {"more": 1}]
)
def test_a_state_that_is_none_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    loader = make(tmp_path)
    for state in (loader.state_dict() | change, None, {}, [1]):
        with pytest.raises(ValueError, match="must"):
            loader.load_state_dict(state)  # type: ignore[arg-type]


def test_the_state_is_plain_integers(tmp_path: Path) -> None:
    assert make(tmp_path).state_dict() == {
        "version": 3,
        "seed": 7,
        "lifetime": 3,
        "size": 23,
        "world_size": 1,
        "batch_size": 4,
        "block_size": 1,
        "shuffle": 1,
        "epoch": 0,
        "num_batches": 0,
    }


# ranks


def ranks_of(folder: Path, num: int, **options: Any) -> list[ReuseDataLoader]:
    return [make(folder / str(r), num_replicas=num, rank=r, **options) for r in range(num)]


def test_the_state_of_all_ranks_is_the_same_and_continues_each(tmp_path: Path) -> None:
    whole = [[list(loader) for _ in range(3)] for loader in ranks_of(tmp_path / "whole", 2)]
    states = []
    for loader in ranks_of(tmp_path / "first", 2, start_epoch=1):
        iterator = iter(loader)
        next(iterator)
        states.append(loader.state_dict())
    assert states[0] == states[1]
    assert (states[0]["world_size"], states[0]["num_batches"]) == (2, 1)
    for epochs, loader in zip(whole, ranks_of(tmp_path / "second", 2), strict=True):
        loader.load_state_dict(states[0])
        assert same(list(loader), epochs[1][1:])
        assert same(list(loader), epochs[2])


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_the_number_of_ranks_may_change_at_the_end_of_an_epoch(
    before: int, after: int, tmp_path: Path
) -> None:
    old = ranks_of(tmp_path / "old", before)[0]
    list(old)
    state = old.state_dict()
    assert (state["epoch"], state["num_batches"]) == (1, 0)
    started = ranks_of(tmp_path / "started", after, start_epoch=1)
    resumed = ranks_of(tmp_path / "resumed", after)
    for rank, (loader, expected) in enumerate(zip(resumed, started, strict=True)):
        if rank == 0:
            text = f"of world_size={before}, and there are {after}: samples change their rank"
            with pytest.warns(UserWarning, match=text):
                loader.load_state_dict(state)
        else:
            loader.load_state_dict(state)
        assert same(list(loader), list(expected))
        assert loader.state_dict()["world_size"] == after


def test_with_the_number_of_ranks_the_batch_may_change_too(tmp_path: Path) -> None:
    state = make(tmp_path / "one", batch_size=8, start_epoch=2).state_dict()
    [_, second] = ranks_of(tmp_path, 2, batch_size=4)
    second.load_state_dict(state)
    assert second.epoch == 2


def test_in_the_middle_of_an_epoch_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    loader = make(tmp_path)
    state = loader.state_dict() | {"epoch": 1, "num_batches": 1}
    with pytest.raises(ValueError) as caught:
        loader.load_state_dict(state | {"world_size": 2, "batch_size": 2})
    assert str(caught.value) == (
        "state must have the world_size of this loader, 1, but got world_size=2; "
        "go on with as many ranks, or from the end of an epoch"
    )
    for wrong in (0, -1, "2", None):
        with pytest.raises(ValueError, match="world_size"):
            loader.load_state_dict(state | {"num_batches": 0, "world_size": wrong})
