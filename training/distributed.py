"""The ranks of a run: who they are, and what they exchange.

`torchrun` starts a process for each rank. One process alone has no group: every function here
returns at once then, and nothing is exchanged.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from training.checks import ConfigError

_TIMEOUT = timedelta(minutes=30)  # torch's own for gloo: a rank may wait for another's slow input
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which of the processes of a run this one is.

    Attributes:
        rank, world_size: among all of them.
        local_rank, local_world_size: among those of this machine.
        node, num_nodes: the machine, and how many there are.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0
    num_nodes: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this rank is the one that writes and prints."""
        return self.rank == 0

    @property
    def is_single(self) -> bool:
        """Whether there is no other rank."""
        return self.world_size == 1


class Store(Protocol):
    """What is used of the store of `torch.distributed`, in which all ranks read and write."""

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        ...

    def get(self, key: str) -> bytes:
        """Wait for a value."""
        ...

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value where it is the expected one, `""` for none; return what it is then.

        Where there is none and one was expected, nothing is set and that one is returned.
        """
        ...


class RankFailedError(RuntimeError):
    """Another rank failed while this one waited for it; the error is reported there."""


_NO_VALUE = "no value"

_ranks = Ranks()
_store: Store | None = None
_num_waits = 0


def ranks() -> Ranks:
    """Return which of the processes of the run this one is."""
    return _ranks


def store() -> Store | None:
    """Return the store that the ranks share; None for one process alone."""
    return _store


def is_launched() -> bool:
    """Say whether `torchrun` started this process as one of several."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(os.environ.get(name) for name in names) and int(os.environ["WORLD_SIZE"]) > 1


def join_group() -> Ranks:
    """Meet the other ranks that `torchrun` started: gloo for the CPU, NCCL for CUDA."""
    global _ranks, _store, _num_waits
    env = {name: int(value) for name, value in os.environ.items() if value.isdigit()}
    shared, rank, world_size = next(
        dist.rendezvous("env://", timeout=_TIMEOUT)  # type: ignore[no-untyped-call]
    )
    session = _agree_on_session(shared, rank, world_size)
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=dist.PrefixStore(f"{session}/group", shared),
        rank=rank,
        world_size=world_size,
        timeout=_TIMEOUT,
    )
    _store, _num_waits = dist.PrefixStore(f"{session}/training", shared), 0
    _ranks = Ranks(
        rank=rank,
        world_size=world_size,
        local_rank=env.get("LOCAL_RANK", rank),
        local_world_size=env.get("LOCAL_WORLD_SIZE", world_size),
        node=env.get("GROUP_RANK", 0),
        num_nodes=env.get("GROUP_WORLD_SIZE", 1),
    )
    return _ranks


def _agree_on_session(shared: Store, rank: int, world_size: int) -> str:
    """Return a word that all ranks of this start have in common, and no earlier start had.

    torchrun keeps its store when it starts the workers again, with all that they left in it. A
    rank says hello with a word of its own, which no one can have answered before.
    """
    own, give_up = os.urandom(8).hex(), time.monotonic() + _TIMEOUT.total_seconds()
    if rank > 0:
        shared.set(f"hello/{rank}", own)
        session = shared.get(f"welcome/{own}").decode()
        shared.set(f"ready/{session}/{rank}", "")
        return session
    missing = list(range(1, world_size))
    while missing:
        for other in missing:
            if is_set(shared, f"hello/{other}"):
                word = shared.get(f"hello/{other}").decode()
                shared.set(f"welcome/{word}", own)
        missing = [other for other in missing if not is_set(shared, f"ready/{own}/{other}")]
        if time.monotonic() > give_up:
            raise RuntimeError(f"rank {missing[0]} did not come in {_TIMEOUT}")
        time.sleep(0.01)
    return own


def leave_group() -> None:
    """Part from the other ranks, when all of them have come so far."""
    global _ranks, _store
    if _ranks.is_single:
        return
    wait_for_all()
    dist.destroy_process_group()
    _ranks, _store = Ranks(), None


def share(value: Any) -> Any:
    """Return the value that rank 0 has."""
    if _ranks.is_single:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values[0]


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, in order."""
    if _ranks.is_single:
        return [value]
    values: list[Any] = [None] * _ranks.world_size
    dist.all_gather_object(values, value)
    return values


def total(values: Sequence[float]) -> list[float]:
    """Return the sums of numbers over the ranks, in 64 bits: of integers they are exact."""
    if _ranks.is_single:
        return list(values)
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def wait_for_all() -> None:
    """Wait until all ranks have come so far."""
    if not _ranks.is_single:
        dist.barrier()


def is_set(shared: Store, key: str) -> bool:
    """Say whether a key has a value in the store, which torch 2.1 has no other way to ask."""
    return shared.compare_set(key, _NO_VALUE, _NO_VALUE) != _NO_VALUE.encode()


def wait_for(key: str) -> bytes:
    """Wait for a value in the store, for as long as it takes; signals are answered meanwhile.

    Raises:
        RankFailedError: another rank failed meanwhile.
    """
    assert _store is not None
    while not is_set(_store, key):
        if is_set(_store, "failed"):
            raise RankFailedError("another rank failed")
        time.sleep(_POLL_S)
    return _store.get(key)


def put(key: str, value: Any) -> None:
    """Put any value into the store, for the other ranks to `take`."""
    assert _store is not None
    _store.set(key, pickle.dumps(value))


def take(key: str) -> Any:
    """Wait for a value that another rank of this run `put` into the store."""
    return pickle.loads(wait_for(key))


@contextmanager
def first_on_machine() -> Iterator[None]:
    """Let rank 0 through the block, then one rank of each other machine, then all others.

    Files are made once, whether each machine has a disk of its own or all share one.

    Raises:
        RankFailedError: one that went before failed.
    """
    global _num_waits
    if _ranks.is_single:
        yield
        return
    _num_waits += 1
    by_any, here = f"made/{_num_waits}", f"made/{_num_waits}/{_ranks.node}"
    is_first = _ranks.local_rank == 0
    if not _ranks.is_main:
        wait_for(by_any if is_first else here)
    yield
    if is_first:
        put(here, True)
    if _ranks.is_main:
        put(by_any, True)


def check_same(marks: dict[str, str]) -> None:
    """Make sure that all ranks have the same code and data.

    Raises:
        ConfigError: a mark differs; says so on every rank.
    """
    first, *others = gather(marks)
    for rank, other in enumerate(others, 1):
        for name, mark in first.items():
            if other[name] != mark:
                raise ConfigError(
                    f"{name} must be the same on every rank, but its mark is {mark} on rank 0 and "
                    f"{other[name]} on rank {rank}"
                )
