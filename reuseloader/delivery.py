"""A batch on its way from a worker, with what it took to make it."""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch

from reuseloader.dataset import News
from reuseloader.stack import PIPE_BYTES


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
        return NotImplemented


def _is_small(tensor: torch.Tensor) -> bool:
    num_bytes = tensor.numel() * tensor.element_size()
    return (
        0 < num_bytes <= PIPE_BYTES
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def _unpack(data: bytes) -> CollatedDelivery:
    return CollatedDelivery(*pickle.loads(data))


def _rebuild(memory: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=dtype).view(shape)
