"""Runs inside the test process that are stopped in chosen updates, and go on."""

from __future__ import annotations

import os
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import runs

from training import loop
from training.signals import Interrupted

BASE = ("epochs=3", "model.width=4", "data.train.limit=64", "batch_size=16")
"""Four updates in each of three epochs."""


class Updates:
    """Notes the input and the rates of every update; sends a signal in chosen ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stops: dict[int, int] = {}  # number of an update, from 0 up -> signal
        self.seen: list[str] = []
        self.rates: list[list[float]] = []
        update = loop.update

        def watched(trainer: Any, state: Any, prepare: Any, window: Any) -> None:
            batches = list(window)
            self.seen += [sha256(batch["image"].numpy().tobytes()).hexdigest() for batch in batches]
            self.rates.append([group["lr"] for group in state.optimizer.param_groups])
            if state.step in self.stops:
                os.kill(os.getpid(), self.stops.pop(state.step))
            update(trainer, state, prepare, batches)

        monkeypatch.setattr(loop, "update", watched)

    def start(self, folder: Path, *overrides: str, stop: int | None = None) -> None:
        """Begin a run, or go on with it, up to the end of an update."""
        run = runs.resume if (folder / "config.yaml").exists() else runs.train
        if stop is None:
            run(folder, *overrides)
            return
        self.stops = {stop: signal.SIGTERM}
        with pytest.raises(Interrupted):
            run(folder, *overrides)


def results(folder: Path, counts: bool = True) -> Any:
    """Return rows, with counts of samples or without, and weights, and where the best was."""
    state = runs.load(folder)
    weights = {
        f"{part} {name}": value.tolist()
        for part in ("model", "ema")
        for name, value in (state[part] or {}).items()
    }
    best = {name: value for name, value in state["best"].items() if name != "confusion"}
    table = runs.without_times(runs.rows(folder))
    if not counts:
        table = [{k: v for k, v in row.items() if k not in ("built", "reused")} for row in table]
    return table, weights, best


def slow(*values: Any) -> Any:
    """Return values of a parameter that the daily run leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)
