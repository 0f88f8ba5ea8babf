"""Permutations with a key for each position, their inverses, and the shuffle of blocks."""

from __future__ import annotations

import numpy as np
import pytest

from reuseloader.permutation import permute, permute_blocks, permute_each, unpermute_each

SIZES = [1, 2, 3, 7, 64, 255, 256, 257, 1_000, 65_537, 10**9 + 7, 2**62]


def drawn(size: int, num: int, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and keys in no order, each key several times."""
    generator = np.random.default_rng([size, num])
    keys = generator.integers(0, 2**64, num_keys, dtype=np.uint64)
    return generator.integers(0, size, num), keys[generator.integers(0, num_keys, num)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_keys", [1, 15, 16, 300])
def test_each_position_is_mapped_by_its_own_key(size: int, num_keys: int) -> None:
    index, keys = drawn(size, 600, num_keys)
    expected = [permute(int(i), size, int(k)) for i, k in zip(index, keys, strict=True)]
    assert permute_each(index, size, keys).tolist() == expected


@pytest.mark.parametrize("size", SIZES)
def test_the_way_back_leads_to_the_same_position(size: int) -> None:
    index, keys = drawn(size, 2_000, 500)
    assert np.array_equal(index, unpermute_each(permute_each(index, size, keys), size, keys))
    assert np.array_equal(index, permute_each(unpermute_each(index, size, keys), size, keys))


def test_more_tables_than_are_made_at_once_change_nothing() -> None:
    index, keys = drawn(256, 3_000, 2_500)  # 1,024 tables of 256 at once
    expected = [permute(int(i), 256, int(k)) for i, k in zip(index, keys, strict=True)]
    assert permute_each(index, 256, keys).tolist() == expected


def test_no_position_gives_no_element() -> None:
    nothing, keys = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    for size in (5, 5_000):
        assert permute_each(nothing, size, keys).tolist() == []
        assert unpermute_each(nothing, size, keys).tolist() == []
        assert permute_blocks(nothing, size, 3, 1).tolist() == []


# blocks


def runs(order: list[int], block_size: int) -> list[list[int]]:
    """Neighbours of one block, cut where the block changes."""
    cut: list[list[int]] = []
    for element in order:
        if not cut or cut[-1][-1] // block_size != element // block_size:
            cut.append([])
        cut[-1].append(element)
    return cut


@pytest.mark.parametrize("block_size", [2, 3, 7, 64, 300, 10_000])
def test_every_size_is_shuffled_in_whole_blocks(block_size: int) -> None:
    for size in [*range(1, 140), 255, 256, 257, 599, 600, 601, 2_047]:
        order = permute_blocks(np.arange(size), size, block_size, size).tolist()
        assert sorted(order) == list(range(size))
        num_blocks = -(-size // block_size)
        assert len(runs(order, block_size)) == num_blocks


def test_blocks_of_one_are_the_plain_permutation() -> None:
    position = np.arange(1_000)
    assert np.array_equal(permute(position, 1_000, 5), permute_blocks(position, 1_000, 1, 5))


def test_each_position_is_asked_without_the_others() -> None:
    for size, block_size in [(1_000, 64), (3_001, 500), (10, 3)]:
        whole = permute_blocks(np.arange(size), size, block_size, 9)
        single = [permute_blocks(np.array([i]), size, block_size, 9)[0] for i in range(size)]
        assert whole.tolist() == single
        mixed = np.random.default_rng(1).permutation(size)
        assert np.array_equal(whole[mixed], permute_blocks(mixed, size, block_size, 9))


def test_a_huge_order_of_blocks_needs_no_table() -> None:
    size, block_size = 2**62 - 5, 2**20
    position = np.arange(10**15 - 50, 10**15 + 50)
    elements = permute_blocks(position, size, block_size, 3)
    assert len(set(elements.tolist())) == 100
    assert len(set((elements // block_size).tolist())) <= 2
    assert elements.min() >= 0 and elements.max() < size


def test_blocks_and_what_is_in_them_come_in_orders_that_are_not_to_be_told_from_uniform() -> None:
    # 3 blocks of 3, 3 and 2: 3! orders of blocks, and 3! * 3! * 2! inside, each equally often.
    num_keys = 21_600
    counts: dict[tuple[int, ...], int] = {}
    for key in range(num_keys):
        order = tuple(permute_blocks(np.arange(8), 8, 3, key).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6 * 72
    expected = num_keys / len(counts)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    # 431 degrees of freedom: mean 431, deviation 29.
    assert 431 - 3 * 29 < chi_square < 431 + 3 * 29


def test_two_blocks_of_an_order_are_shuffled_differently_inside() -> None:
    for block_size in (8, 300):
        order = permute_blocks(np.arange(20 * block_size), 20 * block_size, block_size, 4)
        inside = {tuple(row) for row in (order % block_size).reshape(20, block_size).tolist()}
        assert len(inside) == 20


# Never to change, or runs stop repeating.
PINNED = {
    (11, 4, 0): [0, 3, 1, 2, 8, 10, 9, 4, 5, 6, 7],
    (100, 8, 42): [97, 96, 99, 98, 29, 28, 27, 24, 31, 30, 26, 25],
    (10_000, 300, 7): [7293, 7256, 7278, 7454, 7336, 7255, 7495, 7467],
    (10**9, 64, 2**63): [898652710, 898652688, 898652720, 898652733, 898652679, 898652713],
}


def test_the_pinned_block_orders_never_change() -> None:
    for (size, block_size, key), expected in PINNED.items():
        start = permute_blocks(np.arange(len(expected)), size, block_size, key)
        assert start.tolist() == expected


@pytest.mark.parametrize("size", [0, -3])
def test_permute_refuses_an_empty_range(size: int) -> None:
    for asked in (0, np.arange(0), np.arange(3)):
        with pytest.raises(ValueError, match=f"size must be .*, but got size={size}"):
            permute(asked, size, 1)


# (size, key, permute of positions 0, 1, 2, size - 1): never to change, or runs stop repeating.
PINNED_SHUFFLES = [
    (1, 14645530513996943574, [0, 0, 0, 0]),
    (2, 2604080180737993778, [1, 0, 1, 0]),
    (5, 18335044709593569398, [4, 2, 0, 3]),
    (64, 14645530513996943574, [8, 53, 62, 24]),
    (256, 4113895726831893552, [14, 31, 77, 76]),
    (257, 18335044709593569398, [194, 192, 28, 137]),
    (1_000, 4385885210869834106, [207, 558, 575, 38]),
    (60_000, 2065760409411080217, [53658, 53346, 40489, 30155]),
    (65_537, 2065760409411080217, [35282, 43919, 15039, 3430]),
    (2**32 + 1, 18335044709593569398, [391870153, 1446007744, 2995161446, 2582394838]),
    (
        2**62,
        4113895726831893552,
        [2494140163752034775, 2014673003220943056, 2204601911178195907, 3931145322909727347],
    ),
]


def test_the_pinned_permutations_never_change() -> None:
    for size, key, expected in PINNED_SHUFFLES:
        positions = [0, 1 % size, 2 % size, size - 1]
        assert [permute(position, size, key) for position in positions] == expected
        assert permute(np.array(positions), size, key).tolist() == expected
