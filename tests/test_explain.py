"""What Hydra and OmegaConf say, turned into one line with a remedy."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf

from training import explain as module
from training.explain import CONF, EXTRAS, explain, mistake_in_files
from training.targets import PROJECT


def answer(*overrides: str) -> str:
    """Return what is said of overrides that do not compose."""
    with initialize_config_dir(str(CONF), version_base="1.3"), pytest.raises(HydraException) as e:
        compose("config", overrides=list(overrides))
    return explain(e.value)


SAID = {
    "cache=[]": "cache must be a mapping, set by its entries, but got cache=[]",
    "data.mean={a: 1}": "data.mean must be a list, in brackets, but got data.mean={a: 1}",
    "cache={a: 1}": "cache has no such entry: one that it has is set by its name, cache.NAME=value",
    "data.prepare={a: 1}": "data.prepare takes a new entry by its name: +data.prepare.NAME={_targe",
    "data.on_error=skip": "data.on_error is a key of other files of conf/data than the one in use",
    "lifetme=2": "lifetme is not a key of the config; did you mean lifetime?",
    "model.widht=3": "model.widht is not a key of the config; did you mean model.width?",
    "build.noise=0.2": "build.noise is not a key of the config; as one more argument of build: "
    "+build.noise=0.2",
    "data.train.fraction=1": "data.train.fraction is not a key of the config; as one more "
    "argument of data.train: +data.train.fraction=1",
    "loader.zzz=1": "loader.zzz is not a key of the config; known: loader.drop_last",
    "~augment.stored.blurr": "augment.stored.blurr is not a key of the config; did you mean "
    "augment.stored.blur?",
    "~nope": "nope is not a key of the config; `python train.py --help` lists them",
    "~lifetime=3": "~lifetime leaves the key out, whatever its value",
    "+lifetime=2": "lifetime is a key already: leave out the +",
    "+model=small": "model is chosen already: leave out the +",
    "model=torch.nn.Linear": "model must be a file of conf/model, but got model=torch.nn.Linear; "
    "a class or function is named by model._target_=torch.nn.Linear",
    "data=nope": "data must be a file of conf/data, but got data=nope; known: ",
    "augment=digit": "augment must be a file of conf/augment, but got augment=digit; did you mean "
    "augment=digits?",
    "curriculum={0: {magnitude: 1}}": "curriculum names one file of conf/curriculum; a value in it",
    "model@x=small": "model names one file of conf/model",
    "hydra.nope=1": "hydra.nope is not a key of Hydra's; `python train.py --cfg hydra` shows them",
    "lifetime=1,2": "lifetime=1,2 is several values, and -m runs a job for each: "
    "python train.py -m lifetime=1,2; a text",
    "lifetime=choice(1,2)": "lifetime=choice(1,2) is several values, and -m runs a job for each: "
    "python train.py -m 'lifetime=choice(1,2)'; a text",
    "lifetime==2": "lifetime==2 must have the form key=value, with one equals sign",
    "lifetime=1,": "lifetime=1, must have the form key=value, with a value on either side of a",
    "lifetime=,": "lifetime=, must have the form key=value, with a value on either side of a",
    "lifetime=2 seed=3": "lifetime=2 seed=3 must have the form key=value, one an argument",
    "hydra.run.dir=a(b)": "hydra.run.dir=a(b) must have the form key=value, and a value with "
    "signs that mean something to Hydra quotes of its own: ",
    "augment.stored=[1]": "augment.stored must be a mapping, set by its entries, but got augment.s",
}


@pytest.mark.parametrize("override", SAID)
def test_an_override_that_does_not_compose_is_answered_in_a_line(override: str) -> None:
    said = answer(override)
    assert said.startswith(SAID[override])
    assert "\n" not in said


def test_the_quotes_that_are_proposed_work() -> None:
    command = answer("hydra.run.dir=it's (a b), {c}").rpartition("its own: ")[2]
    assert command == """'hydra.run.dir='"'"'it\\'"'"'s (a b), {c}'"'"''"""
    (word,) = shlex.split(command)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=[word], return_hydra_config=True)
    assert config.hydra.run.dir == "it's (a b), {c}"


def test_a_key_that_another_argument_took_away_is_told_from_an_unknown_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = "model.width is not there: another argument leaves out, or replaces, what it lies in"
    assert expected == answer("~model", "model.width=3")


def test_a_key_is_looked_up_in_the_files_that_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "optimizer=sgd", "optimizer.momentm=0.5"])
    expected = "optimizer.momentm is not a key of the config; did you mean optimizer.momentum?"
    assert expected == answer("optimizer=sgd", "optimizer.momentm=0.5")


def test_a_wrong_choice_does_not_hide_a_wrong_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "optimizer=nope", "lifetme=2"])
    expected = "lifetme is not a key of the config; did you mean lifetime?"
    assert expected == answer("lifetme=2")


def test_each_extra_is_one_of_the_project() -> None:
    text = (PROJECT / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= extras.keys()


BROKEN = {
    "a: 1\nb:\n\tc: 1\n": "line 3: found character '\\t' that cannot start any token; indent with",
    "a: [1\n": "line 2: expected ',' or ']', but got '<stream end>'",
    "a: 1\na: 2\n": "line 2: found duplicate key a",
}


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for conf/."""
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(module, "CONF", tmp_path)
    monkeypatch.setattr(module, "PROJECT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_that_is_no_yaml_is_named_with_its_line(conf: Path, text: str) -> None:
    (conf / "data" / "mine.yaml").write_text(text)
    with pytest.raises(yaml.YAMLError) as caught:
        OmegaConf.load(conf / "data" / "mine.yaml")
    said = mistake_in_files(caught.value)
    assert said is not None
    assert said.startswith(f"data/mine.yaml, {BROKEN[text]}")
    assert "\n" not in said


def test_a_file_that_is_no_text_or_holds_no_keys_is_named(conf: Path) -> None:
    (conf / "data" / "latin.yaml").write_bytes(b"a: \xe9\n")
    expected = "data/latin.yaml must be a text in UTF-8: 'utf-8' codec can't decode byte 0xe9"
    assert str(mistake_in_files(UnicodeDecodeError("utf-8", b"\xe9", 0, 1, ""))).startswith(
        expected
    )
    (conf / "data" / "latin.yaml").write_text("- a\n")
    expected = "data/latin.yaml must hold keys with values, but holds a list"
    assert expected == mistake_in_files(TypeError("Index 'train' (str) is not an int"))


def test_an_error_that_no_file_explains_is_left_to_its_traceback(conf: Path) -> None:
    (conf / "data" / "good.yaml").write_text("a: 1\n")
    assert mistake_in_files(TypeError("a bug")) is None


def test_an_entry_is_added_by_its_name_and_none_is_left_out_of_a_run_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = "trainer.batch_transforms={a: {_target_: torchvision.transforms.v2.RandomErasing}}"
    assert answer(whole) == (
        "trainer.batch_transforms takes a new entry by its name: "
        "+trainer.batch_transforms.NAME={_target_: ...}"
    )
    monkeypatch.setattr(sys, "argv", ["train.py", "resume=RUN", "~trainer.clip_norm"])
    assert module._unknown_key("trainer.clip_norm") == (
        "~trainer.clip_norm must not be given with resume: what was recorded is not left out"
    )


@pytest.mark.parametrize("value", ["3", "null", "true", "[1]"])
def test_a_choice_that_is_no_name_is_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    word = f"optimizer={value}"
    monkeypatch.setattr(sys, "argv", ["train.py", "data=digits", word])
    with (
        initialize_config_dir(str(CONF), version_base="1.3"),
        pytest.raises((TypeError, ValueError)) as caught,
    ):
        compose("config", overrides=sys.argv[1:])
    expected = f"optimizer must be a file of conf/optimizer, but got {word}; known: adamw, sgd"
    assert expected == mistake_in_files(caught.value)
