"""The command that compares lifetimes: what it starts, what it refuses, and whole sweeps."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from pathlib import Path
from types import TracebackType

import pytest
import yaml
from commands import PROJECT, Trainer, metrics, status
from hydra import compose, initialize_config_dir

from training.config import Config, load_config
from training.lifetime_sweep import driver
from training.report.history import is_run

TINY = ("sweep.lifetimes=[1,2]", "sweep.seeds=[0]")


class Started:
    """Stands for the fresh processes: notes what they would be started with."""

    def __init__(self) -> None:
        self.arguments: list[list[str]] = []

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def __call__(self, arguments: list[str], console: Path) -> int:
        console.write_text("error: nothing was run\n")
        self.arguments.append(arguments)
        return 1

    def config(self, number: int) -> Config:
        """Return the config that a process would compose."""
        options = [word for word in self.arguments[number] if word.startswith("--")]
        words = [word for word in self.arguments[number] if not word.startswith("--")]
        (folder,) = [o.partition("=")[2] for o in options if o.startswith("--config-path=")]
        with initialize_config_dir(folder, version_base="1.3"):
            return load_config(compose("config", overrides=words))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    stand_in = Started()
    monkeypatch.setattr(driver, "FreshProcesses", lambda: stand_in)
    return stand_in


def test_what_was_typed_goes_to_every_run_without_the_sweep(
    train: Trainer, started: Started
) -> None:
    chosen = ("sweep=lifetimes", "sweep.lifetimes=[1,2,4]", "sweep.seeds=[3]", "sweep.fresh=false")
    outcome = train.here("experiment=input_bound", *chosen, "optimizer.lr=0.02", small=False)

    assert outcome.code == 1
    configs = [started.config(number) for number in range(3)]
    assert [(config.lifetime, config.seed) for config in configs] == [(1, 3), (2, 3), (4, 3)]
    for config in configs:
        assert config.sweep.lifetimes is None
        assert config.optimizer["lr"] == 0.02 and config.data.train["limit"] == 720
    assert len(started.arguments) == 3
    lines = outcome.err.splitlines()
    assert lines[0] == "run lifetime=1 seed=3 at equal epochs failed: nothing was run"
    reason = "failed: not begun: no run at equal epochs says how long it is to be"
    assert lines[-2] == f"error: wall_time-lifetime-4-seed-3 {reason}"
    assert lines[-1].startswith("to run what is missing: python train.py experiment=input_bound ")


def test_the_experiment_is_the_sweep_that_it_says(train: Trainer, started: Started) -> None:
    train.here("experiment=lifetime_sweep", small=False)
    configs = [started.config(number) for number in range(len(started.arguments))]

    plain = [(c.lifetime, c.seed) for c in configs if not c.augment.store_all]
    assert sorted(plain) == [(n, seed) for n in (1, 2, 4, 8) for seed in (0, 1, 2)]
    stored = [(c.lifetime, c.seed) for c in configs if c.augment.store_all]
    assert sorted(stored) == [(n, seed) for n in (2, 4, 8) for seed in (0, 1, 2)]
    assert {c.sweep.lifetimes for c in configs} == {None}


def test_a_fast_trial_has_two_lifetimes_and_one_seed(train: Trainer, started: Started) -> None:
    train.here("experiment=lifetime_sweep", "trainer.fast_dev_run=true", small=False)

    assert [word for words in started.arguments for word in words if "lifetime=" in word] == [
        *("lifetime=1", "lifetime=2", "lifetime=2"),
    ]


def test_without_fresh_transforms_nothing_is_compared_with_them(
    train: Trainer, started: Started
) -> None:
    train.here(*TINY, "augment=none")
    assert len(started.arguments) == 2


def test_the_files_that_runs_are_composed_from_are_copied_first(
    train: Trainer, started: Started
) -> None:
    train.here(*TINY, f"hydra.run.dir={train.folder / 'it'}")
    copy = train.folder / "it" / ".sweep" / "conf-1"

    assert started.arguments[0][0] == f"--config-path={copy}"
    assert (copy / "config.yaml").read_text() == (PROJECT / "conf/config.yaml").read_text()


def test_another_config_is_refused_in_the_same_folder(train: Trainer, started: Started) -> None:
    place = f"hydra.run.dir={train.folder / 'it'}"
    train.here(*TINY, place)
    again = train.here(*TINY, place, "epochs=7")

    assert (again.code, len(started.arguments)) == (1, 3)
    start = "error: epochs must stay 3, as in the sweep that hydra.run.dir="
    assert again.err.startswith(start) and again.err.count("\n") == 1


MISTAKES = {
    ("sweep.lifetimes=[2]",): "sweep.lifetimes must be null or two or more positive whole numbers",
    (*TINY, "sweep.equal=[time]"): "sweep.equal must be a list, [epochs] or [epochs,wall_time], b",
    ("sweep.lifetims=[1]",): "sweep.lifetims is not a key of the config; did you mean sweep.li",
    (
        *TINY,
        "lifetime=2",
    ): "lifetime must be left to sweep.lifetimes in a sweep, but got li",
    (*TINY, "seed=2"): "seed must be left to sweep.seeds in a sweep, but got seed=2",
    (
        *TINY,
        "trainer.evaluate=x.pt",
    ): "trainer.evaluate must be null in a sweep, but got tr",
    (*TINY, "lifetme=2"): "lifetme is not a key of the config",
    (*TINY, "batch_size=0"): "batch_size must be a positive integer, but got batch_size=0",
    (
        "-m",
        *TINY,
    ): "sweep must be none with -m: of python train.py -m lifetime=1,2 and python",
    ("-m", "sweep=lifetimes", "epochs=1,2"): "sweep must be none with -m: of python train.py -m",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=" ".join)
def test_a_mistake_is_answered_in_one_line_and_nothing_is_run(
    train: Trainer, started: Started, mistake: tuple[str, ...]
) -> None:
    outcome = train.here(*mistake)

    assert outcome.code == 1 and started.arguments == []
    assert outcome.err.startswith(f"error: {MISTAKES[mistake]}"), outcome.err
    assert outcome.err.count("\n") == 1
    assert not any((train.folder / "outputs").glob("*/*"))


@pytest.mark.slow
def test_a_whole_sweep_runs_fails_in_one_place_and_goes_on(train: Trainer) -> None:
    place = train.folder / "it"
    command = [*TINY, "epochs=2", "report.enabled=true", f"hydra.run.dir={place}"]
    first = train.apart(*command)

    assert (first.code, first.err) == (0, "")
    runs = sorted(path.name for path in place.iterdir() if is_run(path))
    assert runs == [
        *("epochs-lifetime-1-seed-0", "epochs-lifetime-2-seed-0"),
        *("stored-lifetime-2-seed-0", "wall_time-lifetime-2-seed-0"),
    ]
    assert not any((place / run / "cache").exists() for run in runs)
    assert len(metrics(place / runs[0])) == 2
    epochs = json.loads((place / "sweep.json").read_text())["epochs"]["2"]
    assert len(metrics(place / runs[3])) == epochs
    assert yaml.safe_load((place / runs[2] / "config.yaml").read_text())["augment"]["store_all"]
    assert (place / "report.png").exists() and (place / "sweep.csv").exists()
    assert "## At equal wall time" in (place / "report.md").read_text()

    (place / runs[1] / "status.json").write_text('{"status": "failed"}')
    again = train.apart(*command)
    assert (again.code, again.err) == (0, "")
    assert again.out.count("done already") == 3


def processes_in(group: int) -> list[int]:
    """Return the processes of a group that are not yet gone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_sweep_and_its_run_and_leaves_no_process(
    train: Trainer, signum: signal.Signals, code: int
) -> None:
    place = train.folder / "it"
    process = train.start(*TINY, "epochs=900", "num_workers=1", f"hydra.run.dir={place}")
    first = place / "epochs-lifetime-1-seed-0" / "metrics.csv"
    while not first.exists():
        assert process.poll() is None
        time.sleep(0.05)
    if signum == signal.SIGINT:
        os.killpg(process.pid, signum)  # as CTRL-C does
    else:
        os.kill(process.pid, signum)
    _, err = process.communicate(timeout=60)

    assert process.returncode == code
    (line,) = err.splitlines()
    assert line.startswith(f"stopped by {signum.name}; to go on: python train.py ")
    assert shlex.split(line)[-1] == f"hydra.run.dir={place.relative_to(train.folder)}"
    deadline = time.monotonic() + 10
    while processes_in(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_in(process.pid) == []
    assert status(first.parent)["status"] == "interrupted"
