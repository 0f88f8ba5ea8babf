"""Run folders that no run made, for tests of what is read from them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

LOG = """2026-01-02 03:04:06,001 INFO 1437 samples for training, 360 for validation, 10 classes
2026-01-02 03:04:06,002 INFO SmallConvNet with 62106 parameters on cpu
"""
"""The first lines of a run's log."""

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EPOCH = {
    **{"train_loss": 0.5, "lr": 0.01, "built": 60, "reused": 40, "step": 4, "samples_per_s": 9.0},
    **{"wait_s": 4.0, "copy_s": 0.5, "compute_s": 3.0, "eval_s": 1.0, "checkpoint_s": 0.25},
    **{"warmup_s": 0.0, "other_s": 0.25, "epoch_s": 9.0, "build_s": 6.0, "read_s": 0.4},
}
"""A row of metrics.csv whose phases add up; every number of it can be written in binary."""


def write_run(
    folder: Path,
    accuracies: Iterable[float | None] = (0.5, 0.75, 0.875),
    *,
    row: dict[str, Any] | None = None,
    start_s: float | None = 0.0,
    **config: Any,
) -> Path:
    """Write the folder of a run with an epoch for each accuracy; None is one without evaluation.

    Args:
        folder: made here.
        accuracies: fractions.
        row: entries of metrics.csv that differ from EPOCH.
        start_s: when it began, in seconds from START; None writes down no times.
        config: of the recorded config; `status`, `error`, `overrides` and `curriculum` are written
            where they belong, and `log` is what train.log begins with.
    """
    folder.mkdir(parents=True)
    status, error = config.pop("status", "done"), config.pop("error", None)
    lifetime, seed = config.setdefault("lifetime", 2), config.setdefault("seed", 0)
    overrides = config.pop("overrides", [f"lifetime={lifetime}", f"seed={seed}"])
    curriculum = config.pop("curriculum", {0: {}})
    log = config.pop("log", "")
    rows = []
    for epoch, accuracy in enumerate(accuracies):
        values = {"epoch": epoch, **EPOCH, **(row or {}), "val_loss": "", "val_accuracy": ""}
        if epoch == 0:
            values["warmup_s"] += 2.0
            values["epoch_s"] += 2.0
        if accuracy is not None:
            values |= {"val_accuracy": accuracy, "val_loss": 1 - accuracy}
        rows.append(values)
    if rows:
        with open(folder / "metrics.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    sessions = []
    if start_s is not None:
        began = START + timedelta(seconds=start_s)
        length = sum(values["epoch_s"] for values in rows)
        sessions = [[began.isoformat(), (began + timedelta(seconds=length)).isoformat()]]
    model = {"_target_": "training.models.SmallConvNet", "num_classes": 10}
    settings = {
        "model": model,
        "epochs": 3,
        "batch_size": 10,
        "num_workers": 2,
        "device": "auto",
        **config,
    }
    written = {
        "config.yaml": yaml.safe_dump(settings | config),
        "train.log": log,
        "overrides": "".join(f"{text}\n" for text in overrides),
        "curriculum.yaml": yaml.safe_dump(curriculum),
        "environment.json": json.dumps(
            {
                "cpu": {"model": "Abacus 9", "num_cores": 4},
                "gpu": [],
                "packages": {"torch": "2.9"},
                "git": {"commit": "abc123"},
            }
        ),
        "status.json": json.dumps({"status": status, "error": error, "sessions": sessions}),
    }
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def write_serial_runs(folder: Path, runs: dict[str, dict[str, Any]]) -> Path:
    """Write runs one after the other: name -> what `write_run` takes."""
    for number, (name, options) in enumerate(runs.items()):
        write_run(folder / name, **{"start_s": 10_000.0 * number, **options})
    return folder
