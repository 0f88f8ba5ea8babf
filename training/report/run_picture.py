"""The picture of one run: loss and accuracy over time, and what each epoch was spent on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.report.history import History
from training.report.run import PHASE_NAMES, verdict
from training.report.style import (
    PHASE_STYLES,
    SAMPLE_STYLES,
    Style,
    caption,
    drawing,
    legend_below,
    line_style,
    save,
    say,
    whole_numbers,
)
from training.report.text import shortened, time_unit
from training.report.trained import trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COURSES = 6  # lines of a curriculum that can be told apart
_MAX_BARS = 60  # of a panel, that are wide enough for their hatches


def draw_run(history: History, path: Path) -> None:
    """Draw a run of which at least one epoch ended."""
    parameters = _numeric_parameters(history)
    num_rows = 3 if parameters else 2
    with drawing(10, 3.2 * num_rows + 0.2) as figure:
        grid = figure.add_gridspec(num_rows, 2)
        _draw_loss(figure.add_subplot(grid[0, 0]), history)
        _draw_accuracy(figure.add_subplot(grid[0, 1]), history)
        _draw_phases(figure.add_subplot(grid[1, 0]), history)
        _draw_samples(figure.add_subplot(grid[1, 1]), history)
        if parameters:
            _draw_curriculum(figure.add_subplot(grid[2, :]), history, parameters)
        _title(figure, history)
        caption(figure, trained([history]))
        save(figure, path)


def _title(figure: Figure, history: History) -> None:
    name = f"{history.directory.name}: lifetime {history.lifetime}"
    if history.status != "done":
        name += f", {history.status} after {len(history.rows)} epochs"
    said = verdict(history)
    figure.suptitle(f"{shortened(name, 90)}\n{said}" if said else shortened(name, 90), fontsize=10)


def _time_axis(axes: Axes, history: History) -> float:
    """Name the time axis; return the seconds of its unit."""
    unit, size = time_unit(history.times_s[-1])
    axes.set_xlabel(f"time since the start, without warm-up ({unit})")
    axes.set_xlim(0, 1.05 * max(history.times_s[-1], 1e-3) / size)
    return size


def _draw_loss(axes: Axes, history: History) -> None:
    size = _time_axis(axes, history)
    labels = {"train_loss": "training", "val_loss": "validation"}
    for number, (column, label) in enumerate(labels.items()):
        points = history.evaluations(column)
        times, losses = [point[1] / size for point in points], [point[2] for point in points]
        if points:
            axes.plot(times, losses, label=label, **line_style(number, 3, len(points)))
    axes.set_title("loss")
    axes.set_ylabel("cross-entropy, mean of the samples")
    if axes.lines:
        axes.legend(loc="best")
    losses = [float(y) for line in axes.lines for y in line.get_ydata()]
    if losses and min(losses) > 0 and max(losses) > 20 * min(losses):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")


def _draw_accuracy(axes: Axes, history: History) -> None:
    axes.set_title("accuracy")
    points = history.evaluations()
    if not points:
        say(axes, "there was no evaluation")
        return
    size = _time_axis(axes, history)
    times, values = [p[1] / size for p in points], [100 * p[2] for p in points]
    axes.plot(times, values, **line_style(1, 3, len(points)))
    best = max(range(len(points)), key=values.__getitem__)
    # In the title: a legend with a ring in it reads like a point.
    axes.set_title(f"accuracy (ring: the best, {values[best]:.2f} % after epoch {points[best][0]})")
    ring = {"marker": "o", "markersize": 10, "color": "black", "fillstyle": "none"}
    axes.plot(times[best], values[best], linestyle="", **ring)
    axes.set_ylabel("validation accuracy (%)")
    axes.margins(y=0.15)


def _draw_phases(axes: Axes, history: History) -> None:
    axes.set_title("where the time went")
    phases = history.phases()
    if not phases:
        say(axes, "no times were recorded")
        return
    known = [name for name in PHASE_NAMES if name in phases]
    stack = [(PHASE_NAMES[name], phases[name], PHASE_STYLES[name]) for name in known]
    _draw_stack(axes, history.epochs, stack)
    axes.set_ylabel("seconds of an epoch")


def _draw_samples(axes: Axes, history: History) -> None:
    columns = {name: np.nan_to_num(history.column(name)) for name in SAMPLE_STYLES}
    stack = [(name, columns[name], style) for name, style in SAMPLE_STYLES.items()]
    _draw_stack(axes, history.epochs, stack)
    axes.set_title("samples built and reused")
    axes.set_ylabel("samples of an epoch")


def _draw_stack(axes: Axes, epochs: list[int], stack: list[tuple[str, Any, Style]]) -> None:
    """Draw parts on top of each other; of many epochs as areas with steps, whose hatches show."""
    bottom = np.zeros(len(epochs))
    for label, part, style in stack:
        top = bottom + np.asarray(part)
        if len(epochs) <= _MAX_BARS:
            edge = {"edgecolor": "#333333", "linewidth": 0.4}
            axes.bar(epochs, part, bottom=bottom, label=label, **style, **edge)
        else:
            edge = {"edgecolor": "#333333", "linewidth": 0.0}
            axes.fill_between(epochs, bottom, top, step="mid", label=label, **style, **edge)
        bottom = top
    axes.set_xlabel("epoch")
    axes.set_xlim(epochs[0] - 0.6, max(epochs[-1], epochs[0] + 3) + 0.6)
    axes.set_ylim(0, 1.05 * max(bottom.max(), 1e-3))
    axes.grid(axis="x", visible=False)
    whole_numbers(axes)
    legend_below(axes, num_columns=4)


def _numeric_parameters(history: History) -> dict[str, list[float]]:
    """Return the values of the parameters that are numbers, row by row."""
    rows = [history.curriculum[first] for first in sorted(history.curriculum)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    plain = [n for n in names if all(type(row.get(n)) in (int, float) for row in rows)]
    return {name: [float(row[name]) for row in rows] for name in plain}


def _draw_curriculum(axes: Axes, history: History, parameters: dict[str, list[float]]) -> None:
    """Draw each course of values once: most parameters follow from one knob."""
    courses: dict[tuple[float, ...], list[str]] = {}
    for name, values in parameters.items():
        largest = max(map(abs, values)) or 1.0
        course = tuple(round(value / largest, 6) for value in values)
        courses.setdefault(course, []).append(f"{shortened(name, 34)} (largest {largest:g})")
    firsts = sorted(history.curriculum)
    last = max([*history.epochs, firsts[-1]]) + 1
    shown = list(courses.items())[:_MAX_COURSES]
    for number, (course, names) in enumerate(shown):
        label = names[0] + (f" and {len(names) - 1} that go with it" if len(names) > 1 else "")
        style = line_style(number, len(shown))
        axes.step([*firsts, last], [*course, course[-1]], where="post", label=label, **style)
    more = len(courses) - len(shown)
    axes.set_title("curriculum" + (f", and {more} more in the table" if more else ""))
    axes.set_xlabel("epoch")
    axes.set_ylabel("share of the largest value")
    whole_numbers(axes)
    legend_below(axes, num_columns=2)
