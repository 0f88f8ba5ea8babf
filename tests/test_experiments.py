"""Every experiment of conf/experiment, whichever there are."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import runs

from training.targets import PROJECT

FILES = sorted((PROJECT / "conf/experiment").glob("*.yaml"))

FEW_RUNS = ("sweep.lifetimes=[1,2]", "sweep.seeds=[0]", "sweep.equal=[epochs]", "sweep.fresh=false")

each_experiment = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@each_experiment
def test_an_experiment_says_its_command_and_what_came_of_it(file: Path) -> None:
    head = [line for line in file.read_text().splitlines() if line.startswith("#")]

    assert f"#   python train.py experiment={file.stem}" in head
    assert "%" in head[-1]


@pytest.mark.slow
@each_experiment
def test_the_command_of_an_experiment_runs(tmp_path: Path, file: Path) -> None:
    is_sweep = "override /sweep:" in file.read_text()
    options = ["trainer.fast_dev_run=true", *(FEW_RUNS if is_sweep else ())]
    done = subprocess.run(
        [sys.executable, str(PROJECT / "train.py"), f"experiment={file.stem}", *options],
        cwd=tmp_path,  # in which its run folder lies
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = [runs.rows(path.parent) for path in sorted(tmp_path.rglob("metrics.csv"))]
    assert len(found) == (2 if is_sweep else 1)
    for (row,) in found:
        assert math.isfinite(row["train_loss"]) and math.isfinite(row["val_loss"])
