"""A run that was stopped goes on to the same last bit, by one command."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from commands import QUICK, Trainer, metrics, results, status, without_times
from pictures import class_folders
from stopping import Updates

from training.models import SmallConvNet


def weights(run: Path) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    return {**checkpoint["model"], **checkpoint["ema"]}


def same_weights(first: Path, second: Path) -> bool:
    ours, theirs = weights(first), weights(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.slow
def test_a_run_that_goes_on_equals_one_that_never_stopped(train: Trainer, updates: Updates) -> None:
    whole = train.here(*QUICK).run
    expected, updates.seen = updates.seen, []
    updates.stops = dict.fromkeys((4, 5, 9), signal.SIGTERM)  # in the middle, and at a last update
    outcome = train.here(*QUICK)
    run = outcome.run
    for _ in range(3):
        assert (outcome.code, status(run)["status"]) == (143, "interrupted")
        command = f"python train.py resume={run.relative_to(train.folder)}"
        assert outcome.err.endswith(f"stopped by SIGTERM; to go on: {command}\n")
        outcome = train.resume(run)
    assert (outcome.code, status(run)["status"]) == (0, "done")
    assert without_times(run) == without_times(whole)
    assert same_weights(run, whole)
    assert updates.seen == expected
    assert not (run / "cache").exists()


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(train: Trainer) -> None:
    long = ("epochs=60", "checkpoint.every_steps=1", "checkpoint.keep=2", "num_workers=2")
    process = train.start(*QUICK, *long)
    pause = random.uniform(0.2, 1.0)
    while not list(train.folder.rglob("step-00000008.pt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(pause)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (run,) = [path.parent for path in train.folder.rglob("status.json")]
    train.here("epochs=1")  # lets the trainer forget that folder
    step = torch.load(run / "checkpoints" / "last.pt", weights_only=True)["step"]
    epochs = step // 4 + 2
    assert status(run)["status"] == "running"
    outcome = train.resume(run, f"epochs={epochs}", "num_workers=0", "checkpoint.every_steps=null")
    assert f"going on from {run}/checkpoints/last.pt" in outcome.out
    assert not list((run / "checkpoints").glob("*.tmp"))
    whole = train.here(*QUICK, f"epochs={epochs}", "schedule_end=60").run
    assert results(run) == results(whole)
    assert same_weights(run, whole)


def test_a_run_is_found_from_anywhere(train: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train.here(*QUICK, "epochs=1", "hydra.run.dir='home/a run'").run
    monkeypatch.setenv("HOME", str(train.folder / "home"))
    elsewhere = train.folder / "else where"
    elsewhere.mkdir()
    for folder, name in {
        elsewhere: "../home/a run/",
        run.parent: "'a run'",
        train.folder: "~/a run",
    }.items():
        monkeypatch.setattr(train, "folder", folder)
        outcome = train.here(f"resume={name}", small=False)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"{run}: all of its 1 epochs are trained" in outcome.out


def test_a_damaged_checkpoint_is_named_and_an_older_one_used(
    train: Trainer, updates: Updates
) -> None:
    whole = train.here(*QUICK).run
    updates.stops = {9: signal.SIGTERM}
    run = train.here(*QUICK, "checkpoint.every_steps=2", "checkpoint.keep=3").run
    checkpoints = run / "checkpoints"
    for name in ("last.pt", max(checkpoints.glob("step*")).name):
        content = bytearray((checkpoints / name).read_bytes())
        content[len(content) // 2] ^= 4
        (checkpoints / name).unlink()
        (checkpoints / name).write_bytes(content)
    outcome = train.resume(run)
    assert f"{checkpoints / 'last.pt'} is damaged (its checksum does not agree" in outcome.out
    assert "going on from" in outcome.out
    assert results(run) == results(whole)
    assert same_weights(run, whole)


class TokenNet(SmallConvNet):
    """A model that is given a secret."""

    def __init__(self, num_classes: int, width: int, token: str) -> None:
        assert token == "hunter2-xyzzy"
        super().__init__(num_classes, width=width)


def test_no_secret_is_in_any_file(
    train: Trainer, updates: Updates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_TOKEN", "hunter2-xyzzy")
    secret = ("model._target_=test_resume.TokenNet", "+model.token=${oc.env:RUN_TOKEN}")
    updates.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK, *secret, "tracker=tensorboard", "cache.keep=true").run
    assert train.resume(run).code == 0
    files = [path for path in run.rglob("*") if path.is_file()]
    assert any("tfevents" in path.name for path in files)
    assert any(path.name == "00000000.pt" for path in files)
    assert [path for path in files if b"hunter2-xyzzy" in path.read_bytes()] == []


def test_curves_go_on_without_a_second_point_of_a_step(train: Trainer, updates: Updates) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = (*QUICK, "tracker=tensorboard", "tracker.log_every=1", "tracker.num_pictures=0")
    updates.stops = {9: signal.SIGTERM}
    run = train.here(*options, "checkpoint.every_steps=5").run
    (run / "checkpoints" / "last.pt").unlink()  # to go on from an earlier one
    train.resume(run)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [point.step for point in events.Scalars("train/loss")] == list(range(1, 13))


def test_a_run_goes_on_where_its_data_was_moved_to(train: Trainer, tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=6, dog=6)
    data = ("data=image_folder", f"data.root={root}", "data.image_size=16", "model.width=4")
    quick = ("batch_size=4", "num_workers=0", "tracker=csv", "report.enabled=false")
    run = train.here(*data, *quick, "epochs=1", small=False).run
    moved = root.rename(tmp_path / "else where")
    outcome = train.resume(run, "epochs=2", f"data.root={moved}")
    assert outcome.code == 0, outcome.err
    assert f"data.train.root was {root} and is {moved} from here on" in outcome.out
    assert len(metrics(run)) == 2
