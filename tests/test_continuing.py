"""Runs inside the test process that stop and go on: nothing of their state is left behind."""

from __future__ import annotations

import json
import os
import signal
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from omegaconf import OmegaConf

from reuseloader import ReuseDataLoader
from training import checkpoint, loop
from training.checks import ConfigError
from training.config import load_config
from training.options import ReportConfig
from training.signals import Interrupted
from training.tables import read_json

BASE = ("epochs=3", "model.width=4", "data.train.limit=64", "batch_size=16")
"""Four updates in each of three epochs."""


class Watch:
    """Notes the input and the rates of every update; sends a signal in chosen ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stops: set[int] = set()  # numbers of updates, from 0 up
        self.seen: list[str] = []
        self.rates: list[list[float]] = []
        update = loop.update

        def watched(trainer: Any, state: Any, prepare: Any, window: Any) -> None:
            batches = list(window)
            self.seen += [sha256(batch["image"].numpy().tobytes()).hexdigest() for batch in batches]
            self.rates.append([group["lr"] for group in state.optimizer.param_groups])
            if state.step in self.stops:
                self.stops.remove(state.step)
                os.kill(os.getpid(), signal.SIGTERM)
            update(trainer, state, prepare, batches)

        monkeypatch.setattr(loop, "update", watched)

    def start(self, folder: Path, *overrides: str, stop: int | None = None) -> None:
        """Begin a run, or go on with it, up to the end of an update."""
        run = runs.resume if (folder / "config.yaml").exists() else runs.train
        if stop is None:
            run(folder, *overrides)
            return
        self.stops = {stop}
        with pytest.raises(Interrupted):
            run(folder, *overrides)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def results(folder: Path, counts: bool = True) -> Any:
    """Return rows, with counts of samples or without, and weights, and where the best was."""
    state = runs.load(folder)
    weights = {
        f"{part} {name}": value.tolist()
        for part in ("model", "ema")
        for name, value in (state[part] or {}).items()
    }
    best = {name: value for name, value in state["best"].items() if name != "confusion"}
    table = runs.without_times(runs.rows(folder))
    if not counts:
        table = [{k: v for k, v in row.items() if k not in ("built", "reused")} for row in table]
    return table, weights, best


def slow(*values: Any) -> Any:
    """Return values of a parameter that the daily run leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


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
    watch: Watch, tmp_path: Path, options: tuple[str, ...], stops: tuple[int, ...]
) -> None:
    options = (*BASE, *options)
    watch.start(tmp_path / "whole", *options)
    expected, seen, rates = results(tmp_path / "whole"), watch.seen, watch.rates
    watch.seen, watch.rates = [], []
    for stop in (*stops, None):
        watch.start(tmp_path / "parts", *options, stop=stop)
    assert results(tmp_path / "parts") == expected
    assert watch.seen == seen
    assert watch.rates == rates


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
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    signum = signal.SIGUSR1
    options = (*BASE, "trainer.ema_decay=0.9", "epochs=2")
    watch.start(tmp_path / "whole", *options)
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
    watch.start(tmp_path / "parts", *options)
    assert results(tmp_path / "parts") == results(tmp_path / "whole")


def test_a_signal_at_the_end_of_a_run_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "report_end", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    runs.train(tmp_path, *BASE)
    assert read_json(tmp_path / "status.json")["status"] == "done"
    assert len(runs.rows(tmp_path)) == 3


def test_validating_less_often_gives_the_same_training(watch: Watch, tmp_path: Path) -> None:
    options = (*BASE, "trainer.mixup_alpha=0.4", "augment=randaugment", "epochs=4")
    found = []
    for every in (1, 2, 3):
        watch.seen = []
        table = runs.train(tmp_path / str(every), *options, f"trainer.evaluate_every={every}")
        found.append(([row["train_loss"] for row in table], watch.seen))
    assert found[0] == found[1] == found[2]


PRESETS: dict[str, tuple[str, ...]] = {
    "onecycle": (),
    "cosine": (),
    "multistep": ("schedule.milestones=[1,2,4]",),  # the last behind the old end
    "constant": (),
    "plateau": ("schedule.patience=0", "trainer.monitor=val_loss", "schedule.threshold=0.9"),
}


FAST_AND_SLOW = [
    "onecycle",
    *(slow(name) for name in ("plateau", "cosine", "multistep", "constant")),
]


@pytest.mark.parametrize("preset", FAST_AND_SLOW)
def test_a_new_rate_scales_what_the_schedule_makes_of_it(
    watch: Watch, tmp_path: Path, preset: str
) -> None:
    options = (*BASE, f"schedule={preset}", *PRESETS[preset], "optimizer=sgd", "optimizer.lr=0.08")
    options = tuple(f"+{o}" if "threshold" in o else o for o in options)
    watch.start(tmp_path / "whole", *options)
    whole, watch.rates = watch.rates, []
    assert len(whole) == 12
    assert len(whole[0]) == 2  # with decay, and without
    if preset in ("multistep", "plateau"):
        assert whole[11][0] < whole[0][0] / 2  # it has come down on its way
    watch.start(tmp_path / "parts", *options, stop=5)
    lower = (*options, "optimizer.lr=0.02", "schedule.max_lr=0.08")
    lower = lower if preset == "onecycle" else lower[:-1]  # which a recorded config holds resolved
    watch.start(tmp_path / "parts", *lower, stop=6)
    watch.start(tmp_path / "parts", *lower, stop=9)  # the change stays, and is not made twice
    watch.start(tmp_path / "parts", *lower)
    expected = [[rate / (1 if step < 6 else 4) for rate in whole[step]] for step in range(12)]
    assert watch.rates == [pytest.approx(rates) for rates in expected]


@pytest.mark.parametrize("preset", FAST_AND_SLOW)
def test_raised_epochs_do_not_send_the_rate_up_again(
    watch: Watch, tmp_path: Path, preset: str
) -> None:
    options = (*BASE, f"schedule={preset}", *PRESETS[preset], "optimizer=sgd", "optimizer.lr=0.08")
    options = tuple(f"+{o}" if "threshold" in o else o for o in options)
    watch.start(tmp_path / "whole", *options, "epochs=6", "schedule_end=3")
    expected, rates = results(tmp_path / "whole", counts=False), watch.rates
    watch.rates = []
    watch.start(tmp_path / "parts", *options)  # to its end: its samples are removed
    watch.start(tmp_path / "parts", *options, "epochs=4", "schedule_end=null", stop=13)
    for epochs in (4, 6):  # raised twice, and stopped on the way
        watch.start(tmp_path / "parts", *options, f"epochs={epochs}", "schedule_end=3")
    assert watch.rates == rates
    assert results(tmp_path / "parts", counts=False) == expected
    assert all(later <= earlier for earlier, later in pairwise(rates[11:]))


def test_a_rate_that_was_left_at_its_default_can_be_changed_as_well(
    watch: Watch, tmp_path: Path
) -> None:
    options = (*BASE, "schedule=constant")
    watch.start(tmp_path, *options, "~optimizer.lr", stop=5)
    watch.start(tmp_path, *options, "optimizer.lr=0.5", stop=9)
    watch.start(tmp_path, *options, "optimizer.lr=0.5")
    assert [rates[0] for rates in watch.rates] == [0.001] * 6 + [0.5] * 6  # AdamW's own, at first


def test_a_rate_that_the_schedule_has_brought_to_nothing_is_said(
    watch: Watch, tmp_path: Path
) -> None:
    options = (*BASE, "schedule=cosine", "epochs=1")
    watch.start(tmp_path, *options)
    watch.start(tmp_path, *options, "epochs=2", "optimizer.lr=0.5")
    assert watch.rates[-1] == [0.0, 0.0]
    log = (tmp_path / "train.log").read_text()
    assert "optimizer.lr=0.5 is what the schedule multiplies: the rate goes on at 0" in log


def test_a_rate_of_nothing_cannot_be_scaled(watch: Watch, tmp_path: Path) -> None:
    options = (*BASE, "schedule=constant")
    watch.start(tmp_path, *options, "optimizer.lr=0.0", stop=5)
    with pytest.raises(ConfigError, match=r"optimizer\.lr must stay 0"):
        watch.start(tmp_path, *options, "optimizer.lr=0.1")


def test_a_finished_run_trains_nothing_and_a_longer_one_what_is_missing(
    watch: Watch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch.start(tmp_path, *BASE)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(watch.seen) == 12
    watch.start(tmp_path, *BASE)
    assert "all of its 3 epochs are trained, epochs=4 adds one" in capsys.readouterr().out
    log = tmp_path / "train.log"
    assert {p: p.read_bytes() for p in before if p != log} == {
        p: before[p] for p in before if p != log
    }
    watch.start(tmp_path, *BASE, "epochs=5")
    assert len(watch.seen) == 12 + 8
    assert [row["epoch"] for row in runs.rows(tmp_path)] == [0, 1, 2, 3, 4]
    watch.start(tmp_path, *BASE, "epochs=4", "schedule_end=3")  # fewer than it has
    assert "nothing is trained" in capsys.readouterr().out
    assert len(watch.seen) == 12 + 8


def test_a_run_that_was_killed_after_its_last_checkpoint_is_done(
    watch: Watch, tmp_path: Path
) -> None:
    watch.start(tmp_path, *BASE)
    file = tmp_path / "status.json"
    status = read_json(file) | {"status": "running"}
    status["sessions"][-1][1] = None
    file.write_text(json.dumps(status))
    watch.start(tmp_path, *BASE)

    after = read_json(file)
    assert (after["status"], after["config"], len(watch.seen)) == ("done", status["config"], 12)
    assert [end is None for _, end in after["sessions"]] == [True, False]
    assert [row["epoch"] for row in runs.rows(tmp_path)] == [0, 1, 2]


def test_a_run_that_ended_early_says_so(
    watch: Watch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*BASE, "optimizer.lr=1e-9", "schedule=constant", "epochs=9")
    watch.start(tmp_path, *options, "trainer.early_stopping=1")
    count = len(watch.seen)
    assert count < 36
    watch.start(tmp_path, *options, "trainer.early_stopping=1")
    assert "it ended early, after 1 evaluations without a new best" in capsys.readouterr().out
    assert len(watch.seen) == count
    watch.start(tmp_path, *options, "trainer.early_stopping=null")
    assert len(watch.seen) == 36


def test_states_of_generators_survive(tmp_path: Path) -> None:
    import random

    import numpy as np

    from training.randomness import random_states, restore_random_states

    def draw() -> Any:
        return (
            random.random(),
            random.gauss(0, 1),
            np.random.rand(),
            np.random.randn(),
            torch.rand(2),
        )

    draw()  # leaves half a pair of normal numbers waiting
    torch.save(random_states(), tmp_path / "states.pt")
    expected = str(draw())
    restore_random_states(torch.load(tmp_path / "states.pt", weights_only=True))
    assert str(draw()) == expected


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
def test_a_broken_file_of_a_run_does_not_stop_it(watch: Watch, tmp_path: Path, name: str) -> None:
    """What is lost is lost; what remains is trained."""
    options = (*BASE, "data.train.limit=16", "data.val.limit=10")
    watch.start(tmp_path, *options, "epochs=1")
    for number, content in enumerate(BROKEN[name], 2):
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_bytes(content)
        end = () if number == 2 else ("schedule_end=1",)
        watch.start(tmp_path, *options, f"epochs={number}", *end)
        assert len(watch.seen) == number
        assert runs.rows(tmp_path)[-1]["epoch"] == number - 1
    log = (tmp_path / "train.log").read_text()
    assert ("are code and data what they were?" in log) == (name == "inputs.json")
