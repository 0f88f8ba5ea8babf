"""A second instance of what makes samples, for a process that only looks at some.

A source that opens its file with its first item keeps it. A worker that is forked later would
share the position in it, and one that is spawned could not be given it: so this process, which
makes a few samples before there are workers, makes them with a second instance.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

T = TypeVar("T")


def twin_of(instance: T) -> T:
    """Return a copy as a spawned process would get it, that shares its arrays with the original.

    Returns:
        The copy; the original itself where it cannot be pickled.
    """
    file, arrays = io.BytesIO(), []
    try:
        pickler = _Pickler(file, arrays)
        pickler.dump(instance)
        file.seek(0)
        copied: T = _Unpickler(file, arrays).load()
    except Exception:  # whatever a part of the user's raises
        return instance
    return copied


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, arrays: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._arrays = arrays

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, (Tensor, np.ndarray)):
            return NotImplemented
        self._arrays.append(value)
        return _shared, (len(self._arrays) - 1,)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arrays: list[Any]) -> None:
        super().__init__(file)
        self._arrays = arrays

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, _shared.__name__):
            return self._arrays.__getitem__
        return super().find_class(module, name)


def _shared(number: int) -> Any:
    """Stand in a pickle for an array that is not copied."""
    raise NotImplementedError
