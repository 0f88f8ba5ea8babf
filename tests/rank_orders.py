"""The orders of all ranks of a loader, for the tests of ownership, blocks and growth."""

from __future__ import annotations

from typing import Any

import numpy as np

from reuseloader import EpochOrder, ReusePolicy


def orders(
    size: Any, num_replicas: int, lifetime: int, *, seed: int, **options: Any
) -> list[EpochOrder]:
    """One order for each rank."""
    policy = ReusePolicy(lifetime, seed)
    return [
        EpochOrder(policy=policy, size=size, num_replicas=num_replicas, rank=rank, **options)
        for rank in range(num_replicas)
    ]


def whole(order: EpochOrder, epoch: int) -> list[int]:
    """All indices of an epoch on a rank."""
    return order.index(np.arange(order.length(epoch)), epoch).tolist()


def real(order: EpochOrder, epoch: int) -> list[int]:
    """Those that are this rank's alone."""
    return whole(order, epoch)[: order.num_real(epoch)]
