"""What a run cannot go on from, or with: one line says why, and nothing of the run changes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from commands import QUICK, Trainer, status
from stopping import Updates

from training.checkpoint import write_checkpoint


def test_a_run_that_goes_on_elsewhere_is_not_begun_twice(
    train: Trainer, updates: Updates, start: Callable[..., Any]
) -> None:
    updates.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = start()
    other.run(
        "from pathlib import Path\nfrom reuseloader.folder import open_folder\n"
        f"held = open_folder(Path({str(run / 'cache' / 'train')!r}))"
    )
    outcome = train.resume(run)
    assert outcome.code == 1
    assert f"in use by process {other.pid}" in outcome.err and outcome.err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before
    other.kill()
    assert train.resume(run).code == 0


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


def test_what_would_change_the_past_is_refused_by_name(train: Trainer, updates: Updates) -> None:
    updates.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for override, message in REFUSED.items():
        outcome = train.resume(run, override)
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
        outcome = train.resume(tmp_path / name)
        assert outcome.code == 1
        assert outcome.err.startswith("error: resume must be the folder of a run")
        assert reason in outcome.err
        assert outcome.err.count("\n") == 1
    assert not list(tmp_path.rglob("status.json"))


def test_a_recorded_config_runs_nothing_of_its_own(train: Trainer, updates: Updates) -> None:
    updates.stops = {6: signal.SIGTERM}
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
            assert status(run)["status"] == "interrupted"


def test_a_checkpoint_that_does_not_fit_is_one_clear_line(train: Trainer, updates: Updates) -> None:
    updates.stops = {6: signal.SIGTERM}
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
        outcome = train.resume(run)
        assert outcome.code == 1
        assert message in outcome.err and outcome.err.count("\n") == 1
        assert status(run)["status"] == "interrupted"
    for path in last.parent.iterdir():
        path.unlink()
    assert "resume must be a run with a whole checkpoint" in train.resume(run).err


def test_other_data_behind_the_same_name_is_refused(train: Trainer, updates: Updates) -> None:
    updates.stops = {6: signal.SIGTERM}
    run = train.here(*QUICK).run
    marks = json.loads((run / "inputs.json").read_text())
    (run / "inputs.json").write_text(json.dumps(marks | {"data.val": "other"}))
    outcome = train.resume(run)
    assert outcome.code == 1
    assert "data.val must hold what it held when the run began" in outcome.err
    (run / "inputs.json").write_text(json.dumps(marks | {"code": "older"}))
    assert "warning: the code has changed since the run began" in train.resume(run).out
