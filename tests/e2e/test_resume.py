"""A run that was stopped goes on to the same last bit, or says in one line why it cannot."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import Trainer, metrics, without_times
from pictures import class_folders

from training import loop
from training.checkpoint import write_checkpoint
from training.models import SmallConvNet

QUICK = (
    *("augment=randaugment", "batch_size=16", "model.width=4", "lifetime=3"),
    *("trainer.mixup_alpha=0.4", "trainer.ema_decay=0.9"),
)
"""Four updates an epoch, three epochs: every part of the state takes part."""


class Steps:
    """Sends a signal in the middle of chosen updates; sees what every update is made from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stops: dict[int, int] = {}  # step -> signal
        self.seen: list[str] = []
        update, write_row = loop.update, loop.write_row

        def watched(trainer: Any, state: Any, prepare: Any, window: Any) -> None:
            batches = list(window)
            self.seen += [sha256(batch["image"].numpy().tobytes()).hexdigest() for batch in batches]
            if state.step in self.stops:
                os.kill(os.getpid(), self.stops.pop(state.step))
            update(trainer, state, prepare, batches)

        def written(job: Any, row: Any) -> Any:
            if -row["epoch"] - 1 in self.stops:  # -1: at the end of epoch 0
                os.kill(os.getpid(), self.stops.pop(-row["epoch"] - 1))
            return write_row(job, row)

        monkeypatch.setattr(loop, "update", watched)
        monkeypatch.setattr(loop, "write_row", written)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def status(run: Path) -> str:
    return str(json.loads((run / "status.json").read_text())["status"])


def weights(run: Path) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    return {**checkpoint["model"], **checkpoint["ema"]}


def results(run: Path) -> list[dict[str, str]]:
    """Return what was measured; what was built and what was found is not part of it."""
    left_out = ("built", "reused")
    return [{k: v for k, v in row.items() if k not in left_out} for row in without_times(run)]


def same_weights(first: Path, second: Path) -> bool:
    ours, theirs = weights(first), weights(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def resume(train: Trainer, run: Path, *overrides: str) -> Any:
    return train.here(f"resume={run}", *overrides, small=False)


@pytest.mark.parametrize(
    ("stops", "options", "overrides"),
    [
        ([-1, -2], (), ()),  # after every epoch
        pytest.param([2], (), (), marks=pytest.mark.slow),  # in the middle of one
        ([4, 5, 9], (), ()),  # several times, in the middle, and at a last update
        ([5], (), ("num_workers=2",)),
        pytest.param(
            *([5], ("num_workers=2", "loader.persistent_workers=false"), ("num_workers=0",)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_that_goes_on_equals_one_that_never_stopped(
    train: Trainer, steps: Steps, stops: list[int], options: Any, overrides: Any
) -> None:
    whole = train.here(*QUICK, *options).run
    expected, steps.seen = steps.seen, []
    steps.stops = dict.fromkeys(stops, signal.SIGTERM)
    outcome = train.here(*QUICK, *options)
    run = outcome.run
    for _ in stops[1:]:
        assert (outcome.code, status(run)) == (143, "interrupted")
        outcome = resume(train, run, *overrides)
    assert (outcome.code, status(run)) == (143, "interrupted")
    command = f"python train.py resume={run.relative_to(train.folder)}"
    assert outcome.err.endswith(f"stopped by SIGTERM; to go on: {command}\n")
    assert resume(train, run, *overrides).code == 0
    assert results(run) == results(whole)
    assert same_weights(run, whole)
    assert steps.seen == expected
    if not overrides:
        assert without_times(run) == without_times(whole)  # the counts of samples, too
    assert status(run) == "done"
    assert not (run / "cache").exists()


def test_the_times_of_an_epoch_go_on_with_it(train: Trainer, steps: Steps) -> None:
    steps.stops = {2: signal.SIGTERM}
    run = train.here(*QUICK, "epochs=1").run
    checkpoint = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    seconds = checkpoint["progress"]["seconds"]
    resume(train, run)
    (row,) = metrics(run)

    assert sum(seconds.values()) > 0
    assert all(float(row[f"{name}_s"]) >= round(value, 4) for name, value in seconds.items())
    first, second = json.loads((run / "status.json").read_text())["sessions"]
    assert first[0] <= first[1] <= second[0] <= second[1]


def test_samples_that_were_deleted_are_made_again(train: Trainer, steps: Steps) -> None:
    whole = train.here(*QUICK).run
    steps.stops = {6: signal.SIGUSR1}  # a generation of three epochs is in its second
    outcome = train.here(*QUICK)
    assert outcome.code == 128 + signal.SIGUSR1
    shutil.rmtree(outcome.run / "cache")
    resume(train, outcome.run)
    assert results(outcome.run) == results(whole)
    assert same_weights(outcome.run, whole)


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
    assert status(run) == "running"
    outcome = resume(train, run, f"epochs={epochs}", "num_workers=0", "checkpoint.every_steps=null")
    assert f"going on from {run}/checkpoints/last.pt" in outcome.out
    assert not list((run / "checkpoints").glob("*.tmp"))
    whole = train.here(*QUICK, f"epochs={epochs}", "schedule_end=60").run
    assert results(run) == results(whole)
    assert same_weights(run, whole)


def test_a_finished_run_trains_nothing_more_or_exactly_the_missing_epochs(
    train: Trainer, steps: Steps
) -> None:
    run = train.here(*QUICK, "schedule=cosine").run
    files = [path for path in run.rglob("*") if path.is_file() and path.suffix != ".log"]
    before = {path: path.read_bytes() for path in files}
    steps.seen = []
    outcome = resume(train, run)
    assert "all of its 3 epochs are trained" in outcome.out
    assert outcome.code == 0 and not steps.seen
    assert {path: path.read_bytes() for path in before} == before
    assert not (run / "cache").exists()

    outcome = resume(train, run, "epochs=5")
    rows = results(run)
    assert "epochs was 3 and is 5 from here on" in outcome.out
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert len(steps.seen) == 8
    assert float(rows[3]["lr"]) == float(rows[4]["lr"]) == 0.0  # at its end, and no climb again
    whole = train.here(*QUICK, "schedule=cosine", "epochs=5", "schedule_end=3").run
    assert results(whole) == rows
    assert resume(train, run).out.count("all of its 5 epochs are trained") == 1


@pytest.mark.slow
def test_a_new_rate_holds_from_there_on(train: Trainer, steps: Steps) -> None:
    options = (*QUICK, "optimizer=sgd", "optimizer.lr=0.08")
    whole = [float(row["lr"]) for row in results(train.here(*options).run)]
    steps.stops = {6: signal.SIGTERM}
    run = train.here(*options).run
    steps.stops = {9: signal.SIGTERM}
    outcome = resume(train, run, "optimizer.lr=0.02")
    assert "optimizer.lr was 0.08 and is 0.02 from here on" in outcome.out
    resume(train, run)  # the change stays, and is not made twice
    rates = [float(row["lr"]) for row in results(run)]
    assert rates == pytest.approx([whole[0], whole[1] / 4, whole[2] / 4])
    assert yaml.safe_load((run / "config.yaml").read_text())["optimizer"]["lr"] == 0.02


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


def test_a_run_that_goes_on_elsewhere_is_not_begun_twice(
    train: Trainer, steps: Steps, start: Callable[..., Any]
) -> None:
    steps.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = start()
    other.run(
        "from pathlib import Path\nfrom reuseloader.folder import open_folder\n"
        f"held = open_folder(Path({str(run / 'cache' / 'train')!r}))"
    )
    outcome = resume(train, run)
    assert outcome.code == 1
    assert f"in use by process {other.pid}" in outcome.err and outcome.err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before
    other.kill()
    assert resume(train, run).code == 0


REFUSED = {
    "lifetime=5": "must stay as recorded with resume={run}, lifetime=3, but got lifetime=5",
    "seed=1": "seed must stay as recorded",
    "batch_size=8": "batch_size must stay as recorded",
    "data.train.limit=63": "data.train.limit must stay as recorded",
    "model.width=8": "model.width must stay as recorded",
    "optimizer._target_=torch.optim.Adam": "optimizer._target_ must stay as recorded",
    "optimizer=sgd": "optimizer must stay as recorded with resume={run}, but got optimizer=sgd",
    "data=nope": "data must stay as recorded",
    "loader.drop_last=true": "loader.drop_last must stay as recorded",
    "trainer.accumulate=2": "trainer.accumulate must stay as recorded",
    "augment.fresh.crop.padding=2": "augment.fresh.crop.padding must stay as recorded",
    "+trainer.evaluate=x.pt": "trainer.evaluate must stay as recorded",
    "cache.directory=elsewhere": "cache.directory must stay as recorded",
    "lifetme=2": "lifetme is not a key of the config; did you mean lifetime?",
    "epochs=-1": "epochs must be a positive integer, but got epochs=-1",
    "-m": "resume is for one run: leave out --multirun",
    "hydra.mode=MULTIRUN": "resume is for one run: leave out --multirun",
    "resume=other": "resume must be the one recorded run, but got resume={run} and resume=other",
    "+replay=other": "resume must be the one recorded run, but got resume={run} and +replay=other",
}


def test_what_would_change_the_past_is_refused_by_name(train: Trainer, steps: Steps) -> None:
    steps.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for override, message in REFUSED.items():
        outcome = resume(train, run, override)
        assert outcome.code == 1
        assert message.format(run=run) in outcome.err
        assert outcome.err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before


def test_what_is_no_run_is_refused_in_one_line(train: Trainer, tmp_path: Path) -> None:
    cases = {
        "nothing": "there is no such folder",
        "empty": "it holds no config.yaml",
        "text": "holds no config",
        "binary": "cannot be read",
        "part": "lacks data",
    }
    for name in cases:
        if name != "nothing":
            (tmp_path / name).mkdir()
    (tmp_path / "text" / "config.yaml").write_text("hello")
    (tmp_path / "binary" / "config.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "part" / "config.yaml").write_text("epochs: 3\nmodel: {}\noptimizer: {}\n")
    for name, reason in cases.items():
        outcome = resume(train, tmp_path / name)
        assert outcome.code == 1
        assert outcome.err.startswith("error: resume must be the folder of a run")
        assert reason in outcome.err
        assert outcome.err.count("\n") == 1
    assert not list(tmp_path.rglob("status.json"))


def test_a_recorded_config_runs_nothing_of_its_own(train: Trainer, steps: Steps) -> None:
    steps.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    text = (run / "config.yaml").read_text()
    for place, target in {
        "model": "torch.utils.collect_env.run",
        "build": "builtins.open",
        "optimizer": "os.system",
        "hydra.callbacks": "os.system",
    }.items():
        config = yaml.safe_load(text)
        *path, name = place.split(".")
        node = config[path[0]] if path else config
        node[name] = {"_target_": target}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        for word in ("resume", "replay"):
            outcome = train.here(f"{word}={run}", small=False)
            assert outcome.code == 1
            assert place in outcome.err and outcome.err.count("\n") == 1
            assert status(run) == "interrupted"


def test_a_damaged_checkpoint_is_named_and_an_older_one_used(train: Trainer, steps: Steps) -> None:
    whole = train.here(*QUICK).run
    steps.stops = {9: signal.SIGTERM}
    run = train.here(*QUICK, "checkpoint.every_steps=2", "checkpoint.keep=3").run
    checkpoints = run / "checkpoints"
    for name in ("last.pt", max(checkpoints.glob("step*")).name):
        content = bytearray((checkpoints / name).read_bytes())
        content[len(content) // 2] ^= 4
        (checkpoints / name).unlink()
        (checkpoints / name).write_bytes(content)
    outcome = resume(train, run)
    assert f"{checkpoints / 'last.pt'} is damaged (its checksum does not agree" in outcome.out
    assert "going on from" in outcome.out
    assert results(run) == results(whole)
    assert same_weights(run, whole)


def test_a_checkpoint_that_does_not_fit_is_one_clear_line(train: Trainer, steps: Steps) -> None:
    steps.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    last = run / "checkpoints" / "last.pt"
    content = torch.load(last, weights_only=True)
    cases = {
        "lacks scheduler": {k: v for k, v in content.items() if k != "scheduler"},
        "does not fit": {**content, "model": {"0.weight": torch.ones(3)}},
        "must have the seed of this loader": {
            **content,
            "loader": {**content["loader"], "seed": 5},
        },
    }
    for message, changed in cases.items():
        write_checkpoint(last, changed)
        outcome = resume(train, run)
        assert outcome.code == 1
        assert message in outcome.err and outcome.err.count("\n") == 1
        assert status(run) == "interrupted"
    for path in last.parent.iterdir():
        path.unlink()
    assert "resume must be a run with a whole checkpoint" in resume(train, run).err


def test_the_whole_group_may_be_told_to_end(train: Trainer) -> None:
    process = train.start(*QUICK, "num_workers=2", "epochs=2000")
    while not list(train.folder.rglob("last.pt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)  # the workers get it as well
    err = process.communicate(timeout=60)[1]
    (run,) = [path.parent for path in train.folder.rglob("status.json")]
    assert process.returncode == 143, err
    assert (status(run), err.count("\n")) == ("interrupted", 1)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


class TokenNet(SmallConvNet):
    """A model that is given a secret."""

    def __init__(self, num_classes: int, width: int, token: str) -> None:
        assert token == "hunter2-xyzzy"
        super().__init__(num_classes, width=width)


def test_no_secret_is_in_any_file(
    train: Trainer, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_TOKEN", "hunter2-xyzzy")
    secret = ("model._target_=test_resume.TokenNet", "+model.token=${oc.env:RUN_TOKEN}")
    steps.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK, *secret, "tracker=tensorboard", "cache.keep=true").run
    assert resume(train, run).code == 0
    files = [path for path in run.rglob("*") if path.is_file()]
    assert any("tfevents" in path.name for path in files)
    assert any(path.name == "00000000.pt" for path in files)
    assert [path for path in files if b"hunter2-xyzzy" in path.read_bytes()] == []


def test_curves_go_on_without_a_second_point_of_a_step(train: Trainer, steps: Steps) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = (*QUICK, "tracker=tensorboard", "tracker.log_every=1", "tracker.num_pictures=0")
    steps.stops = {9: signal.SIGTERM}
    run = train.here(*options, "checkpoint.every_steps=5").run
    (run / "checkpoints" / "last.pt").unlink()  # to go on from an earlier one
    resume(train, run)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [point.step for point in events.Scalars("train/loss")] == list(range(1, 13))


def test_other_data_behind_the_same_name_is_refused(train: Trainer, steps: Steps) -> None:
    steps.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    marks = json.loads((run / "inputs.json").read_text())
    (run / "inputs.json").write_text(json.dumps(marks | {"data.val": "other"}))
    outcome = resume(train, run)
    assert outcome.code == 1
    assert "data.val must hold what it held when the run began" in outcome.err
    (run / "inputs.json").write_text(json.dumps(marks | {"code": "older"}))
    assert "warning: the code has changed since the run began" in resume(train, run).out


def test_a_run_goes_on_where_its_data_was_moved_to(train: Trainer, tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=6, dog=6)
    data = ("data=image_folder", f"data.root={root}", "data.image_size=16", "model.width=4")
    quick = ("batch_size=4", "num_workers=0", "tracker=csv", "report.enabled=false")
    run = train.here(*data, *quick, "epochs=1", small=False).run
    moved = root.rename(tmp_path / "else where")
    outcome = resume(train, run, "epochs=2", f"data.root={moved}")
    assert outcome.code == 0, outcome.err
    assert f"data.train.root was {root} and is {moved} from here on" in outcome.out
    assert len(metrics(run)) == 2


@pytest.mark.parametrize("after", [0.3, 1.5])
def test_ctrl_c_before_the_run_begins_shows_no_traceback(train: Trainer, after: float) -> None:
    process = train.start(*QUICK, "epochs=2000")
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT), err
    assert "Traceback" not in err and err.count("\n") <= 2
