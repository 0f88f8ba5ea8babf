"""What a source of data may have besides its items: a table of sizes, blocks, a prefetch."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from reuseloader.sizes import SizeTable
from training.checks import ConfigError


def check_optional(source: Any, place: str) -> None:
    """Make sure that what a source has of these names is what the loader means by them.

    Args:
        source: of the user's, perhaps, with attributes of its own.
        place: where it stands in the config.

    Raises:
        ConfigError: an attribute means something else; names the class.
    """
    name = f"{place}: {type(source).__module__}.{type(source).__qualname__}"
    block_size = getattr(source, "block_size", 1)
    if type(block_size) is not int or block_size < 1:
        raise _mistake(name, "block_size", "a positive integer, the items read together", source)
    if not callable(getattr(source, "prefetch", len)):
        raise _mistake(name, "prefetch", "a method, called before samples are built", source)
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
