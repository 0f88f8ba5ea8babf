from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch import Tensor

from training import tracking
from training.checks import ConfigError
from training.options import TrackerConfig
from training.tracking import Trackers, flatten


class Fake:
    """Notes what it gets; fails in the methods named."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.calls: list[tuple[Any, ...]] = []

    def _note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise OSError("no space left\non the device")

    def scalars(self, values: dict[str, float], step: int) -> None:
        self._note("scalars", values, step)

    def picture(self, name: str, image: Tensor, step: int) -> None:
        self._note("picture", name, step)

    def flush(self) -> None:
        self._note("flush")

    def close(self, failed: bool) -> None:
        self._note("close", failed)


def read_events(directory: Path) -> EventAccumulator:
    events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    return events.Reload()


def test_a_tracker_that_fails_is_left_out_with_one_warning_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Fake("scalars"), Fake()
    with Trackers({"bad": bad, "good": good}) as trackers:
        for step in range(3):
            trackers.scalars({"train/loss": 0.5}, step)

    assert caplog.messages == [
        "bad failed and is left out from here on: no space left on the device"
    ]
    assert len(bad.calls) == 1
    assert len(good.calls) == 4
    assert good.calls[-1] == ("close", False)


@pytest.mark.parametrize("method", ["scalars", "picture", "close"])
def test_no_failure_of_a_tracker_stops_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fake = Fake(method)
    monkeypatch.setitem(tracking.KINDS, "tensorboard", lambda *_: fake)

    rows = runs.train(tmp_path, "tracker=tensorboard", "tracker.log_every=1")

    assert len(rows) == 2
    assert sum(call[0] == method for call in fake.calls) == 1
    assert (tmp_path / "train.log").read_text().count("is left out from here on") == 1


def test_a_tracker_that_does_not_open_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise ConnectionError("no network")

    monkeypatch.setitem(tracking.KINDS, "tensorboard", refuse)

    assert len(runs.train(tmp_path, "tracker=tensorboard")) == 2
    assert "tensorboard failed and is left out" in (tmp_path / "train.log").read_text()


def test_a_run_that_fails_is_closed_as_failed() -> None:
    fake = Fake()
    with pytest.raises(ZeroDivisionError), Trackers({"fake": fake}):
        raise ZeroDivisionError

    assert fake.calls == [("close", True)]


def test_a_picture_that_cannot_be_drawn_does_not_stop_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = Fake()
    Trackers({"fake": fake}).picture("grid", lambda: torch.zeros(1)[3], 0)

    assert fake.calls == []
    assert "the picture grid could not be drawn" in caplog.messages[0]


def test_nothing_is_drawn_for_nobody() -> None:
    Trackers({}).picture("grid", lambda: pytest.fail("drawn"), 0)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_package_that_is_missing_is_said_at_once_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda package: None if package == name else True)
    text = rf"^tracker\.{name} needs a package that is missing: pip install '\.\[{name}\]'$"
    with pytest.raises(ConfigError, match=text):
        runs.train(tmp_path, f"tracker={name}")

    assert not (tmp_path / "metrics.csv").exists()


def test_curves_run_over_updates_and_agree_with_metrics_csv(tmp_path: Path) -> None:
    options = ["tracker=tensorboard", "tracker.log_every=2", "trainer.echo=2", "epochs=3"]
    rows = runs.train(tmp_path, *options, "trainer.evaluate_every=2")

    events = read_events(tmp_path)

    evaluated = [row for row in rows if row["val_loss"] is not None]
    assert [event.step for event in events.Scalars("val/loss")] == [16, 24]
    assert [row["val_loss"] for row in evaluated] == pytest.approx(
        [event.value for event in events.Scalars("val/loss")]
    )
    assert list(range(2, 25, 2)) == [event.step for event in events.Scalars("train/loss")]
    epoch_0 = [event.value for event in events.Scalars("train/loss")][:4]
    assert rows[0]["train_loss"] == pytest.approx(sum(epoch_0) / 4)
    assert {"train/lr", "input/built", "input/reused", "input/wait_s", "val/accuracy"} <= {
        *events.Tags()["scalars"]
    }


@pytest.mark.parametrize("seconds", [(7, 7), (9, 8), (8, 9), (2_000_000_000, 9)])
def test_a_run_that_goes_on_replaces_its_points_whatever_the_clock_and_the_process_are(
    seconds: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As text "10" sorts before "9": of the number of a process, or of its writers as here.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(8))
    for number in range(4):
        now = seconds[min(number, 1)]
        monkeypatch.setattr(time, "time", lambda now=now: float(now))
        tensorboard = tracking.TensorBoard(tmp_path, {}, {}, number or None)
        for step in range(number, 6):
            tensorboard.scalars({"train/loss": 10.0 * number + step}, step)
        tensorboard.close(failed=False)

    points = read_events(tmp_path).Scalars("train/loss")
    assert [(point.step, point.value) for point in points] == [
        *[(0, 0.0), (1, 11.0), (2, 22.0)],
        *[(3, 33.0), (4, 34.0), (5, 35.0)],
    ]


def test_pictures_show_stored_and_fresh_samples_and_the_confusion_of_the_best_epoch(
    tmp_path: Path,
) -> None:
    runs.train(tmp_path, "tracker=tensorboard", "augment=digits", "epochs=1")

    events = read_events(tmp_path)

    assert {"input/stored_and_fresh", "val/confusion"} == {*events.Tags()["images"]}
    (grid,) = events.Images("input/stored_and_fresh")
    assert (grid.width, grid.height) == (4 * 135 + 4, 2 * 70 + 4)


def test_hyperparameters_are_shown_without_a_stray_folder(tmp_path: Path) -> None:
    runs.train(tmp_path, "tracker=tensorboard", "epochs=1")

    (file,) = (tmp_path / "tensorboard").iterdir()
    assert file.is_file()
    plugins = read_events(tmp_path).summary_metadata
    assert any(data.plugin_data.plugin_name == "hparams" for data in plugins.values())


def test_no_secret_of_the_environment_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "do-not-tell")
    runs.train(tmp_path, "tracker=tensorboard", "epochs=1", "fingerprint='${oc.env:API_KEY}'")

    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"do-not-tell" not in file.read_bytes(), file


def test_settings_are_flat_and_plain() -> None:
    settings = {"lr": 0.1, "model": {"width": 4, "names": ["a"]}, "empty": {}, "hydra": {"run": 1}}

    assert flatten(settings) == {"lr": 0.1, "model.width": 4, "model.names": "['a']", "empty": "{}"}


def next_second() -> None:
    """Let the clock reach it: event files are read in the order of the second in their names."""
    time.sleep(1 - time.time() % 1)


def test_a_run_that_continues_drops_the_points_from_its_first_step_on(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    config = TrackerConfig(tensorboard=True)
    with Trackers.of(tmp_path, config) as trackers:
        for step in range(1, 6):
            trackers.scalars({"train/loss": float(step)}, step)
    next_second()
    with Trackers.of(tmp_path, config, step=3) as trackers:
        trackers.scalars({"train/loss": 30.0}, 3)
        trackers.scalars({"train/loss": 40.0}, 4)
    assert [e.value for e in read_events(tmp_path).Scalars("train/loss")] == [1.0, 2.0, 30.0, 40.0]

    next_second()
    with Trackers.of(tmp_path, config, step=0):
        pass
    assert read_events(tmp_path).Scalars("train/loss") == []


def test_a_flush_brings_every_point_to_the_disk(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    with Trackers.of(tmp_path, TrackerConfig(tensorboard=True)) as trackers:
        trackers.scalars({"train/loss": 1.0}, 1)
        trackers.flush()
        assert [e.value for e in read_events(tmp_path).Scalars("train/loss")] == [1.0]


@pytest.mark.slow
def test_wandb_writes_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    runs.train(tmp_path, "tracker=wandb", "tracker.wandb.mode=offline")

    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert "is left out" not in (tmp_path / "train.log").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # its packages warn about each other
def test_mlflow_writes_a_local_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # pictures go to a folder mlruns/ here
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    rows = runs.train(tmp_path / "run", "tracker=mlflow", f"tracker.mlflow.tracking_uri={uri}")

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("reuseloader")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert rows[-1]["val_loss"] == pytest.approx(run.data.metrics["val/loss"])
    assert run.data.params["seed"] == "42"
    assert "is left out" not in (tmp_path / "run" / "train.log").read_text()
