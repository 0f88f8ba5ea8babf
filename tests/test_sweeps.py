"""The folder of a sweep: what is done, what goes on, what makes room, and what failed."""

from __future__ import annotations

import fcntl
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from training.checks import ConfigError
from training.sweeps import (
    Failure,
    best_value,
    failures,
    find_done,
    forget_failure,
    free,
    hold,
    note_failure,
    place,
    start,
    sweep_of,
)

HOLDER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
input()
"""
TYPED = ["lifetime=2", "seed=1"]


def conf(folder: Path, **files: str) -> Path:
    """Write the files that a sweep is composed from."""
    for name, text in {"config": "a: 1\n", **files}.items():
        path = folder / "conf" / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "conf"


def begin(sweep: Path) -> None:
    """Start a sweep, at a time that differs from that of all files before and after."""
    start(sweep, conf(sweep.parent))
    now = time.time_ns()
    for file in sweep.glob("*/status.json"):
        os.utime(file, ns=(now - 10**9, now - 10**9))
    os.utime(sweep / ".sweep" / "started", ns=(now, now))


def run(folder: Path, status: str, config: str, *, checkpoint: bool = False, **more: Any) -> Path:
    """Record a run as the command does."""
    (folder / "checkpoints").mkdir(parents=True)
    content = {"status": status, "config": config, "host": "elsewhere", "pid": 1, **more}
    (folder / "status.json").write_text(json.dumps(content))
    (folder / "overrides").write_text("".join(f"{line}\n" for line in TYPED))
    (folder / "config.yaml").write_text(f"mark: {config}\n")
    if checkpoint:
        (folder / "checkpoints" / "last.pt").touch()
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "sweep").mkdir()
    return tmp_path / "sweep"


def test_what_is_edited_after_the_start_is_not_seen(tmp_path: Path) -> None:
    source = conf(tmp_path, data__digits="b: 1\n")
    (source / "notes.txt").write_text("not read by Hydra")
    copy = start(tmp_path / "sweep", source)
    (source / "config.yaml").write_text("a: 2\n")
    (source / "data" / "digits.yaml").unlink()
    assert (copy / "config.yaml").read_text() == "a: 1\n"
    assert (copy / "data" / "digits.yaml").read_text() == "b: 1\n"
    assert sorted(path.name for path in copy.rglob("*") if path.is_file()) == [
        "config.yaml",
        "digits.yaml",
    ]


def test_a_copy_that_jobs_may_still_wait_for_is_never_changed(tmp_path: Path) -> None:
    source = conf(tmp_path)
    first = start(tmp_path / "sweep", source)
    assert start(tmp_path / "sweep", source) == first
    (source / "config.yaml").write_text("a: 2\n")
    second = start(tmp_path / "sweep", source)
    assert [(copy / "config.yaml").read_text() for copy in (first, second)] == ["a: 1\n", "a: 2\n"]


def test_a_second_sweep_in_the_folder_of_one_that_runs_is_refused_and_changes_nothing(
    sweep: Path,
) -> None:
    begin(sweep)
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}
    command = [sys.executable, "-c", HOLDER, str(sweep)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        text = rf"^hydra\.run\.dir must be used by one sweep at a time, .* {process.pid} is at work"
        with pytest.raises(ConfigError, match=text), hold(sweep, "hydra.run.dir"):
            pass
        assert before == {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}
        process.kill()
    with hold(sweep):
        pass


def test_a_job_in_a_process_of_its_own_keeps_no_sweep_out_when_its_launcher_is_gone(
    sweep: Path,
) -> None:
    with hold(sweep):
        fork = multiprocessing.get_context("fork")
        began = fork.Event()
        forked = fork.Process(target=lambda: (began.set(), time.sleep(600)))
        forked.start()
        assert began.wait(20)
        started = subprocess.Popen(["sleep", "600"])
    try:
        descriptor = os.open(sweep, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    finally:
        for process in (forked, started):
            process.kill()
        forked.join()
        started.wait()


def test_a_folder_in_which_a_sweep_did_not_begin_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), hold(tmp_path / "a" / "sweep"):
        raise ConfigError("a must be 1, but got a=2")
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("key", ["hydra.sweep.dir", "hydra.run.dir"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught, hold(tmp_path / "file" / "sweep", key):
        pass
    place = tmp_path / "file" / "sweep"
    assert str(caught.value) == (
        f"{key} must be a folder that can be made: [Errno 20] Not a directory: '{place}'"
    )


def test_of_an_earlier_start_no_failure_is_left(sweep: Path) -> None:
    begin(sweep)
    note_failure(sweep, Failure(job="1", overrides=TYPED, error="bad"))
    begin(sweep)
    assert failures(sweep) == []


@pytest.mark.parametrize("place_of_it", ["0", "3"])
def test_a_job_is_done_where_a_run_of_its_config_is_done(sweep: Path, place_of_it: str) -> None:
    run(sweep / place_of_it, "done", "aa")
    begin(sweep)
    assert find_done(sweep / "0", "aa") == sweep / place_of_it
    assert find_done(sweep / "0", "bb") is None


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_a_job_that_did_not_end_is_not_done(sweep: Path, status: str) -> None:
    run(sweep / "0", status, "aa")
    begin(sweep)
    assert find_done(sweep / "0", "aa") is None


def test_equal_jobs_of_one_sweep_are_all_run(sweep: Path) -> None:
    begin(sweep)
    run(sweep / "0", "done", "aa")
    assert find_done(sweep / "1", "aa") is None
    assert place(sweep / "1", "aa", TYPED) == (sweep / "1", False)
    run(sweep / "1", "done", "aa")
    begin(sweep)
    for number in ("0", "1"):
        assert find_done(sweep / number, "aa") == sweep / number


def test_a_job_that_is_started_again_by_its_launcher_knows_its_own_run(sweep: Path) -> None:
    begin(sweep)
    run(sweep / "1", "interrupted", "aa", checkpoint=True)
    assert place(sweep / "1", "aa", TYPED) == (sweep / "1", True)


@pytest.mark.parametrize("status", ["running", "interrupted"])
@pytest.mark.parametrize("number", ["0", "3"])
def test_a_run_that_did_not_end_goes_on_where_it_is(sweep: Path, status: str, number: str) -> None:
    run(sweep / number, status, "aa", checkpoint=True)
    begin(sweep)
    assert place(sweep / "0", "aa", TYPED) == (sweep / number, True)


@pytest.mark.parametrize(
    ("status", "config", "checkpoint"),
    [
        ("failed", "aa", True),  # what made it fail may be in what is saved
        ("interrupted", "aa", False),
        ("done", "bb", True),  # the files of conf/ were edited
        ("interrupted", "bb", True),
    ],
)
def test_a_run_that_a_job_takes_the_place_of_is_put_aside(
    sweep: Path, status: str, config: str, checkpoint: bool
) -> None:
    for number in (1, 2):
        run(sweep / "0", status, config, checkpoint=checkpoint)
        begin(sweep)
        assert place(sweep / "0", "aa", TYPED) == (sweep / "0", False)
        assert not (sweep / "0").exists()
        kept = sweep / ".sweep" / "earlier" / f"0-{number}"
        assert (kept / "config.yaml").read_text() == f"mark: {config}\n"


def test_a_run_of_other_overrides_stays(sweep: Path) -> None:
    for folder in ("0", "0-2"):
        run(sweep / folder, "done", "bb")
    begin(sweep)
    assert place(sweep / "0", "aa", ["lifetime=4"]) == (sweep / "0-3", False)
    assert sorted(path.name for path in sweep.glob("*/config.yaml")) == ["config.yaml"] * 2


def test_a_folder_with_the_beginning_of_a_run_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    assert free(tmp_path / "0") == tmp_path / "0"
    (tmp_path / "0" / "config.yaml").touch()
    assert free(tmp_path / "0") == tmp_path / "0-2"


def test_a_run_that_another_process_is_at_work_on_is_left_to_it(sweep: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = {"host": platform.node(), "pid": process.pid}
    run(sweep / "0", "running", "aa", checkpoint=True, **here)
    begin(sweep)
    try:
        with pytest.raises(ConfigError, match=rf"process {process.pid} is at work in") as caught:
            place(sweep / "0", "aa", TYPED)
        assert str(caught.value).startswith("hydra.sweep.dir must be used by one sweep at a time")
    finally:
        process.communicate(b"\n")
    assert place(sweep / "0", "aa", TYPED) == (sweep / "0", True)  # it has ended


@pytest.mark.parametrize("status", ["{", "[]", ""])
def test_a_status_that_cannot_be_read_is_passed_over(sweep: Path, status: str) -> None:
    run(sweep / "0", "done", "aa")
    (sweep / "0" / "status.json").write_text(status)
    begin(sweep)
    assert find_done(sweep / "0", "aa") is None
    assert place(sweep / "0", "aa", TYPED) == (sweep / "0-2", False)
    assert failures(sweep) == []


def test_failures_are_those_since_the_start_in_the_order_of_the_jobs(sweep: Path) -> None:
    begin(sweep)
    note_failure(sweep, Failure(job="1", overrides=TYPED, error="old"))
    begin(sweep)
    failed = [Failure(job=job, overrides=TYPED, error=f"bad {job}") for job in ("2", "10", "9")]
    for failure in failed:
        note_failure(sweep, failure)
    assert failures(sweep) == [failed[0], failed[2], failed[1]]
    forget_failure(sweep, "9")
    forget_failure(sweep, "9")
    assert [failure.job for failure in failures(sweep)] == ["2", "10"]


def test_a_job_whose_process_is_gone_failed(sweep: Path) -> None:
    run(sweep / "0", "running", "aa")
    begin(sweep)
    assert failures(sweep) == []  # of an earlier start
    run(sweep / "1", "running", "bb")
    expected = Failure(job="1", overrides=TYPED, error="its process ended before the job did")
    assert failures(sweep) == [expected]


def test_jobs_may_lie_several_folders_deep_in_the_folder_of_the_sweep(sweep: Path) -> None:
    own = sweep / "seed0" / "lifetime2"
    run(own, "running", "aa")
    begin(sweep)
    os.utime(own / "status.json", ns=(0, 0))
    assert sweep == sweep_of(own) == sweep_of(sweep / "0")
    run(sweep / "seed1" / "lifetime2", "running", "bb")
    (failed,) = failures(sweep)
    assert failed.job == "seed1/lifetime2"
    assert place(own, "aa", TYPED) == (own, False)
    assert (sweep / ".sweep" / "earlier" / "seed0-lifetime2-1" / "config.yaml").exists()
    run(sweep / "seed0" / "lifetime4", "done", "cc")
    begin(sweep)
    os.utime(sweep / "seed0" / "lifetime4" / "status.json", ns=(0, 0))
    assert find_done(own, "cc") == sweep / "seed0" / "lifetime4"


def test_the_best_value_is_read_back_as_it_was_returned(tmp_path: Path) -> None:
    values = {0: 0.1 + 0.2, 1: "", 2: "nan", 3: 1 / 3}
    rows = [f"{epoch},{value},{value}\n" for epoch, value in values.items()]
    (tmp_path / "metrics.csv").write_text("epoch,val_accuracy,val_loss\n" + "".join(rows))
    assert best_value(tmp_path, "val_accuracy") == 1 / 3
    assert best_value(tmp_path, "val_loss") == 0.1 + 0.2
    (tmp_path / "metrics.csv").unlink()
    assert best_value(tmp_path, "val_loss") == float("inf")


@pytest.mark.parametrize(
    ("accuracies", "losses", "best_accuracy", "best_loss"),
    [
        (["nan", 0.5, "nan", 0.4], [0.7, 0.8, 0.1, 0.9], 0.5, 0.1),
        ([0.9, 0.5, 0.1], ["nan", 0.8, 0.9], 0.5, 0.8),  # of an evaluation that is half a number
        ([0.5, 0.4], [-0.5, "nan"], 0.5, -0.5),
        (["nan", "nan"], ["nan", "nan"], -math.inf, math.inf),
        (["", ""], ["", ""], -math.inf, math.inf),
        ([0.0, "nan"], ["inf", "nan"], 0.0, math.inf),
    ],
)
def test_a_value_that_is_no_number_is_never_the_best(
    tmp_path: Path,
    accuracies: list[Any],
    losses: list[Any],
    best_accuracy: float,
    best_loss: float,
) -> None:
    rows = [f"{n},{a},{b}\n" for n, (a, b) in enumerate(zip(accuracies, losses, strict=True))]
    (tmp_path / "metrics.csv").write_text("epoch,val_accuracy,val_loss\n" + "".join(rows))

    assert best_value(tmp_path, "val_accuracy") == best_accuracy
    assert best_value(tmp_path, "val_loss") == best_loss
