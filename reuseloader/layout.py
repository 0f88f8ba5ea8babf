"""The layout of a sample in a file: its structure as JSON, small values, and blocks of memory.

Two samples of the same structure, dtypes and shapes have the same layout, byte by byte: numbers,
strings and the contents of tensors stand outside it. A layout comes from a file, so it is checked
in full, and no name in it reaches more than a dtype or one of torchvision's tensor classes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from reuseloader.blocks import (
    SCALAR_KINDS,
    Block,
    aligned,
    array_dtype,
    read_block,
    require,
)
from reuseloader.store import DamagedFileError

MAX_DEPTH = 64  # of containers in containers; a hostile file must not reach Python's own limit
_KEY_TYPES = (str, int, float, bool, type(None))

NUMBERS = {"int": "q", "float": "d", "bool": "?"}  # how struct packs them

# Their length stands among the values, their bytes follow in the tail of the file.
_TEXTS: dict[str, Callable[[bytes], Any]] = {
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
    "bytes": lambda data: data,
    "long": lambda data: int.from_bytes(data, "little", signed=True),
}

Assemble = Callable[[Sequence[Any], Sequence[Any]], Any]  # from values and blocks


@dataclass(frozen=True)
class Layout:
    """Where the parts of a sample lie, and how they are put together.

    Attributes:
        text: the layout as it stands in a file.
        values: packs numbers and the lengths of texts.
        blocks: memory of tensors and arrays, in the order of the file.
        blocks_bytes: size of all blocks with the padding behind each.
    """

    text: bytes
    values: struct.Struct
    blocks: tuple[Block, ...]
    blocks_bytes: int
    _texts: tuple[tuple[int, Callable[[bytes], Any]], ...]
    _scalars: tuple[tuple[int, np.dtype[Any]], ...]
    _assemble: Assemble

    def build(self, values: tuple[Any, ...], tail: memoryview, blocks: Sequence[Any]) -> Any:
        """Put a sample together.

        Args:
            values: what ``self.values`` unpacked.
            tail: the bytes of all texts.
            blocks: a tensor or an array for each block.

        Raises:
            DamagedFileError: the tail is not as long as the lengths say.
        """
        parts: Sequence[Any] = values
        if self._texts or self._scalars or len(tail):
            parts = self._convert(values, tail)
        return self._assemble(parts, blocks)

    def _convert(self, values: tuple[Any, ...], tail: memoryview) -> list[Any]:
        parts = list(values)
        start = 0
        for place, convert in self._texts:
            stop = start + parts[place]
            parts[place] = convert(bytes(tail[start:stop]))
            start = stop
        if start != len(tail):
            raise DamagedFileError(f"its texts have {len(tail)} bytes, not {start}")
        for place, dtype in self._scalars:
            parts[place] = np.frombuffer(parts[place], dtype)[0]
        return parts


@lru_cache(maxsize=64)
def read_layout(text: bytes) -> Layout:
    """Return the layout that a file holds.

    Raises:
        DamagedFileError: it is none.
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"its layout cannot be read: {error}") from error
    compiler = _Compiler()
    assemble = compiler.node(tree, 0)
    return Layout(
        text=text,
        values=struct.Struct("<" + "".join(compiler.codes)),
        blocks=tuple(compiler.blocks),
        blocks_bytes=sum(aligned(block.num_bytes) for block in compiler.blocks),
        _texts=tuple(compiler.texts),
        _scalars=tuple(compiler.scalars),
        _assemble=assemble,
    )


class _Compiler:
    """Goes through a layout in the order of the file, and checks all of it."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.blocks: list[Block] = []
        self.texts: list[tuple[int, Callable[[bytes], Any]]] = []
        self.scalars: list[tuple[int, np.dtype[Any]]] = []

    def node(self, tree: Any, depth: int) -> Assemble:
        require(depth <= MAX_DEPTH, "is nested too deeply")
        if isinstance(tree, str):
            return self._leaf(tree)
        require(isinstance(tree, list) and len(tree) > 1, "has no such part")
        match tree:
            case ["dict", list(items)]:
                return self._dict(items, depth)
            case ["list", list(nodes)]:
                parts = [self.node(node, depth + 1) for node in nodes]
                return lambda values, blocks: [part(values, blocks) for part in parts]
            case ["tuple", list(nodes)]:
                parts = [self.node(node, depth + 1) for node in nodes]
                return lambda values, blocks: tuple([part(values, blocks) for part in parts])
            case ["scalar", str(name)]:
                dtype = array_dtype(name, SCALAR_KINDS)
                self.scalars.append((len(self.codes), dtype))
                return self._value(f"{dtype.itemsize}s")
            case ["tensor", *_] | ["array", *_] | ["tv", *_]:
                self.blocks.append(read_block(tree))
                return self._block(len(self.blocks) - 1)
            case ["again", int(place)]:  # the same tensor or array at a second place
                require(0 <= place < len(self.blocks), "repeats a tensor that is not there")
                return self._block(place)
        raise DamagedFileError("its layout has a part of no known kind")

    def _leaf(self, kind: str) -> Assemble:
        if kind == "none":
            return lambda values, blocks: None
        if kind in _TEXTS:
            self.texts.append((len(self.codes), _TEXTS[kind]))
            return self._value("I")
        require(kind in NUMBERS, "has a part of no known kind")
        return self._value(NUMBERS[kind])

    def _block(self, place: int) -> Assemble:
        return lambda values, blocks: blocks[place]

    def _value(self, code: str) -> Assemble:
        place = len(self.codes)
        self.codes.append(code)
        return lambda values, blocks: values[place]

    def _dict(self, items: list[Any], depth: int) -> Assemble:
        pairs = []
        for item in items:
            require(isinstance(item, list) and len(item) == 2, "has an item without a value")
            require(isinstance(item[0], _KEY_TYPES), "has a key of no known kind")
            pairs.append((item[0], self.node(item[1], depth + 1)))
        return lambda values, blocks: {key: part(values, blocks) for key, part in pairs}
