"""The order of an epoch, of ranks and of blocks, beside torch.randperm; a large loader's cost."""

from __future__ import annotations

import itertools
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from common import alternate, environment, one_thread, ratio, table

from reuseloader import ReuseDataLoader, ReusePolicy, ReuseSampler

IMAGENET, BILLION = 1_281_167, 10**9
ORDERS: dict[str, dict[str, int]] = {
    "one rank": {},
    "1 of 8 ranks": {"num_replicas": 8, "rank": 3},
    "1 of 8 ranks, no shuffle": {"num_replicas": 8, "rank": 3, "shuffle": False},
    "blocks of 64": {"block_size": 64},
    "blocks of 1000": {"block_size": 1_000},
    "blocks of 64, 1 of 8 ranks": {"num_replicas": 8, "rank": 3, "block_size": 64},
}


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def sampler_of(options: dict[str, int]) -> ReuseSampler:
    sampler = ReuseSampler(ReusePolicy(4, 7), IMAGENET, **options)
    sampler.set_epoch(5)
    return sampler


def index_ns(order: Callable[[], Iterable[int]]) -> float:
    """Return the time for an index of a whole epoch, its order computed anew."""
    start = time.perf_counter()
    num = sum(1 for _ in order())
    return 1e9 * (time.perf_counter() - start) / num


def main() -> None:
    one_thread()
    print("; ".join(f"{key}: {value}" for key, value in environment().items()))
    epochs = {name: sampler_of(options) for name, options in ORDERS.items()}
    contenders = {
        name: partial(index_ns, partial(iter, sampler)) for name, sampler in epochs.items()
    }
    contenders["randperm"] = lambda: index_ns(lambda: torch.randperm(IMAGENET).tolist())
    values = alternate(contenders, 7)
    rows = [
        [
            name,
            f"{len(epochs.get(name, range(IMAGENET))):,}",
            f"{min(times):.0f} ns",
            f"{ratio(times, values['one rank']):.2f}",
            f"{ratio(times, values['randperm']):.2f}",
        ]
        for name, times in values.items()
    ]
    head = ["an epoch of", "indices", "an index", "to one rank", "to randperm"]
    print(table(head, rows))

    large = ReuseSampler(ReusePolicy(2, 7), BILLION)
    first = min(seconds(lambda: list(itertools.islice(large, 1))) for _ in range(5))
    print(f"first index of {BILLION}: {1000 * first:.2f} ms")

    for options in ({}, {"num_replicas": 1_024, "rank": 5, "block_size": 64}):
        with tempfile.TemporaryDirectory() as folder:
            tracemalloc.start()
            made = seconds(
                lambda folder=folder, options=options: ReuseDataLoader(
                    str, BILLION, folder, lifetime=2, shuffle=True, batch_size=64, **options
                )
            )
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        print(
            f"loader of {BILLION} {options}: {1000 * made:.1f} ms, {peak / 2**20:.2f} MiB at most"
        )


if __name__ == "__main__":
    main()
