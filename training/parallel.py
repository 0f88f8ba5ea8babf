"""One model on several ranks: what DistributedDataParallel leaves to the loop."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reuseloader.mixing import TO_SEED_RANKS, mix
from reuseloader.order import EpochOrder
from training.distributed import ranks, total

Batch = dict[str, Any]


def distribute(model: nn.Module, device: torch.device) -> DistributedDataParallel | None:
    """Return what the forward pass of training goes through; the weights are rank 0's.

    Args:
        model: on the device.
        device: for CUDA this rank's own.

    Returns:
        None for one process alone, which goes through the model directly.
    """
    if ranks().is_single:
        return None
    parallel = DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None
    )
    _settle(parallel, model)
    return parallel


def _settle(parallel: DistributedDataParallel, model: nn.Module) -> None:
    """Let the buckets of gradients be arranged before the first update, from no gradient at all.

    They are arranged anew after the first backward pass of a process, and in which order three
    ranks or more add up follows from it: the first update of a run that goes on would have other
    last bits than the same update of one that never stopped.
    """
    own = vars(model).get("forward")
    model.forward = lambda: sum(
        parameter.sum() * 0 for parameter in model.parameters() if parameter.requires_grad
    )
    try:
        parallel().backward()
    finally:
        del model.forward
        if own is not None:
            model.forward = own
    model.zero_grad(set_to_none=True)


def exchanging_last(model: nn.Module, window: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches of an update; only with the last one the ranks exchange gradients.

    Args:
        model: what `distribute` returned. With several ranks the next batch is taken before one
            is computed, to know the last.
        window: at least one batch.
    """
    if not isinstance(model, DistributedDataParallel):
        yield from window
        return
    batches = iter(window)
    batch = next(batches)
    for following in batches:
        with model.no_sync():
            yield batch
        batch = following
    yield batch


@torch.no_grad()
def share_buffers(*modules: nn.Module | None) -> None:
    """Give every rank the buffers of rank 0: the running means of norms follow each rank's data."""
    if ranks().is_single:
        return
    buffers = [buffer for module in modules if module is not None for buffer in module.buffers()]
    kinds = sorted(buffers, key=lambda buffer: str((buffer.dtype, buffer.device)))  # stable
    for _, group in groupby(kinds, key=lambda buffer: (buffer.dtype, buffer.device)):
        _share_tensors(list(group))


def _share_tensors(tensors: list[Tensor]) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    is_bool = flat.dtype == torch.bool
    flat = flat.byte() if is_bool else flat
    dist.broadcast(flat, src=0)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view(tensor.shape))


def seed_rank(seed: int, step: int = 0) -> None:
    """Let each rank draw other numbers from the global generators: MixUp differs between them.

    Rank 0 goes on as one process alone would; rank r draws from `mix(seed, 10, r, step)`.

    Args:
        seed: of the run.
        step: where the rank begins.
    """
    rank = ranks().rank
    if rank > 0:
        own = mix(seed, TO_SEED_RANKS, rank, step)
        random.seed(own)
        np.random.seed(own % 2**32)
        torch.manual_seed(own)


def mark_valid(batches: Iterable[Batch], order: EpochOrder | None, epoch: int) -> Iterator[Batch]:
    """Yield batches with `valid`, bool N, where a sample only makes the ranks equal.

    Args:
        batches: of an epoch from its start, dicts of which each value has N entries.
        order: of the loader; None is the user's own.
        epoch: of the pass.
    """
    num_real = 0 if order is None else order.num_real(epoch)
    if order is None or num_real == order.length(epoch):
        yield from batches
        return
    position = 0
    for batch in batches:
        size = len(batch["label"])
        if position + size > num_real:
            real = torch.arange(position, position + size) < num_real
            # A sample that stands in for one that cannot be read says so itself.
            batch = {**batch, "valid": real & batch.get("valid", real)}
        position += size
        yield batch


def mean_over_ranks(value: float) -> float:
    """Return the mean of what the ranks have; each of them has used as many samples."""
    return total([value])[0] / ranks().world_size
