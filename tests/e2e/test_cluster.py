"""The recipe for SLURM, with programs that stand for SLURM's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import PROJECT, SMALL, results

SCRIPT = PROJECT / "scripts" / "train.sbatch"

# Starts its command, and hands USR1 on to every process that it or its children start.
SRUN = f"""#!{sys.executable}
import contextlib, os, signal, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    del words[0]
started = []
def family(pid):
    found = [pid]
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{{pid}}/task"):
            for child in open(f"/proc/{{pid}}/task/{{thread}}/children").read().split():
                found += family(int(child))
    return found
def hand_on(*_):
    for pid in [pid for root in started for pid in family(root)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
signal.signal(signal.SIGUSR1, hand_on)
process = subprocess.Popen(words, start_new_session=True)
started.append(process.pid)
code = process.wait()
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # at its end Python would give it back its effect
sys.exit(code)
"""

SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf 'node1\\nnode2\\n'; else echo "$@" >>"$STATE/scontrol"; fi
"""

# Stands for torchrun and train.py: writes down how it was called, and waits or ends as it is told.
PYTHON = f"""#!{sys.executable}
import os, pathlib, signal, sys, time
state = pathlib.Path(os.environ["STATE"])
with open(state / "calls", "a") as file:
    print(" ".join(sys.argv[1:]), file=file)
words = dict(word.partition("=")[::2] for word in sys.argv)
run = pathlib.Path(words.get("resume") or words["hydra.run.dir"])
(run / "checkpoints").mkdir(parents=True, exist_ok=True)
(run / "config.yaml").touch()
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
(run / "checkpoints" / "last.pt").touch()
ending = os.environ["ENDING"]
while ending == "asked" and not asked:
    time.sleep(0.01)
status = dict(done="done", asked="interrupted", bug="failed")[ending]
(run / "status.json").write_text('"status": "%s"' % status)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
sys.exit(0 if ending == "done" else 1)
"""


class Cluster:
    """A folder with the script, and programs that stand for SLURM's before it on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("python", PYTHON)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start the job, as SLURM does."""
        ours = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "STATE": str(self.folder),
            "PYTHON": str(self.folder / "bin" / "python"),
            "TMPDIR": str(self.folder / "local"),
            "SLURM_JOB_ID": "7",
        }
        self.process = subprocess.Popen(
            ["bash", str(SCRIPT), *arguments],
            cwd=self.folder,
            env={**ours, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self.process

    def wait_for(self, path: str) -> None:
        assert self.process is not None
        while not (self.folder / path).exists():
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def said(self, name: str) -> list[str]:
        """Return the lines that one of the programs wrote."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path)
    yield one
    one.close()


def test_the_script_is_one_that_bash_reads() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(SCRIPT)], check=True)


def test_a_job_that_ends_is_not_requeued(cluster: Cluster) -> None:
    process = cluster.start("lifetime=4", "seed=1", ENDING="done")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert cluster.said("scontrol") == []
    launch = "-m torch.distributed.run --nnodes=1 --nproc-per-node=1 --standalone train.py"
    place = f"hydra.run.dir=outputs/slurm-7 cache.directory={cluster.folder}/local/reuse-7"
    assert cluster.said("calls") == [f"{launch} lifetime=4 seed=1 {place}"]


def test_a_job_that_is_asked_to_end_is_requeued_and_goes_on(cluster: Cluster) -> None:
    process = cluster.start("lifetime=4", ENDING="asked")
    cluster.wait_for("outputs/slurm-7/checkpoints/last.pt")
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert cluster.said("scontrol") == ["requeue 7"]
    process = cluster.start("lifetime=4", ENDING="done", SLURM_RESTART_COUNT="1")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert cluster.said("calls")[1].endswith(" train.py resume=outputs/slurm-7")
    assert cluster.said("scontrol") == ["requeue 7"]


@pytest.mark.parametrize("asks", [False, True])
def test_a_job_that_fails_is_not_requeued(cluster: Cluster, asks: bool) -> None:
    process = cluster.start(ENDING="bug")
    if asks:
        cluster.wait_for("calls")
        process.send_signal(signal.SIGUSR1)  # while it fails
    process.communicate(timeout=60)
    # A signal at the very moment of the end may come out as a code of the shell's.
    assert process.returncode == 1 or (asks and process.returncode > 1)
    assert cluster.said("scontrol") == []


def test_a_run_that_saved_nothing_is_begun_again(cluster: Cluster) -> None:
    (cluster.folder / "outputs" / "slurm-7").mkdir(parents=True)
    (cluster.folder / "outputs" / "slurm-7" / "config.yaml").touch()
    process = cluster.start("lifetime=4", ENDING="done", SLURM_RESTART_COUNT="1")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "lifetime=4 hydra.run.dir=outputs/slurm-7" in cluster.said("calls")[0]
    assert len(list((cluster.folder / "outputs").iterdir())) == 2


def test_all_nodes_meet_at_the_first_one(cluster: Cluster) -> None:
    process = cluster.start(
        ENDING="done",
        SLURM_JOB_NUM_NODES="2",
        SLURM_GPUS_ON_NODE="4",
        SLURM_JOB_NODELIST="node[1-2]",
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    rendezvous = "--rdzv-id=7-0 --rdzv-backend=c10d --rdzv-endpoint=node1:29500"
    expected = f"-m torch.distributed.run --nnodes=2 --nproc-per-node=4 {rendezvous} train.py"
    assert cluster.said("calls")[0].startswith(expected)


@pytest.mark.slow
def test_a_training_that_is_requeued_equals_one_that_is_not(cluster: Cluster) -> None:
    path = str(PROJECT / "train.py")
    program = f"import runpy; runpy.run_path({path!r}, run_name='__main__')"
    (cluster.folder / "train.py").write_text(program)
    ours = {"PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
    arguments = [*SMALL, "epochs=20", "lifetime=2", "num_workers=1"]
    process = cluster.start(*arguments, **ours)
    cluster.wait_for("outputs/slurm-7/metrics.csv")
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=200)
    assert (process.returncode, cluster.said("scontrol")) == (0, ["requeue 7"]), out
    process = cluster.start(*arguments, **ours, SLURM_RESTART_COUNT="1")
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    run, alone = cluster.folder / "outputs" / "slurm-7", cluster.folder / "alone"
    assert len(yaml.safe_load((run / "resumes.yaml").read_text())) == 1
    command = [sys.executable, str(PROJECT / "train.py"), *arguments, f"hydra.run.dir={alone}"]
    subprocess.run(command, check=True, capture_output=True)
    assert results(alone) == results(run)
