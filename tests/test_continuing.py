"""Runs inside the test process that stop and go on: nothing of their state is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import runs
from omegaconf import OmegaConf
from stopping import BASE, Updates, results, slow

from reuseloader import ReuseDataLoader
from training import checkpoint, loop
from training.checks import ConfigError
from training.config import load_config
from training.options import ReportConfig
from training.report.history import read_history
from training.report.run import describe_run
from training.signals import Interrupted
from training.tables import read_json

ALL_AT_ONCE = (
    *("trainer.ema_decay=0.9", "trainer.accumulate=2", "trainer.echo=3", "trainer.limit_batches=3"),
    *("trainer.mixup_alpha=0.4", "trainer.cutmix_alpha=1.0", "trainer.label_smoothing=0.1"),
    *("trainer.clip_norm=1.0", "augment=randaugment", "lifetime=3", "trainer.early_stopping=3"),
)


@pytest.mark.parametrize(
    ("options", "stops"),
    [
        (ALL_AT_ONCE, (3, 7, 12)),  # 5 updates an epoch, of which some use half a batch
        ((*ALL_AT_ONCE, "schedule=plateau", "schedule.patience=0"), (4, 5)),
        slow(("trainer.precision=bf16", "curriculum=ramp", "augment=digits", "lifetime=2"), (6, 7)),
        slow(
            ("trainer.evaluate_every=2", "schedule=multistep", "schedule.milestones=[1,2]"), (3, 8)
        ),
        slow(
            ("trainer.early_stopping=1", "optimizer.lr=1e-9", "schedule=constant", "epochs=6"), (5,)
        ),
        slow(("optimizer=sgd", "schedule=cosine", "trainer.overfit_batches=2"), (1, 2, 3)),
    ],
    ids=["everything", "plateau", "curriculum", "evaluate_every", "early", "overfit"],
)
def test_whatever_is_set_a_run_that_goes_on_equals_one_that_never_stopped(
    updates: Updates, tmp_path: Path, options: tuple[str, ...], stops: tuple[int, ...]
) -> None:
    options = (*BASE, *options)
    updates.start(tmp_path / "whole", *options)
    expected, seen, rates = results(tmp_path / "whole"), updates.seen, updates.rates
    updates.seen, updates.rates = [], []
    for stop in (*stops, None):
        updates.start(tmp_path / "parts", *options, stop=stop)
    assert results(tmp_path / "parts") == expected
    assert updates.seen == seen
    assert updates.rates == rates


@pytest.mark.parametrize(
    ("options", "stops"),
    [
        (("trainer.accumulate=3",), (0, 1, 3, 5)),  # 2 updates an epoch, of 3 batches and of 1
        (("trainer.accumulate=100",), (0, 1, 2)),
        (("trainer.accumulate=2", "trainer.limit_batches=3"), (1, 3)),
        (("trainer.accumulate=4", "trainer.echo=2", "trainer.limit_batches=3"), (1, 2, 5)),
        (("trainer.accumulate=3", "trainer.echo=2"), (1, 2, 8)),
    ],
)
@pytest.mark.parametrize("every", ["null", "1"])
def test_a_run_goes_on_after_the_last_update_of_an_epoch_that_had_fewer_batches(
    updates: Updates, tmp_path: Path, options: tuple[str, ...], stops: tuple[int, ...], every: str
) -> None:
    options = (*BASE, *options, f"checkpoint.every_steps={every}")
    updates.start(tmp_path / "whole", *options)
    expected, seen, updates.seen = results(tmp_path / "whole"), updates.seen, []
    for stop in (*stops, None):
        updates.start(tmp_path / "parts", *options, stop=stop)
    assert results(tmp_path / "parts") == expected
    assert updates.seen == seen


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("num_workers=0", "num_workers=2"),
        slow("num_workers=2", "num_workers=0"),
    ],
)
def test_another_number_of_workers_changes_nothing(
    updates: Updates, tmp_path: Path, before: str, after: str
) -> None:
    options = (*BASE, *ALL_AT_ONCE, "loader.persistent_workers=false")
    updates.start(tmp_path / "whole", *options)
    expected, seen, updates.seen = results(tmp_path / "whole", counts=False), updates.seen, []
    updates.start(tmp_path / "parts", *options, before, stop=7)
    updates.start(tmp_path / "parts", *options, after)
    assert results(tmp_path / "parts", counts=False) == expected
    assert updates.seen == seen


def test_samples_that_were_deleted_are_made_again(updates: Updates, tmp_path: Path) -> None:
    options = (*BASE, "augment=randaugment", "lifetime=3")
    updates.start(tmp_path / "whole", *options)
    expected = results(tmp_path / "whole", counts=False)
    # A generation of three epochs is in its second.
    updates.start(tmp_path / "parts", *options, stop=6)
    shutil.rmtree(tmp_path / "parts" / "cache")
    updates.start(tmp_path / "parts", *options)
    assert results(tmp_path / "parts", counts=False) == expected
    assert not (tmp_path / "parts" / "cache").exists()


def test_the_times_of_an_epoch_go_on_with_it(updates: Updates, tmp_path: Path) -> None:
    updates.start(tmp_path, *BASE, "epochs=1", stop=2)
    seconds = runs.load(tmp_path)["progress"]["seconds"]
    updates.start(tmp_path, *BASE, "epochs=1")
    (row,) = runs.rows(tmp_path)

    assert sum(seconds.values()) > 0
    assert all(row[f"{name}_s"] >= round(value, 4) for name, value in seconds.items())
    first, second = read_json(tmp_path / "status.json")["sessions"]
    assert first[0] <= first[1] <= second[0] <= second[1]


PLACES = {
    "evaluation": (loop, "evaluate"),
    "checkpoint": (checkpoint.torch, "save"),
    "row": (loop, "write_row"),
    "first batch": (ReuseDataLoader, "__iter__"),
    "pictures": (loop, "show_samples"),
}
OTHER_PLACES = [place for place in PLACES if place not in ("evaluation", "first batch")]


@pytest.mark.parametrize("place", ["evaluation", "first batch", *map(slow, OTHER_PLACES)])
def test_a_signal_at_any_place_is_one_to_go_on_from(
    updates: Updates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    signum = signal.SIGUSR1
    options = (*BASE, "trainer.ema_decay=0.9", "epochs=2")
    updates.start(tmp_path / "whole", *options)
    owner, name = PLACES[place]
    function = getattr(owner, name)
    stops = [signum]

    def disturbed(*arguments: Any, **keywords: Any) -> Any:
        if stops:
            os.kill(os.getpid(), stops.pop())
        return function(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, disturbed)
        with pytest.raises(Interrupted) as caught:
            runs.train(tmp_path / "parts", *options)
    assert caught.value.signum == signum
    assert caught.value.run == tmp_path / "parts"
    assert read_json(tmp_path / "parts" / "status.json")["status"] == "interrupted"
    updates.start(tmp_path / "parts", *options)
    assert results(tmp_path / "parts") == results(tmp_path / "whole")


def test_a_signal_at_the_end_of_a_run_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "report_end", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    runs.train(tmp_path, *BASE)
    assert read_json(tmp_path / "status.json")["status"] == "done"
    assert len(runs.rows(tmp_path)) == 3


def test_a_finished_run_trains_nothing_and_a_longer_one_what_is_missing(
    updates: Updates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    updates.start(tmp_path, *BASE)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(updates.seen) == 12
    updates.start(tmp_path, *BASE)
    assert "all of its 3 epochs are trained, epochs=4 adds one" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()
    log = tmp_path / "train.log"
    assert {p: p.read_bytes() for p in before if p != log} == {
        p: before[p] for p in before if p != log
    }
    updates.start(tmp_path, *BASE, "epochs=5")
    assert "epochs was 3 and is 5 from here on" in capsys.readouterr().out
    assert len(updates.seen) == 12 + 8
    assert [row["epoch"] for row in runs.rows(tmp_path)] == [0, 1, 2, 3, 4]
    updates.start(tmp_path, *BASE, "epochs=4", "schedule_end=3")  # fewer than it has
    assert "nothing is trained" in capsys.readouterr().out
    assert len(updates.seen) == 12 + 8


def test_a_run_that_was_killed_before_its_last_checkpoint_gets_it_from_the_best(
    updates: Updates, tmp_path: Path
) -> None:
    options = (*BASE, "checkpoint.every_steps=4", "checkpoint.keep=9")
    updates.start(tmp_path, *options)
    folder = tmp_path / "checkpoints"
    expected = results(tmp_path)
    shutil.copy(folder / "last.pt", folder / "best.pt")  # as where the last one is the best
    (earlier,) = [file for file in folder.iterdir() if runs.load(tmp_path, file.stem)["step"] == 8]
    shutil.copy(earlier, folder / "last.pt")

    updates.start(tmp_path, *options)

    assert results(tmp_path) == expected
    assert len(updates.seen) == 12


def test_a_run_that_was_killed_after_its_last_checkpoint_is_done(
    updates: Updates, tmp_path: Path
) -> None:
    updates.start(tmp_path, *BASE)
    file = tmp_path / "status.json"
    status = read_json(file) | {"status": "running"}
    status["sessions"][-1][1] = None
    file.write_text(json.dumps(status))
    updates.start(tmp_path, *BASE)

    after = read_json(file)
    assert (after["status"], after["config"], len(updates.seen)) == ("done", status["config"], 12)
    (began, end), (again, _) = after["sessions"]
    assert began <= end <= again and None not in after["sessions"][1]
    assert [row["epoch"] for row in runs.rows(tmp_path)] == [0, 1, 2]
    history = read_history(tmp_path)
    assert (history.status, history.num_continued, len(history.rows)) == ("done", 0, 3)


def test_a_trial_of_one_batch_is_not_judged_when_it_goes_on(
    updates: Updates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*BASE, "trainer.fast_dev_run=true")
    updates.start(tmp_path, *options, stop=0)
    updates.start(tmp_path, *options)
    said = capsys.readouterr().out

    assert "too few batches to say what bounds it (1, of which 10 are needed)" in said
    assert "would hide" not in said and "-bound" not in said
    history = read_history(tmp_path)
    assert (history.status, len(history.rows), history.num_continued) == ("done", 1, 1)
    assert "**Too few batches to say what bounds it (1," in describe_run(history, None)


def test_a_run_that_ended_early_says_so(
    updates: Updates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*BASE, "optimizer.lr=1e-9", "schedule=constant", "epochs=9")
    updates.start(tmp_path, *options, "trainer.early_stopping=1")
    count = len(updates.seen)
    assert count < 36
    updates.start(tmp_path, *options, "trainer.early_stopping=1")
    assert "it ended early, after 1 evaluations without a new best" in capsys.readouterr().out
    assert len(updates.seen) == count
    updates.start(tmp_path, *options, "trainer.early_stopping=null")
    assert len(updates.seen) == 36


def test_a_record_without_a_section_that_came_later_is_gone_on_with() -> None:
    composed: Any = OmegaConf.to_container(runs.compose_config())
    del composed["report"], composed["trainer"]["echo"]
    config = load_config(OmegaConf.create(composed))
    assert (config.report, config.trainer.echo) == (ReportConfig(), 1)
    for section in ("augment", "build", "lifetime"):
        composed = OmegaConf.to_container(runs.compose_config())
        del composed[section]
        with pytest.raises(ConfigError, match=rf"^{section} must be in the config, but it is not"):
            load_config(OmegaConf.create(composed))


BROKEN = {
    "status.json": [None, b"", b"{", b"[1]", b"\xff"],
    "inputs.json": [None, b"{", b"\xff"],
    "metrics.csv": [None, b"", b"a,b\r\n1,2\r\n", b"\xff"],
}


@pytest.mark.parametrize("name", ["status.json", slow("inputs.json"), slow("metrics.csv")])
def test_a_broken_file_of_a_run_does_not_stop_it(
    updates: Updates, tmp_path: Path, name: str
) -> None:
    """What is lost is lost; what remains is trained."""
    options = (*BASE, "data.train.limit=16", "data.val.limit=10")
    updates.start(tmp_path, *options, "epochs=1")
    for number, content in enumerate(BROKEN[name], 2):
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_bytes(content)
        end = () if number == 2 else ("schedule_end=1",)
        updates.start(tmp_path, *options, f"epochs={number}", *end)
        assert len(updates.seen) == number
        assert runs.rows(tmp_path)[-1]["epoch"] == number - 1
    log = (tmp_path / "train.log").read_text()
    assert ("are code and data what they were?" in log) == (name == "inputs.json")
