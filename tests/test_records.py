"""The run folder: what is written, what is kept secret, and what is true at the end."""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from runs import begin, compose_config

from training import environment
from training.config import ConfigError, load_config
from training.curriculum import expand
from training.resolved import resolved

SECRET = "-".join(("s3cr3t", "0f", "the", "user"))  # not as it would stand in a diff of this file
END = [(None, "done"), (RuntimeError("bad"), "failed"), (KeyboardInterrupt(), "interrupted")]


def status(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((run / "status.json").read_text())
    return state


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by its path."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_TOKEN", "HOME_OF_SECRETS", "token", "PATHS"):
        monkeypatch.setenv(name, SECRET)
    for name in ("DATA_ROOT", "ROOT", "SCRATCH_DIR"):
        monkeypatch.setenv(name, "/data")
    monkeypatch.setenv("NUMBER", "4")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("${oc.env:API_TOKEN}", "${oc.env:API_TOKEN}"),
        ("Bearer ${oc.env:API_TOKEN}!", "Bearer ${oc.env:API_TOKEN}!"),
        ("${oc.env:API_TOKEN,none}", "${oc.env:API_TOKEN,none}"),
        ("${oc.env:API_TOKEN}:${oc.env:token}", "${oc.env:API_TOKEN}:${oc.env:token}"),
        ("${oc.env:API_TOKEN,${oc.env:token}}", "${oc.env:API_TOKEN,${oc.env:token}}"),
        ("${first}", "${oc.env:API_TOKEN}"),
        ("${oc.select:first}", "${oc.env:API_TOKEN}"),
        ("${oc.env:${name}}", "${oc.env:API_TOKEN}"),
        ("${oc.decode:${oc.env:NUMBER}}", "${oc.decode:${oc.env:NUMBER}}"),
        ("${times:2.0,${oc.decode:${oc.env:NUMBER}}}",) * 2,
        ("${oc.env:HOME_OF_SECRETS}", "${oc.env:HOME_OF_SECRETS}"),
        ("${oc.env:PATHS}", "${oc.env:PATHS}"),
        ("${oc.env:DATA_ROOT}/train", "/data/train"),
        ("${oc.env:ROOT}", "/data"),
        ("${oc.env:SCRATCH_DIR,/tmp}/a", "/data/a"),
        ("${oc.env:UNSET_DIR,/tmp}/a", "/tmp/a"),
        ("${oc.env:DATA_ROOT}/${oc.env:API_TOKEN}", "/data/${oc.env:API_TOKEN}"),
    ],
)
def test_references_to_the_environment_stay_references_unless_to_a_place(
    written: str, kept: str, variables: None
) -> None:
    config = {"first": "${oc.env:API_TOKEN}", "name": "API_TOKEN", "node": {"list": [written]}}
    assert resolved(OmegaConf.create(config))["node"] == {"list": [kept]}
    assert OmegaConf.create({"x": "${oc.env:API_TOKEN}"}).x == SECRET  # which works as before


@pytest.mark.parametrize(
    "config",
    [
        *({"a": f"${{oc.env:UNSET_V,{text}}}"} for text in ("null", "true", "3", "'a, b'", "''")),
        *({"a": f"${{oc.env:UNSET_V,{text}}}"} for text in ('"x}y"', "[a,b]", " two words ")),
        {"a": r"\${oc.env:API_TOKEN}"},
        {"a": r"\${nowhere}", "b": "$5"},
        {"a": "${oc.decode:${oc.env:NUMBER}}", "b": "${a}", "c": "${times:2.0,${a}}"},
        {"a": "${oc.env:NUMBER}", "b": "${oc.decode:${a}}", "c": "${times:2,${a}}"},
        {"d": {"a": "${oc.env:API_TOKEN}", "b": "${.a}x"}, "e": "${d}", "f": "${d.b}"},
        {"d": {"a": "${oc.env:API_TOKEN}"}, "e": "${oc.dict.values:d}", "f": "${oc.create:${d}}"},
    ],
    ids=str,
)
def test_the_record_means_what_was_composed_and_holds_no_secret(
    config: dict[str, Any], variables: None
) -> None:
    composed = OmegaConf.create(config)
    record = resolved(composed)
    assert SECRET not in str(record)
    again = OmegaConf.create(yaml.safe_load(yaml.safe_dump(record)))
    expected = OmegaConf.to_container(composed, resolve=True)
    assert OmegaConf.to_container(again, resolve=True) == expected


def test_all_other_interpolations_are_resolved() -> None:
    config = OmegaConf.create({"a": 2, "b": ["${a}", "${times:1.5,${a}}"], "c": {1: "${b}"}})
    assert resolved(config) == {"a": 2, "b": [2, 3.0], "c": {1: [2, 3.0]}}
    assert OmegaConf.to_container(config, resolve=False)["b"][0] == "${a}"  # type: ignore[index]


def test_an_interpolation_that_leads_nowhere_is_named() -> None:
    with pytest.raises(ConfigError, match=r"b\.c: \$\{nowhere\} cannot be resolved"):
        resolved(OmegaConf.create({"b": {"c": "${nowhere}"}}))


def test_no_file_of_a_run_holds_a_secret(tmp_path: Path, variables: None) -> None:
    tokens = ["'${oc.env:API_TOKEN}'", "'a ${oc.env:token,x}'", "'${oc.decode:${oc.env:PATHS}}'"]
    overrides = [f"+model.token_{i}={token}" for i, token in enumerate(tokens)]
    with begin(tmp_path / "run", *overrides) as run:
        assert run.config.model["token_0"] == SECRET
        run.save_checkpoint("last", {"step": 1})
        run.add_metrics({"epoch": 0})
    found = files(tmp_path / "run")
    assert len(found) >= 8
    assert [name for name, content in found.items() if SECRET.encode() in content] == []


@pytest.mark.parametrize(
    "overrides", [["augment=digits", "curriculum=ramp"], ["optimizer=sgd", "schedule=multistep"]]
)
def test_the_recorded_config_is_the_config_of_the_run(tmp_path: Path, overrides: list[str]) -> None:
    with begin(tmp_path / "run", *overrides) as run:
        pass
    recorded = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert isinstance(recorded, type(compose_config()))
    again = load_config(recorded)
    assert dataclasses.replace(again, curriculum=run.config.curriculum) == run.config
    assert expand(recorded, again.curriculum.table) == run.curriculum  # by the expanded table
    assert "${" not in (tmp_path / "run" / "config.yaml").read_text()
    assert yaml.safe_load((tmp_path / "run" / "curriculum.yaml").read_text()) == run.curriculum


def test_the_record_is_there_before_the_first_step(tmp_path: Path) -> None:
    with begin(tmp_path / "run", "lifetime=3"):
        assert status(tmp_path / "run")["status"] == "running"
        assert status(tmp_path / "run")["pid"] == os.getpid()
        assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["lifetime"] == 3
        assert (tmp_path / "run" / "overrides").read_text() == "lifetime=3\n"
        packages = json.loads((tmp_path / "run" / "environment.json").read_text())["packages"]
        assert packages["torch"] == torch.__version__.partition("+")[0]
        assert list((tmp_path / "run").glob("*.tmp")) == []


@pytest.mark.parametrize(("error", "expected"), END)
def test_the_status_tells_how_a_run_ended(
    error: BaseException | None, expected: str, tmp_path: Path
) -> None:
    try:
        with begin(tmp_path / "run") as run:
            (run.cache / "train").mkdir(parents=True)
            if error is not None:
                raise error
    except (RuntimeError, KeyboardInterrupt) as caught:
        assert caught is error
    text = {"failed": "RuntimeError: bad"}.get(expected)
    assert status(tmp_path / "run")["status"] == expected
    assert status(tmp_path / "run")["error"] == text
    assert (tmp_path / "run" / "cache").exists() == (expected != "done")
    log = (tmp_path / "run" / "train.log").read_text()
    assert ("Traceback" in log and "raise error" in log) == (expected == "failed")


@pytest.mark.parametrize(("error", "_"), END)
def test_a_folder_of_the_users_own_is_never_removed(
    error: BaseException | None, _: str, tmp_path: Path
) -> None:
    own = [f"cache.directory={tmp_path / 'samples'}", "cache.keep=false"]
    for name, overrides in (("own", own), ("kept", ["cache.keep=true"])):
        try:
            with begin(tmp_path / name, *overrides) as run:
                run.cache.mkdir()
                (run.cache / "00000000.pt").write_text("x")
                if error is not None:
                    raise error
        except (RuntimeError, KeyboardInterrupt):
            pass
        assert (run.cache / "00000000.pt").read_text() == "x"


def test_the_folder_of_a_sweep_is_no_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / ".sweep").mkdir()
    with (
        pytest.raises(
            ConfigError, match=r"hydra\.run\.dir must be a new folder, but .* of a sweep$"
        ),
        begin(tmp_path),
    ):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == [".sweep"]


def test_a_recorded_run_is_not_begun_again(tmp_path: Path) -> None:
    with begin(tmp_path / "run"):
        pass
    before = files(tmp_path)
    with (
        pytest.raises(ConfigError, match=r"hydra\.run\.dir must be a new folder"),
        begin(tmp_path / "run", "lifetime=7"),
    ):
        pass
    assert files(tmp_path) == before


def test_metrics_have_one_header_and_a_row_an_epoch_from_the_moment_it_ends(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as run:
        for epoch in range(3):
            run.add_metrics({"epoch": epoch, "note": 'a, "b"\nc', "none": None})
            with open(run.directory / "metrics.csv", newline="") as file:
                table = list(csv.reader(file))
            row = [[str(n), 'a, "b"\nc', ""] for n in range(epoch + 1)]
            assert table == [["epoch", "note", "none"], *row]


def test_warnings_go_to_the_log_and_to_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with begin(tmp_path / "run"):
            warnings.warn("mind this", stacklevel=1)
    assert "WARNING mind this" in (tmp_path / "run" / "train.log").read_text()
    assert "warning: mind this" in capsys.readouterr().out


@pytest.mark.parametrize(("error", "_"), END)
def test_logging_and_warnings_are_left_as_they_were(
    error: BaseException | None, _: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loggers = [logging.getLogger(name) for name in ("training", "py.warnings")]
    for logger in loggers:  # as a notebook might have set them
        monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
        monkeypatch.setattr(logger, "propagate", True)
        monkeypatch.setattr(logger, "level", logging.WARNING)

    def state() -> Any:
        own = [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
        return own, list(logging.root.handlers), warnings.formatwarning, warnings.showwarning

    before = state()
    try:
        with begin(tmp_path / "run"):
            if error is not None:
                raise error
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert state() == before


def test_a_save_that_breaks_midway_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_midway(state: Any, file: Any) -> None:
        file.write(b"half of")
        raise OSError("disk full")

    with begin(tmp_path / "run") as run:
        run.save_checkpoint("last", {"step": 1})
        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", break_midway)
            with pytest.raises(OSError, match="disk full"):
                run.save_checkpoint("last", {"step": 2})
        assert torch.load(run.checkpoints / "last.pt", weights_only=True) == {"step": 1}
        run.save_checkpoint("last", {"step": 3})
        assert torch.load(run.checkpoints / "last.pt", weights_only=True) == {"step": 3}
        assert [path.name for path in run.checkpoints.iterdir()] == ["last.pt"]


def test_the_environment_is_described_without_its_variables(variables: None) -> None:
    text = json.dumps(environment.describe())
    assert SECRET not in text and "API_TOKEN" not in text
    assert json.loads(text)["torch"]["version"] == torch.__version__


def test_an_installed_package_without_a_name_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "~orch-1.0.dist-info").mkdir()  # as a broken installation leaves it
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "torch" in environment.describe()["packages"]


def test_a_project_without_git_is_described_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(environment, "PROJECT", tmp_path)  # no repository
        assert (environment.describe()["git"], environment.git_diff()) == (None, "")
    monkeypatch.setenv("PATH", "")  # no git
    assert (environment.describe()["git"], environment.git_diff()) == (None, "")
