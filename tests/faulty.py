"""A model with which something happens to a rank, for tests of whole commands."""

from __future__ import annotations

import os
import signal
import time
import warnings
from typing import Any

from torch import Tensor

from training.models import SmallConvNet


class Faulty(SmallConvNet):
    """Lets a rank fail in an update, of the first start alone.

    Args:
        how: what happens; `slow` is nothing, `warn` a warning.
        rank: to which rank; -1 is all of them.
        step: in which update, from 1 up; in update 3 of 2 an epoch, epoch 0 is saved.
        options: of the model.
    """

    def __init__(self, how: str = "slow", rank: int = 1, step: int = 3, **options: Any) -> None:
        super().__init__(**options)
        own = int(os.environ.get("RANK", "0"))
        self.how = how if rank in (own, -1) else "slow"
        self.step, self.count = step, 0

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            time.sleep(0.05)
            self.count += 1
            first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
            if self.count == self.step and first:
                _happen(self.how)
        return super().forward(input)


def _happen(how: str) -> None:
    if how == "raise":
        raise ValueError("a bad thing in the model")
    if how == "warn":
        warnings.warn("something is odd", stacklevel=2)
        return
    if how == "exit":
        os._exit(3)
    target = os.getppid() if how.startswith("agent") else os.getpid()
    for name in ("KILL", "TERM", "USR1", "INT"):
        if how.endswith(name):
            os.kill(target, signal.Signals[f"SIG{name}"])
