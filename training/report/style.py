"""How the pictures look: told apart in grey and by the colour-blind, by shape as by colour."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = dict[str, Any]

# Fill and hatch by phase. The fills differ in lightness, so that they differ in grey; the
# phase that matters most, waiting, is the one with the strongest pattern.
PHASE_STYLES: dict[str, Style] = {
    "compute": {"facecolor": "#3b4f81", "hatch": ""},
    "wait": {"facecolor": "#f2b134", "hatch": "///"},
    "copy": {"facecolor": "#1b1b1b", "hatch": ""},
    "eval": {"facecolor": "#9fc5e8", "hatch": "..."},
    "checkpoint": {"facecolor": "#a0527c", "hatch": "\\\\\\"},
    "other": {"facecolor": "#bdbdbd", "hatch": ""},
    "warmup": {"facecolor": "#ffffff", "hatch": "xxx"},
}

SAMPLE_STYLES: dict[str, Style] = {
    "built": {"facecolor": "#3b4f81", "hatch": ""},
    "reused": {"facecolor": "#cfe3f5", "hatch": "..."},
}

_MARKERS = "os^DvP*X"
_DASHES = ("-", "--", "-.", ":")
_MAX_MARKED = 40  # a line of more points has a marker here and there


def line_style(number: int, of: int, num_points: int = 0) -> Style:
    """Return the style of a line among others: its colour from dark to light, marker and dashes.

    Args:
        number: of the line, from 0 up.
        of: lines in all.
        num_points: points of the line; of many, some are marked.
    """
    from matplotlib import colormaps

    shade = 0.0 if of < 2 else 0.85 * number / (of - 1)  # the lightest fifth is faint on white
    return {
        "color": colormaps["viridis"](shade),
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "markersize": 4,
        "markevery": 1 if num_points <= _MAX_MARKED else num_points // (_MAX_MARKED // 2),
        "linewidth": 1.5 if num_points <= _MAX_MARKED else 1.0,
    }


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Give a figure to draw on, in inches, with the settings of these pictures around it."""
    font_log = logging.getLogger("matplotlib.font_manager")
    level = font_log.level
    font_log.setLevel(logging.WARNING)  # it tells of the first start on a machine
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(
            {
                "font.size": 8.5,
                "axes.titlesize": 9.5,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": "#e4e4e4",
                "axes.spines.top": False,
                "axes.spines.right": False,
                "legend.frameon": False,
                "hatch.linewidth": 0.6,
                "svg.hashsalt": "report",
            }
        ):
            yield Figure(figsize=(width, height), layout="constrained")  # pyplot keeps every one
    finally:
        font_log.setLevel(level)


def caption(figure: Figure, text: str, width: int = 170) -> None:
    """Put a text below all that is drawn; it wraps after so many characters."""
    figure.supxlabel(textwrap.fill(text, width), fontsize=7.5)


def save(figure: Figure, path: Path) -> None:
    """Write a picture whole: the previous one stays until it is there."""
    temporary = path.with_name(f"{path.name}.tmp")
    figure.savefig(temporary, dpi=110, format="png")
    temporary.replace(path)


def whole_numbers(axes: Axes) -> None:
    """Put the ticks of the x axis on whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def legend_below(axes: Axes, num_columns: int) -> None:
    """Name what is drawn below the axes, where nothing lies under it."""
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.19),
        ncols=num_columns,
        columnspacing=1.2,
        handlelength=1.8,
    )


def say(axes: Axes, text: str) -> None:
    """Put a word in the place of a panel that has nothing to show."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
