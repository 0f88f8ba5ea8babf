"""How the loader asks the dataset: for indices, with the epoch of the pass that asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class EpochIndex(NamedTuple):
    """An index with the epoch of the pass that asks for it; how the loader calls the dataset."""

    epoch: int
    sample: int


class EpochBatch(NamedTuple):
    """The indices of a batch with the epoch of the pass that asks for it."""

    epoch: int
    samples: Sequence[int]
