"""Which prepared sample an index uses in an epoch, and in which order the indices come.

Everything is arithmetic on ``(seed, lifetime, index, epoch)``: no state, no table that grows with
the data set, and the same answer in every process, on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from reuseloader.checks import check_integer
from reuseloader.mixing import (
    MASK,
    TO_BUILD,
    TO_FINISH,
    TO_ORDER,
    mix,
    step,
    step_array,
)
from reuseloader.permutation import permute

FOREVER = 2**62
"""A lifetime without end: what is built once serves every epoch (validation data, say)."""


@dataclass(frozen=True, kw_only=True)
class ReuseKey:
    """What an index uses in one epoch; made by ``ReusePolicy.key``.

    Attributes:
        index: the sample, in ``[0, size)``.
        generation: how many times the sample has been replaced before.
        seed: 63 bits that ``build`` draws from, the same during the whole generation.
        epoch: the epoch that asks.
        first_epoch: first epoch of the generation; all of time that ``build`` may depend on.
        last_epoch: last epoch of the generation, itself included.
        use_index: which use of the generation this is; in the short generation 0 it does not
            begin at 0.
    """

    index: int
    generation: int
    seed: int
    epoch: int
    first_epoch: int
    last_epoch: int
    use_index: int
    policy_seed: InitVar[int]

    def __post_init__(self, policy_seed: int) -> None:
        object.__setattr__(self, "_policy_seed", policy_seed)

    @property
    def is_last_use(self) -> bool:
        """Whether no later epoch uses the sample again."""
        return self.epoch == self.last_epoch

    @property
    def use_seed(self) -> int:
        """63 bits that ``finish`` draws from, new in every epoch."""
        policy_seed: int = self._policy_seed  # type: ignore[attr-defined]
        return mix(policy_seed, TO_FINISH, self.index, self.epoch) >> 1


@dataclass(frozen=True)
class ReusePolicy:
    """The rule by which a prepared sample serves ``lifetime`` consecutive epochs.

    Args:
        lifetime: epochs that a sample serves, a positive integer; 1 prepares every sample anew
            in every epoch, ``FOREVER`` prepares each only once.
        seed: any integer, taken modulo 2^64.

    Raises:
        ValueError: an argument is not an integer, or ``lifetime`` is below 1.
    """

    lifetime: int
    seed: int = 0

    def __post_init__(self) -> None:
        lifetime = check_integer("lifetime", self.lifetime, minimum=1)
        object.__setattr__(self, "lifetime", lifetime)
        object.__setattr__(self, "seed", check_integer("seed", self.seed) & MASK)

    def key(self, index: int, epoch: int) -> ReuseKey:
        """Return the key of sample ``index`` in ``epoch``, both integers from 0 up, in O(1)."""
        index = check_integer("index", index, minimum=0)
        epoch = check_integer("epoch", epoch, minimum=0)
        phase = index % self.lifetime
        generation, use_index = divmod(epoch + phase, self.lifetime)
        seed = mix(self.seed, TO_BUILD, index, generation) >> 1
        return self._key(index, phase, generation, use_index, seed, epoch)

    def keys(self, indices: Sequence[int], epoch: int) -> list[ReuseKey]:
        """Return the keys of many samples in ``epoch``, at about a third of the cost of each."""
        epoch = check_integer("epoch", epoch, minimum=0)
        uses: list[tuple[int, int, int, int]] = []
        for index in indices:
            if type(index) is not int or index < 0:
                index = check_integer("index", index, minimum=0)
            phase = index % self.lifetime
            generation, use_index = divmod(epoch + phase, self.lifetime)
            uses.append((index, phase, generation, use_index))
        indices64 = np.array([use[0] & MASK for use in uses], dtype=np.uint64)
        generations64 = np.array([use[2] & MASK for use in uses], dtype=np.uint64)
        state = step_array(indices64 ^ np.uint64(step(step(self.seed) ^ TO_BUILD)))
        seeds = (step_array(state ^ generations64) >> np.uint64(1)).tolist()
        return [self._key(*use, seed, epoch) for use, seed in zip(uses, seeds, strict=True)]

    def _key(
        self, index: int, phase: int, generation: int, use_index: int, seed: int, epoch: int
    ) -> ReuseKey:
        key = object.__new__(ReuseKey)
        # The frozen dataclass's own __init__ takes three times as long.
        key.__dict__.update(
            index=index,
            generation=generation,
            seed=seed,
            epoch=epoch,
            first_epoch=max(0, generation * self.lifetime - phase),
            last_epoch=(generation + 1) * self.lifetime - phase - 1,
            use_index=use_index,
            _policy_seed=self.seed,
        )
        return key

    @overload
    def order(self, position: int, epoch: int, size: int) -> int: ...
    @overload
    def order(self, position: npt.NDArray[Any], epoch: int, size: int) -> npt.NDArray[np.int64]: ...
    def order(self, position: Any, epoch: int, size: int) -> Any:
        """Return the index at ``position`` of an epoch's shuffled order of ``[0, size)``.

        Arguments, return and errors are those of ``permute``; ``epoch`` counts from 0.
        """
        epoch = check_integer("epoch", epoch, minimum=0)
        return permute(position, size, mix(self.seed, TO_ORDER, epoch))
