"""The row of an epoch, and where its values go."""

from __future__ import annotations

from typing import Any

from training.progress import over_ranks
from training.records import Run
from training.state import State
from training.timing import PHASES
from training.tracking import Trackers

Row = dict[str, Any]

COLUMNS = (
    *("epoch", "train_loss", "val_loss", "val_accuracy", "lr", "built", "reused"),
    *("wait_s", "epoch_s", "samples_per_s", "val_top5_accuracy", "step"),
    *("copy_s", "compute_s", "eval_s", "checkpoint_s", "warmup_s", "other_s"),
    *("build_s", "read_s"),
)
"""Of metrics.csv, one row an epoch; the values of an evaluation are empty where there was none."""

CURVES = {
    **{f"val_{name}": f"val/{name}" for name in ("loss", "accuracy", "top5_accuracy")},
    **{name: f"input/{name}" for name in ("built", "reused", "wait_s", "samples_per_s")},
    **{name: f"epoch/{name}" for name in ("train_loss", "epoch_s")},
    **{f"{name}_s": f"epoch/{name}_s" for name in PHASES if name != "wait"},
}
"""Column of metrics.csv -> curve of the trackers; a curve runs over updates."""


def is_time(column: str) -> bool:
    """Say whether a column is a time or a rate, which differ between runs that are the same."""
    return column.endswith("_s")


def training_row(state: State, seconds: dict[str, float]) -> Row:
    """Return what is known of an epoch without an evaluation, of all ranks together.

    Args:
        state: at the end of it.
        seconds: of each phase up to there.
    """
    losses, done = over_ranks(state.losses, state.progress)
    training_s = sum(seconds.values()) - seconds["eval"] - seconds["checkpoint"]
    return {
        "epoch": state.epoch,
        "train_loss": losses.mean,
        "lr": state.lr,
        "built": done.built,
        "reused": done.reused,
        "samples_per_s": round((done.built + done.reused) / training_s, 1),
        "step": state.step,
        "build_s": round(done.build_s, 4),
        "read_s": round(done.read_s, 4),
    }


def times(seconds: dict[str, float]) -> Row:
    """Return the columns of an epoch's phases, and of their sum."""
    whole = {"epoch_s": round(sum(seconds.values()), 4)}
    return whole | {f"{name}_s": round(value, 4) for name, value in seconds.items()}


def columns(row: Row) -> Row:
    """Return a row as metrics.csv has it: every column, in order."""
    return {name: row.get(name) for name in COLUMNS}


def curves(row: Row) -> dict[str, float]:
    """Return the points that a row adds to the curves; one of metrics.csv adds the same."""
    return {CURVES[name]: float(row[name]) for name in CURVES if row.get(name) not in (None, "")}


def open_trackers(run: Run, state: State, rows: list[Row]) -> Trackers:
    """Open the trackers of a run; one that goes on shows the points of its present step again.

    Args:
        run: as configured.
        state: of the run, restored where it goes on.
        rows: of the epochs that ended.
    """
    step = state.step if run.config.resume else None
    trackers = Trackers.of(run.directory, run.config.tracker, step)
    if points := _points_at(state, rows):
        trackers.scalars(points, state.step)
    return trackers


def _points_at(state: State, rows: list[Row]) -> dict[str, float]:
    """Return the points that the curves have already at the step from which a run goes on."""
    step, points = state.point
    known = dict(points) if step == state.step else {}
    if rows and state.progress.num_batches == 0 and int(rows[-1]["step"]) == state.step:
        known |= curves(rows[-1])
    return known
