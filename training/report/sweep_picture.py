"""The picture of a sweep: accuracy over time and over epochs, and what each setting cost."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from training.report.settings import Setting, Spread
from training.report.style import caption, drawing, line_style, save, say, whole_numbers
from training.report.sweep import Sweep
from training.report.text import percent, shortened, time_unit
from training.report.trained import trained
from training.report.verdict import verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_MAX_SETTINGS = 12  # lines that can be told apart; the table has them all
_MAX_NAME = 46  # characters
_SECTIONS = (("o", "#000000"), ("D", "#ffffff"), ("s", "#9a9a9a"), ("^", "#ffffff"))


@dataclass(frozen=True)
class _Panel:
    """A value of each setting, with the factor to the unit of its axis."""

    title: str
    value: Callable[[Setting], Spread]
    factor: float = 1.0
    from_zero: bool = True


def draw_sweep(sweep: Sweep, path: Path) -> None:
    """Draw a sweep of which at least one job ended."""
    settings = sweep.first[:_MAX_SETTINGS]
    panels = _panels(sweep, settings)
    num_rows = math.ceil(len(panels) / 2)
    names_height = 0.17 * math.ceil((len(settings) + 1) / _num_columns(settings))
    line_height = 0.25 if len(sweep.sections) == 1 else 0.09 + 0.17 * len(sweep.sections)
    lower_height = num_rows * (0.75 + line_height * len(settings)) + 0.3
    heights = [3.6 + names_height, lower_height]  # inches
    text = verdict(sweep)
    for together in (" %", " ± "):
        text = text.replace(together, together.replace(" ", "\N{NO-BREAK SPACE}"))
    title = textwrap.fill(text, 125)
    with drawing(10, sum(heights) + 0.2 * title.count("\n") + 0.6) as figure:
        upper, lower = figure.subfigures(2, 1, height_ratios=heights)
        _draw_curves(upper, sweep, settings)
        grid = lower.add_gridspec(num_rows, 2)
        for number, panel in enumerate(panels):
            axes = lower.add_subplot(grid[number // 2, number % 2])
            _draw_values(axes, sweep, settings, panel)
            axes.tick_params(labelleft=number % 2 == 0)  # the names stand once a row
        if len(sweep.sections) > 1:
            handles = _section_handles(sweep)
            lower.legend(handles=handles, loc="outside lower center", ncols=4)
        figure.suptitle(title, fontsize=9.5)
        caption(figure, trained(sweep.runs))
        save(figure, path)


def _panels(sweep: Sweep, settings: list[Setting]) -> list[_Panel]:
    accuracy = _Panel("accuracy in the end (%)", lambda s: s.last_accuracy, 100, from_zero=False)
    built = _Panel("samples built in the run", lambda s: s.built)
    if sweep.doubts:
        return [accuracy, built]
    waiting = _Panel("share of the time waiting for input (%)", lambda s: s.wait_share, 100)
    if math.isnan(sweep.target):
        return [built, waiting]
    times = [time for s in settings for time in s.time_to(sweep.target).values]
    unit, size = time_unit(max(times, default=1.0))
    title = f"time to {percent(sweep.target, 1)} accuracy ({unit})"
    return [_Panel(title, lambda s: s.time_to(sweep.target), 1 / size), accuracy, built, waiting]


def curve(setting: Setting, by_time: bool) -> list[tuple[float, Spread]]:
    """Return (seconds or epochs trained, accuracies in %) of the evaluations all seeds have."""
    runs = [run.evaluations() for run in setting.runs]
    epochs = set.intersection(*({point[0] for point in points} for points in runs))
    found = []
    for epoch in sorted(epochs):
        points = [next(p for p in points if p[0] == epoch) for points in runs]
        place = Spread.of(p[1] for p in points).mean if by_time else epoch + 1
        found.append((place, Spread.of(100 * p[2] for p in points)))
    return found


def _draw_curves(figure: FigureBase, sweep: Sweep, settings: list[Setting]) -> None:
    over_time, over_epochs = figure.subplots(1, 2)
    which = f", {next(iter(sweep.sections))}" if len(sweep.sections) > 1 else ""
    over_time.set_title(f"accuracy over wall-clock time{which}")
    over_epochs.set_title(f"accuracy over epochs{which}")
    if sweep.baseline is None:
        for axes in (over_time, over_epochs):
            say(axes, "there was no evaluation")
        return
    if sweep.doubts:
        say(over_time, "times are not compared:\n" + "\nand ".join(sweep.doubts))
    else:
        unit = _draw_lines(over_time, sweep, settings, by_time=True)
        over_time.set_xlabel(f"time without warm-up ({unit})")
    _draw_lines(over_epochs, sweep, settings, by_time=False)
    over_epochs.set_xlabel("epochs trained")
    whole_numbers(over_epochs)
    handles, labels = over_epochs.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=_num_columns(settings))


def _num_columns(settings: list[Setting]) -> int:
    """Return how many names fit beside each other."""
    longest = max(min(len(setting.name), _MAX_NAME) for setting in settings)
    return max(1, min(len(settings) + 1, 120 // (longest + 10)))


def _draw_lines(axes: Axes, sweep: Sweep, settings: list[Setting], by_time: bool) -> str:
    """Draw the mean over seeds and the range of them; return the unit of the time."""
    curves = {setting.name: curve(setting, by_time) for setting in settings}
    longest = max((points[-1][0] for points in curves.values() if points), default=1.0)
    unit, size = time_unit(longest) if by_time else ("", 1.0)
    for number, (name, points) in enumerate(curves.items()):
        style = line_style(number, len(curves), len(points))
        places = [place / size for place, _ in points]
        axes.plot(places, [v.mean for _, v in points], label=shortened(name, _MAX_NAME), **style)
        low, high = ([edge(v.values) for _, v in points] for edge in (min, max))
        axes.fill_between(places, low, high, color=style["color"], alpha=0.2, linewidth=0)
    label = f"target, {percent(sweep.target, 1)}"
    axes.axhline(
        100 * sweep.target, color="black", linewidth=0.9, linestyle=(0, (1, 3)), label=label
    )
    axes.set_ylabel("validation accuracy (%)")
    axes.set_ylim(*_accuracy_limits([v for points in curves.values() for _, v in points]))
    axes.set_xlim(0, 1.04 * longest / size)
    return unit


def _accuracy_limits(values: list[Spread]) -> tuple[float, float]:
    """Return the limits of an axis that show the upper part, where the settings differ."""
    means = sorted(spread.mean for spread in values)
    low, high = means[len(means) // 5], max(max(spread.values) for spread in values)
    room = max(0.05 * (high - low), 0.1)
    return low - room, min(high + room, 100.0 + room)


def _draw_values(axes: Axes, sweep: Sweep, settings: list[Setting], panel: _Panel) -> None:
    """Draw a value by setting: every seed as a point, their mean as a line across."""
    from matplotlib.ticker import MaxNLocator

    largest = 0.0
    for number, group in enumerate(sweep.sections.values()):
        offset = (
            0.0 if len(sweep.sections) == 1 else 0.6 * (number / (len(sweep.sections) - 1) - 0.5)
        )
        for setting in group:
            place = _place(setting, settings)
            if place is None:
                continue
            spread = panel.value(setting)
            largest = max([largest, *(panel.factor * value for value in spread.values)])
            _draw_seeds(axes, spread, panel.factor, place + offset, number)
    axes.set_yticks(range(len(settings)), [shortened(s.name, _MAX_NAME) for s in settings])
    if len(sweep.sections) > 1:
        for number in range(1, len(settings)):
            axes.axhline(number - 0.5, color="#bdbdbd", linewidth=0.7)
    axes.set_ylim(len(settings) - 0.45, -0.55)
    axes.set_xlabel(panel.title)
    axes.margins(x=0.08)
    if panel.from_zero or largest == 0:
        axes.set_xlim(0, 1.08 * largest or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid(axis="y", visible=False)


def _draw_seeds(axes: Axes, spread: Spread, factor: float, y: float, section: int) -> None:
    marker, fill = _SECTIONS[section % len(_SECTIONS)]
    if not spread.values:
        axes.annotate("not reached", (0.98, y), xycoords=("axes fraction", "data"),
                      ha="right", va="center", fontsize=7)  # fmt: skip
        return
    values, mean = [factor * value for value in spread.values], factor * spread.mean
    axes.plot([mean] * 2, [y - 0.13, y + 0.13], color="black", linewidth=1.8)
    axes.plot(values, [y] * len(values), linestyle="", marker=marker, markersize=4.5,
              color="black", markerfacecolor=fill, markeredgewidth=0.8)  # fmt: skip
    if not spread.is_complete:
        text = f"{len(values)} of {spread.num_seeds} seeds"
        axes.annotate(text, (min(values), y), xytext=(-6, 0), textcoords="offset points",
                      ha="right", va="center", fontsize=7)  # fmt: skip


def _section_handles(sweep: Sweep) -> list[object]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linestyle="", marker=marker, color="black", markerfacecolor=fill, label=name)
        for name, (marker, fill) in zip(sweep.sections, _SECTIONS, strict=False)
    ]


def _place(setting: Setting, settings: list[Setting]) -> int | None:
    """Return the line of a setting: that of its name, or else of its lifetime."""
    by_name = [n for n, other in enumerate(settings) if other.name == setting.name]
    by_lifetime = [n for n, other in enumerate(settings) if other.lifetime == setting.lifetime]
    return next(iter(by_name or by_lifetime), None)
