"""The two stages of a sample: `build`, expensive and stored, and `finish`, cheap and fresh.

A build function of your own has the signature of `build_image` and is named on the command line
or in YAML: `build._target_=my_module.build`. It draws random numbers from `key.seed` alone, reads
of time only `key.first_epoch`, and returns tensors that are small to store, so uint8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from reuseloader import ReuseKey, Substitute, seeded
from training.checks import ConfigError
from training.curriculum import Steps

Transform = Callable[[Any], Any]

_OVERSHOOT = 0.5  # a bicubic resize of floats leaves [0, 1] by less than that


class Source(Protocol):
    """Raw items by index: `{"image": uint8 C x H x W, "label": int}`.

    Where it also has `labels`, one an index, a class without validation samples is reported. An
    item may hold more: tv_tensors (`Mask`, `BoundingBoxes`) go through the transforms together
    with the image, other entries go along. With an entry `skipped`, a text, it stands in for one
    that could not be read, and is not stored. Where it has `record_of(key)`, that is the index of
    the item in place of the key's, `size_table` the number of samples in place of its length
    (or a table of numbers by first epoch), `block_size` the number of items read together, and
    `prefetch(keys)` is called before samples are built.
    """

    classes: list[str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def identity(self) -> str:
        """Return a digest of the content: not of where it lies, nor when it was written."""
        ...


def build_image(key: ReuseKey, *, source: Source, transforms: Steps[Transform]) -> Any:
    """Make the stored sample: `{"image": uint8 C x H x W, "label": int}`, and what else there is.

    Args:
        key: which sample, and the seed and first epoch of its generation.
        source: raw items.
        transforms: the stored transforms, by first epoch.
    """
    record_of = getattr(source, "record_of", None)
    item = dict(source[key.index if record_of is None else record_of(key)])
    reason = item.pop("skipped", None)
    with seeded(key.seed), single_thread():
        sample = _transformed(item, transforms.at(key.first_epoch))
    sample["image"] = to_bytes(sample["image"], "augment.stored")
    return sample if reason is None else Substitute(sample, reason)


def finish_image(
    sample: dict[str, Any], key: ReuseKey, *, transforms: Steps[Transform]
) -> dict[str, Any]:
    """Add the fresh part to a stored sample, at every use: `transforms` of `key.epoch`."""
    with seeded(key.use_seed), single_thread():
        sample = _transformed(sample, transforms.at(key.epoch))
    return {**sample, "image": to_bytes(sample["image"], "augment.fresh")}


class ToRGB:
    """Gives an image of one channel, 1 x H x W, three that are alike; leaves others alone.

    Of a sample with masks or boxes it takes the image. torchvision's own transform for that,
    `v2.RGB`, needs 0.20, and `v2.Grayscale` 0.17.
    """

    def __call__(self, given: Any) -> Any:
        """Return the image, 3 x H x W, or the sample `{"image": C x H x W, ...}` with it."""
        if isinstance(given, dict):
            return {**given, "image": self(given["image"])}
        image: torch.Tensor = given
        if image.shape[0] != 1:
            return image
        return tv_tensors.wrap(image.repeat(3, 1, 1), like=image)


def to_bytes(image: torch.Tensor, place: str) -> torch.Tensor:
    """Return what transforms left as a plain uint8 tensor.

    Args:
        image: uint8, another integer type, or floats in [0, 1].
        place: of the transforms in the config.

    Raises:
        ConfigError: it is no tensor, or there are other floats in it.
    """
    if not isinstance(image, torch.Tensor):
        raise ConfigError(f"{place} must leave a tensor, but got {type(image).__name__}")
    if image.is_floating_point():
        low, high = image.aminmax()
        if not (low >= -_OVERSHOOT and high <= 1 + _OVERSHOOT):  # not for NaN either
            raise ConfigError(
                f"{place} must leave floats in [0, 1], but they go from {low:.3g} to {high:.3g}; "
                "images are normalised on the device, by data.mean and data.std"
            )
        image = image.clamp(0, 1)
    return F.to_dtype(image, torch.uint8, scale=True).as_subclass(torch.Tensor)


def _transformed(sample: dict[str, Any], transform: Transform) -> dict[str, Any]:
    """Return a sample with image, masks and boxes transformed alike."""
    others = {
        name: value
        for name, value in sample.items()
        if name != "image" and isinstance(value, tv_tensors.TVTensor)
    }
    if not others:
        return {**sample, "image": transform(sample["image"])}
    together = transform({"image": tv_tensors.Image(sample["image"]), **others})
    return {**sample, **together}


def compose(transforms: list[Transform]) -> Transform:
    """Return the transforms in order, as one."""
    return v2.Compose(transforms) if transforms else v2.Identity()


class single_thread:  # noqa: N801, a context manager
    """Compute on one thread, as a worker does, so that num_workers=0 gives the same bits."""

    def __enter__(self) -> None:
        self._num_threads = torch.get_num_threads()
        if self._num_threads != 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._num_threads != 1:
            torch.set_num_threads(self._num_threads)
