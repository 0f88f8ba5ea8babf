"""The picture: predicted epochs by lifetime, and what loading alone comes to by workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from training.bounds.measure import Bounds
from training.bounds.prediction import LIFETIMES, predict_all
from training.report.style import drawing, legend_below, line_style, save
from training.report.text import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_bounds(bounds: Bounds, path: Path) -> None:
    """Draw both panels into a file."""
    with drawing(10, 4.2) as figure:
        left, right = figure.subplots(1, 2)
        _draw_epochs(left, bounds)
        _draw_rates(right, bounds)
        save(figure, path)


def _draw_epochs(axes: Axes, bounds: Bounds) -> None:
    predictions = predict_all(bounds.costs)
    columns = list(zip(*predictions, strict=True))
    unit, size = time_unit(max(one.epoch_s for row in predictions for one in row))
    for number, column in enumerate(columns):
        label = f"num_workers={column[0].num_workers}"
        style = line_style(number, len(columns))
        axes.plot(LIFETIMES, [one.epoch_s / size for one in column], label=label, **style)
    rest_s = bounds.costs.eval_s + bounds.costs.checkpoint_s
    least = min(one.compute_s for one in predictions[0]) + rest_s
    axes.axhline(least / size, color="black", linestyle=(0, (1, 2)), label="compute alone")
    axes.set_xscale("log", base=2)
    axes.set_xticks(LIFETIMES, [str(lifetime) for lifetime in LIFETIMES])
    axes.set_ylim(bottom=0)
    axes.set_title("predicted time of an epoch, after the first")
    axes.set_xlabel("lifetime (epochs)")
    axes.set_ylabel(f"time of an epoch ({unit})")
    legend_below(axes, num_columns=4)


def _draw_rates(axes: Axes, bounds: Bounds) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    costs = bounds.costs
    counts = [given.num_workers for given in costs.inputs]
    rates = {
        "loading alone, lifetime 1": [given.built_per_s for given in costs.inputs],
        "loading alone, full reuse": [given.reused_per_s for given in costs.inputs],
    }
    for number, (label, values) in enumerate(rates.items()):
        axes.plot(range(len(counts)), values, label=label, **line_style(number, 3))
    step = costs.num_samples / costs.num_batches / costs.step_s
    axes.axhline(step, color="black", linestyle=(0, (1, 2)), label="compute alone")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.set_xlim(-0.5, len(counts) - 0.5)
    axes.set_title("what each part could do alone")
    axes.set_xlabel("num_workers")
    axes.set_ylabel("samples a second")
    axes.margins(y=0.1)
    legend_below(axes, num_columns=2)
