"""A sweep over lifetimes, with a runner that writes runs down and trains nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from histories import write_run
from omegaconf import OmegaConf

from training.checks import ConfigError
from training.lifetime_sweep import driver
from training.lifetime_sweep.book import Book
from training.lifetime_sweep.serial import CONSOLE, Serial
from training.options import SweepConfig
from training.report.plan import PLAN
from training.report.sweep import read_sweep
from training.signals import Interrupted

SECONDS = {1: 8.0, 2: 4.0, 4: 2.0}  # of an epoch, by lifetime
CONFIG = {"epochs": 4, "lifetime": 2, "seed": 42, "sweep": {"lifetimes": [1, 2]}}


class Runner:
    """Stands for the processes: writes down a run for each, or what is to go wrong."""

    def __init__(self, faults: dict[str, str] | None = None) -> None:
        self.calls: list[str] = []  # folders
        self.arguments: list[list[str]] = []
        self._faults = faults or {}
        self._clock_s = 0.0

    def __call__(self, arguments: list[str], console: Path) -> int:
        place = console.parent
        assert list(place.iterdir()) == []
        self.calls.append(place.name)
        self.arguments.append(arguments)
        values = dict(word.split("=", 1) for word in arguments if "=" in word)
        assert values["hydra.run.dir"] == f"'{place}'"
        fault = self._faults.pop(place.name, None)
        console.write_text("a warning\nerror: what was printed\nmore\n")
        if fault == "no record":
            return 1
        place.joinpath(CONSOLE).rename(place.parent / "kept")
        place.rmdir()
        lifetime, epochs = int(values["lifetime"]), int(values.get("epochs", 4))
        status = {"failed": "failed", "killed": "running"}.get(fault or "", "done")
        self._clock_s += 10_000.0
        write_run(
            place,
            [0.5, *[0.9] * (epochs - 1)],
            row={"epoch_s": SECONDS[lifetime]},
            start_s=self._clock_s,
            lifetime=lifetime,
            seed=int(values["seed"]),
            status=status,
            error="OSError: no" if fault == "failed" else None,
        )
        (place.parent / "kept").rename(console)
        return {"failed": 1, "killed": -9}.get(fault or "", 0)


def book_of(folder: Path, **changes: Any) -> Book:
    folder.mkdir(exist_ok=True)
    options = {"lifetimes": [1, 2], "seeds": [0, 1], **changes}
    book = Book(folder=folder, sweep=SweepConfig(**options), command="python train.py ...")
    book.open(CONFIG)
    return book


def swept(folder: Path, runner: Runner, **changes: Any) -> Book:
    book = book_of(folder, **changes)
    Serial(book=book, arguments=["--config-path=x"], run=runner)()
    return book


EXPECTED = [
    *("epochs-lifetime-1-seed-0", "epochs-lifetime-2-seed-0", "stored-lifetime-2-seed-0"),
    *("epochs-lifetime-2-seed-1", "stored-lifetime-2-seed-1", "epochs-lifetime-1-seed-1"),
    *("wall_time-lifetime-2-seed-0", "wall_time-lifetime-2-seed-1"),
]


def test_the_runs_come_one_after_the_other_and_those_at_equal_time_after_what_decides_them(
    tmp_path: Path,
) -> None:
    runner = Runner()
    book = swept(tmp_path / "sweep", runner)

    assert runner.calls == EXPECTED
    assert runner.arguments[2][:4] == [
        *("--config-path=x", "lifetime=2", "seed=0", "augment.store_all=true"),
    ]
    # Lifetime 1 takes 4 * 8 s; lifetime 2 then has 8 epochs of 4 s.
    assert book.epochs == {2: 8}
    assert "epochs=8" in runner.arguments[-1]
    assert book.errors == {}


def test_the_report_has_a_section_for_each_comparison_and_lifetime_1_in_all(
    tmp_path: Path,
) -> None:
    swept(tmp_path / "sweep", Runner())
    sweep = read_sweep(tmp_path / "sweep")

    assert list(sweep.sections) == [
        *("at equal epochs", "at equal wall time", "with all transforms stored"),
    ]
    for settings in sweep.sections.values():
        assert [(s.name, len(s.runs)) for s in settings] == [("lifetime=1", 2), ("lifetime=2", 2)]
    assert sweep.sections["at equal wall time"][1].time_s.values == (32.0, 32.0)
    assert sweep.doubts == [] and sweep.unfinished == []


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    swept(tmp_path / "sweep", Runner())
    again, wider = Runner(), Runner()
    swept(tmp_path / "sweep", again)
    book = swept(tmp_path / "sweep", wider, lifetimes=[1, 2, 4])

    assert again.calls == []
    assert [name for name in wider.calls if "lifetime-4" not in name] == []
    assert len(wider.calls) == 6
    assert book.epochs == {2: 8, 4: 16}


def test_epochs_of_another_base_are_decided_anew_and_their_runs_put_aside(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    assert swept(folder, Runner(), lifetimes=[2, 4], seeds=[0]).epochs == {4: 8}
    again = Runner()
    book = swept(folder, again, lifetimes=[1, 2, 4], seeds=[0])

    assert book.epochs == {2: 8, 4: 16}
    assert "wall_time-lifetime-4-seed-0" in again.calls
    assert (folder / ".sweep" / "earlier" / "wall_time-lifetime-4-seed-0-1").is_dir()
    four = read_sweep(folder).sections["at equal wall time"][2]
    assert [len(run.rows) for run in four.runs] == [16]


def test_epochs_that_were_decided_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(tmp_path / "sweep", Runner(), seeds=[0])
    monkeypatch.setitem(SECONDS, 2, 2.0)
    runner = Runner()
    book = swept(tmp_path / "sweep", runner, seeds=[0, 1])

    assert book.epochs == {2: 8}
    assert runner.calls[-1] == "wall_time-lifetime-2-seed-1"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("failed", "OSError: no"),
        ("no record", "what was printed"),
        ("killed", "ended by SIGKILL"),
    ],
)
def test_a_run_that_fails_is_named_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, error: str
) -> None:
    folder = tmp_path / "sweep"
    runner = Runner({"epochs-lifetime-2-seed-0": fault})
    book = swept(folder, runner)

    assert runner.calls == EXPECTED
    assert book.errors == {"epochs-lifetime-2-seed-0": error}
    assert capsys.readouterr().err == (f"run lifetime=2 seed=0 at equal epochs failed: {error}\n")
    ((job, said),) = read_sweep(folder).unfinished
    assert job == "epochs-lifetime-2-seed-0" and (error in said or fault == "killed")

    again = Runner()
    assert swept(folder, again).errors == {}
    assert again.calls == ["epochs-lifetime-2-seed-0"]
    (earlier,) = (folder / ".sweep" / "earlier").iterdir()
    assert earlier.name == "epochs-lifetime-2-seed-0-1"
    assert read_sweep(folder).unfinished == []


def test_a_lifetime_of_which_nothing_was_measured_has_no_runs_at_equal_wall_time(
    tmp_path: Path,
) -> None:
    faults = {f"epochs-lifetime-2-seed-{seed}": "failed" for seed in (0, 1)}
    runner = Runner(faults)
    book = swept(tmp_path / "sweep", runner, lifetimes=[1, 2, 4])

    assert not any(name.startswith("wall_time-lifetime-2") for name in runner.calls)
    assert book.epochs == {4: 16}
    reason = "not begun: no run at equal epochs says how long it is to be"
    assert book.errors["wall_time-lifetime-2-seed-1"] == reason
    ended = dict(read_sweep(tmp_path / "sweep").unfinished)
    assert ended["wall_time-lifetime-2-seed-1"] == reason


def test_each_run_has_a_line_with_its_place_result_and_the_time_that_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept(tmp_path / "sweep", Runner(), equal=["epochs"], fresh=False)
    first = capsys.readouterr().out.splitlines()
    swept(tmp_path / "sweep", Runner(), equal=["epochs"], fresh=False)
    second = capsys.readouterr().out.splitlines()

    assert first[0] == f"sweep          4 runs in {tmp_path / 'sweep'}"
    start = "run 1 of 4  lifetime=1 seed=0 at equal epochs: 90.00 % accuracy in "
    assert first[1].startswith(start) and first[1].endswith(" left")
    assert ", at most " in first[1] and ", about " in first[2]  # nothing is known of lifetime=2
    assert len(first) == 5 and first[4].startswith("run 4 of 4") and "left" not in first[4]
    assert second[4] == (
        "run 4 of 4  lifetime=1 seed=1 at equal epochs: 90.00 % accuracy, done already"
    )


def test_each_run_gets_an_empty_cache_of_its_own_that_is_removed(tmp_path: Path) -> None:
    found: list[Path] = []

    def run(arguments: list[str], console: Path) -> int:
        (word,) = [word for word in arguments if word.startswith("cache.directory=")]
        cache = Path(word.partition("=")[2].strip("'"))
        assert list(cache.iterdir()) == []
        (cache / "0.pt").touch()
        found.append(cache)
        console.touch()
        return 1

    book = book_of(tmp_path / "sweep", equal=["epochs"], fresh=False)
    Serial(book=book, arguments=[], run=run, cache=tmp_path / "fast")()

    assert len(set(found)) == 4
    assert list((tmp_path / "fast").iterdir()) == []


def test_another_config_is_refused_in_the_folder_of_a_sweep(tmp_path: Path) -> None:
    book = book_of(tmp_path / "sweep")
    book.open({**CONFIG, "sweep": {"lifetimes": [1, 2, 4]}})
    with pytest.raises(ConfigError) as caught:
        book.open({**CONFIG, "epochs": 5})

    assert str(caught.value) == (
        f"epochs must stay 4, as in the sweep that hydra.run.dir={tmp_path / 'sweep'} holds, but "
        "got epochs=5"
    )


@pytest.mark.parametrize("make", [lambda f: write_run(f), lambda f: _multirun(f)])
def test_a_folder_that_holds_something_else_is_refused(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    make(tmp_path / "it")
    with pytest.raises(ConfigError, match=r"^hydra\.run\.dir must be a new folder, or one of such"):
        book_of(tmp_path / "it")


def _multirun(folder: Path) -> None:
    folder.mkdir()
    (folder / "multirun.yaml").write_text(yaml.safe_dump({"hydra": {}}))


def test_a_run_that_another_process_works_on_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = book_of(tmp_path / "sweep")
    (job, *_) = book.jobs()
    monkeypatch.setattr("training.lifetime_sweep.book.is_alive", lambda status: True)
    place = tmp_path / "sweep" / job.folder
    place.mkdir()
    (place / "status.json").write_text(json.dumps({"status": "running", "pid": 7}))

    with pytest.raises(ConfigError, match=r"one sweep at a time, but process 7 is at work in"):
        book.make_room(job)
    assert (place / "status.json").exists()


def test_a_second_sweep_in_a_folder_is_refused_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fcntl = pytest.importorskip("fcntl")
    runtime = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(tmp_path)))
    monkeypatch.setattr(driver.HydraConfig, "get", lambda: runtime)
    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    with pytest.raises(SystemExit) as end:
        driver.sweep_lifetimes(OmegaConf.create())
    os.close(first)

    assert end.value.code == 1
    error = capsys.readouterr().err
    assert error == (
        "error: hydra.run.dir must be used by one sweep at a time, but one is at work in "
        f"{tmp_path}\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_plan_is_there_from_the_beginning_and_says_the_command(tmp_path: Path) -> None:
    runner = Runner()
    seen: list[Any] = []

    def run(arguments: list[str], console: Path) -> int:
        seen.append(json.loads((tmp_path / "sweep" / PLAN).read_text()))
        return runner(arguments, console)

    Serial(book=book_of(tmp_path / "sweep"), arguments=[], run=run)()
    assert seen[0]["command"] == "python train.py ..."
    assert {job["folder"] for job in seen[0]["jobs"]} == set(EXPECTED)
    assert {job.get("error") for job in seen[0]["jobs"]} == {"not run"}


def test_a_sweep_that_was_stopped_has_a_report_of_what_is_there(tmp_path: Path) -> None:
    runner = Runner()

    def run(arguments: list[str], console: Path) -> int:
        if len(runner.calls) == 4:
            raise Interrupted(signal.SIGTERM)
        return runner(arguments, console)

    book = book_of(tmp_path / "sweep")
    with pytest.raises(Interrupted):
        Serial(book=book, arguments=[], run=run)()
    sweep = read_sweep(tmp_path / "sweep")

    assert [(s.name, len(s.runs)) for s in sweep.first] == [("lifetime=1", 1), ("lifetime=2", 2)]
    assert sweep.unfinished == [
        ("epochs-lifetime-1-seed-1", "not run"),
        ("wall_time-lifetime-2-seed-0", "not run"),
        ("wall_time-lifetime-2-seed-1", "not run"),
        ("stored-lifetime-2-seed-1", "not run"),
    ]
