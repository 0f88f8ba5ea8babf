"""The orders of a policy, which statistics cannot tell from those of a true shuffle."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from reuseloader import ReusePolicy
from reuseloader.mixing import mix, step_array

NAMED_SIZES = [5, 10, 24, 64, 1_000, 60_000]
# Around the size at which permute changes from a table to a network.
SWITCH_SIZES = [2, 3, 4, 127, 128, 129, 255, 256, 257, 258, 300, 511, 512, 513]


def whole(policy: ReusePolicy, epoch: int, size: int) -> np.ndarray:
    return np.asarray(policy.order(np.arange(size), epoch, size))


def statistics(orders: np.ndarray) -> dict[str, float]:
    """What a shuffle is judged by, from orders of shape (epochs, size); chi-squares are sums."""
    num_epochs, size = orders.shape
    steps = np.diff(orders, axis=1)
    figures = {
        "difference": chi_square((steps % size).ravel(), size - 1, size),
        "neighbours": float((np.abs(steps) == 1).sum() / num_epochs),
        "repeats": float((orders[1:] == orders[:-1]).sum() / (num_epochs - 1)),
    }
    if size <= 64:
        figures["position"] = chi_square((np.arange(size) * size + orders).ravel(), size**2)
    if size <= 5:
        codes = (orders * size ** np.arange(size)).sum(axis=1)
        figures["arrangement"] = chi_square(codes, int(np.prod(np.arange(1, size + 1))))
    return figures


def chi_square(values: np.ndarray, num_cells: int, minlength: int = 0) -> float:
    """Against equal shares of `num_cells` cells, of which empty ones need not occur."""
    counts = np.bincount(values, minlength=minlength).astype(float)
    return float((counts**2).sum() * num_cells / len(values) - len(values))


def num_epochs_for(size: int) -> int:
    elements = 300_000 if size in NAMED_SIZES else 60_000
    return min(4_000, max(6, elements // size))


@cache
def spread_of_numpy(size: int) -> dict[str, np.ndarray]:
    """Each statistic over 200 repetitions of a true generator, in arrays of 200."""
    generator = np.random.default_rng([2, size])
    rows = np.tile(np.arange(size), (num_epochs_for(size), 1))
    figures = [statistics(generator.permuted(rows, axis=1)) for _ in range(200)]
    return {name: np.array([figure[name] for figure in figures]) for name in figures[0]}


def spread_of_policy(size: int, seeds: list[int]) -> dict[str, np.ndarray]:
    epochs = range(num_epochs_for(size))
    figures = [
        statistics(np.stack([whole(ReusePolicy(2, seed), epoch, size) for epoch in epochs]))
        for seed in seeds
    ]
    return {name: np.array([figure[name] for figure in figures]) for name in figures[0]}


def outside(ours: dict[str, np.ndarray], true: dict[str, np.ndarray]) -> dict[str, str]:
    """The statistics whose median leaves the true range, or whose mean is 4.5 errors away."""
    found = {}
    for name, values in true.items():
        median, error = float(np.median(ours[name])), float(ours[name].mean() - values.mean())
        scale = float(values.std() * np.sqrt(1 / len(ours[name]) + 1 / len(values)))
        if not values.min() <= median <= values.max() or abs(error) > 4.5 * scale + 1e-9:
            found[name] = f"{median:.4f} not in {values.min():.4f}..{values.max():.4f}, {error=}"
    return found


@pytest.mark.parametrize("size", [*NAMED_SIZES, *SWITCH_SIZES])
def test_order_lies_inside_the_spread_of_true_permutations(size: int) -> None:
    # Five seeds: one alone leaves a range of 200 by chance once in a hundred statistics.
    assert outside(spread_of_policy(size, [0, 1, 2, 42, 2**63]), spread_of_numpy(size)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("size", [*NAMED_SIZES, *SWITCH_SIZES])
def test_two_hundred_orders_are_distributed_as_two_hundred_true_permutations(size: int) -> None:
    ours, true = spread_of_policy(size, list(range(200))), spread_of_numpy(size)
    distances = {name: kolmogorov_smirnov(ours[name], true[name]) for name in true}
    # 2.2 * sqrt(2 / 200) is passed by chance once in 8,000 statistics.
    assert {name: distance for name, distance in distances.items() if distance > 0.22} == {}


def kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> float:
    grid = np.concatenate([first, second])
    shares = [np.searchsorted(np.sort(x), grid, side="right") / len(x) for x in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def four_round_feistel(epoch: int, size: int) -> np.ndarray:
    half = ((size - 1).bit_length() + 1) // 2
    mask, order = np.uint64(2**half - 1), np.arange(size, dtype=np.uint64)
    todo = np.ones(size, bool)
    while todo.any():
        left, right = order[todo] >> np.uint64(half), order[todo] & mask
        for turn in range(4):
            key = np.uint64(mix(0, 2, epoch, turn))
            left, right = right, left ^ (step_array(right ^ key) & mask)
        order[todo] = (left << np.uint64(half)) | right
        todo = order >= size
    return order.astype(np.int64)


@pytest.mark.parametrize(
    ("size", "telling"),
    [(5, "arrangement"), (10, "position"), (64, "difference"), (1_000, "neighbours")],
)
def test_the_statistics_tell_a_weak_network_from_a_true_shuffle(size: int, telling: str) -> None:
    weak = np.stack([four_round_feistel(epoch, size) for epoch in range(num_epochs_for(size))])
    assert np.array_equal(np.sort(weak), np.tile(np.arange(size), (len(weak), 1)))
    figures = {name: np.array([value]) for name, value in statistics(weak).items()}
    assert telling in outside(figures, spread_of_numpy(size))
