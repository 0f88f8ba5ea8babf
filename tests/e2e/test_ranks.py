"""Commands on several ranks: one run, one line an event, and an end that all come to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
import torch
from commands import PROJECT, SMALL, Outcome, Trainer, metrics, results, status, without_times

FAULTY = ("model._target_=faulty.Faulty", "batch_size=16", "epochs=2", "augment=none")
"""Two updates an epoch on each of two ranks."""


class Launcher:
    """Starts train.py by torchrun in the folder of a trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start two ranks; words that begin with a dash are torchrun's own."""
        own = [word for word in words if word.startswith("--")]
        small = [] if any(word.startswith("resume=") for word in words) else SMALL
        rest = [*small, *(word for word in words if word not in own)]
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *own),
                *(str(PROJECT / "train.py"), *rest),
            ],
            cwd=self.trainer.folder,
            env={
                **{**os.environ, "OMP_NUM_THREADS": "1"},
                **{"PYTHONPATH": str(PROJECT / "tests"), **variables},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait(self, process: subprocess.Popen[str]) -> Outcome:
        """Wait for the end."""
        try:
            out, err = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return Outcome(process.returncode, out, err, self.trainer.new_runs())

    def run(self, *words: str, **variables: str) -> Outcome:
        """Start two ranks, and wait for their end."""
        return self.wait(self.start(*words, **variables))


@pytest.fixture
def torchrun(train: Trainer) -> Launcher:
    return Launcher(train)


def own_lines(text: str) -> list[str]:
    """Return the lines that are not torchrun's report of its workers."""
    head = text.partition("Traceback (most recent call last):\n  File")[0]
    return [line for line in head.splitlines() if "torch/distributed/" not in line]


def test_two_ranks_leave_one_run_and_say_everything_once(
    torchrun: Launcher, train: Trainer
) -> None:
    outcome = torchrun.run(
        *("lifetime=2", "seed=42", "epochs=2", "augment=none", "tracker=tensorboard"),
        *("model._target_=faulty.Faulty", "+model.how=warn", "+model.step=1"),
    )
    assert outcome.code == 0, outcome.err
    names = {path.name for path in outcome.run.iterdir()}
    assert names - {"environment.diff"} == {
        *("checkpoints", "config.yaml", "curriculum.yaml", "environment.json", "inputs.json"),
        *("metrics.csv", "overrides", "status.json", "tensorboard", "train.log"),
    }
    assert len(list((outcome.run / "tensorboard").iterdir())) == 1
    assert status(outcome.run)["status"] == "done"
    lines = outcome.out.splitlines()
    assert sorted(set(lines)) == sorted(lines)  # no rank repeats another
    assert sum(line.startswith("epoch ") for line in lines) == 2
    assert "2 ranks on gloo: 64 samples an update, 32 a rank; 1 updates an epoch" in lines
    assert "rank 1: warning: something is odd" in lines
    rows = metrics(outcome.run)
    assert [(row["built"], row["reused"]) for row in rows] == [("64", "0"), ("32", "32")]
    assert outcome.err == ""
    # The folders of the run and of the day, and nothing else.
    folders = [path for path in torchrun.trainer.folder.glob("outputs/*/*")]
    assert folders == [outcome.run]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("lifetime=0", "error: lifetime must be a positive integer, but got lifetime=0"),
        ("lifetme=2", "error: lifetme is not a key of the config; did you mean lifetime?"),
        ("model.width=0", "error: model"),
        ("data.train.limit=1", "error: data.train must hold at least one sample for each of 2"),
        ("resume=nowhere", "error: resume must be the folder of a run"),
        ("-m", "error: --multirun must not be used under torchrun"),
    ],
)
def test_a_mistake_is_one_line_and_ends_all_ranks(torchrun: Launcher, word: str, line: str) -> None:
    outcome = torchrun.run(word)
    lines = own_lines(outcome.err)
    assert outcome.code != 0
    assert [text for text in lines if text.startswith(line)] == lines


@pytest.mark.slow
def test_what_trains_nothing_ends_well(torchrun: Launcher) -> None:
    process = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *(str(PROJECT / "train.py"), "--help"),
        ],
        cwd=torchrun.trainer.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("Train a model on reused samples.") == 1


@pytest.mark.slow
def test_the_error_of_one_rank_ends_all_and_comes_first(torchrun: Launcher) -> None:
    outcome = torchrun.run(*FAULTY, "+model.how=raise")
    assert outcome.code != 0
    assert outcome.err.count("ValueError: a bad thing in the model") == 1
    first = outcome.err.index("rank 1: the run ends with this error:")
    assert outcome.err.index("faulty.py") > first
    assert "gloo" not in outcome.err
    run = outcome.run
    assert status(run)["status"] == "failed"
    assert status(run)["error"] == "rank 1: ValueError: a bad thing in the model"
    assert (run / "checkpoints" / "last.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["KILL", "exit"])
def test_a_rank_that_dies_silently_ends_all(torchrun: Launcher, how: str) -> None:
    outcome = torchrun.run(*FAULTY, f"+model.how={how}")
    assert outcome.code != 0
    assert "error: another rank ended without a word" in outcome.err
    assert status(outcome.run)["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["TERM", "USR1", "agentTERM", "agentINT"])
def test_a_signal_ends_all_ranks_at_one_update_and_they_go_on(torchrun: Launcher, how: str) -> None:
    whole = torchrun.run(*FAULTY, "epochs=3").run
    outcome = torchrun.run(*FAULTY, "epochs=3", f"+model.how={how}")
    run = outcome.run
    assert outcome.code != 0
    assert status(run)["status"] == "interrupted"
    path = run.relative_to(torchrun.trainer.folder)
    assert f"to go on: torchrun --nproc-per-node=2 train.py resume={path}" in outcome.err
    again = torchrun.wait(torchrun.start(f"resume={run}"))
    assert again.code == 0, again.err
    assert without_times(run) == without_times(whole)
    last = [torch.load(r / "checkpoints/last.pt", weights_only=True)["model"] for r in (run, whole)]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[1])


@pytest.mark.slow
@pytest.mark.parametrize(("how", "step"), [("raise", 3), ("KILL", 4), ("raise", 1)])
def test_workers_that_are_started_again_go_on_with_the_run(
    torchrun: Launcher, how: str, step: int
) -> None:
    whole = torchrun.run(*FAULTY, "epochs=3").run
    words = (f"+model.how={how}", f"+model.step={step}", "epochs=3", "--max-restarts=1")
    outcome = torchrun.run(*FAULTY, *words)
    assert outcome.code == 0, outcome.err
    run = outcome.run
    assert status(run)["status"] == "done"
    assert results(run) == results(whole)
    assert (run / "resumes.yaml").read_text().count("- time:") == 1


@pytest.mark.slow
def test_two_launches_on_one_machine_are_one_job(torchrun: Launcher) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = torchrun.trainer.folder
    words = (
        *("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=7", f"--rdzv-endpoint=127.0.0.1:{port}"),
        *("lifetime=2", "epochs=2", "augment=none"),
        "cache.directory=${oc.env:LOCAL}",
        "cache.keep=true",
    )
    processes = [torchrun.start(*words, LOCAL=str(folder / f"disk{n}")) for n in range(2)]
    outcomes = [torchrun.wait(process) for process in processes]
    assert [outcome.code for outcome in outcomes] == [0, 0], [o.err for o in outcomes]
    (run,) = [run for outcome in outcomes for run in outcome.runs]
    rows = metrics(run)
    # Each machine finds what its ranks have built on its own disk.
    assert [(row["built"], row["reused"]) for row in rows] == [("64", "0"), ("32", "32")]
    stored = [len(list((folder / f"disk{n}" / "train").glob("*.pt"))) for n in range(2)]
    assert stored == [16, 16]  # of a half the generation has ended: those are gone
    said = [line for outcome in outcomes for line in outcome.out.splitlines()]
    assert sum(line.startswith("epoch ") for line in said) == 2
    assert any(line.startswith("4 ranks on gloo") for line in said)
    # Room for the 32 and 10 samples of two ranks, of 16 KiB each.
    assert any("stored samples need about 688.1 kB" in line for line in said)
