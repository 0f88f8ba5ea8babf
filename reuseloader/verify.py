"""Building reused samples again, to see that a sample follows from its key alone."""

from __future__ import annotations

import dataclasses
import enum
import io
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from reuseloader.checks import check_share
from reuseloader.messages import call
from reuseloader.mixing import TO_VERIFY, mix
from reuseloader.policy import ReuseKey
from reuseloader.sample import Substitute, compact

_MAX_SHOWN = 100  # characters of a value in a message
_BY_IDENTITY: Any = object.__eq__


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
        self._build = build
        self._limit = int(check_share("verify", share) * 2**64)

    def chooses(self, key: ReuseKey) -> bool:
        """Say whether this use of a sample is one to verify."""
        return self._limit > 0 and mix(TO_VERIFY, key.use_seed) < self._limit

    def __call__(self, sample: Any, key: ReuseKey) -> None:
        """Build the sample of a key and compare it with the stored one.

        Raises:
            ImpureBuildError: they differ; says where.
        """
        built = call("build", key, self._build, key)
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


def differences(stored: Any, built: Any) -> Iterator[str]:
    """Yield what differs between two samples: in type, dtype, shape or any bit.

    What can neither be compared nor looked into is not known to differ.
    """
    return _walk(stored, built, "sample", set())


def _walk(stored: Any, built: Any, place: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    if type(stored) is not type(built):
        yield f"{place} was {type(stored).__name__} and is {type(built).__name__}"
    elif isinstance(stored, (torch.Tensor, np.ndarray, np.generic)):
        yield from _arrays(stored, built, place, seen)
    elif isinstance(stored, dict):
        if list(stored) != list(built):
            yield f"{place} had the keys {list(stored)} and has {list(built)}"
        else:
            for key in stored:
                yield from _walk(stored[key], built[key], f"{place}[{key!r}]", seen)
    elif isinstance(stored, (list, tuple)):
        if len(stored) != len(built):
            yield f"{place} had {len(stored)} items and has {len(built)}"
        for number, pair in enumerate(zip(stored, built, strict=False)):
            yield from _walk(*pair, f"{place}[{number}]", seen)
    elif hasattr(stored, "getpalette"):  # a PIL image
        yield from _images(stored, built, place)
    elif dataclasses.is_dataclass(stored) or not _equal(stored, built):
        yield from _objects(stored, built, place, seen)


def _objects(stored: Any, built: Any, place: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    old, new = _attributes(stored), _attributes(built)
    if old.keys() != new.keys():
        yield f"{place} had the attributes {sorted(old)} and has {sorted(new)}"
    elif old:
        pair = (id(stored), id(built))
        for name in () if pair in seen else old:  # an object may know itself
            seen.add(pair)
            yield from _walk(old[name], new[name], f"{place}.{name}", seen)
    elif isinstance(stored, enum.Enum) or type(stored).__eq__ is not _BY_IDENTITY:
        yield f"{place} was {_shown(stored)} and is {_shown(built)}"


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, enum.Enum):
        return {}
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _equal(stored: Any, built: Any) -> bool:
    if isinstance(stored, (float, complex)):
        old, new = (struct.pack("<dd", value.real, value.imag) for value in (stored, built))
        return old == new
    try:
        return bool(stored == built) or bool(stored != stored and built != built)
    except Exception:  # as of an object that holds arrays: its attributes have to tell
        return not _attributes(stored)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _images(stored: Any, built: Any, place: str) -> Iterator[str]:
    forms = [f"{image.mode} {image.size}" for image in (stored, built)]
    if forms[0] != forms[1]:
        yield f"{place} was {forms[0]} and is {forms[1]}"
    elif stored.tobytes() != built.tobytes():
        yield f"{place} has other pixels"
    elif stored.getpalette() != built.getpalette():
        yield f"{place} has another palette"


def _arrays(stored: Any, built: Any, place: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    old, new = (f"{value.dtype} {tuple(value.shape)}" for value in (stored, built))
    if old != new:
        yield f"{place} was {old} and is {new}"
    elif stored.dtype == object:
        yield from _walk(stored.tolist(), built.tolist(), place, seen)
    else:
        ours, theirs = _bytes(stored), _bytes(built)
        if not np.array_equal(ours, theirs):
            text = ""
            if getattr(stored, "layout", torch.strided) is torch.strided:  # not a sparse tensor
                text = f" in {np.count_nonzero(ours != theirs)} of {ours.size} bytes"
            yield f"{place}, {old}, differs{text}"
    yield from _objects(stored, built, place, seen) if getattr(stored, "__dict__", None) else ()


def _bytes(value: Any) -> Any:
    """Return the bits of a tensor or array, as uint8."""
    if not isinstance(value, torch.Tensor):
        return np.frombuffer(value.tobytes(), np.uint8)
    if value.layout is not torch.strided or value.is_quantized:
        file = io.BytesIO()
        torch.save(value, file)
        return np.frombuffer(file.getvalue(), np.uint8)
    plain = value.as_subclass(torch.Tensor).detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8).numpy()
