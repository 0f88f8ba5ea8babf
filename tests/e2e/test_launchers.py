"""Sweeps by the launchers and the sweeper that are extras, each where it is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import PROJECT, SMALL, metrics, results, status

pytestmark = pytest.mark.slow

EXTRAS = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
    "optuna": "hydra_plugins.hydra_optuna_sweeper",
}


def is_installed(choice: str) -> bool:
    try:
        return importlib.util.find_spec(EXTRAS[choice]) is not None
    except ImportError:
        return False


def needs(*choices: str) -> list[Any]:
    """Return parameters of a test, skipped where the extra is not installed."""
    return [
        pytest.param(c, marks=pytest.mark.skipif(not is_installed(c), reason="not installed"))
        for c in choices
    ]


class Sweeps:
    """Runs commands in a folder, in a group of processes that ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(PROJECT / "train.py"), *SMALL, *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=280)
        return process.returncode, out, err

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    commands = Sweeps(tmp_path)
    yield commands
    commands.close()


@pytest.mark.parametrize("launcher", needs("joblib", "submitit_local", "ray"))
def test_jobs_equal_the_runs_alone_and_a_failed_one_stops_no_other(
    sweeps: Sweeps, launcher: str
) -> None:
    command = ["-m", f"hydra/launcher={launcher}", "lifetime=1,0,2", "num_workers=2"]
    command.append("hydra.sweep.dir=it")
    code, out, err = sweeps.run(*command)
    assert code == 1
    assert "lifetime must be a positive integer, but got lifetime=0" in err.splitlines()[-2]
    assert err.splitlines()[-1].startswith("to run what is missing: python train.py ")
    assert "is validated against ConfigStore schema" not in out + err
    alone, _, _ = sweeps.run("lifetime=2", "hydra.run.dir=alone")
    assert alone == 0
    assert results(sweeps.folder / "alone") == results(sweeps.folder / "it" / "2")
    before = {path: path.read_bytes() for path in (sweeps.folder / "it").glob("[02]/*.*")}
    assert sweeps.run(*command)[0] == 1
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("launcher", needs("joblib", "submitit_local"))
def test_files_that_are_edited_while_jobs_wait_change_none_of_them(
    sweeps: Sweeps, launcher: str
) -> None:
    one_at_a_time = ["hydra.launcher.n_jobs=1"] if launcher == "joblib" else []
    conf = sweeps.folder / "conf"
    shutil.copytree(PROJECT / "conf", conf)
    process = sweeps.start(
        *("-m", f"--config-path={conf}", f"hydra/launcher={launcher}", "seed=0,1"),
        *("hydra.sweep.dir=it", *one_at_a_time),
    )
    while not (sweeps.folder / "it" / ".sweep" / "started").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    text = (conf / "optimizer" / "adamw.yaml").read_text()
    (conf / "optimizer" / "adamw.yaml").write_text(text.replace("lr: 0.01", "lr: 0.02"))
    assert not (sweeps.folder / "it" / "1").exists()
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    for number in "01":
        config = yaml.safe_load((sweeps.folder / "it" / number / "config.yaml").read_text())
        assert config["optimizer"]["lr"] == 0.01


@pytest.mark.parametrize("launcher", needs("submitit_local"))
def test_a_job_that_is_told_to_end_is_started_again_and_goes_on_to_the_same_last_bit(
    sweeps: Sweeps, launcher: str
) -> None:
    long = ["epochs=20", "num_workers=1"]
    process = sweeps.start("-m", f"hydra/launcher={launcher}", *long, "hydra.sweep.dir=it")
    run = sweeps.folder / "it" / "0"
    while not (run / "metrics.csv").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.kill(status(run)["pid"], signal.SIGUSR2)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert len(yaml.safe_load((run / "resumes.yaml").read_text())) == 1
    assert sweeps.run(*long, "hydra.run.dir=alone")[0] == 0
    assert results(sweeps.folder / "alone") == results(run)


@pytest.mark.parametrize("launcher", needs("joblib"))
def test_a_job_that_is_killed_goes_on_when_the_sweep_is_started_again(
    sweeps: Sweeps, launcher: str
) -> None:
    command = ["-m", f"hydra/launcher={launcher}", "lifetime=2,4", "epochs=20", "num_workers=1"]
    command.append("hydra.sweep.dir=it")
    process = sweeps.start(*command)
    run = sweeps.folder / "it" / "1"
    while not (run / "checkpoints" / "last.pt").exists():  # which comes after the metrics
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.kill(status(run)["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 1
    assert "failed: its process ended before the job did" in err
    code, out, err = sweeps.run(*command)
    assert (code, "going on from" in out) == (0, True), err
    assert sweeps.run("lifetime=4", "epochs=20", "hydra.run.dir=alone")[0] == 0
    assert results(sweeps.folder / "alone") == results(run)


@pytest.mark.parametrize("sweeper", needs("optuna"))
def test_a_search_finds_the_best_value_that_a_job_returned(sweeps: Sweeps, sweeper: str) -> None:
    command = ["-m", f"hydra/sweeper={sweeper}", "hydra.sweeper.n_trials=3", "hydra.sweep.dir=it"]
    code, _, err = sweeps.run(*command)
    assert code == 0, err
    found = yaml.safe_load((sweeps.folder / "it" / "optimization_results.yaml").read_text())
    runs = [sweeps.folder / "it" / str(number) for number in range(3)]
    best = [max(float(row["val_accuracy"]) for row in metrics(run)) for run in runs]
    assert found["best_value"] == max(best)
    assert found["best_params"].keys() == {"lifetime", "optimizer.lr", "augment.magnitude"}
    config = yaml.safe_load((runs[best.index(max(best))] / "config.yaml").read_text())
    assert config["optimizer"]["lr"] == found["best_params"]["optimizer.lr"]
    again = sweeps.run(*command)
    assert (again[0], again[1].count("is done already")) == (0, 3)


@pytest.mark.parametrize("sweeper", needs("optuna"))
def test_a_search_goes_on_after_a_failed_job_and_ends_with_an_error(
    sweeps: Sweeps, sweeper: str
) -> None:
    command = ["-m", f"hydra/sweeper={sweeper}", "hydra.sweeper.n_trials=6", "epochs=1"]
    code, _, err = sweeps.run(*command, "lifetime=0,1", "hydra.sweep.dir=it", "augment=none")
    assert code == 1
    failed = [line for line in err.splitlines() if line.startswith("error: job ")]
    assert 0 < len(failed) < 6
    assert len(list((sweeps.folder / "it").glob("*/status.json"))) == 6 - len(failed)
