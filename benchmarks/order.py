"""The order of an epoch beside torch.randperm, and what a large loader costs to make."""

from __future__ import annotations

import itertools
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
from common import alternate, environment, one_thread, ratio

from reuseloader import ReuseDataLoader, ReusePolicy, ReuseSampler

IMAGENET, BILLION = 1_281_167, 10**9


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    one_thread()
    print("; ".join(f"{key}: {value}" for key, value in environment().items()))
    sampler = ReuseSampler(ReusePolicy(2, 7), IMAGENET)
    contenders = {
        "ReuseSampler": lambda: seconds(lambda: sum(1 for _ in sampler)),
        "randperm": lambda: seconds(lambda: sum(1 for _ in torch.randperm(IMAGENET).tolist())),
    }
    values = alternate(contenders, 7)
    times = ratio(values["ReuseSampler"], values["randperm"])
    print(f"{IMAGENET} indices: {min(values['ReuseSampler']):.2f} s, {times:.2f} times randperm")

    large = ReuseSampler(ReusePolicy(2, 7), BILLION)
    first = min(seconds(lambda: list(itertools.islice(large, 1))) for _ in range(5))
    print(f"first index of {BILLION}: {1000 * first:.2f} ms")

    with tempfile.TemporaryDirectory() as folder:
        tracemalloc.start()
        made = seconds(
            lambda: ReuseDataLoader(str, BILLION, folder, lifetime=2, shuffle=True, batch_size=64)
        )
        peak = tracemalloc.get_traced_memory()[1]
    print(f"loader of {BILLION}: {1000 * made:.1f} ms, {peak / 2**20:.2f} MiB at most")


if __name__ == "__main__":
    main()
