"""What a sample has to be for the loop, looked at in the process that makes it.

A stored sample was looked at when it was built: reading it again costs nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from operator import index as as_index
from typing import Any

import torch
from torch import Tensor

from reuseloader import ReuseKey, Substitute
from training.checks import ConfigError, check
from training.config import DataConfig
from training.unfit import unfit

Build = Callable[[ReuseKey], Any]
Finish = Callable[[Any, ReuseKey], Any]

PLAIN = "build must return {'image': uint8 C x H x W tensor, 'label': int}"


class _Explained:
    """A stage of a sample; until it has made one, what does not fit it is a user's mistake."""

    def __init__(self, stage: Callable[..., Any]) -> None:
        self._stage = stage
        self._has_worked = False

    def __call__(self, *arguments: Any) -> Any:
        try:
            made = self._stage(*arguments)
        except Exception as error:
            if not self._has_worked and (mistake := unfit(error)):
                raise mistake from error
            raise
        self._has_worked = True
        return made


class CheckedBuild:
    """A build whose samples are what the loop can train on.

    Args:
        build: makes a sample.
        num_classes: labels are below it.
        alike: looks at images that go into a batch as they are; None where a fresh stage follows.
    """

    def __init__(self, build: Build, num_classes: int, alike: Alike | None) -> None:
        self._build, self._num_classes, self._alike = _Explained(build), num_classes, alike

    def __call__(self, key: ReuseKey) -> Any:
        """Return the sample of a key, with its label as an int.

        Raises:
            ConfigError: it is none, or the first one does not fit a transform of torchvision's;
                the loader adds the index.
        """
        sample = self._build(key)
        if isinstance(sample, Substitute):
            return replace(sample, sample=self._checked(sample.sample, key))
        return self._checked(sample, key)

    def _checked(self, sample: Any, key: ReuseKey) -> dict[str, Any]:
        if not isinstance(sample, dict) or not {"image", "label"} <= sample.keys():
            raise ConfigError(f"{PLAIN}, but got {_described(sample)}")
        image = sample["image"]
        if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.ndim != 3:
            raise ConfigError(f"{PLAIN}, but got image: {_described(image)}")
        if self._alike is not None:
            self._alike(image, key)
        return {**sample, "label": _label(sample["label"], self._num_classes)}


class CheckedFinish:
    """A fresh stage whose images can form a batch.

    Args:
        finish: makes what is trained on from a stored sample.
        alike: looks at its images.
    """

    def __init__(self, finish: Finish, alike: Alike) -> None:
        self._finish, self._alike = _Explained(finish), alike

    def __call__(self, sample: Any, key: ReuseKey) -> Any:
        """Return what is trained on.

        Raises:
            ConfigError: its image does not fit the others; the loader adds the index.
        """
        result = self._finish(sample, key)
        self._alike(result["image"], key)
        return result


class Alike:
    """Sees to it that images have one shape, that of the first one that this process made.

    Args:
        num_channels: how many `data.mean` and `data.std` have; 1 goes with any number.
        each_epoch: another epoch may have another shape: its batches hold nothing of before.
    """

    def __init__(self, num_channels: int, each_epoch: bool) -> None:
        self._num_channels, self._each_epoch = num_channels, each_epoch
        self._first: tuple[torch.Size, ReuseKey] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": None}

    def __call__(self, image: Tensor, key: ReuseKey) -> None:
        """Look at the image of a key.

        Raises:
            ConfigError: it does not fit the config, or the others.
        """
        if self._first is None or (self._each_epoch and self._first[1].epoch != key.epoch):
            if self._num_channels not in (1, len(image)):
                raise ConfigError(
                    f"data.mean must have a value for each channel of an image, {len(image)}, "
                    f"but has {self._num_channels}"
                )
            self._first = (image.shape, key)
        shape, index = self._first[0], self._first[1].index
        if image.shape != shape:
            raise ConfigError(
                f"images must have one shape to form a batch, but got {_sides(image.shape)} after "
                f"{_sides(shape)} of index={index}; data.prepare or augment.fresh can resize them"
            )


def checked(
    build: Build, finish: Finish | None, data: DataConfig, lifetime: int
) -> tuple[Build, Finish | None]:
    """Return both stages with their checks."""
    alike = Alike(len(data.mean), each_epoch=finish is not None or lifetime == 1)
    if finish is None:
        return CheckedBuild(build, data.num_classes, alike), None
    return CheckedBuild(build, data.num_classes, None), CheckedFinish(finish, alike)


def check_signature(build: Callable[..., Any], name: str) -> None:
    """Refuse a build function that cannot be called as one.

    Raises:
        ConfigError: it takes other arguments than `(key, *, source, transforms)`.
    """
    try:
        signature = inspect.signature(build)
    except ValueError:  # a function of another language does not say
        return
    try:
        signature.bind(None, source=None, transforms=None)
    except TypeError as error:
        raise ConfigError(
            f"build must take (key, *, source, transforms), but {name} does not: {error}"
        ) from error


def _label(value: Any, num_classes: int) -> int:
    try:
        label = as_index(value)
    except TypeError:
        raise ConfigError(f"{PLAIN}, but got label: {_described(value)}") from None
    check("label", label, 0 <= label < num_classes, f"in [0, {num_classes}), the classes of data")
    return label


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {_sides(value.shape)} tensor"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: ...' for name in value)}}}"
    return type(value).__name__


def _sides(shape: torch.Size) -> str:
    return " x ".join(map(str, shape)) or "0-dimensional"
