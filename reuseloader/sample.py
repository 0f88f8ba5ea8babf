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

from reuseloader.policy import check_integer


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
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        # torch.manual_seed would seed every accelerator as well.
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.default_generator.set_state(torch_state)


def compact(sample: Any, place: str = "sample") -> Any:
    """Return the sample as a later read will return it: each tensor with a storage of its own size.

    Looks into dicts, lists, tuples and dataclasses. A tensor that views a larger storage is
    copied, because storing it would store all of that; an image that PIL reads lazily from a
    file becomes a plain image. Everything else is returned as it is.

    Raises:
        ValueError: a tensor requires grad or lies on an accelerator; names its place.
    """
    if isinstance(sample, torch.Tensor):
        return _compact_tensor(sample, place)
    if isinstance(sample, dict):
        items = {key: compact(value, f"{place}[{key!r}]") for key, value in sample.items()}
        if all(items[key] is value for key, value in sample.items()):
            return sample
        changed = copy.copy(sample)
        changed.update(items)
        return changed
    if isinstance(sample, (list, tuple)):
        return _compact_sequence(sample, place)
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return _compact_dataclass(sample, place)
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(sample, pillow.Image) and type(sample) is not pillow.Image:
        return sample.copy()
    return sample


def _compact_tensor(tensor: torch.Tensor, place: str) -> torch.Tensor:
    if tensor.requires_grad:
        raise ValueError(
            f"{place} must not require grad, but got requires_grad=True; detach() it in build"
        )
    if tensor.device.type != "cpu":
        raise ValueError(
            f"{place} must lie on the CPU, but got device={tensor.device}; "
            "move batches to the device in the training loop"
        )
    if tensor.layout is not torch.strided:
        return tensor
    if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size():
        return tensor
    return tensor.clone()


def _compact_sequence(sample: Any, place: str) -> Any:
    items = [compact(item, f"{place}[{number}]") for number, item in enumerate(sample)]
    if all(new is old for new, old in zip(items, sample, strict=True)):
        return sample
    if isinstance(sample, list):
        changed = copy.copy(sample)
        changed[:] = items
        return changed
    return sample._make(items) if hasattr(sample, "_make") else type(sample)(items)


def _compact_dataclass(sample: Any, place: str) -> Any:
    changed = sample
    for field in dataclasses.fields(sample):
        old = getattr(sample, field.name)
        new = compact(old, f"{place}.{field.name}")
        if new is not old:
            changed = copy.copy(sample) if changed is sample else changed
            object.__setattr__(changed, field.name, new)  # also where the dataclass is frozen
    return changed
