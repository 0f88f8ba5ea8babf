"""Blocks and growing sizes: alone, together, and with many ranks."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from math import gcd
from typing import Any

import numpy as np
import pytest
import rank_orders
from rank_orders import real, whole

from reuseloader import FOREVER, ReusePolicy, mix, permute
from reuseloader.permutation import permute_blocks

SEED = 11
GROWTH = {0: 30, 1: 47, 4: 48, 5: 200, 9: 1_000}
SIZES: list[Any] = [1, 7, 64, 97, 331, GROWTH]
BLOCKS = [1, 2, 5, 8, 64, 400]
LIFETIMES = [1, 2, 4, 6]


orders = partial(rank_orders.orders, seed=SEED)


def size_at(size: Any, epoch: int) -> int:
    rows = size if isinstance(size, dict) else {0: size}
    return next(number for first, number in reversed(rows.items()) if first <= epoch)


def dealt(size: Any, block_size: int, lifetime: int, epoch: int) -> list[int]:
    """The slots of an epoch, written down: what each step added, dealt block by block."""
    period = lifetime // gcd(lifetime, block_size)
    clock = epoch if 1 in (block_size, lifetime) else 0
    blocks = list(range(size_at(size, epoch) // block_size + 1))  # the last one short or empty
    before = 0
    for end in sorted({size_at(size, e) for e in range(epoch + 1)}):
        first, last = -(-before // block_size), end // block_size
        deal: list[int] = []
        for start in range(first, min(first + period, last)):
            members = list(range(start, last, period))
            phase = start % period
            key = mix(SEED, 6, first, (clock + phase) // period, phase)
            deal += [members[permute(place, len(members), key)] for place in range(len(members))]
        if deal:
            blocks[first:last] = deal
        before = end
    rows = [range(block * block_size, (block + 1) * block_size) for block in blocks]
    return [row for row in itertools.chain(*rows) if row < size_at(size, epoch)]


def tables(
    size: Any, num_replicas: int, block_size: int, lifetime: int, epoch: int
) -> list[list[int]]:
    """The order of every rank, made from lists."""
    slots = dealt(size, block_size, lifetime, epoch)
    blocks = [slots[at : at + block_size] for at in range(0, len(slots), block_size)]
    num_rounds = len(slots) // block_size // num_replicas
    rest = slots[num_rounds * num_replicas * block_size :]
    piece, longer = divmod(len(rest), num_replicas)
    length = -(-len(slots) // num_replicas)
    rows = []
    for rank in range(num_replicas):
        own = list(itertools.chain(*blocks[rank : num_rounds * num_replicas : num_replicas]))
        taken, rest = rest[: piece + (rank < longer)], rest[piece + (rank < longer) :]
        own += taken
        order = permute_blocks(np.arange(len(own)), len(own), block_size, mix(SEED, 7, epoch, rank))
        row = [own[place] for place in order]
        rows.append(row + slots[rank - longer : rank - longer + 1][: length - len(row)])
    return rows


@pytest.mark.parametrize("block_size", BLOCKS)
def test_the_closed_form_is_what_the_tables_say(block_size: int) -> None:
    for size, num, lifetime in itertools.product([8, 97, 331, GROWTH], [2, 3, 8], LIFETIMES):
        for epoch in (0, 1, 4, 5, 9):
            expected = tables(size, num, block_size, lifetime, epoch)
            ranks = orders(size, num, lifetime, block_size=block_size)
            assert expected == [whole(order, epoch) for order in ranks]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("block_size", BLOCKS)
def test_the_ranks_have_equally_many_and_all_of_the_samples_between_them(
    block_size: int, shuffle: bool
) -> None:
    for size, num, lifetime in itertools.product(SIZES, [1, 2, 5, 8], LIFETIMES):
        if num > size_at(size, 0):
            continue
        ranks = orders(size, num, lifetime, block_size=block_size, shuffle=shuffle)
        for epoch in (0, 1, 4, 5, 9):
            now = size_at(size, epoch)
            assert {len(whole(order, epoch)) for order in ranks} == {-(-now // num)}
            shares = [real(order, epoch) for order in ranks]
            assert sorted(itertools.chain(*shares)) == list(range(now))
            owners = ranks[0].owner(np.arange(now), epoch)
            expected = {index: r for r, share in enumerate(shares) for index in share}
            assert [expected[index] for index in range(now)] == owners.tolist()
            dropping = orders(
                size, num, lifetime, block_size=block_size, shuffle=shuffle, drop_last=True
            )
            kept = [whole(order, epoch) for order in dropping]
            assert {len(row) for row in kept} == {now // num}
            assert len(set(itertools.chain(*kept))) == now // num * num


# blocks


def num_runs(order: list[int], block_size: int) -> Counter[int]:
    """How often each block is entered."""
    blocks = [index // block_size for index in order]
    return Counter(block for block, _ in itertools.groupby(blocks))


@pytest.mark.parametrize("block_size", BLOCKS)
def test_one_rank_enters_every_block_once_an_epoch(block_size: int) -> None:
    for size, epoch in itertools.product(SIZES, [0, 1, 6]):
        [order] = orders(size, 1, 2, block_size=block_size)
        assert set(num_runs(whole(order, epoch), block_size).values()) == {1}


def test_without_shuffle_the_order_of_one_rank_is_plain_in_blocks_too() -> None:
    [order] = orders(97, 1, 3, block_size=8, shuffle=False)
    assert whole(order, 4) == list(range(97))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("size", "block_size"), [(1_000, 16), (997, 7), (4_099, 64), (130, 64)])
def test_a_block_is_with_one_rank_and_entered_once_but_for_as_many_as_there_are_ranks(
    size: int, block_size: int, shuffle: bool
) -> None:
    for num, lifetime, epoch in itertools.product([2, 3, 8], [1, 2, 3], [0, 5]):
        ranks = orders(size, num, lifetime, block_size=block_size, shuffle=shuffle)
        entered: Counter[int] = Counter()
        for order in ranks:
            entered += num_runs(real(order, epoch), block_size)
        assert sum(times > 1 for times in entered.values()) <= num


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_block_stays_with_its_rank_while_anything_is_reused(shuffle: bool) -> None:
    for num, lifetime in itertools.product([2, 3], [2, 3, FOREVER]):
        [order, *_] = orders(997, num, lifetime, block_size=16, shuffle=shuffle)
        owners = [order.owner(np.arange(997), epoch).tolist() for epoch in range(6)]
        assert owners == [owners[0]] * 6


def test_where_nothing_is_reused_the_blocks_are_dealt_anew_in_every_epoch() -> None:
    [order, _] = orders(160, 2, 1, block_size=4)
    owners = {tuple(order.owner(np.arange(160), epoch).tolist()) for epoch in range(50)}
    assert len(owners) == 50


@pytest.mark.parametrize("shuffle", [True, False])
def test_with_blocks_each_rank_builds_about_as_much_of_a_class_as_the_others(
    shuffle: bool,
) -> None:
    for size, num, lifetime, block_size in itertools.product(
        [997, 4_099], [2, 3, 8], [2, 3, 4, 6], [4, 7, 16, 64]
    ):
        ranks = orders(size, num, lifetime, block_size=block_size, shuffle=shuffle)
        counts = [Counter(index % lifetime for index in real(o, 3)) for o in ranks]
        # A block more or less of each kind, and the pieces of up to three blocks.
        kinds = lifetime // gcd(lifetime, block_size)
        most = (kinds if kinds > 1 else 0) + 3
        for phase in range(lifetime):
            built = [count[phase] for count in counts]
            assert max(built) - min(built) <= most


# Never to change, or runs stop repeating.
PINNED = [
    [
        [21, 20, 13, 12, 11, 14, 10, 5, 7, 9, 8, 6, 0, 3, 4, 1, 2, 17, 19, 16, 15, 18],
        [7, 6, 8, 9, 5, 20, 21, 10, 12, 14, 11, 13, 18, 19, 17, 16, 15, 1, 0, 4, 3, 2],
    ],
    [[17, 16, 18, 19, 15, 11, 10, 14, 13, 12, 20], [3, 4, 1, 2, 0, 7, 6, 9, 5, 8, 21]],
    [[0, 5, 8, 4, 11, 3], [7, 10, 2, 1, 9, 6]],
]


def test_the_pinned_orders_of_blocks_never_change() -> None:
    [one] = orders(22, 1, 2, block_size=5, seed=42)
    two = orders(22, 2, 2, block_size=5, seed=42)
    assert [whole(one, epoch) for epoch in (0, 3)] == PINNED[0]
    assert [whole(order, 3) for order in two] == PINNED[1]
    grown = orders({0: 5, 2: 12}, 2, 2, seed=42)
    assert [whole(order, 3) for order in grown] == PINNED[2]


# growth


def test_one_rank_follows_the_order_of_the_size_of_the_epoch() -> None:
    [order] = orders(GROWTH, 1, 3)
    for epoch in range(12):
        size = size_at(GROWTH, epoch)
        expected = ReusePolicy(3, SEED).order(np.arange(size), epoch, size)
        assert expected.tolist() == whole(order, epoch)


@pytest.mark.parametrize("shuffle", [True, False])
def test_growth_moves_no_sample_inside_its_generation(shuffle: bool) -> None:
    for num, lifetime in itertools.product([2, 3, 8], [1, 2, 3, 4, 7, FOREVER]):
        [order, *_] = orders(GROWTH, num, lifetime, shuffle=shuffle)
        for epoch in range(1, 14):
            index = np.arange(size_at(GROWTH, epoch - 1))
            goes_on = (epoch + index % lifetime) % lifetime != 0
            before, after = order.owner(index, epoch - 1), order.owner(index, epoch)
            assert np.array_equal(before[goes_on], after[goes_on])


def test_growth_moves_no_more_than_a_block_for_each_rank() -> None:
    for num, lifetime, block_size in itertools.product([2, 3, 8], [2, 3], [2, 5, 8, 64]):
        [order, *_] = orders(GROWTH, num, lifetime, block_size=block_size)
        for epoch in range(1, 14):
            index = np.arange(size_at(GROWTH, epoch - 1))
            moved = order.owner(index, epoch - 1) != order.owner(index, epoch)
            assert len(set((index[moved] // block_size).tolist())) <= num


def test_each_rank_builds_as_much_of_what_a_step_added_to_within_one() -> None:
    for num, lifetime in itertools.product([2, 3, 8], [1, 2, 3, 4, 7]):
        ranks = orders(GROWTH, num, lifetime)
        for epoch in (0, 1, 4, 5, 9, 12):
            counts = [
                Counter((i % lifetime, next(s for s in GROWTH.values() if i < s)) for i in own)
                for own in (real(order, epoch) for order in ranks)
            ]
            for kind in set().union(*counts):
                built = [count[kind] for count in counts]
                assert max(built) - min(built) <= 1


def test_a_table_that_stays_level_is_one_size() -> None:
    level = orders({0: 97, 3: 97}, 3, 2)
    fixed = orders(97, 3, 2)
    for epoch in (0, 3, 8):
        assert [whole(order, epoch) for order in fixed] == [whole(o, epoch) for o in level]


def test_a_huge_growing_order_of_blocks_needs_no_table() -> None:
    size = {0: 10**6 + 1, 5: 10**9 + 7, 10: 2**61}
    for epoch in (0, 7, 10**9):
        [*_, order] = orders(size, 1_024, 6, block_size=64)
        position = np.array([0, order.length(epoch) // 2, order.num_real(epoch) - 1])
        index = order.index(position, epoch)
        assert order.owner(index, epoch).tolist() == [1_023] * 3


def test_there_are_never_more_ranks_than_samples() -> None:
    with pytest.raises(ValueError) as caught:
        orders({0: 3, 2: 100}, 4, 2)
    assert str(caught.value) == (
        "num_replicas must be at most the number of samples, 3, but got num_replicas=4"
    )
