"""Takes a sample apart for a file: its layout, its small values, and its blocks of memory."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reuseloader.blocks import ARRAY_KINDS, DTYPES, SCALAR_KINDS, TV_FIELDS, strides_of
from reuseloader.layout import MAX_DEPTH, NUMBERS
from reuseloader.store import UnstorableSampleError


@dataclass
class Parts:
    """A sample taken apart.

    Attributes:
        values: numbers and lengths, in the order of the layout.
        codes: how ``struct`` packs each of them.
        tail: bytes of strings.
        blocks: memory of tensors and arrays, uint8 ``[num_bytes]`` each.
        places: number of the block of a tensor or array, by its ``id``.
    """

    values: list[Any] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    tail: list[bytes] = field(default_factory=list)
    blocks: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)

    def add(self, code: str, value: Any) -> None:
        """Add a number or the length of a text."""
        self.codes.append(code)
        self.values.append(value)

    def packed(self) -> bytes:
        """Return the values as they stand in the file."""
        return struct.pack("<" + "".join(self.codes), *self.values)


def take_apart(sample: Any) -> tuple[bytes, Parts]:
    """Return the layout of a sample, and its parts.

    Raises:
        UnstorableSampleError: a part is of a type that the format cannot hold.
    """
    parts = Parts()
    tree = _describe(sample, "sample", 0, parts)
    return json.dumps(tree, separators=(",", ":")).encode(), parts


def _describe(value: Any, place: str, depth: int, parts: Parts) -> Any:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise UnstorableSampleError(f"{place} is nested deeper than {MAX_DEPTH} containers")
    if value is None:
        return "none"
    if kind is int and not -(2**63) <= value < 2**63:
        num_bytes = value.bit_length() // 8 + 1
        return _describe_text("long", value.to_bytes(num_bytes, "little", signed=True), parts)
    if kind in (int, float, bool):
        parts.add(NUMBERS[kind.__name__], value)
        return kind.__name__
    if kind is str:
        return _describe_text("str", value.encode("utf-8", "surrogatepass"), parts)
    if kind is bytes:
        return _describe_text("bytes", value, parts)
    if kind is dict:
        return ["dict", [_describe_item(k, v, place, depth, parts) for k, v in value.items()]]
    if kind is list or kind is tuple:
        nodes = [_describe(v, f"{place}[{n}]", depth + 1, parts) for n, v in enumerate(value)]
        return [kind.__name__, nodes]
    if id(value) in parts.places:
        return ["again", parts.places[id(value)]]
    if isinstance(value, torch.Tensor):
        parts.places[id(value)] = len(parts.blocks)
        return _describe_tensor(value, place, parts)
    if kind is np.ndarray and value.dtype.kind in ARRAY_KINDS and value.itemsize:
        parts.places[id(value)] = len(parts.blocks)
        return _describe_array(value, parts)
    if isinstance(value, np.generic) and value.dtype.kind in SCALAR_KINDS:
        parts.add(f"{value.dtype.itemsize}s", value.tobytes())
        return ["scalar", value.dtype.str]
    raise _unstorable(value, place)


def _describe_text(kind: str, data: bytes, parts: Parts) -> str:
    parts.add("I", len(data))
    parts.tail.append(data)
    return kind


def _describe_item(key: Any, value: Any, place: str, depth: int, parts: Parts) -> list[Any]:
    if type(key) not in (str, int, float, bool, type(None)):
        raise UnstorableSampleError(
            f"save_tensors cannot hold the key {key!r} of {place}, a {_name(key)}; use a str"
        )
    return [key, _describe(value, f"{place}[{key!r}]", depth + 1, parts)]


def _describe_tensor(tensor: torch.Tensor, place: str, parts: Parts) -> list[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    tv_node = _describe_tv(tensor)
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and dtype in DTYPES
    if (type(tensor) is not torch.Tensor and tv_node is None) or not plain or tensor.is_nested:
        raise _unstorable(tensor, place)
    if tensor.requires_grad:
        raise UnstorableSampleError(f"{place} requires grad; detach() it in build")
    tensor = tensor.as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    num_bytes = tensor.numel() * tensor.element_size()
    if tensor.untyped_storage().nbytes() != num_bytes or tensor.storage_offset():
        tensor = tensor.clone()
    memory = torch.empty(0, dtype=torch.uint8)
    parts.blocks.append(memory.set_(tensor.untyped_storage()).numpy())
    node = ["tensor", dtype, list(tensor.shape)]
    if tensor.stride() != strides_of(tensor.shape):
        node.append(list(tensor.stride()))
    return node if tv_node is None else [*tv_node, node]


def _describe_tv(tensor: torch.Tensor) -> list[Any] | None:
    module = sys.modules.get("torchvision.tv_tensors")
    name = type(tensor).__name__
    if name not in TV_FIELDS or type(tensor) is not getattr(module, name, None):
        return None
    fields = {key: getattr(tensor, key) for key in TV_FIELDS[name] if hasattr(tensor, key)}
    if fields and tensor.ndim < 2:  # which the constructor would change
        return None
    if "format" in fields:
        fields["format"] = fields["format"].value
    if "canvas_size" in fields:
        fields["canvas_size"] = [int(length) for length in fields["canvas_size"]]
    return ["tv", name, fields]


def _describe_array(array: npt.NDArray[Any], parts: Parts) -> list[Any]:
    node = ["array", array.dtype.str, list(array.shape)]
    if not array.flags.c_contiguous:
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        if array.transpose(axes).flags.c_contiguous:
            node.append(axes)
            array = array.transpose(axes)
    parts.blocks.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return node


def _unstorable(value: Any, place: str) -> UnstorableSampleError:
    about = ""
    if isinstance(value, torch.Tensor):
        about = f" (dtype={value.dtype}, layout={value.layout}, device={value.device})"
    elif isinstance(value, (np.ndarray, np.generic)):
        about = f" (dtype={value.dtype})"
    return UnstorableSampleError(
        f"save_tensors cannot hold {place}, a {_name(value)}{about}; convert it in build, or leave "
        "save and load at their defaults"
    )


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
