"""Building reused samples again, to see that a sample follows from its key alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from reuseloader.policy import ReuseKey, mix
from reuseloader.sample import Substitute, compact

_TO_VERIFY = 5  # after the streams of the policy and that of the workers


class ImpureBuildError(RuntimeError):
    """A build gave another sample than the one that was stored for the same key."""


class Verification:
    """Builds a share of the reused samples again and compares.

    Args:
        build: makes a sample from a key.
        share: of the reused samples, from 0 to 1.

    Raises:
        ValueError: the share is none.
    """

    def __init__(self, build: Callable[[ReuseKey], Any], share: float) -> None:
        is_share = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not (is_share and 0 <= share <= 1):
            raise ValueError(f"verify must be a share from 0 to 1, but got verify={share!r}")
        self._build = build
        self._limit = int(share * 2**64)

    def chooses(self, key: ReuseKey) -> bool:
        """Say whether this use of a sample is one to verify."""
        return self._limit > 0 and mix(_TO_VERIFY, key.use_seed) < self._limit

    def __call__(self, sample: Any, key: ReuseKey) -> None:
        """Build the sample of a key and compare it with the stored one.

        Raises:
            ImpureBuildError: they differ; says where.
        """
        built = self._build(key)
        if isinstance(built, Substitute):  # this time it could not be made
            return
        place = next(differences(sample, compact(built)), None)
        if place is not None:
            raise ImpureBuildError(
                f"build must make the same sample from the same key, but at index={key.index}, "
                f"epoch={key.epoch}, generation={key.generation} the stored and the new one "
                f"differ: {place}; it draws from something other than the key, or the "
                "fingerprint has stayed as it was while the build changed"
            )


def differences(stored: Any, built: Any, place: str = "sample") -> Iterator[str]:
    """Yield what differs between two samples: in type, dtype, shape or any bit."""
    if type(stored) is not type(built):
        yield f"{place} was {type(stored).__name__} and is {type(built).__name__}"
    elif isinstance(stored, torch.Tensor):
        ours, theirs = (value.as_subclass(torch.Tensor) for value in (stored, built))
        yield from _arrays(_bytes(ours), _bytes(theirs), _form(stored), _form(built), place)
    elif isinstance(stored, (np.ndarray, np.generic)) and stored.dtype != object:
        old, new = (np.frombuffer(value.tobytes(), np.uint8) for value in (stored, built))
        yield from _arrays(old, new, _form(stored), _form(built), place)
    elif isinstance(stored, dict):
        if list(stored) != list(built):
            yield f"{place} had the keys {list(stored)} and has {list(built)}"
        else:
            for key in stored:
                yield from differences(stored[key], built[key], f"{place}[{key!r}]")
    elif isinstance(stored, (list, tuple)):
        if len(stored) != len(built):
            yield f"{place} had {len(stored)} items and has {len(built)}"
        for number, pair in enumerate(zip(stored, built, strict=False)):
            yield from differences(*pair, f"{place}[{number}]")
    elif dataclasses.is_dataclass(stored):
        for field in dataclasses.fields(stored):
            old, new = getattr(stored, field.name), getattr(built, field.name)
            yield from differences(old, new, f"{place}.{field.name}")
    elif hasattr(stored, "tobytes"):  # a PIL image
        same = (stored.mode, stored.size) == (built.mode, built.size)
        if not same or stored.tobytes() != built.tobytes():
            yield f"{place} has other pixels"
    elif not _equal(stored, built):
        yield f"{place} was {stored!r} and is {built!r}"


def _equal(stored: Any, built: Any) -> bool:
    try:
        return bool(stored == built) or bool(stored != stored and built != built)
    except Exception:  # an object that cannot be compared is not known to differ
        return True


def _form(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}"


def _bytes(tensor: torch.Tensor) -> Any:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy()


def _arrays(stored: Any, built: Any, old: str, new: str, place: str) -> Iterator[str]:
    if old != new:
        yield f"{place} was {old} and is {new}"
    elif not np.array_equal(stored, built):
        count = np.count_nonzero(stored != built)
        yield f"{place}, {old}, differs in {count} of {stored.size} bytes"
