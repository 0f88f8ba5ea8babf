"""Build, finish, save and load functions that spawned workers can import, and plain oracles."""

from __future__ import annotations

import errno
import json
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from reuseloader import ReuseDataLoader, ReuseDataset, ReuseKey, ReusePolicy

SIZE, BATCH = 10, 3
POLICY = ReusePolicy(3, seed=7)


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


@dataclass
class Point:
    x: torch.Tensor
    name: str


def draw(key: ReuseKey) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(key.seed)
    x = torch.rand(3, generator=generator)
    return {"x": x, "index": key.index, "first_epoch": key.first_epoch}


def freshen(sample: dict[str, Any], key: ReuseKey) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(key.use_seed)
    return {**sample, "epoch": key.epoch, "use": torch.rand(2, generator=generator)}


def number(key: ReuseKey) -> int:
    return key.seed


def sleepy(key: ReuseKey) -> int:
    time.sleep(60)
    return key.seed


@dataclass(frozen=True)
class FailAt:
    """Serves as build or as finish, and raises at one index."""

    index: int
    error: Callable[[], BaseException]

    def __call__(self, *args: Any) -> Any:
        key = args[-1]
        if key.index == self.index:
            raise self.error()
        return args[0] if len(args) == 2 else draw(key)


def bad_pixels() -> ValueError:
    return ValueError("bad pixels")


def stop() -> StopIteration:
    return StopIteration()


class TwoArgumentsError(Exception):
    """An exception that one string cannot rebuild."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(name, code)


def two_arguments() -> TwoArgumentsError:
    return TwoArgumentsError("bad pixels", 7)


def disk_full(obj: Any, path: Any) -> None:
    """Break off in the middle of a file, as a full disk does."""
    Path(path).write_bytes(b"half a file")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def write_nothing(obj: Any, path: Any) -> None:
    """Report success without a file."""


def save_json(obj: Any, path: Any) -> None:
    Path(path).write_text(json.dumps(obj))


def load_json(path: Any) -> Any:
    return json.loads(Path(path).read_text())


def same(a: Any, b: Any) -> bool:
    """Whether two samples agree in type, dtype, shape and every bit of their values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (
            (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
            and same(vars(a), vars(b))
            and _bits(a) == _bits(b)
        )
    if isinstance(a, np.ndarray | np.generic):
        values = (a.tolist(), b.tolist()) if a.dtype == object else (a.tobytes(), b.tobytes())
        return (a.dtype, a.shape) == (b.dtype, b.shape) and values[0] == values[1]
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if hasattr(a, "getpalette"):  # a PIL image, without an import of PIL in every worker
        return _pixels(a) == _pixels(b)
    return bool(a == b) or (a != a and b != b)


def _bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    return plain.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def _pixels(image: Any) -> Any:
    return image.mode, image.size, image.tobytes(), image.getpalette()


def samples_of(policy: ReusePolicy, indices: Iterable[int], epoch: int) -> list[dict[str, Any]]:
    """What draw and freshen make of these indices in an epoch, without dataset or loader."""
    keys = [policy.key(int(index), epoch) for index in indices]
    return [freshen(draw(key), key) for key in keys]


def batches_of(
    policy: ReusePolicy, size: int, epoch: int, batch_size: int, shuffle: bool = True
) -> list[dict[str, Any]]:
    """What a pass over draw and freshen holds, without dataset or loader."""
    order = [policy.order(p, epoch, size) if shuffle else p for p in range(size)]
    samples = samples_of(policy, order, epoch)
    return [default_collate(samples[i : i + batch_size]) for i in range(0, size, batch_size)]


def counts_of(size: int, lifetime: int, epoch: int) -> tuple[int, int, int]:
    """Built, reused and stored in a full pass, when every earlier epoch was a full pass too."""
    uses = [(epoch + index % lifetime) % lifetime for index in range(size)]
    built = [use for use in uses if use == 0 or epoch == 0]
    return len(built), size - len(built), sum(use < lifetime - 1 for use in built)


def open_dataset(folder: Path, lifetime: int = 3, **options: Any) -> ReuseDataset:
    """A data set of SIZE samples that draw builds, where the options say nothing else."""
    build = options.pop("build", draw)
    policy = ReusePolicy(lifetime, seed=options.pop("seed", POLICY.seed))
    return ReuseDataset(build, options.pop("size", SIZE), folder, policy, **options)


def open_loader(folder: Path, **options: Any) -> ReuseDataLoader:
    """A loader of SIZE samples by POLICY, shuffled, where the options say nothing else."""
    defaults = {
        **{"lifetime": POLICY.lifetime, "seed": POLICY.seed, "shuffle": True},
        **{"batch_size": BATCH, "finish": freshen},
    }
    options = {**defaults, **options}
    return ReuseDataLoader(options.pop("build", draw), SIZE, folder, **options)


def expected(epoch: int, policy: ReusePolicy = POLICY, shuffle: bool = True) -> list[Any]:
    """The batches of such a loader."""
    return batches_of(policy, SIZE, epoch, BATCH, shuffle)


def read(dataset: ReuseDataset, epoch: int) -> list[Any]:
    """All samples of an epoch."""
    dataset.set_epoch(epoch)
    return [dataset[index] for index in range(len(dataset))]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def check_told(error: BaseException, index: int, epoch: int, generation: int) -> None:
    for name, value in {"index": index, "epoch": epoch, "generation": generation}.items():
        assert re.search(rf"{name}\W{{0,3}}{value}\b", told(error)), told(error)


def refuse_renames(monkeypatch: Any) -> None:
    """Let no file take the place of another."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    for name in ("replace", "rename", "link"):
        monkeypatch.setattr(f"os.{name}", refuse)
