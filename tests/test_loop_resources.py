"""Memory and open files, measured in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

MEASURE = """
import gc, os, sys
from pathlib import Path

def memory():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

def open_files():
    return len(os.listdir("/proc/self/fd"))

directory = Path(sys.argv[1])
"""

STEPS = """
import torch
import runs
from training import loop
from training.device import Preprocess
from training.optim import Plan
from training.state import make_model, make_state
from training.tracking import Trackers

with runs.begin(directory, "tracker=tensorboard", "trainer.ema_decay=0.99") as run:
    model, loaders, device = runs.prepare(run)
    state = make_state(run.config, model, device, Plan(epochs=1, num_batches=2400))
    prepare = Preprocess(run.config, device)
    batch = {"image": torch.zeros(4, 3, 64, 64, dtype=torch.uint8), "label": torch.arange(4)}
    with Trackers.of(run.directory, run.config.tracker) as trackers:
        for step in range(2400):
            loop.update(run.config.trainer, state, prepare, [batch])
            trackers.scalars({"train/loss": state.losses.window(0), "train/lr": state.lr}, step)
            if step == 399:
                before = memory()
    print(before, memory())
"""

EPOCHS = """
import runs
from training import loop

counts, row = [], loop.write_row
loop.write_row = lambda *rest: (counts.append(open_files()), row(*rest))[1]
runs.train(directory, "tracker=tensorboard", "num_workers=2", "epochs=6")
print(*counts)
"""

SWEEP = """
import runs

sizes = []
for job in range(9):
    options = ["tracker=tensorboard", "num_workers=1", f"seed={job}", "model.width=16"]
    runs.train(directory / str(job), *options)
    sizes.append((memory(), open_files()))
print(*sizes[0], *sizes[-1])
"""


def measure(directory: Path, source: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE + source, str(directory)],
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(number) for number in done.stdout.splitlines()[-1].split()]


pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


@pytest.mark.slow
def test_two_thousand_logged_steps_leave_memory_flat(tmp_path: Path) -> None:
    before, after = measure(tmp_path, STEPS)

    assert after < 1.05 * before


def test_open_files_are_flat_over_epochs(tmp_path: Path) -> None:
    counts = measure(tmp_path, EPOCHS)

    assert [counts[1]] * 5 == counts[1:]


@pytest.mark.slow
def test_a_sweep_of_eight_jobs_ends_where_it_began(tmp_path: Path) -> None:
    first_memory, first_files, last_memory, last_files = measure(tmp_path, SWEEP)

    assert last_memory < 1.10 * first_memory
    assert last_files <= first_files
