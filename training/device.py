"""What happens to a batch on the device: the copy, normalisation, MixUp and CutMix."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2

from training.build import Transform, compose
from training.checks import ConfigError, check, reason
from training.config import Config
from training.distributed import ranks
from training.options import TrainerConfig
from training.targets import make
from training.timing import Clock

Batch = dict[str, Any]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    """Return the device of a run; `auto` is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: the device is not there.
    """
    if not ranks().is_single:
        return _device_of_rank(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device must be like cpu, cuda or cuda:1, but got device={name}"
        ) from error
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type, True) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise ConfigError(f"device must be one that this machine has, but got device={name}")
    return device


def spread(name: str, job: int, num_devices: int) -> str:
    """Return the device of a job that runs beside others: they take the CUDA devices in turn.

    Args:
        name: as configured; one that says which device stays.
        job: the job's number.
        num_devices: CUDA devices that the job could use.
    """
    if name in ("auto", "cuda") and num_devices > 1:
        return f"cuda:{job % num_devices}"
    return name


def _device_of_rank(name: str) -> torch.device:
    """Return the CPU, or of the GPUs of this machine the one that belongs to the rank."""
    rule = "auto, cuda or cpu with several ranks: each takes the GPU of its number"
    check("device", name, name in ("auto", "cuda", "cpu"), rule)
    if name == "cpu" or not (name == "cuda" or torch.cuda.is_available()):
        return torch.device("cpu")
    num_gpus, num_ranks = torch.cuda.device_count(), ranks().local_world_size
    if num_ranks > num_gpus:
        raise ConfigError(
            f"--nproc-per-node must be at most the number of GPUs, {num_gpus}, but it is "
            f"{num_ranks}; device=cpu trains without them"
        )
    device = torch.device("cuda", ranks().local_rank)
    torch.cuda.set_device(device)
    return device


def set_up(config: Config) -> None:
    """Seed the global generators and set torch's switches, whatever a run before this one left."""
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed % 2**64)
    torch.set_num_threads(config.num_threads)
    # cuBLAS reads this when it starts; without it some products refuse to be deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)
    torch.backends.cudnn.deterministic = config.deterministic
    torch.backends.cudnn.benchmark = not config.deterministic
    tf32 = config.trainer.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    if config.trainer.compile:
        torch.compiler.reset()  # what an earlier run compiled counts against a limit


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: bf16 and fp16 where it is safe, else nothing."""
    if precision not in _AUTOCAST:
        return nullcontext()
    return torch.autocast(device.type, dtype=_AUTOCAST[precision])


def to_device(batches: Iterable[Batch], device: torch.device, clock: Clock) -> Iterator[Batch]:
    """Yield batches with their tensors on the device.

    For CUDA the copies run on a stream of their own: while the device still computes a step, the
    next batch is taken from the loader and copied, from pinned memory, beside it. No batch is
    taken ahead of the one that is asked for, so the loader's count is the loop's.

    Args:
        batches: of the loader.
        device: where they go.
        clock: told of waiting and copying.
    """
    copies = torch.cuda.Stream(device) if device.type == "cuda" else None
    for batch in _timed(batches, clock, copies):
        with clock.phase("copy"):
            moved = _move(batch, device) if copies is None else _copy(batch, copies, clock)
        yield moved


def _timed(batches: Iterable[Batch], clock: Clock, copies: Any) -> Iterator[Batch]:
    """Yield batches; that they are waited for is a phase of its own."""
    iterator = iter(batches)
    while True:
        with clock.phase("wait"):
            clock.wait_begins(copies)
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


def _copy(batch: Batch, copies: torch.cuda.Stream, clock: Clock) -> Batch:
    """Copy a batch on a stream of its own; what is computed from now on comes after it."""
    with torch.cuda.stream(copies):
        clock.copy_begins(copies)
        moved = _move(batch, copies.device)
        clock.copy_ends(copies)
    computing = torch.cuda.current_stream(copies.device)
    computing.wait_stream(copies)
    for value in moved.values():
        if isinstance(value, Tensor):
            value.record_stream(computing)  # its memory is free again when that is done
    return moved


def _move(batch: Batch, device: torch.device) -> Batch:
    return {
        name: _moved(value, device) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def _moved(value: Tensor, device: torch.device) -> Tensor:
    # Only of pinned memory does torch itself keep what a copy still reads. The memory of other
    # batches is taken again by the workers as soon as nothing refers to it, copied or not.
    return value.to(device, non_blocking=device.type == "cuda" and value.is_pinned())


def repeat(batches: Iterable[Batch], times: int) -> Iterator[Batch]:
    """Yield each batch several times in a row (batch echoing, Choi et al., 2019)."""
    for batch in batches:
        for _ in range(times):
            yield batch


def windows(batches: Iterable[Batch], size: int) -> Iterator[Iterator[Batch]]:
    """Split batches into the windows of an update each; the last may be shorter."""
    iterator = iter(batches)
    for first in iterator:
        yield chain([first], islice(iterator, size - 1))


class Preprocess:
    """From a batch on the device to the input of the model.

    Args:
        config: mean and standard deviation of the data, and what `trainer` says of batches.
        device: where the batches lie.

    Raises:
        ConfigError: a transform cannot be made.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        self.device = device
        self._mean = torch.tensor(config.data.mean, device=device).view(1, -1, 1, 1)
        self._std = torch.tensor(config.data.std, device=device).view(1, -1, 1, 1)
        channels_last = config.trainer.channels_last
        self._memory = torch.channels_last if channels_last else torch.contiguous_format
        self._transforms = batch_transforms(config.trainer, config.data.num_classes)

    def for_training(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return normalised and augmented images, and labels; augmentation is drawn anew.

        Returns:
            images, float N x C x H x W, and labels: int64 N, or after MixUp and CutMix the share
            of each class, float N x classes.
        """
        images, labels = self.for_evaluation(batch)
        for transform in self._transforms:
            images, labels = _transformed(transform, images, labels)
        return images, labels

    def for_evaluation(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return normalised images, float N x C x H x W, and labels, int64 N."""
        images = batch["image"]
        assert images.dtype == torch.uint8  # see training/samples.py
        images = (images.float().div_(255) - self._mean) / self._std
        return images.contiguous(memory_format=self._memory), batch["label"]


def _transformed(transform: Transform, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return a batch after a transform, which may change height and width alone.

    Raises:
        ConfigError: it refuses a batch, or returns something else.
    """
    place = "trainer.batch_transforms"
    try:
        made: Any = transform(images, labels)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{place} must take images N x C x H x W and labels: {reason(error)}"
        ) from error
    is_pair = isinstance(made, (tuple, list)) and len(made) == 2
    if is_pair and all(isinstance(part, Tensor) for part in made):
        after, shares = made
        same = after.ndim == 4 and after.shape[:2] == images.shape[:2]
        if same and after.is_floating_point() and shares.shape[:1] == labels.shape[:1]:
            return after, shares
    got = (
        [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in made]
        if is_pair
        else type(made).__name__
    )
    raise ConfigError(
        f"{place} must return images, floats of {tuple(images.shape[:2])} x H x W, and as many "
        f"labels, but got {got}"
    )


def batch_transforms(trainer: TrainerConfig, num_classes: int) -> list[Transform]:
    """Return what is done to a normalised batch: `batch_transforms`, then MixUp or CutMix.

    Raises:
        ConfigError: a transform cannot be made.
    """
    place = "trainer.batch_transforms"
    steps = [make(node, f"{place}.{name}") for name, node in trainer.batch_transforms.items()]
    mixing: list[Transform] = []
    if trainer.mixup_alpha > 0:
        mixing.append(v2.MixUp(num_classes=num_classes, alpha=trainer.mixup_alpha))
    if trainer.cutmix_alpha > 0:
        mixing.append(v2.CutMix(num_classes=num_classes, alpha=trainer.cutmix_alpha))
    if mixing:
        steps.append(mixing[0] if len(mixing) == 1 else v2.RandomChoice(mixing))
    return [compose(steps)] if steps else []
