"""From the arguments of a sweep to what its jobs share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import OmegaConf

from training import launch as module
from training.arguments import parse
from training.checks import ConfigError
from training.explain import CONF, EXTRAS
from training.launch import launch
from training.sweeps import OF_LIFETIMES


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*arguments: str) -> Path:
    """Start a sweep and end it at once; return its folder."""
    with launch(parse(["-m", *arguments])) as (_, sweep):
        return sweep


def test_the_jobs_share_a_folder_and_a_copy_of_conf(here: Path) -> None:
    with launch(parse(["-m", "lifetime=1,2", "hydra.sweep.dir=it"])) as (given, sweep):
        copy = Path(given.config_path)
    assert sweep == here / "it"
    assert copy.is_relative_to(sweep)
    assert {file.relative_to(CONF) for file in CONF.rglob("*.yaml")} == {
        file.relative_to(copy) for file in copy.rglob("*.yaml")
    }
    assert given.overrides[-1] == f"hydra.sweep.dir='{sweep}'"
    assert given.overrides[:-1] == ["lifetime=1,2", "hydra.sweep.dir=it"]
    assert HydraConfig.instance().cfg is None


def test_a_sweep_without_a_name_gets_a_new_folder(here: Path) -> None:
    first, second = start("lifetime=1,2"), start("lifetime=1,2")
    assert first != second
    assert first.parent.parent == here / "multirun"


def test_the_folder_of_a_sweep_over_lifetimes_is_refused_and_stays_as_it_is(here: Path) -> None:
    folder = here / "it"
    (folder / OF_LIFETIMES).parent.mkdir(parents=True)
    (folder / OF_LIFETIMES).write_text("seed: 0")
    with pytest.raises(ConfigError, match=r"it is that of a sweep over lifetimes$"):
        start("lifetime=1,2", "hydra.sweep.dir=it")
    assert [file for file in folder.rglob("*") if file.is_file()] == [folder / OF_LIFETIMES]


def test_files_of_the_users_own_are_copied_too(here: Path) -> None:
    shutil.copytree(CONF, here / "mine")
    config = (here / "mine" / "config.yaml").read_text()
    (here / "mine" / "config.yaml").write_text(config.replace("dir: multirun/", "dir: there/"))
    with launch(parse(["-m", "--config-path", str(here / "mine"), "seed=1,2"])) as started:
        given, sweep = started
    assert sweep.is_relative_to(here / "there")
    assert "dir: there/" in (Path(given.config_path) / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lifetime="], "lifetime must be an integer, but got lifetime="),
        (["lifetime=1,2", "epochs=-1"], "epochs must be a positive integer, but got epochs=-1"),
        (["lifetime=0,-1"], "lifetime must be a positive integer, but got lifetime=0"),
        (["lifetime=range(3,1)"], "a sweep must have a job, but there is no value in lifetime=ran"),
        (["--config-path=nowhere", "lifetime=1,2"], "--config-path must be a folder, but got nowh"),
    ],
)
def test_a_sweep_of_which_no_job_can_run_is_refused_before_the_first(
    here: Path, arguments: list[str], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        start(*arguments)
    assert str(caught.value).startswith(text)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["lifetime=0,1"],
        ["lifetime=1,0"],
        ["experiment=glob(*)"],
        ["optimizer.lr=interval(0,1)"],
    ],
)
def test_a_sweep_of_which_a_job_may_run_is_started(here: Path, arguments: list[str]) -> None:
    assert start(*arguments).is_dir()


def test_a_key_that_no_job_knows_is_refused(here: Path) -> None:
    with pytest.raises(HydraException, match="Could not override 'lifetme'"):
        start("lifetme=1,2")
    assert list(here.iterdir()) == []


def test_a_launcher_that_is_not_installed_is_named_with_its_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    for choice, extra in EXTRAS.items():
        if choice.startswith("hydra/launcher"):
            with pytest.raises(ConfigError) as caught:
                start(choice, "lifetime=1,2")
            expected = (
                f"{choice} needs packages that are not installed: pip install -e '.[{extra}]'"
            )
            assert str(caught.value) == expected


def test_each_launcher_of_conf_can_be_installed_by_an_extra() -> None:
    files = (CONF / "hydra" / "launcher").glob("*.yaml")
    chosen = {f"hydra/launcher={file.stem}" for file in files}
    assert chosen | {"hydra/sweeper=optuna"} == EXTRAS.keys()


def test_the_processes_of_a_launcher_find_the_project(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    start("lifetime=1,2")
    assert os.environ["PYTHONPATH"] == "/mine"
    start("hydra/launcher=joblib", "lifetime=1,2")
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(CONF.parent), "/mine"]


def test_a_search_makes_an_accuracy_large_and_a_loss_small() -> None:
    search = OmegaConf.load(CONF / "hydra" / "sweeper" / "search.yaml")
    for monitor, expected in (("val_accuracy", "maximize"), ("val_loss", "minimize")):
        config = OmegaConf.create({"trainer": {"monitor": monitor}, "search": search})
        assert config.search.direction == expected
