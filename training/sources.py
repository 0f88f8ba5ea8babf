"""What a source of data must have, and what it may have: labels, a table of sizes, blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from textwrap import shorten
from typing import Any

import numpy as np

from reuseloader.sizes import SizeTable
from training.checks import ConfigError

_NEEDED = {
    "__len__": "the number of samples",
    "__getitem__": "which returns the item of an index",
    "identity": "which returns a digest of the content",
}
_OPTIONAL = {
    "prefetch": "called before samples are built",
    "record_of": "which returns the index of the item of a key",
}


def check_source(source: Any, place: str, num_classes: int) -> None:
    """Make sure that a source has what training asks of it, before anything is read.

    Args:
        source: of the user's, perhaps.
        place: where it stands in the config.
        num_classes: of the config.

    Raises:
        ConfigError: a part is missing or is something else; names the class.
    """
    name = _name(source, place)
    for method, meaning in _NEEDED.items():
        if not callable(getattr(source, method, None)):
            raise ConfigError(f"{name} must have a method {method}, {meaning}, but has none")
    check_optional(source, place)
    classes = getattr(source, "classes", None)
    if not _are_names(classes):
        raise ConfigError(f"{name}.classes must be a list of names, but got {_short(classes)}")
    if len(source) == 0:
        raise ConfigError(f"{place} must hold at least one sample, but it is empty")
    if len(classes) != num_classes:
        raise ConfigError(
            f"data.num_classes must be the number of classes of {place}, {len(classes)}, "
            f"but got data.num_classes={num_classes}"
        )
    _check_labels(source, name, num_classes)


def _are_names(classes: Any) -> bool:
    if isinstance(classes, str):
        return False
    try:
        return all(isinstance(name, str) for name in classes)
    except TypeError:  # no list
        return False


def identity_of(source: Any, place: str) -> str:
    """Return the digest of a source's content.

    Raises:
        ConfigError: it is no text.
    """
    mark = source.identity()
    name = _name(source, place)
    if not isinstance(mark, str):
        raise ConfigError(f"{name}.identity() must return a text, but returned {_short(mark)}")
    return mark


def labels_of(source: Any) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the labels that a source lists, one an index; None where it lists none.

    What has that name and is something else is left alone.
    """
    try:
        labels = np.asarray(getattr(source, "labels", None))
    except Exception:  # whatever an object of the user's raises
        return None
    is_list = labels.dtype.kind in "iub" and labels.shape == (len(source),)
    return labels.astype(np.int64) if is_list else None


def _check_labels(source: Any, name: str, num_classes: int) -> None:
    labels = labels_of(source)
    if labels is None:
        return
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(outside):
        first = int(outside[0])
        raise ConfigError(
            f"{name}.labels must be in [0, {num_classes}), the classes of data, but got "
            f"label={labels[first]} at index={first}"
        )


def _name(source: Any, place: str) -> str:
    return f"{place}: {type(source).__module__}.{type(source).__qualname__}"


def _short(value: Any) -> str:
    return shorten(f"{type(value).__name__} {value!r}", 80, placeholder=" ...")


def check_optional(source: Any, place: str) -> None:
    """Make sure that what a source has of these names is what the loader means by them.

    Args:
        source: of the user's, perhaps, with attributes of its own.
        place: where it stands in the config.

    Raises:
        ConfigError: an attribute means something else; names the class.
    """
    name = _name(source, place)
    block_size = getattr(source, "block_size", 1)
    if type(block_size) is not int or block_size < 1:
        raise _mistake(name, "block_size", "a positive integer, the items read together", source)
    for method, meaning in _OPTIONAL.items():
        if getattr(source, method, None) is not None and not callable(getattr(source, method)):
            raise _mistake(name, method, f"a method, {meaning}", source)
    try:
        if getattr(source, "size_table", None) is not None:
            SizeTable.of(source.size_table)
    except (ValueError, TypeError) as error:
        rule = "a number of samples, or a table of numbers that never fall by first epoch, from 0"
        raise _mistake(name, "size_table", rule, source) from error


def _mistake(name: str, attribute: str, rule: str, source: Any) -> ConfigError:
    value = getattr(source, attribute)
    return ConfigError(
        f"{name}.{attribute} must be {rule}, but got {attribute}={value!r}; "
        "where it means something else in that class, give it another name"
    )


def sizes_of(source: Sized) -> dict[int, int]:
    """Return first epoch -> number of samples from there on, of a source that was checked."""
    size = getattr(source, "size_table", None)
    if size is None:
        size = len(source)
    return dict(size) if isinstance(size, Mapping) else {0: size}
