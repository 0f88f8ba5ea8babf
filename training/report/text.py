"""Tables and numbers as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; the columns after the first are aligned to the right."""
    line = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in [head, line, *rows])


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it: `0.53 s`, `42 s`, `12.5 min`, `3.4 h`."""
    if math.isnan(seconds):
        return "unknown"
    unit, size = time_unit(seconds)
    value = seconds / size
    return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def time_unit(longest_s: float) -> tuple[str, float]:
    """Return the unit of an axis up to a time, and its seconds."""
    if longest_s < 300:
        return "s", 1.0
    return ("min", 60.0) if longest_s < 4 * 3600 else ("h", 3600.0)


def percent(share: float, digits: int = 2) -> str:
    """Return a share as a percentage; `-` where there is none."""
    return "-" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def shortened(text: str, length: int) -> str:
    """Return a text of at most so many characters; what is left out of its middle is marked."""
    if len(text) <= length:
        return text
    front = (length - 1) // 2
    return f"{text[:front]}…{text[len(text) - (length - 1 - front) :]}"
