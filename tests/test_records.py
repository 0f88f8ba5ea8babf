"""The run folder: what is written, what is kept secret, and what is true at the end."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from runs import begin

from training import environment
from training.config import ConfigError
from training.records import resolved

SECRET = "s3cr3t-0f-the-user"


def status(run: Path) -> str:
    state: dict[str, Any] = json.loads((run / "status.json").read_text())
    return str(state["status"])


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("${oc.env:API_TOKEN}", "${oc.env:API_TOKEN}"),
        ("Bearer ${oc.env:API_TOKEN}!", "Bearer ${oc.env:API_TOKEN}!"),
        ("${oc.env:API_TOKEN,none}", "${oc.env:API_TOKEN,none}"),
        ("${first}", "${oc.env:API_TOKEN}"),
        ("${oc.env:DATA_ROOT}/train", "/data/train"),
        ("${oc.env:HOME_OF_SECRETS}", "${oc.env:HOME_OF_SECRETS}"),
        ("${oc.decode:${oc.env:API_TOKEN}}", "${oc.decode:${oc.env:API_TOKEN}}"),
    ],
)
def test_references_to_the_environment_stay_references(
    written: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    monkeypatch.setenv("HOME_OF_SECRETS", SECRET)
    monkeypatch.setenv("DATA_ROOT", "/data")
    config = OmegaConf.create({"first": "${oc.env:API_TOKEN}", "node": {"list": [written]}})
    assert resolved(config)["node"]["list"] == [kept]
    again = OmegaConf.create({"x": "${oc.env:API_TOKEN}"})
    assert again.x == SECRET  # the resolver itself works as before


def test_all_other_interpolations_are_resolved() -> None:
    config = OmegaConf.create({"a": 2, "b": ["${a}", "${times:1.5,${a}}"], "c": {"d": "${b}"}})
    assert resolved(config) == {"a": 2, "b": [2, 3.0], "c": {"d": [2, 3.0]}}


def test_an_interpolation_that_leads_nowhere_is_named() -> None:
    with pytest.raises(ConfigError, match=r"b\.c: \$\{nowhere\} cannot be resolved"):
        resolved(OmegaConf.create({"b": {"c": "${nowhere}"}}))


def test_no_file_of_a_run_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    token = "+model.token='${oc.env:API_TOKEN}'"
    with begin(tmp_path / "run", token) as run:
        assert run.config.model["token"] == SECRET
    found = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(found) >= 6
    assert [path for path in found if SECRET.encode() in path.read_bytes()] == []


def test_the_record_is_there_before_the_first_step(tmp_path: Path) -> None:
    with begin(tmp_path / "run", "lifetime=3"):
        assert status(tmp_path / "run") == "running"
        assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["lifetime"] == 3
        assert (tmp_path / "run" / "overrides").read_text() == "lifetime=3\n"
        packages = json.loads((tmp_path / "run" / "environment.json").read_text())["packages"]
        assert packages["torch"] == torch.__version__.partition("+")[0]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, "done"), (RuntimeError("bad"), "failed"), (KeyboardInterrupt(), "interrupted")],
)
def test_the_status_tells_how_a_run_ended(
    error: BaseException | None, expected: str, tmp_path: Path
) -> None:
    try:
        with begin(tmp_path / "run") as run:
            (run.cache / "train").mkdir(parents=True)
            if error is not None:
                raise error
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert status(tmp_path / "run") == expected
    assert (tmp_path / "run" / "cache").exists() == (expected != "done")
    assert ("bad" in (tmp_path / "run" / "status.json").read_text()) == (expected == "failed")
    traceback = "Traceback" in (tmp_path / "run" / "train.log").read_text()
    assert traceback == (expected == "failed")


def test_a_folder_of_the_users_own_is_never_removed(tmp_path: Path) -> None:
    with begin(tmp_path / "run", f"cache.directory={tmp_path / 'samples'}") as run:
        run.cache.mkdir()
    assert (tmp_path / "samples").exists()
    with begin(tmp_path / "kept", "cache.keep=true") as run:
        run.cache.mkdir()
    assert (tmp_path / "kept" / "cache").exists()


def test_a_recorded_run_is_not_begun_again(tmp_path: Path) -> None:
    with begin(tmp_path / "run"):
        pass
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with (
        pytest.raises(ConfigError, match=r"hydra\.run\.dir must be a new folder"),
        begin(tmp_path / "run"),
    ):
        pass
    assert {path: path.read_bytes() for path in before} == before


def test_warnings_go_to_the_log_and_to_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with begin(tmp_path / "run"):
            warnings.warn("mind this", stacklevel=1)
    assert "mind this" in (tmp_path / "run" / "train.log").read_text()
    assert "warning: mind this" in capsys.readouterr().out


def test_logging_and_warnings_are_left_as_they_were(tmp_path: Path) -> None:
    before = (warnings.formatwarning, warnings.showwarning)
    with begin(tmp_path / "run"):
        pass
    assert (warnings.formatwarning, warnings.showwarning) == before
    assert logging.getLogger("training").handlers == []


def test_a_save_that_breaks_midway_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_midway(state: Any, file: Any) -> None:
        file.write(b"half of")
        raise OSError("disk full")

    with begin(tmp_path / "run") as run:
        run.save_checkpoint("last", {"step": 1})
        monkeypatch.setattr(torch, "save", break_midway)
        with pytest.raises(OSError, match="disk full"):
            run.save_checkpoint("last", {"step": 2})
        assert torch.load(run.checkpoints / "last.pt", weights_only=True) == {"step": 1}


def test_a_project_without_git_is_described_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment.describe()["git"] is None
    assert environment.git_diff() == ""
