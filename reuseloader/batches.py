"""Reads samples of the fast format into the memory of their batch: one copy from disk to batch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as torch_collate

from reuseloader.blocks import aligned
from reuseloader.checksum import CHECKSUMS
from reuseloader.layout import Layout, read_layout
from reuseloader.segments import Segments
from reuseloader.stack import Stack
from reuseloader.store import STALE
from reuseloader.tensors import HEAD, OPEN_FLAGS, Head, read_file

_TAIL_BYTES = 4096  # identity and texts of a sample; with longer ones it is read by itself
_MAX_BLOCKS = 500  # Linux reads into at most 1024 pieces at once, and a block has two


class BatchReader:
    """Reads the samples of one batch after the other.

    A batch gets memory of its own where its samples are expected to have the layout of the batch
    before; whatever turns out otherwise is read by itself, and ``collate`` copies it. So the
    result is what ``default_collate`` gives, in every bit.

    Args:
        exposed: whether the user's code sees the single samples before they are collated.
    """

    def __init__(self, *, exposed: bool) -> None:
        self._exposed = exposed
        self._num_samples = 0
        self._seen: Counter[bytes] = Counter()
        self._layout: Layout | None = None
        self._memory: _BatchMemory | None = None
        self._segments = Segments()

    def start(self, num_samples: int) -> None:
        """Begin a batch."""
        if self._seen:
            self._layout = self._agreed_layout()
        self._seen.clear()
        self._num_samples = num_samples
        self._memory = None

    def _agreed_layout(self) -> Layout | None:
        text, count = self._seen.most_common(1)[0]
        # Files that lie about their size cannot make a batch allocate more than 4 times what
        # they hold.
        if len(self._seen) > 1 or 4 * count < self._num_samples or not hasattr(os, "readv"):
            return None
        layout = read_layout(text)
        any_direct = any(block.direct for block in layout.blocks)
        return layout if any_direct and len(layout.blocks) <= _MAX_BLOCKS else None

    def read(self, path: str, digest: bytes, row: int, likely: bool) -> tuple[Any, int]:
        """Return the sample in a file and the size of the file; ``STALE`` for the sample if it is.

        Args:
            path: the file.
            digest: of the identity that it has to have.
            row: place of the sample in the batch, which begins at 0.
            likely: whether the file is expected to have it; of another one the head is read first.

        Raises:
            DamagedFileError, OSError: as ``load_tensors``.
        """
        layout = self._layout
        if likely and layout is not None:
            if self._memory is None:
                self._memory = _BatchMemory(
                    layout, self._num_samples, self._exposed, self._segments
                )
            result = self._memory.read(path, digest, row)
            if result is not None:
                self._seen[layout.text] += result[0] is not STALE
                return result
        found = read_file(path, digest)
        if found is STALE:
            return STALE, 0
        self._seen[found.layout.text] += 1
        return found.sample, found.num_bytes

    def collate(self, samples: list[Any]) -> Any:
        """Return what ``default_collate`` returns."""
        memory, self._memory = self._memory, None
        functions = torch_collate.default_collate_fn_map
        own = functions.get(torch.Tensor) is torch_collate.collate_tensor_fn
        if memory is None or not own or not any(memory.filled):
            return default_collate(samples)
        functions = {**functions, torch.Tensor: memory.stack}
        return torch_collate.collate(samples, collate_fn_map=functions)


class _BatchMemory:
    """The tensors of one batch, and what is read beside them."""

    def __init__(self, layout: Layout, num_samples: int, exposed: bool, segments: Segments) -> None:
        self.filled = bytearray(num_samples)
        self._layout = layout
        self._exposed = exposed
        self._stacks = [Stack(block, num_samples, exposed, segments) for block in layout.blocks]
        self._values_at = HEAD.size + len(layout.text)
        front = aligned(self._values_at + layout.values.size)
        pads = [aligned(block.num_bytes) - block.num_bytes for block in layout.blocks]
        self._tail_at = front + sum(pads)  # in the scratch, where everything but blocks lies
        self._fixed_bytes = front + layout.blocks_bytes
        self._scratch = memoryview(bytearray(self._tail_at + _TAIL_BYTES + 1))
        ends = np.cumsum([front, *pads]).tolist()
        # What one readv fills: front, block, padding, block, padding ..., tail. The tail has room
        # for a byte more than may come, so that a longer file is noticed.
        self._pieces = [self._scratch[:front], *[self._scratch[:0]] * 2 * len(pads)]
        self._pieces[2::2] = [self._scratch[e - n : e] for e, n in zip(ends[1:], pads, strict=True)]
        self._pieces.append(self._scratch[self._tail_at :])

    def read(self, path: str, digest: bytes, row: int) -> tuple[Any, int] | None:
        """Return as ``BatchReader.read``, or None where the file is not whole and of this layout.

        Raises:
            OSError: the file cannot be opened.
        """
        blocks = [stack.memory[row] for stack in self._stacks]
        self._pieces[1:-1:2] = blocks
        descriptor = os.open(path, OPEN_FLAGS)
        try:
            num_bytes = os.readv(descriptor, self._pieces)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        try:
            return self._unpack(digest, row, num_bytes, blocks)
        except Exception:  # what is wrong with the file, read_file will say
            return None

    def _unpack(
        self, digest: bytes, row: int, num_bytes: int, blocks: list[memoryview]
    ) -> tuple[Any, int] | None:
        if num_bytes < HEAD.size:  # the rest of the scratch is of the file before
            return None
        head = Head.read(self._scratch)
        if head.digest != digest:
            return STALE, 0
        if not self._fits(head, num_bytes, blocks):
            return None
        texts_at = self._tail_at + head.identity_bytes
        sample = self._layout.build(
            self._layout.values.unpack_from(self._scratch, self._values_at),
            self._scratch[texts_at : self._tail_at + head.tail_bytes],
            [stack.row(row) for stack in self._stacks],
        )
        self.filled[row] = 1
        return sample, num_bytes

    def _fits(self, head: Head, num_bytes: int, blocks: list[memoryview]) -> bool:
        layout = self._layout
        frame = self._scratch[HEAD.size : self._tail_at + head.tail_bytes]
        return (
            head.file_bytes == num_bytes == self._fixed_bytes + head.tail_bytes
            and head.layout_bytes == len(layout.text)
            and head.values_bytes == layout.values.size
            and head.identity_bytes <= head.tail_bytes <= _TAIL_BYTES
            and self._scratch[HEAD.size : self._values_at] == layout.text
            and head.algorithm in CHECKSUMS
            and head.checksum == CHECKSUMS[head.algorithm]([frame, *blocks])
        )

    def stack(self, tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
        """Return the tensors as one: the batch's own memory where they lie there already."""
        first = self.filled.index(1)
        if len(tensors) == len(self.filled) and all(t.layout is torch.strided for t in tensors):
            for stack in self._stacks:
                if stack.holds(tensors[first], first) and self._complete(stack, tensors):
                    return stack.take()
        return torch_collate.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)

    def _complete(self, stack: Stack, tensors: Sequence[torch.Tensor]) -> bool:
        """Copy what was built into its row, if all the others are in theirs, unchanged."""
        kind = type(tensors[0])
        if any(type(tensor) is not kind for tensor in tensors):
            return False
        if kind is not torch.Tensor and (
            type(torch_collate.collate_tensor_fn(tensors[:1])) is not torch.Tensor
        ):
            return False  # torch.stack keeps the subclass: let it
        built = []
        for row, tensor in enumerate(tensors):
            if self.filled[row]:
                if not stack.holds(tensor, row):
                    return False
                if self._exposed and not stack.like(tensor):
                    return False
            elif stack.like(tensor):
                built.append(row)
            else:
                return False
        for row in built:
            stack.copy(tensors[row], row)
        return True
