"""The state of the global random generators: kept aside, saved, and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """Return the state of every global generator: Python's, NumPy's, torch's and CUDA's."""
    _, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [keys.tolist(), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` returned."""
    keys, *rest = states["numpy"]
    random.setstate(states["python"])
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"]:
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


@contextmanager
def aside() -> Iterator[None]:
    """Leave the global generators as they were, whatever is drawn inside."""
    states = random_states()
    try:
        yield
    finally:
        restore_random_states(states)
