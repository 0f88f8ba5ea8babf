"""One training from the command line: what it records, prints and repeats."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import PROJECT, Trainer, metrics, without_times
from torch import nn

from reuseloader import folder
from training.workers import auto_workers

COLUMNS = [
    "epoch",
    "train_loss",
    "val_loss",
    "val_accuracy",
    "lr",
    "built",
    "reused",
    "wait_s",
    "epoch_s",
    "samples_per_s",
]


class Buggy(nn.Linear):
    """A model with a mistake of its author's."""

    def __init__(self, **_: Any) -> None:
        super().__init__(3, 10)

    def forward(self, images: torch.Tensor) -> Any:
        return self.table


BUGGY = "model._target_=test_train.Buggy"


def test_a_run_records_everything_and_leaves_no_samples(train: Trainer) -> None:
    outcome = train.here("lifetime=2", "seed=42")
    run = outcome.run
    names = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert outcome.code == 0, outcome.err
    assert names - {"environment.diff"} == {
        "checkpoints/best.pt",
        "checkpoints/last.pt",
        "config.yaml",
        "curriculum.yaml",
        "environment.json",
        "inputs.json",
        "metrics.csv",
        "overrides",
        "status.json",
        "train.log",
    }
    assert json.loads((run / "status.json").read_text())["status"] == "done"
    assert (run / "overrides").read_text().splitlines()[-2:] == ["lifetime=2", "seed=42"]
    assert "${" not in (run / "config.yaml").read_text().partition("hydra:")[0]
    assert json.loads((run / "environment.json").read_text())["packages"]["torch"]


def test_a_run_ends_with_its_report_also_where_it_fails(train: Trainer) -> None:
    gc.collect()
    gc.disable()  # what a run holds it gives back by itself
    before = set(folder._holds)  # what tests before this one have left
    try:
        done = train.here("report.enabled=true", "epochs=1").run
        assert set(folder._holds) <= before
        with pytest.raises(AttributeError, match="no attribute 'table'") as raised:
            train.here("report.enabled=true", BUGGY)
        assert set(folder._holds) <= before, raised
    finally:
        gc.enable()
    (failed,) = train.new_runs()

    assert (done / "report.png").exists()
    assert "Status: done, 1 of 1 epochs ended." in (done / "report.md").read_text()
    assert not (failed / "report.png").exists()
    assert "Status: failed, 0 of 3 epochs ended." in (failed / "report.md").read_text()


def test_metrics_hold_one_row_an_epoch_and_the_counts_of_the_schedule(train: Trainer) -> None:
    rows = metrics(train.here("lifetime=2").run)
    assert list(rows[0])[: len(COLUMNS)] == COLUMNS
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    assert [int(row["built"]) for row in rows] == [64, 32, 32]
    assert [int(row["reused"]) for row in rows] == [0, 32, 32]
    assert all(0 <= float(row["val_accuracy"]) <= 1 for row in rows)


def test_checkpoints_load_without_unpickling(train: Trainer) -> None:
    run = train.here().run
    for name in ("last", "best"):
        state = torch.load(run / "checkpoints" / f"{name}.pt", weights_only=True)
        assert state["model"]["0.weight"].shape == (16, 3, 5, 5)


def test_the_screen_shows_every_epoch_and_a_summary(train: Trainer) -> None:
    outcome = train.here("lifetime=2", "batch_size=8")  # batches enough to be judged
    lines = outcome.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("epoch")] == ["0", "1", "2"]
    assert f"run folder     {outcome.run}" in lines
    assert any(line.startswith("best accuracy") for line in lines)
    assert any(line.startswith("time           ") and "-bound: " in line for line in lines)


def test_the_same_command_gives_the_same_numbers(train: Trainer) -> None:
    first, second = train.here("lifetime=2").run, train.here("lifetime=2").run
    other = train.here("lifetime=2", "seed=43").run
    assert without_times(first) == without_times(second)
    assert without_times(first) != without_times(other)


@pytest.mark.parametrize(
    ("start", "num_workers"),
    [
        ("fork", 2),
        pytest.param("fork", 1, marks=pytest.mark.slow),
        pytest.param("fork", 4, marks=pytest.mark.slow),
        pytest.param("spawn", 2, marks=pytest.mark.slow),
    ],
)
def test_the_number_of_workers_changes_no_number(
    train: Trainer, start: str, num_workers: int
) -> None:
    alone = train.here("lifetime=2").run
    run = train.apart(
        "lifetime=2", f"num_workers={num_workers}", f"loader.multiprocessing_context={start}"
    ).run
    assert without_times(run) == without_times(alone)


def test_the_number_that_auto_found_is_what_is_recorded(train: Trainer) -> None:
    run = train.here("num_workers=auto", "epochs=1", "augment=none").run
    recorded = yaml.safe_load((run / "config.yaml").read_text())
    assert recorded["num_workers"] == auto_workers()
    assert "num_workers=auto" in (run / "overrides").read_text()


def test_a_recorded_config_runs_again_to_the_same_numbers(train: Trainer) -> None:
    first = train.here(
        "lifetime=2", "curriculum.table={0: {magnitude: 0.3}, 1: {magnitude: 1.0}}"
    ).run
    again = train.here("--config-path", str(first), "--config-name", "config", small=False).run
    assert again != first
    assert without_times(again) == without_times(first)
    assert (again / "curriculum.yaml").read_text() == (first / "curriculum.yaml").read_text()


def test_a_curriculum_is_written_down_in_terms_of_the_transforms(train: Trainer) -> None:
    run = train.here("curriculum=ramp").run
    table = yaml.safe_load((run / "curriculum.yaml").read_text())
    assert list(table) == [0, 4]
    assert table[0]["magnitude"] == 0.3
    assert table[0]["stored.elastic.alpha"] == pytest.approx(12.0)
    assert table[4]["stored.elastic.alpha"] == pytest.approx(40.0)
    assert without_times(run) != without_times(train.here().run)


def test_runs_of_the_same_moment_get_folders_of_their_own(train: Trainer) -> None:
    processes = [train.start("epochs=1") for _ in range(2)]
    errors = [process.communicate(timeout=280)[1] for process in processes]
    runs = [path.parent for path in train.folder.rglob("status.json")]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert len(runs) == 2


def test_an_existing_run_is_never_overwritten(train: Trainer, tmp_path: Path) -> None:
    first = train.here(f"hydra.run.dir={tmp_path / 'mine'}")
    before = {path: path.read_bytes() for path in first.run.rglob("*") if path.is_file()}
    second = train.here(f"hydra.run.dir={tmp_path / 'mine'}", "epochs=1")
    assert second.code == 1
    assert "hydra.run.dir must be a new folder" in second.err
    assert {path: path.read_bytes() for path in before} == before


def test_samples_in_a_folder_of_the_users_own_serve_the_next_run(train: Trainer) -> None:
    folder = train.folder / "samples"
    train.here("lifetime=9", f"cache.directory={folder}")
    rows = metrics(train.here("lifetime=9", f"cache.directory={folder}").run)
    other = metrics(train.here("lifetime=9", f"cache.directory={folder}", "data=digits",
                               "augment.stored.elastic.alpha=20").run)  # fmt: skip
    assert int(rows[0]["reused"]) == 50  # in 14 of 64 a second generation has begun
    assert int(other[0]["built"]) == 64
    assert folder.exists()


def test_two_runs_on_one_folder_of_samples_are_told_so(train: Trainer) -> None:
    folder = f"cache.directory={train.folder / 'samples'}"
    long = train.start(folder, "epochs=2000")
    while not (train.folder / "samples" / "train" / "00000000.pt").exists():
        assert long.poll() is None
        time.sleep(0.1)
    second = train.here(folder)
    os.killpg(long.pid, signal.SIGKILL)
    long.communicate()
    assert second.code == 1
    assert f"{train.folder / 'samples' / 'train'}, in use by process {long.pid}" in second.err
    states = [json.loads((run / "status.json").read_text())["status"] for run in second.runs]
    assert sorted(states) == ["failed", "running"]


def test_interrupting_ends_shortly_with_no_process_left(train: Trainer) -> None:
    process = train.start("num_workers=2", "epochs=2000", "data.train.limit=400")
    while not list(train.folder.rglob("00000000.pt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    (run,) = [path.parent for path in train.folder.rglob("status.json")]
    assert process.returncode == 130
    assert err.startswith("stopped by SIGINT; to go on: python train.py resume=")
    assert err.count("\n") == 1
    assert "Traceback" not in out
    assert json.loads((run / "status.json").read_text())["status"] == "interrupted"
    assert list((run / "cache" / "train").iterdir())
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def programs_of(group: int) -> str:
    """Return the command lines of the processes of a group."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                lines.append((process / "cmdline").read_text())
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("context", "started"),
    [("spawn", "spawn_main"), ("forkserver", "multiprocessing.forkserver import main")],
)
def test_interrupting_while_workers_are_at_their_imports_ends_as_well(
    train: Trainer, signum: int, context: str, started: str
) -> None:
    options = [f"loader.multiprocessing_context={context}", "data.train.limit=400"]
    process = train.start("num_workers=2", "epochs=2000", *options)
    while started not in programs_of(process.pid):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signum)
    out, err = process.communicate(timeout=120)
    assert err.startswith(f"stopped by {signal.Signals(signum).name}; to go on: "), err
    assert (process.returncode, err.count("\n"), "Traceback" in out) == (128 + signum, 1, False)
    give_up = time.monotonic() + 30
    while programs_of(process.pid) and time.monotonic() < give_up:
        time.sleep(0.05)  # multiprocessing's own end when they notice that their parent has
    assert programs_of(process.pid) == ""


def test_a_bug_shows_its_traceback_and_marks_the_run_failed(train: Trainer) -> None:
    with pytest.raises(AttributeError, match="no attribute 'table'"):
        train.here(BUGGY)
    (run,) = [path.parent for path in train.folder.rglob("status.json")]
    status = json.loads((run / "status.json").read_text())
    assert (status["status"], status["error"].split(":")[0]) == ("failed", "AttributeError")
    assert "Traceback" in (run / "train.log").read_text()


def test_evaluating_a_checkpoint_is_a_run_of_its_own(train: Trainer) -> None:
    trained = train.here("epochs=1").run
    files = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    checkpoint = f"trainer.evaluate={trained}/checkpoints/best.pt"
    outcome = train.here(checkpoint, "batch_size=7")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.run != trained
    assert "best.pt: weights of epoch 0\nval loss " in outcome.out
    for name in ("val_loss", "val_accuracy"):
        expected, value = (float(metrics(run)[0][name]) for run in (trained, outcome.run))
        assert value == pytest.approx(expected, rel=1e-5)
    refused = train.here(checkpoint, f"hydra.run.dir={trained}")
    assert refused.code == 1 and "holds a run already" in refused.err
    assert {path: path.read_bytes() for path in files} == files


def test_help_is_a_page_for_newcomers(train: Trainer) -> None:
    page = train.here("--help", small=False).out
    assert "python train.py lifetime=2 seed=42" in page
    presets = sorted(file.stem for file in (PROJECT / "conf" / "augment").iterdir())
    assert f"augment: {', '.join(presets)}" in page
    assert "lifetime=N        epochs that a prepared sample serves" in page


@pytest.mark.slow
def test_the_digits_are_learnt_while_half_of_them_are_reused(train: Trainer) -> None:
    rows = metrics(train.apart("lifetime=2", "seed=42", small=False).run)
    assert max(float(row["val_accuracy"]) for row in rows) >= 0.97
    assert [int(row["built"]) for row in rows] == [1437, *[718, 719] * 7]
    assert all(int(row["built"]) + int(row["reused"]) == 1437 for row in rows)


def test_the_project_stands_alone() -> None:
    assert (PROJECT / "training" / "data" / "digits.npz").stat().st_size < 100_000
