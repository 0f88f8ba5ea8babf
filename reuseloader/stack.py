"""The memory of one tensor of a batch, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from reuseloader.blocks import Block, strides_of
from reuseloader.segments import Segments

# A tensor in shared memory sends a file descriptor through a socket, which takes both sides 0.3 ms
# together (see benchmarks/README.md). What fits into a pipe of 1 MiB at once goes there faster.
PIPE_BYTES = 1_000_000


class Stack:
    """One tensor of a batch, and its rows.

    Args:
        block: what a row holds.
        num_rows: samples of the batch.
        exposed: whether the user's code sees the rows before they are collated.
        segments: gives the memory.
    """

    def __init__(self, block: Block, num_rows: int, exposed: bool, segments: Segments) -> None:
        self._block = block
        self._tensor = _empty_stack(block, num_rows, segments)
        if self._tensor is None:  # collate has to make it; the rows lie one behind the other
            data = torch.empty(num_rows * block.num_bytes, dtype=torch.uint8)
        else:
            data = torch.empty(0, dtype=torch.uint8).set_(self._tensor.untyped_storage())
        self._start = data.data_ptr()
        self._strides = strides_of(block.shape)
        size, memory = block.num_bytes, data.numpy().data
        self.memory = [memory[row * size : (row + 1) * size] for row in range(num_rows)]
        self._views: Sequence[Any] | None = None
        plain = isinstance(block.dtype, torch.dtype) and block.wrap is None
        if self._tensor is not None and plain and not exposed:
            # The user's code must not get these: of a view not everything can be changed.
            self._views = self._tensor.unbind(0)

    def row(self, row: int) -> Any:
        """Return the tensor or array that lies in a row."""
        return self._block.of(self.memory[row]) if self._views is None else self._views[row]

    def holds(self, tensor: torch.Tensor, row: int) -> bool:
        """Whether a strided tensor begins where the row does, and the stack may be used."""
        start = self._start + row * self._block.num_bytes
        return self._tensor is not None and tensor.data_ptr() == start

    def like(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is what a row can be, in everything but its values."""
        assert self._tensor is not None
        return (
            tensor.layout is torch.strided
            and tensor.device.type == "cpu"
            and tensor.dtype is self._tensor.dtype
            and tensor.shape == self._block.shape
            and tensor.stride() == self._strides
            and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        )

    def copy(self, tensor: torch.Tensor, row: int) -> None:
        """Copy a tensor that is like a row into it."""
        assert self._tensor is not None
        self._tensor[row].copy_(tensor)

    def take(self) -> torch.Tensor:
        """Return the stack; once, because two parts of a batch must not share memory."""
        assert self._tensor is not None
        stack, self._tensor = self._tensor, None
        return stack


def _empty_stack(block: Block, num_rows: int, segments: Segments) -> torch.Tensor | None:
    """Return an empty tensor ``[num_rows, *shape]``, None if there cannot be one.

    In a worker it lies in shared memory, unless it is so small that the pipe takes it.
    """
    dtype = block.dtype
    if not isinstance(dtype, torch.dtype):
        try:
            dtype = torch.as_tensor(np.empty(0, dtype)).dtype
        except TypeError:  # texts and times
            return None
    if not block.direct:
        return None
    num_bytes = num_rows * block.num_bytes
    shared = get_worker_info() is not None and num_bytes > PIPE_BYTES
    return segments.take(num_bytes, shared=shared).view(dtype).view(num_rows, *block.shape)
