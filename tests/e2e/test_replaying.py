"""A recorded run is repeated by one command, which says whether it came out the same."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import QUICK, Trainer, without_times
from stopping import Updates

from training.checkpoint import write_checkpoint
from training.replay import environment_differences, first_difference


def replay(train: Trainer, run: Path, *overrides: str) -> Any:
    return train.here(f"replay={run}", *overrides, small=False)


def test_a_run_repeats_to_the_last_bit(train: Trainer, tmp_path: Path) -> None:
    mine = tmp_path / "a folder, of = mine"
    run = train.here(*QUICK, "curriculum=ramp", f"hydra.run.dir='{mine}'").run
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    outcome = replay(train, run)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1] == "identical"
    assert without_times(outcome.run) == without_times(run)
    assert outcome.run.is_relative_to(train.folder / "outputs")
    assert {path: path.read_bytes() for path in before} == before
    assert replay(train, outcome.run).code == 0  # and a repetition is a run like any other


def test_the_first_epoch_and_column_that_differ_are_named(train: Trainer) -> None:
    run = train.here(*QUICK).run
    lines = (run / "metrics.csv").read_text().splitlines()
    changed = [*lines[:2], lines[2].replace("1,", "1,9", 1), *lines[3:]]
    (run / "metrics.csv").write_text("\n".join(changed) + "\n")
    outcome = replay(train, run)
    assert outcome.code == 1
    assert outcome.out.splitlines()[-1].startswith("not identical: epoch 1, train_loss: recorded 9")


def test_other_weights_are_seen_though_the_metrics_agree(train: Trainer) -> None:
    run = train.here(*QUICK).run
    last = run / "checkpoints" / "last.pt"
    content = torch.load(last, weights_only=True)
    weight = content["model"]["0.weight"]
    weight.view(torch.int32)[0, 0, 0, 0] ^= 1  # the last bit
    write_checkpoint(last, content)
    outcome = replay(train, run)
    assert outcome.code == 1
    assert "not identical: final weights: recorded" in outcome.out


@pytest.mark.slow
def test_a_run_that_was_interrupted_and_made_longer_repeats_in_one_go(
    train: Trainer, updates: Updates
) -> None:
    updates.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK, "cache.directory=samples", "trainer.evaluate_every=2").run
    part = replay(train, run)
    assert part.code == 0
    assert "the recorded run is interrupted: its 1 epochs are compared" in part.out
    train.resume(run)
    train.resume(run, "epochs=5", "num_workers=1")  # is evaluated where it was to end
    train.resume(run, "epochs=6")
    outcome = replay(train, run, "num_workers=0", "tracker.log_every=3")
    assert outcome.code == 0, outcome.out
    assert "different: num_workers was 1 and is 0" in outcome.out
    assert outcome.out.splitlines()[-1] == "identical"


def test_another_setting_is_refused_and_another_place_is_said(
    train: Trainer, updates: Updates
) -> None:
    updates.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    train.resume(run, "optimizer.lr=0.02")
    outcome = replay(train, run)
    assert outcome.code == 1
    assert "it went on with optimizer.lr=0.02 after 0.01 in epoch 1" in outcome.err
    (run / "resumes.yaml").unlink()
    environment = json.loads((run / "environment.json").read_text())
    environment["packages"]["torch"] = "1.0"
    environment["git"] = {**(environment["git"] or {}), "commit": "abc"}
    (run / "environment.json").write_text(json.dumps(environment))
    inputs = json.loads((run / "inputs.json").read_text())
    (run / "inputs.json").write_text(json.dumps({**inputs, "code": "old", "data.train": "other"}))
    for word in ("epochs=5", "lifetime=1", "optimizer=sgd"):
        outcome = replay(train, run, word)
        assert outcome.code == 1
        assert "must stay as recorded with replay=" in outcome.err
        assert outcome.err.count("\n") == 1
    outcome = replay(train, run)
    for name in ("packages.torch was 1.0", "git.commit was abc", "code was old",
                 "data.train was other"):  # fmt: skip
        assert f"different: {name} and is " in outcome.out
        assert outcome.out.index(name) < outcome.out.index("epoch 0 of 3")  # in time to stop it


def test_where_no_epoch_ended_there_is_nothing_to_compare_with(
    train: Trainer, updates: Updates
) -> None:
    updates.stops = {2: signal.SIGTERM}
    run = train.here(*QUICK).run
    evaluated = train.here(f"trainer.evaluate={run}/checkpoints/last.pt", *QUICK).run
    for folder in (run, evaluated):
        outcome = replay(train, folder)
        assert outcome.code == 1
        assert (
            f"replay must be a run that has trained an epoch, but got replay={folder}: its metr"
            in (outcome.err)
        )
        assert outcome.err.count("\n") == 1


def test_what_is_no_run_is_not_repeated(train: Trainer, tmp_path: Path) -> None:
    outcome = replay(train, tmp_path / "nothing")
    assert outcome.code == 1
    assert outcome.err.startswith("error: replay must be the folder of a run")


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([{"epoch": "0", "val_loss": "1.0", "built": "3"}], None),
        ([{"epoch": "0", "val_loss": "1.00", "built": "3", "eval_s": "9"}], None),
        ([{"epoch": "0", "val_loss": "", "built": "4"}], "epoch 0, val_loss: recorded 1.0, now "),
        ([], "of epochs, 1 are recorded and there are 0 now"),
    ],
)
def test_tables_are_compared_by_value(after: Any, expected: str | None) -> None:
    before = [{"epoch": "0", "val_loss": "1.0", "built": "4"}]
    assert first_difference(before, after) == expected
    counts = "epoch 0, built: recorded 4, now 3" if after and after[0]["built"] == "3" else None
    assert first_difference(before, after, counts=True) == counts


def test_of_an_environment_each_difference_is_a_line() -> None:
    old = {"gpu": [], "torch": {"version": "2.1", "num_threads": 1}, "command": ["a"]}
    new = {"gpu": ["H200"], "torch": {"version": "2.2", "num_threads": 2}, "command": ["b"]}
    assert list(environment_differences(old, new)) == [
        "gpu was [] and is ['H200']",
        "torch.version was 2.1 and is 2.2",
    ]
