"""Sweeps: one run for each value, none of which knows of the others."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import PROJECT, SMALL, Trainer, metrics, without_times
from hydra.core.config_store import ConfigStore

import training.device
from training import loop
from training.records import Run
from training.report.history import read_history

TINY = ("trainer.fast_dev_run=true", "augment=none")


class HardError(Exception):
    """One that cannot go from process to process."""

    def __init__(self, first: str, second: int) -> None:
        super().__init__(first)


def statuses(sweep: Path) -> dict[str, str]:
    """Return how the jobs of a sweep stand, by folder."""
    return {
        file.parent.name: json.loads(file.read_text())["status"]
        for file in sorted(sweep.glob("*/status.json"))
    }


def rate(run: Path) -> float:
    """Return the learning rate of a run's recorded config."""
    return float(yaml.safe_load((run / "config.yaml").read_text())["optimizer"]["lr"])


def test_a_job_of_a_sweep_equals_the_run_alone(train: Trainer) -> None:
    sweep = train.here("-m", "lifetime=1,4")
    alone = train.apart("lifetime=4")
    assert sweep.code == 0, sweep.err
    assert [run.name for run in sweep.runs] == ["0", "1"]
    assert without_times(sweep.runs[1]) == without_times(alone.run)


def test_what_one_job_changes_is_not_seen_by_the_next(train: Trainer) -> None:
    sweep = train.here("-m", "deterministic=true,false", "num_threads=2,1", "seed=1", "epochs=1")
    alone = train.apart("deterministic=false", "seed=1", "epochs=1")
    assert without_times(sweep.runs[3]) == without_times(alone.run)


def test_a_failed_job_is_named_and_stops_no_other(train: Trainer) -> None:
    sweep = train.here("-m", "lifetime=1,0,2", *TINY)
    typed = (
        " ".join([*SMALL, "lifetime=0", *TINY])
        .replace("=true", "=True")
        .replace("=false", "=False")
    )
    assert sweep.code == 1
    assert [run.name for run in sweep.runs] == ["0", "2"]
    reason = "failed: lifetime must be a positive integer, but got lifetime=0"
    lines = sweep.err.splitlines()
    assert lines[0] == f"job 1 ({typed}) {reason}"
    assert lines[-2] == f"error: job 1 ({typed}) {reason}"
    assert lines[-1].startswith("to run what is missing: python train.py ")
    words = shlex.split(lines[-1].partition("python train.py ")[2])
    again = train.here(*words, small=False)
    assert (again.code, again.runs) == (1, [])
    assert again.out.count("is done already") == 2


def test_a_sweep_ends_with_its_report_also_where_a_job_failed(train: Trainer) -> None:
    sweep = train.here("-m", "lifetime=1,0", *TINY, "report.enabled=true")
    folder = sweep.runs[0].parent
    assert (sweep.code, [run.name for run in sweep.runs]) == (1, ["0"])
    assert f"report         {folder / 'report.md'}" in sweep.out.splitlines()
    assert "verdict        A trial of one batch a job: it works, and compares nothing." in sweep.out
    assert (folder / "report.png").exists() and (folder / "sweep.csv").exists()
    assert (sweep.runs[0] / "report.md").exists()


def test_a_bug_in_one_job_is_shown_and_leaves_nothing_to_the_next(
    train: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[weakref.ref[Any]] = []
    alive = []

    def fit(run: Run, model: Any, loaders: Any, device: Any) -> float:
        alive.append([one() is not None for one in models])
        models.append(weakref.ref(model))
        if run.config.seed == 1:
            raise MemoryError("no room for the activations")
        return 0.5

    monkeypatch.setattr(loop, "fit", fit)
    sweep = train.here("-m", "seed=0,1,2", *TINY)
    assert sweep.code == 1
    assert "MemoryError: no room for the activations" in sweep.err
    assert "Traceback" in sweep.err
    assert re.match(r"error: job 1 \(.* seed=1 .*\) failed: no room", sweep.err.splitlines()[-2])
    assert statuses(sweep.runs[0].parent) == {"0": "done", "1": "failed", "2": "done"}
    assert alive[2][1] is False  # the model of the job that failed


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("beside", ["cuda:0", "cuda:1", "cuda:0"]),
        pytest.param("basic", ["auto", "auto", "auto"], marks=pytest.mark.slow),
    ],
)
def test_jobs_that_run_beside_each_other_are_spread_over_the_devices(
    train: Trainer, monkeypatch: pytest.MonkeyPatch, launcher: str, expected: list[str]
) -> None:
    name = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
    ConfigStore.instance().store(group="hydra/launcher", name="beside", node={"_target_": name})
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"device {number}")
    monkeypatch.setattr(training.device, "choose_device", lambda name: torch.device("cpu"))
    chosen = []
    monkeypatch.setattr(loop, "fit", lambda run, *_: chosen.append(run.config.device) or 0.5)
    sweep = train.here("-m", f"hydra/launcher={launcher}", "seed=0,1,2", *TINY)
    assert (sweep.code, chosen) == (0, expected), sweep.err
    recorded = [yaml.safe_load((run / "config.yaml").read_text()) for run in sweep.runs]
    assert [config["device"] for config in recorded] == ["auto"] * 3  # a run alone has its choice


@pytest.mark.parametrize(
    "leave",
    [SystemExit(3), pytest.param(HardError("a", 1), marks=pytest.mark.slow)],
    ids=["exit", "unpicklable"],
)
def test_no_error_of_a_job_ends_the_sweep(
    train: Trainer, monkeypatch: pytest.MonkeyPatch, leave: BaseException
) -> None:
    def fit(run: Run, *_: Any) -> float:
        if run.config.seed == 0:
            raise leave
        return 0.5

    monkeypatch.setattr(loop, "fit", fit)
    sweep = train.here("-m", "seed=0,1", *TINY)
    assert sweep.code == 1
    assert statuses(sweep.runs[0].parent)["1"] == "done"
    assert re.match(r"error: job 0 \(.* seed=0 .*\) failed: ", sweep.err.splitlines()[-2])


def test_a_sweep_that_is_started_again_does_what_is_missing(train: Trainer) -> None:
    place = f"hydra.sweep.dir={train.folder / 'it'}"
    first = train.here("-m", "lifetime=1,2", place, *TINY)
    before = {path: path.read_bytes() for run in first.runs for path in run.rglob("*.*")}
    wider = train.here("-m", "lifetime=4,1,2", place, *TINY)
    assert (wider.code, [run.name for run in wider.runs]) == (0, ["0-2"])
    assert wider.out.count("is done already") == 2
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(path.name for path in (train.folder / "it").iterdir()) == [
        *(".sweep", "0", "0-2", "1", "multirun.yaml"),
    ]
    assert without_times(wider.run) == without_times(train.here("lifetime=4", *TINY).run)


@pytest.mark.slow
def test_equal_jobs_are_run_all_the_same(train: Trainer) -> None:
    sweep = train.here("-m", "seed=1,1", *TINY)
    assert [run.name for run in sweep.runs] == ["0", "1"]
    assert without_times(sweep.runs[0]) == without_times(sweep.runs[1])


def test_an_interrupted_job_goes_on_to_the_same_last_bit(
    train: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"hydra.sweep.dir={train.folder / 'it'}"
    update = loop.update

    def stopping(trainer: Any, state: Any, *rest: Any) -> None:
        update(trainer, state, *rest)
        if state.step == 3 and loop.stop_once.pop() == 1:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop, "update", stopping)
    monkeypatch.setattr(loop, "stop_once", [0, 0, 0, 1, 0], raising=False)
    stopped = train.here("-m", "lifetime=1,2,4", place, "augment=none")
    assert stopped.code == 143
    assert statuses(train.folder / "it") == {"0": "done", "1": "interrupted"}
    assert stopped.err.startswith("stopped by SIGTERM; to go on: python train.py data.train.limit")
    command = stopped.err.partition("python train.py ")[2]
    again = train.here(*shlex.split(command), small=False)
    assert (again.code, again.err) == (0, "")
    assert statuses(train.folder / "it") == {"0": "done", "1": "done", "2": "done"}
    assert again.out.count("going on from") == 1
    alone = train.here("lifetime=2", "augment=none")
    assert without_times(train.folder / "it" / "1") == without_times(alone.run)


@pytest.mark.slow
def test_a_folder_belongs_to_one_sweep_at_a_time_until_its_process_is_killed(
    train: Trainer,
) -> None:
    place = f"hydra.sweep.dir={train.folder / 'it'}"
    first = train.start("-m", "seed=0,1", "epochs=900", place)
    while not (train.folder / "it" / "0" / "metrics.csv").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    second = train.here("-m", "seed=0,1", place, *TINY)
    assert (second.code, second.err) == (
        1,
        "error: hydra.sweep.dir must be used by one sweep at a time, but process "
        f"{first.pid} is at work in {train.folder / 'it'}\n",
    )
    compared = train.here("sweep.lifetimes=[1,2]", f"hydra.run.dir={train.folder / 'it'}", *TINY)
    start = f"error: hydra.run.dir must be used by one sweep at a time, but process {first.pid} is"
    assert compared.code == 1 and compared.err.startswith(start)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert train.here("-m", "seed=0,1", place, *TINY).code == 0


KILL_ITSELF = """
import os, runpy, signal, sys
from training import loop
from training.records import Run

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

update = loop.update

def kill_in_the_third_update(trainer, state, *rest):
    update(trainer, state, *rest)
    state.step == 3 and kill()

if os.environ["MOMENT"] == "when all is trained":
    Run._end = kill
else:
    loop.update = kill_in_the_third_update
sys.argv[0] = os.environ["SCRIPT"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["when all is trained", "within an epoch"])
def test_a_job_that_was_killed_and_went_on_counts_in_the_report_as_what_was_trained(
    train: Trainer, moment: str
) -> None:
    small = [word for word in SMALL if word != "report.enabled=false"]
    words = [*small, "-m", "lifetime=1,2", "augment=none", f"hydra.sweep.dir={train.folder / 'it'}"]
    killed = subprocess.run(
        [sys.executable, "-c", KILL_ITSELF, *words],
        cwd=train.folder,
        env={
            **os.environ,
            **{"MOMENT": moment, "SCRIPT": str(PROJECT / "train.py"), "PYTHONPATH": str(PROJECT)},
        },
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert statuses(train.folder / "it") == {"0": "running"}
    assert read_history(train.folder / "it" / "0").status == "killed"
    again = train.here(*words, small=False)
    assert (again.code, statuses(train.folder / "it")) == (0, {"0": "done", "1": "done"})

    history = read_history(train.folder / "it" / "0")
    (began, first_end), (went_on, ended) = history.sessions
    assert began <= first_end <= went_on <= ended
    with open(train.folder / "it" / "sweep.csv", newline="") as file:
        row, other = csv.DictReader(file)
    assert (row["epochs"], row["built"], row["reused"]) == ("3", "192", "0")
    seconds = sum(
        float(line["epoch_s"]) - float(line["warmup_s"])
        for line in metrics(Path(history.directory))
    )
    assert float(row["time_s"]) == pytest.approx(seconds, abs=1e-3)
    trained_on = "0" if moment == "when all is trained" else "1"
    assert (row["num_continued"], other["num_continued"]) == (trained_on, "0")
    said = (train.folder / "it" / "report.md").read_text()
    assert ("several processes took, without what a kill lost: `0`." in said) == (trained_on == "1")
    assert "Not compared" not in said and "No times are compared" not in said


def test_files_that_are_edited_while_jobs_wait_change_none_of_them(
    train: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = train.folder / "conf"
    shutil.copytree(PROJECT / "conf", conf)
    write_row = loop.write_row

    def edit(*arguments: Any) -> Any:
        text = (conf / "optimizer" / "adamw.yaml").read_text()
        (conf / "optimizer" / "adamw.yaml").write_text(text.replace("lr: 0.01", "lr: 0.02"))
        return write_row(*arguments)

    monkeypatch.setattr(loop, "write_row", edit)
    command = ["-m", "--config-path", str(conf), "seed=0,1", *TINY]
    command.append(f"hydra.sweep.dir={train.folder / 'it'}")
    sweep = train.here(*command)
    assert [rate(run) for run in sweep.runs] == [0.01, 0.01]
    # Started again it takes them, for all of its jobs; what it has done with the others is kept.
    again = train.here(*command)
    assert (again.code, again.out.count("is done already")) == (0, 0)
    assert [rate(train.folder / "it" / number) for number in "01"] == [0.02, 0.02]
    earlier = sorted((train.folder / "it" / ".sweep" / "earlier").iterdir())
    assert [(run.name, rate(run)) for run in earlier] == [("0-1", 0.01), ("1-1", 0.01)]


@pytest.mark.parametrize(
    ("sweep", "text"),
    [
        (["lifetime="], "lifetime must be an integer, but got lifetime="),
        (["seed=0,1", "epochs=0"], "epochs must be a positive integer, but got epochs=0"),
        (["seed=range(1,1)"], "a sweep must have a job, but there is no value in seed=range(1,1)"),
        (["optimizer.lr=interval(0,1)"], "interval(...) needs a sweeper that searches"),
        (["hydra/launcher=nope"], "hydra/launcher must be a file of conf/hydra/launcher"),
    ],
)
def test_a_sweep_that_cannot_begin_is_answered_in_one_line(
    train: Trainer, sweep: list[str], text: str
) -> None:
    outcome = train.here("-m", *sweep)
    assert (outcome.code, outcome.runs) == (1, [])
    assert outcome.err.startswith(f"error: {text}")
    assert outcome.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("values", ["1,2", "2,1"])
def test_the_order_of_a_sweep_changes_nothing(train: Trainer, values: str) -> None:
    runs = dict(zip(values.split(","), train.here("-m", f"lifetime={values}").runs, strict=True))
    assert without_times(runs["2"]) == without_times(train.here("lifetime=2").run)
