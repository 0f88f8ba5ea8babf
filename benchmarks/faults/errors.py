"""Errors of a user's own code: memory that runs out in a build, and training that diverges."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.trial import (
    PROJECT,
    SIZE,
    Tally,
    build,
    open_dataset,
    open_loader,
    when_free,
)
from reuseloader import ReuseKey


def memory_errors(folder: Path, trials: int) -> Tally:
    """Let the build fail as it does when memory runs out: it is said where, and can go on."""
    tally = Tally()
    for number in range(trials):
        bad = random.randrange(SIZE)

        def fail(key: ReuseKey, bad: int = bad) -> Any:
            if key.index == bad:
                raise MemoryError("no memory left")
            return build(key)

        with tally.trial():
            loader = open_loader(folder / str(number), num_workers=2 * (number % 2), build=fail)
            try:
                list(loader)
                raise AssertionError("the error is lost")
            except MemoryError as error:
                assert f"index={bad}" in str(error)
            del loader
            tally.look(when_free(open_dataset, folder / str(number)), epoch=0)
    return tally


def bad_losses(folder: Path, trials: int) -> Tally:
    """Let training diverge: it stops with epoch and step, and the last checkpoint is good."""
    tally = Tally()
    small = ("data.train.limit=64", "data.val.limit=20", "num_workers=0", "tracker=csv")
    rate = ("schedule=multistep", "schedule.milestones=[1]", "schedule.gamma=1e18")  # in epoch 1
    wild = ("augment=none", "optimizer=sgd", *rate, "checkpoint.every_steps=1", "epochs=3")
    for number in range(trials):
        with tally.trial():
            run = folder / str(number)
            command = [sys.executable, "train.py", *small, *wild, f"hydra.run.dir={run}"]
            done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
            error = json.loads((run / "status.json").read_text())["error"]
            assert done.returncode == 1 and "epoch 1, step" in error, error
            last = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
            step = int(error.rpartition("step ")[2].split()[0])
            assert 2 <= last["step"] <= step  # of epoch 0, or of the update before it
            tally.wrong += not all(bool(value.isfinite().all()) for value in last["model"].values())
    return tally
