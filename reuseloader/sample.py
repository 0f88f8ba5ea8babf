"""What a sample may hold, and the random state under which it is made."""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from reuseloader.checks import check_integer
from reuseloader.mixing import mix


@dataclasses.dataclass(frozen=True)
class Substitute:
    """What ``build`` may return where a sample cannot be made: it is used, and never stored.

    It is counted in ``stats().substituted``, and tried again at the next use.

    Args:
        sample: used in its place; as a function of the key, so that a run can be repeated.
        reason: what the user is told, in one line.
    """

    sample: Any
    reason: str


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's CPU generators inside, and restore all three outside.

    For code that draws from the global generators, as torchvision's transforms do:
    ``with seeded(key.seed): image = transform(image)``.

    Args:
        seed: any integer, taken modulo 2^64.
    """
    seed = check_integer("seed", seed) % 2**64
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.default_generator.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32])
        # torch.manual_seed would seed every accelerator as well, and of the seed the CPU's
        # generator reads 32 bits alone: mixed, all of the bits count.
        torch.default_generator.manual_seed(seed if seed < 2**32 else mix(seed))
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.default_generator.set_state(torch_state)


def compact(sample: Any) -> Any:
    """Return a copy that shares no memory with the sample: what a later read will return.

    Copies dicts, lists, tuples, dataclasses, tensors, ndarrays and PIL images; everything else is
    taken as it is. Each tensor gets a storage of its own size, because storing a view would store
    all that it views; an image that PIL reads lazily from a file becomes a plain one.

    Raises:
        ValueError: a tensor requires grad or lies on an accelerator; names its place.
    """
    return _copy(sample, "sample", {})


def _copy(value: Any, place: str, copies: dict[int, Any]) -> Any:
    # What occurs twice in a sample is copied once, as it is stored once.
    if id(value) not in copies:
        copies[id(value)] = _copy_once(value, place, copies)
    return copies[id(value)]


def _copy_once(value: Any, place: str, copies: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        _check_tensor(value, place)
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, dict):
        changed: Any = copy.copy(value)
        for key, item in value.items():
            changed[key] = _copy(item, f"{place}[{key!r}]", copies)
        return changed
    if isinstance(value, (list, tuple)):
        items = [_copy(item, f"{place}[{number}]", copies) for number, item in enumerate(value)]
        return _like(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            item = _copy(getattr(value, field.name), f"{place}.{field.name}", copies)
            object.__setattr__(changed, field.name, item)  # also where the dataclass is frozen
        return changed
    pillow = sys.modules.get("PIL.Image")
    return value.copy() if pillow is not None and isinstance(value, pillow.Image) else value


def _like(sequence: Any, items: list[Any]) -> Any:
    if isinstance(sequence, list):
        changed = copy.copy(sequence)
        changed[:] = items
        return changed
    return sequence._make(items) if hasattr(sequence, "_make") else type(sequence)(items)


def _check_tensor(tensor: torch.Tensor, place: str) -> None:
    if tensor.requires_grad:
        raise ValueError(
            f"{place} must not require grad, but got requires_grad=True; detach() it in build"
        )
    if tensor.device.type != "cpu":
        raise ValueError(
            f"{place} must lie on the CPU, but got device={tensor.device}; "
            "move batches to the device in the training loop"
        )
