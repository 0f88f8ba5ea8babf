"""Memory of batches that is taken again when nothing refers to the batch any more.

To make, map and free the memory of a batch of photos costs several times what it costs to fill it.
A worker therefore keeps a few pieces of shared memory: the process that receives a batch writes a
mark into its piece as soon as the last tensor, view or buffer that refers to it has gone.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

import torch

_HEAD_BYTES = 64  # in front of a batch: the mark, and room that keeps the batch aligned
_FREE, _LENT = 0, 1
_MAX_SEGMENTS = 8  # of a pool: in the queue, being filled, and what the user holds


class Segment:
    """A piece of memory.

    Args:
        storage: uint8, a head and then the memory of a batch.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.num_bytes = storage.nbytes() - _HEAD_BYTES
        self.address = storage.data_ptr() + _HEAD_BYTES
        self._mark = ctypes.c_ubyte.from_address(storage.data_ptr())
        self._in_use = False  # in this process
        self._goes_back = True

    @property
    def is_free(self) -> bool:
        """Whether neither this process nor the one that it was sent to uses the memory."""
        return not self._in_use and self._mark.value == _FREE

    def lend(self) -> None:
        """Let the process that receives the storage say when it is free."""
        self._mark.value = _LENT

    def tensor(self) -> torch.Tensor:
        """Return the memory of the batch, uint8 ``[num_bytes]``, in use until nobody has it."""
        self._in_use = True
        memory = self._owned_memory()
        weakref.finalize(memory, self._end_use).atexit = False
        return torch.frombuffer(memory, dtype=torch.uint8)

    def borrowed_tensor(self) -> torch.Tensor:
        """Return the same in the process that received the storage: it goes back after the use."""
        memory = self._owned_memory()
        weakref.finalize(memory, self._give_back, os.getpid()).atexit = False
        _borrowed.add(self)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def _owned_memory(self) -> Any:
        # Tensors and buffers hold on to the object that gave them their memory: when it ends,
        # there is none left. The finalizer keeps this segment until then.
        return (ctypes.c_ubyte * self.num_bytes).from_address(self.address)

    def _end_use(self) -> None:
        self._in_use = False

    def _give_back(self, pid: int) -> None:
        if self._goes_back and os.getpid() == pid:  # not in a process that was forked meanwhile
            self._mark.value = _FREE


class Segments:
    """A pool of segments, of which those are taken again that are free."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []  # the one taken last at the end

    def __reduce__(self) -> Any:
        return Segments, ()  # memory stays with its process

    def take(self, num_bytes: int, *, shared: bool) -> torch.Tensor:
        """Return memory for a batch, uint8 ``[num_bytes]`` of any values.

        Args:
            num_bytes: its size, from 1 up.
            shared: whether another process may receive it.
        """
        segment = next((s for s in self._segments if self._fits(s, num_bytes, shared)), None)
        if segment is not None:
            self._segments.remove(segment)
        else:
            segment = _new_segment(num_bytes, shared)
            if len(self._segments) >= _MAX_SEGMENTS:
                free = (other for other in self._segments if other.is_free)
                self._segments.remove(next(free, self._segments[0]))
        self._segments.append(segment)
        return segment.tensor()

    def _fits(self, segment: Segment, num_bytes: int, shared: bool) -> bool:
        same = segment.num_bytes == num_bytes and segment.storage.is_shared() == shared
        return same and segment.is_free


def _new_segment(num_bytes: int, shared: bool) -> Segment:
    make: Any = torch.UntypedStorage._new_shared if shared else torch.UntypedStorage
    segment = Segment(make(_HEAD_BYTES + num_bytes))
    segment._mark.value = _FREE
    if shared:
        _shared[segment.address] = segment
    return segment


_shared: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
_borrowed: weakref.WeakSet[Segment] = weakref.WeakSet()  # of other processes


def shared_segment(tensor: torch.Tensor) -> Segment | None:
    """Return the segment of this process that a contiguous tensor fills and can be sent with."""
    segment = _shared.get(tensor.data_ptr())
    num_bytes = tensor.numel() * tensor.element_size()
    return segment if segment is not None and segment.num_bytes == num_bytes else None


def receive(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return the memory that another process sent, uint8; it goes back when nobody has it."""
    return Segment(storage).borrowed_tensor()


def _keep_what_is_borrowed() -> None:
    # A forked process refers to it as well, and nobody would know when it is done.
    for segment in _borrowed:
        segment._goes_back = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_keep_what_is_borrowed)
