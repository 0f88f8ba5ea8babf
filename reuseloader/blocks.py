"""A tensor or an array in a file: checked descriptions, and how to see memory through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch

from reuseloader.store import DamagedFileError

ALIGNMENT = 64  # bytes, of a cache line and of AVX-512
_MAX_DIMENSIONS = 64  # what NumPy and torch allow

DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.bit"))
}
ARRAY_KINDS, SCALAR_KINDS = "biufcmMSU", "biufcmM"  # no objects, no records
TV_FIELDS: dict[str, tuple[str, ...]] = {
    "Image": (),
    "Video": (),
    "Mask": (),
    "BoundingBoxes": ("format", "canvas_size", "clamping_mode"),
    "KeyPoints": ("canvas_size",),
}


@dataclass(frozen=True)
class Block:
    """The memory of a tensor or an array.

    Attributes:
        dtype: of its elements, torch's for a tensor and NumPy's for an array.
        shape: of the tensor or array.
        num_bytes: its size.
        direct: whether it is a contiguous tensor or array, so that a batch may hold it.
        view: makes the tensor or array from its memory, which is a writable uint8 buffer.
        wrap: makes torchvision's tensor from a plain one.
    """

    dtype: torch.dtype | np.dtype[Any]
    shape: tuple[int, ...]
    num_bytes: int
    direct: bool
    view: Callable[[Any], Any]
    wrap: Callable[[torch.Tensor], Any] | None = None

    def of(self, memory: memoryview) -> Any:
        """Return what lies in ``memory``, uint8 ``[num_bytes]``, sharing it."""
        part = self.view(memory)
        return part if self.wrap is None else self.wrap(part)


def read_block(tree: list[Any]) -> Block:
    """Return the block that a part of a layout describes.

    Raises:
        DamagedFileError: it describes none.
    """
    match tree:
        case ["tensor", str(name), list(shape)]:
            return _tensor_block(name, _lengths(shape), None)
        case ["tensor", str(name), list(shape), list(strides)]:
            return _tensor_block(name, _lengths(shape), _lengths(strides))
        case ["array", str(name), list(shape)]:
            return _array_block(name, _lengths(shape), range(len(shape)))
        case ["array", str(name), list(shape), list(axes)]:
            return _array_block(name, _lengths(shape), _lengths(axes))
        case ["tv", str(name), dict(fields), ["tensor", *_] as inner]:
            plain = read_block(inner)
            return replace(plain, wrap=_tv_wrap(name, fields, len(plain.shape)))
    raise DamagedFileError("its layout has a tensor of no known kind")


def _tensor_block(name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> Block:
    require(name in DTYPES, f"names the dtype {name!r}")
    dtype, numel = DTYPES[name], math.prod(shape)
    contiguous = strides_of(shape)
    if strides is not None:
        require(len(strides) == len(shape), "has strides for another shape")
        last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        require(numel == 0 or last < numel, "has strides that lead outside")
    place = contiguous if strides is None else strides

    def view(memory: Any) -> torch.Tensor:
        if numel == 0:
            return torch.empty(0, dtype=torch.uint8).view(dtype).as_strided(shape, place)
        # In place, so that the tensor is no view, and owns a storage of just its size.
        return torch.frombuffer(memory, dtype=dtype).as_strided_(shape, place)

    return Block(dtype, shape, numel * dtype.itemsize, strides is None and numel > 0, view)


def _array_block(name: str, shape: tuple[int, ...], axes: Sequence[int]) -> Block:
    dtype = array_dtype(name, ARRAY_KINDS)
    require(sorted(axes) == list(range(len(shape))), "has axes of another shape")
    stored = tuple(shape[axis] for axis in axes)
    back = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    numel = math.prod(shape)

    def view(memory: Any) -> Any:
        return np.ndarray(stored, dtype, memory if numel else None).transpose(back)

    direct = list(axes) == list(range(len(shape))) and numel > 0 and dtype.isnative
    return Block(dtype, shape, numel * dtype.itemsize, direct, view)


def _tv_wrap(name: str, fields: dict[str, Any], ndim: int) -> Callable[[torch.Tensor], Any]:
    require(name in TV_FIELDS and fields.keys() <= set(TV_FIELDS[name]), f"names {name!r}")
    try:
        kind = getattr(import_module("torchvision.tv_tensors"), name)
    except (ImportError, AttributeError) as error:
        raise DamagedFileError(f"its layout needs torchvision's {name}: {error}") from error
    if not TV_FIELDS[name]:
        return lambda tensor: tensor.as_subclass(kind)
    require(ndim >= 2, f"has a {name} of too few dimensions")
    options = dict(fields)
    if "canvas_size" in fields:
        require(isinstance(fields["canvas_size"], list), "has no canvas")
        options["canvas_size"] = _lengths(fields["canvas_size"])
    return lambda tensor: kind(tensor, **options)


def array_dtype(name: str, kinds: str) -> np.dtype[Any]:
    """Return the NumPy dtype of this name; DamagedFileError unless its kind is one of these."""
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise DamagedFileError(f"its layout names the dtype {name!r}") from error
    known = dtype.kind in kinds and dtype.str == name and dtype.itemsize > 0
    require(known, f"names the dtype {name!r}")
    return dtype


def _lengths(numbers: list[Any]) -> tuple[int, ...]:
    require(len(numbers) <= _MAX_DIMENSIONS, "has too many dimensions")
    require(all(type(n) is int and 0 <= n < 2**62 for n in numbers), "has a wrong length")
    return tuple(numbers)


def aligned(num_bytes: int) -> int:
    """Return the next multiple of the alignment, at which the next block begins."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor of this shape, in elements, as torch sets them."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def require(holds: bool, what: str) -> None:
    """Raise a DamagedFileError that says what a layout does, unless something holds."""
    if not holds:
        raise DamagedFileError(f"its layout {what}")
