"""Which rank uses which sample: the closed form against tables, and what must hold of it."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import rank_orders
from rank_orders import real, whole

from reuseloader import FOREVER
from reuseloader.mixing import mix
from reuseloader.order import EpochOrder
from reuseloader.permutation import permute
from reuseloader.policy import ReusePolicy

SEED = 7
SIZES = [8, 9, 23, 64, 97, 100, 331, 1_000]
RANKS = [1, 2, 3, 5, 8]
LIFETIMES = [1, 2, 3, 4, 7]
CASES = list(itertools.product(SIZES, RANKS, LIFETIMES))


orders = partial(rank_orders.orders, seed=SEED)


def generation(index: int, epoch: int, lifetime: int) -> int:
    return (epoch + index % lifetime) // lifetime


def dealt(size: int, lifetime: int, epoch: int) -> list[int]:
    """The slots of an epoch, written down: the classes end to end, each shuffled by its key."""
    slots: list[int] = []
    for phase in range(min(lifetime, size)):
        members = list(range(phase, size, lifetime))
        key = mix(SEED, 6, 0, generation(phase, epoch, lifetime), phase)
        slots += [members[permute(place, len(members), key)] for place in range(len(members))]
    return slots


def tables(
    size: int, num_replicas: int, lifetime: int, epoch: int, drop_last: bool
) -> list[list[int]]:
    """The order of every rank, made from lists."""
    slots = dealt(size, lifetime, epoch)
    shares = [slots[rank::num_replicas] for rank in range(num_replicas)]
    length = min(map(len, shares)) if drop_last else max(map(len, shares))
    rows, next_padding = [], 0
    for rank, share in enumerate(shares):
        own = share[:length]
        key = mix(SEED, 7, epoch, rank)
        row = [own[permute(place, len(own), key)] for place in range(len(own))]
        if len(row) < length:
            row.append(slots[next_padding])
            next_padding += 1
        rows.append(row)
    return rows


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_closed_form_is_what_the_tables_say(drop_last: bool) -> None:
    for size, num_replicas, lifetime in CASES:
        if num_replicas > 1:
            ranks = orders(size, num_replicas, lifetime, drop_last=drop_last)
            for epoch in (0, 1, 5):
                expected = tables(size, num_replicas, lifetime, epoch, drop_last)
                assert expected == [whole(order, epoch) for order in ranks]


def test_one_rank_follows_the_order_of_the_policy() -> None:
    for size, lifetime, epoch in itertools.product([1, 2, *SIZES], [1, 3, FOREVER], [0, 4]):
        [order] = orders(size, 1, lifetime)
        expected = ReusePolicy(lifetime, SEED).order(np.arange(size), epoch, size)
        assert expected.tolist() == whole(order, epoch)
        assert order.num_real(epoch) == order.length(epoch) == size


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_ranks_have_equally_many_and_all_of_the_samples_between_them(shuffle: bool) -> None:
    for size, num_replicas, lifetime in CASES:
        ranks = orders(size, num_replicas, lifetime, shuffle=shuffle)
        for epoch in range(lifetime + 1):
            shares = [real(order, epoch) for order in ranks]
            assert sorted(itertools.chain(*shares)) == list(range(size))
            lengths = {len(whole(order, epoch)) for order in ranks}
            assert lengths == {-(-size // num_replicas)}
            num_padded = sum(order.length(epoch) - order.num_real(epoch) for order in ranks)
            assert num_padded == -size % num_replicas
            assert {len(share) for share in shares} <= {*lengths, max(lengths) - 1}


@pytest.mark.parametrize("shuffle", [True, False])
def test_without_the_last_the_ranks_have_equally_many_and_none_twice(shuffle: bool) -> None:
    for size, num_replicas, lifetime in CASES:
        ranks = orders(size, num_replicas, lifetime, shuffle=shuffle, drop_last=True)
        shares = [whole(order, 3) for order in ranks]
        assert {len(share) for share in shares} == {size // num_replicas}
        assert {order.num_real(3) for order in ranks} == {size // num_replicas}
        counts = Counter(itertools.chain(*shares))
        assert set(counts) <= set(range(size))
        assert max(counts.values()) == 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_no_sample_changes_its_rank_inside_a_generation(shuffle: bool) -> None:
    for size, num_replicas, lifetime in CASES:
        ranks = orders(size, num_replicas, lifetime, shuffle=shuffle)
        before: dict[int, int] = {}
        for epoch in range(2 * lifetime + 2):
            owners = {index: r for r, order in enumerate(ranks) for index in real(order, epoch)}
            for index, rank in before.items():
                if generation(index, epoch, lifetime) == generation(index, epoch - 1, lifetime):
                    assert owners[index] == rank
            before = owners


def test_what_a_rank_repeats_of_another_stays_the_same_inside_a_generation() -> None:
    for size, num_replicas, lifetime in CASES:
        for order in orders(size, num_replicas, lifetime):
            before = None
            for epoch in range(2 * lifetime + 2):
                if order.num_real(epoch) == order.length(epoch):
                    continue
                [padding] = whole(order, epoch)[order.num_real(epoch) :]
                same = generation(padding, epoch, lifetime) == generation(
                    padding, epoch - 1, lifetime
                )
                assert before in (None, padding) or not same
                before = padding


def test_the_padding_repeats_the_first_slots() -> None:
    for size, num_replicas, lifetime in [(23, 5, 3), (97, 8, 4), (9, 8, 2)]:
        for epoch in range(4):
            repeated = [
                whole(order, epoch)[-1]
                for order in orders(size, num_replicas, lifetime)
                if order.num_real(epoch) < order.length(epoch)
            ]
            assert repeated == dealt(size, lifetime, epoch)[: -size % num_replicas]


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_rank_builds_as_much_of_a_class_as_the_others_to_within_one(shuffle: bool) -> None:
    for size, num_replicas, lifetime in CASES:
        ranks = orders(size, num_replicas, lifetime, shuffle=shuffle)
        for epoch in range(lifetime + 1):
            counts = [Counter(index % lifetime for index in real(o, epoch)) for o in ranks]
            for phase in range(lifetime):
                built = [count[phase] for count in counts]
                assert max(built) - min(built) <= 1


def test_samples_move_to_every_rank_with_their_generations() -> None:
    ranks = orders(64, 4, 2)
    seen = {(index, r) for e in range(60) for r, o in enumerate(ranks) for index in real(o, e)}
    assert len(seen) == 64 * 4


def test_the_owner_of_every_sample_is_the_rank_that_uses_it() -> None:
    options = [{}, {"shuffle": False}, {"block_size": 4}, {"block_size": 4, "shuffle": False}]
    for (size, num_replicas, lifetime), option in itertools.product(CASES[::2], options):
        ranks = orders(size, num_replicas, lifetime, **option)
        for epoch in (0, 2, 3):
            owners = ranks[-1].owner(np.arange(size), epoch)
            for rank, order in enumerate(ranks):
                assert sorted(real(order, epoch)) == np.flatnonzero(owners == rank).tolist()
            assert [order.owner(size - 1, epoch) for order in ranks] == [owners[-1]] * num_replicas


def test_every_rank_and_epoch_has_an_order_of_its_own() -> None:
    ranks = orders(400, 4, 4)
    shapes = {
        tuple(np.argsort(real(order, epoch)).tolist()) for order in ranks for epoch in range(8)
    }
    assert len(shapes) == 32


def chi_square(cells: list[int], num_cells: int) -> float:
    expected = len(cells) / num_cells
    counts = np.bincount(cells, minlength=num_cells)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("size", [24, 1_008])
def test_every_place_of_every_rank_gets_every_sample_equally_often(size: int) -> None:
    # Where all samples are dealt anew in every epoch, the ranks together hold a true shuffle.
    ranks, cells = orders(size, 3, 1), []
    num_epochs = 4_000 if size == 24 else 400
    for epoch in range(num_epochs):
        for rank, order in enumerate(ranks):
            for position, index in enumerate(real(order, epoch)):
                place = rank * 8 + position * 8 // order.length(epoch)
                cells.append(place * 24 + index * 24 // size)
    # 24 * 24 cells of which rows and columns are full: 23 * 23 degrees of freedom.
    assert abs(chi_square(cells, 24 * 24) - 23 * 23) < 4 * np.sqrt(2 * 23 * 23)


# without shuffle


def test_without_shuffle_validation_is_handed_round_as_torch_does_it() -> None:
    distributed = pytest.importorskip("torch.utils.data.distributed")
    for size, num_replicas, drop_last in itertools.product(SIZES, RANKS, [False, True]):
        ranks = orders(size, num_replicas, FOREVER, shuffle=False, drop_last=drop_last)
        for rank, order in enumerate(ranks):
            sampler = distributed.DistributedSampler(
                range(size), num_replicas, rank, shuffle=False, drop_last=drop_last
            )
            assert list(sampler) == whole(order, 5)


def test_without_shuffle_the_ranks_take_the_samples_in_their_order_side_by_side() -> None:
    for size, num_replicas, lifetime in CASES:
        rows = [whole(order, 1) for order in orders(size, num_replicas, lifetime, shuffle=False)]
        for turn, row in enumerate(zip(*rows, strict=True)):
            expected = {i % size for i in range(turn * num_replicas, (turn + 1) * num_replicas)}
            assert set(row) == expected


def test_without_shuffle_nothing_moves() -> None:
    for order in orders(100, 4, 6, shuffle=False):
        assert whole(order, 0) == whole(order, 1) == whole(order, 77)


# large, and everywhere the same


@pytest.mark.parametrize("lifetime", [1, 4, 1_000, 10**8, FOREVER, 2**70])
@pytest.mark.parametrize("size", [10**9, 2**62 - 1])
def test_a_position_of_a_huge_epoch_is_found_and_belongs_to_its_rank(
    size: int, lifetime: int
) -> None:
    for order in orders(size, 1_024, lifetime)[::341]:
        length = order.length(9)
        position = np.array([0, 1, length // 2, order.num_real(9) - 1])
        index = order.index(position, 9)
        assert [order.owner(int(each), 9) for each in index] == [order.rank] * 4
        assert len(set(index.tolist())) == 4


def test_the_arithmetic_holds_at_any_epoch() -> None:
    for epoch in (10**9, 2**63, 2**80):
        ranks = orders(97, 3, 4)
        shares = [real(order, epoch) for order in ranks]
        assert sorted(itertools.chain(*shares)) == list(range(97))


def test_blocks_of_positions_and_single_ones_agree() -> None:
    [_, order, _] = orders(997, 3, 4)
    every = whole(order, 6)
    assert every == [order.index(position, 6) for position in range(order.length(6))]
    assert type(order.index(5, 6)) is int
    grid = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert order.index(grid, 6).tolist() == np.reshape(every[:12], (3, 4)).tolist()
    assert order.index(np.zeros(0, np.int64), 6).tolist() == []


# Never to change, or runs stop repeating.
PINNED = [
    [[10, 1, 6, 3], [9, 5, 0, 8], [2, 7, 4, 10]],
    [[1, 6, 2, 9], [5, 3, 10, 0], [8, 7, 4, 6]],
    [[48768, 34463, 26908, 8545, 53774, 16428], [49819, 46433, 41615, 36947, 59997, 20456]],
]


def test_the_pinned_orders_of_ranks_never_change() -> None:
    assert [whole(order, 0) for order in orders(11, 3, 2, seed=42)] == PINNED[0]
    assert [whole(order, 5) for order in orders(11, 3, 2, seed=42)] == PINNED[1]
    assert [whole(order, 3)[:6] for order in orders(60_000, 2, 4, seed=-1)] == PINNED[2]


# mistakes


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_replicas": 6}, "num_replicas must be at most the number of samples, 5, but got "
         "num_replicas=6"),
        ({"num_replicas": 0}, "num_replicas must be a positive integer, but got num_replicas=0"),
        ({"num_replicas": 2.0}, "num_replicas must be a positive integer, but got "
         "num_replicas=2.0"),
        ({"num_replicas": 2, "rank": 2}, "rank must be in [0, 2), but got rank=2"),
        ({"num_replicas": 2, "rank": -1}, "rank must be in [0, 2), but got rank=-1"),
        ({"rank": 1}, "rank must be in [0, 1), but got rank=1"),
        ({"rank": "0"}, "rank must be an integer, but got rank='0'"),
        ({"block_size": 0}, "block_size must be a positive integer, but got block_size=0"),
        ({"block_size": 2**62 + 1}, "block_size must be at most 2**62, but got "
         "block_size=4611686018427387905"),
        ({"size": 0}, "size must be a positive integer, but got size=0"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_its_rule_and_value(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError) as caught:
        EpochOrder(**({"policy": ReusePolicy(2), "size": 5} | options))
    assert str(caught.value) == text


def test_a_position_or_index_that_is_not_there_is_refused() -> None:
    [order, _] = orders(11, 2, 3)
    for wrong in (-1, 6, 10**30):
        with pytest.raises(IndexError, match=rf"position must be in \[0, 6\), but got.*={wrong}"):
            order.index(wrong, 0)
    for wrong in (-1, 11):
        with pytest.raises(IndexError, match=r"index must be in \[0, 11\)"):
            order.owner(np.array([0, wrong]), 0)
    for kind in (0.5, "3", True, np.array([0.5]), np.array([True])):
        with pytest.raises(ValueError, match="integer"):
            order.index(kind, 0)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="integer"):
            order.owner(kind, 0)  # type: ignore[call-overload]
    for epoch in (-1, 0.5):
        with pytest.raises(ValueError, match="epoch must be an integer from 0 up"):
            order.index(0, epoch)  # type: ignore[call-overload]
