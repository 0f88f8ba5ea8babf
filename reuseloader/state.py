"""The state of a loader: what it says, and which states a loader may go on from."""

from __future__ import annotations

import warnings
from typing import Any

from reuseloader.checks import check_integer
from reuseloader.order import EpochOrder
from reuseloader.passes import Position

_VERSION = 3
_REMEDIES = {"world_size": "; go on with as many ranks, or from the end of an epoch"}


def state_at(position: Position, order: EpochOrder, batch_size: int | None) -> dict[str, int]:
    """Return the state of a loader that has come to a position, the same on all ranks."""
    settings = _settings(order, batch_size, position.epoch)
    return {**settings, "epoch": position.epoch, "num_batches": position.num_batches}


def position_of(state: Any, order: EpochOrder, batch_size: int | None) -> Position:
    """Return the position of a state, for a loader with the same settings.

    At the start of an epoch it may be of another number of ranks, of which rank 0 warns, and of a
    loader that did not grow in this epoch.

    Raises:
        ValueError: the state is none, or that of a loader with other settings.
    """
    names = state_at(Position(0, 0), order, batch_size).keys()
    if not isinstance(state, dict) or state.keys() != names:
        raise ValueError(
            f"state must have the entries {', '.join(sorted(names))}, but got {state!r}"
        )
    position = Position(
        check_integer("epoch", state["epoch"], minimum=0),
        check_integer("num_batches", state["num_batches"], minimum=0),
    )
    free = _free(state, position, order)
    for name, value in _settings(order, batch_size, position.epoch).items():
        if state[name] != value and name not in free:
            raise ValueError(
                f"state must have the {name} of this loader, {value}, "
                f"but got {name}={state[name]}" + _REMEDIES.get(name, "")
            )
    if "world_size" in free and position.epoch > 0 and order.rank == 0:
        warnings.warn(
            f"the state is of world_size={state['world_size']}, and there are "
            f"{order.num_replicas}: samples change their rank, and what is not in the folder of "
            "the new one is built again",
            stacklevel=3,
        )
    return position


def _settings(order: EpochOrder, batch_size: int | None, epoch: int) -> dict[str, int]:
    return {
        "version": _VERSION,
        "seed": order.policy.seed,
        "lifetime": order.policy.lifetime,
        "size": order.sizes.at(epoch),
        "world_size": order.num_replicas,
        "batch_size": batch_size or 0,  # 0: batches are not the loader's to make
        "block_size": order.block_size,
        "shuffle": int(order.shuffle),
    }


def _free(state: dict[str, int], position: Position, order: EpochOrder) -> set[str]:
    """Return the settings in which a state may differ, of those in which it does."""
    world_size = check_integer("world_size", state["world_size"], minimum=1)
    free: set[str] = set()
    if position.num_batches > 0:
        return free
    if world_size != order.num_replicas:
        free |= {"world_size", "batch_size"}  # the global batch may stay what it was
    if position.epoch > 0 and state["size"] == order.sizes.at(position.epoch - 1):
        free.add("size")
    return free
