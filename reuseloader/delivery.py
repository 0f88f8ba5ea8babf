"""A batch on its way from a worker, with what it took to make it."""

from __future__ import annotations

import io
import pickle
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch

from reuseloader.messages import News
from reuseloader.segments import Segment, receive, shared_segment
from reuseloader.stack import PIPE_BYTES

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PIPE_CAPACITY = 2**20  # the most that Linux gives without privileges


class Delivery(NamedTuple):
    """A batch, counts of what made it, and messages for the user."""

    batch: Any
    tally: dict[str, int]
    news: list[News]


class CollatedDelivery(Delivery):
    """A batch that ``default_collate`` made: no two of its tensors share memory."""

    def __reduce__(self) -> Any:
        file = io.BytesIO()
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(tuple(self))
        return _unpack, (file.getvalue(),)


class _Pickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _is_small(value):
            memory = pickle.PickleBuffer(value.view(-1).view(torch.uint8).numpy().data)
            return _rebuild, (memory, value.dtype, tuple(value.shape))
        if type(value) is torch.Tensor and (segment := _filled_by(value)) is not None:
            segment.lend()
            return _attach, (segment.storage, value.dtype, tuple(value.shape))
        return NotImplemented


def _filled_by(tensor: torch.Tensor) -> Segment | None:
    return shared_segment(tensor) if _is_plain(tensor) else None


def _is_small(tensor: torch.Tensor) -> bool:
    return 0 < tensor.numel() * tensor.element_size() <= PIPE_BYTES and _is_plain(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def widen_pipe(iterator: Any) -> None:
    """Let a whole batch fit into the pipe from the workers, where the system can do it.

    Linux gives a pipe 64 KiB. A larger batch goes through it in pieces, and for each the sides
    wait for one another.
    """
    queue = getattr(iterator, "_worker_result_queue", None)  # private to torch, so not relied on
    resize = getattr(fcntl, "F_SETPIPE_SZ", None)
    if queue is None or resize is None:
        return
    with suppress(AttributeError, OSError):
        fcntl.fcntl(queue._reader.fileno(), resize, _PIPE_CAPACITY)


def _unpack(data: bytes) -> CollatedDelivery:
    return CollatedDelivery(*pickle.loads(data))


def _rebuild(memory: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _attach(
    storage: torch.UntypedStorage, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    return receive(storage).view(dtype).view(shape)
