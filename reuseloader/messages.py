"""What the user is told: messages that travel with a batch, and errors that name their sample."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from reuseloader.policy import ReuseKey


class News(NamedTuple):
    """A message for the user; of those with ``once`` set, the first alone is shown."""

    text: str
    once: bool


def announce(news: list[News], said_once: bool) -> bool:
    """Show messages as warnings; return whether one of those shown once has now been shown."""
    for item in news:
        if not (item.once and said_once):
            warnings.warn(item.text, stacklevel=3)
        said_once = said_once or item.once
    return said_once


def call(what: str, key: ReuseKey, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's; say in its exception which sample it was about."""
    place = f"{what} of index={key.index}, epoch={key.epoch}, generation={key.generation}"
    try:
        return function(*arguments)
    except StopIteration as error:
        # A DataLoader would take it for the end of the epoch.
        raise RuntimeError(f"StopIteration: {error} (in {place})") from error
    except Exception as error:
        add_context(error, place)
        raise


def add_context(error: Exception, place: str) -> None:
    """Add to an exception of the user's where it was raised."""
    # In the text itself where that can be done: str(error) then says it in a worker, too.
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} (in {place})",)
    else:
        error.add_note(f"in {place}")
