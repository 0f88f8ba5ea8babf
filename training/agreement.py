"""One step at which all ranks stop, whichever of them was asked to."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Agreement:
    """Lets all ranks stop at the same step, whichever of them was asked to.

    The largest value of a step is known a step later: the ranks exchange it while they compute.
    All of them have to ask equally often.
    """

    def __init__(self) -> None:
        self._values: torch.Tensor | None = None
        self._work: Any = None

    def __call__(self, value: int | None) -> int | None:
        """Give a value, or None; return the largest that a rank gave the time before."""
        agreed = self._result()
        self._values = torch.tensor([value or 0])
        self._work = dist.all_reduce(self._values, op=dist.ReduceOp.MAX, async_op=True)
        return agreed

    def _result(self) -> int | None:
        if self._work is None or self._values is None:
            return None
        self._work.wait()
        return int(self._values.item()) or None
