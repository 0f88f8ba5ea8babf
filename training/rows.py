"""The row of an epoch, and where its values go."""

from __future__ import annotations

from typing import Any

from training.state import State

Row = dict[str, Any]

COLUMNS = (
    *("epoch", "train_loss", "val_loss", "val_accuracy", "lr", "built", "reused"),
    *("wait_s", "epoch_s", "samples_per_s", "val_top5_accuracy", "step"),
)
"""Of metrics.csv, one row an epoch; the values of an evaluation are empty where there was none."""

CURVES = {
    **{f"val_{name}": f"val/{name}" for name in ("loss", "accuracy", "top5_accuracy")},
    **{name: f"input/{name}" for name in ("built", "reused", "wait_s", "samples_per_s")},
    **{name: f"epoch/{name}" for name in ("train_loss", "epoch_s")},
}
"""Column of metrics.csv -> curve of the trackers; a curve runs over updates."""


def training_row(state: State) -> Row:
    """Return what is known of an epoch without an evaluation."""
    done = state.progress
    return {
        "epoch": state.epoch,
        "train_loss": state.losses.mean,
        "lr": state.lr,
        "built": done.built,
        "reused": done.reused,
        "wait_s": round(done.wait_s, 4),
        "samples_per_s": round((done.built + done.reused) / done.train_s, 1),
        "step": state.step,
    }


def columns(row: Row) -> Row:
    """Return a row as metrics.csv has it: every column, in order."""
    return {name: row.get(name) for name in COLUMNS}


def curves(row: Row) -> dict[str, float]:
    """Return the points that a row adds to the curves."""
    return {CURVES[name]: row[name] for name in CURVES if name in row}
