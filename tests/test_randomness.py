"""The global generators, whose states a checkpoint keeps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.randomness import random_states, restore_random_states


def test_states_of_generators_survive(tmp_path: Path) -> None:
    def draw() -> Any:
        return (
            random.random(),
            random.gauss(0, 1),
            np.random.rand(),
            np.random.randn(),
            torch.rand(2),
        )

    draw()  # leaves half a pair of normal numbers waiting
    torch.save(random_states(), tmp_path / "states.pt")
    expected = str(draw())
    restore_random_states(torch.load(tmp_path / "states.pt", weights_only=True))
    assert str(draw()) == expected
