"""Builds and finishes of all kinds, and loaders that read their samples into batches or do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builds import same
from torch.utils.data import default_collate
from torchvision import tv_tensors

from reuseloader import ReuseDataLoader, ReuseKey, load_tensors, save_tensors

SIZE, EPOCHS = 12, 4

INT16: Any = np.uint16 if hasattr(torch, "uint16") else np.int16  # torch 2.1 collates no uint16


def noise(key: ReuseKey, shape: tuple[int, ...] = (3, 8, 8)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(key.seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def image_and_label(key: ReuseKey) -> Any:
    return {"image": noise(key), "label": key.seed % 10}


def pair(key: ReuseKey) -> Any:
    return noise(key).float(), key.index


def alone(key: ReuseKey) -> Any:
    return noise(key, (7,))


def every_kind(key: ReuseKey) -> Any:
    return {
        "image": noise(key),
        "bf16": noise(key, (5,)).bfloat16(),
        "bool": noise(key, (2, 3)) > 127,
        "zero_d": torch.tensor(key.seed),
        "empty": torch.empty(0, 3),
        "channels_last": noise(key, (4, 5, 3)).permute(2, 0, 1),
        "ones": noise(key, (3, 1, 1)),
        "array": noise(key, (4, 2)).numpy(),
        "array16": np.arange(3, dtype=INT16) + INT16(key.index),
        "fortran": noise(key, (4, 2)).numpy().T,
        "number": np.float32(key.index),
        "int": key.seed,
        "float": key.seed / 3,
        "flag": key.index % 2 == 0,
        "name": "x" * (key.index + key.generation),
        "nested": [{"a": (noise(key, (2,)), 1)}, b"bytes"],
        "tv": tv_tensors.Image(noise(key)),
        "mask": tv_tensors.Mask(noise(key, (1, 8, 8)) > 3),
        "boxes": tv_tensors.BoundingBoxes(
            noise(key, (2, 4)).float(), format="XYXY", canvas_size=(8, 8)
        ),
    }


def twice(key: ReuseKey) -> Any:
    image = noise(key)
    return {"x": image, "target": image}


def varied_layout(key: ReuseKey) -> Any:
    # The same shape, but every third sample lies otherwise in memory, and some are larger tuples.
    image = noise(key)
    if key.index % 3 == 0:
        image = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return {"image": image}


def varied_dtype(key: ReuseKey) -> Any:
    return noise(key).float() if key.index % 3 == 0 else noise(key).double()


def long_text(key: ReuseKey) -> Any:
    return {"image": noise(key), "text": "y" * (5000 if key.index % 3 == 0 else 3)}


BUILDS = [image_and_label, pair, alone, every_kind, twice, varied_layout, varied_dtype, long_text]


def as_it_is(sample: Any, key: ReuseKey) -> Any:
    return sample


def in_place(sample: Any, key: ReuseKey) -> Any:
    sample["image"].add_(key.epoch)
    return {**sample, "use": key.use_seed}


def some_replaced(sample: Any, key: ReuseKey) -> Any:
    image = sample["image"]
    return {**sample, "image": image.flip(-1) if key.use_seed % 2 else image}


def all_replaced(sample: Any, key: ReuseKey) -> Any:
    return {"image": sample["image"].float().div_(255)}


def the_same_twice(sample: Any, key: ReuseKey) -> Any:
    return {"a": sample["image"], "b": sample["image"], "c": sample["image"][:, 1:]}


def swapped(sample: Any, key: ReuseKey) -> Any:
    other = sample["image"].clone()
    names = ["a", "b"] if key.use_seed % 2 else ["b", "a"]
    return dict(sorted(zip(names, [sample["image"], other], strict=True)))


def seen_otherwise(sample: Any, key: ReuseKey) -> Any:
    return {"image": sample["image"].transpose_(1, 2), "as": sample["image"].view(torch.int8)}


KEPT: list[Any] = []


def from_before(sample: Any, key: ReuseKey) -> Any:
    """Give every sample the tensor of the one before it, which lies in another row."""
    KEPT.append(sample["image"])
    return {"image": KEPT[-2] if len(KEPT) > 1 else KEPT[-1]}


FINISHES = [
    as_it_is, in_place, some_replaced, all_replaced, the_same_twice, swapped, seen_otherwise,
    from_before,
]  # fmt: skip


def plain_collate(samples: list[Any]) -> Any:
    """Keep the loader from reading into batches: it does so for default_collate alone."""
    return default_collate(samples)


def loader_of(build: Callable[..., Any], folder: Path, **options: Any) -> ReuseDataLoader:
    size = options.pop("size", SIZE)
    options = {"lifetime": 3, "batch_size": 4, "save": save_tensors, "load": load_tensors} | options
    return ReuseDataLoader(build, size, folder, seed=5, shuffle=True, **options)


def passes(loader: ReuseDataLoader, num: int = EPOCHS) -> list[list[Any]]:
    KEPT.clear()
    return [list(loader) for _ in range(num)]


def strides(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: strides(part) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return [strides(part) for part in batch]
    return batch.stride() if isinstance(batch, torch.Tensor) else None


def assert_equal(a: Any, b: Any) -> None:
    assert same(a, b)
    assert strides(a) == strides(b)
