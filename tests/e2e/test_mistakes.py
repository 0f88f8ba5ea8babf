"""What a user gets wrong is answered in one line, before any work."""

from __future__ import annotations

import pytest
from commands import Trainer

from training.recorded import quoted

MISTAKES = {
    "lifetime=0": "lifetime must be a positive integer, but got lifetime=0",
    "lifetime=-2": "lifetime must be a positive integer, but got lifetime=-2",
    "lifetime=two": "lifetime must be an integer, but got lifetime=two",
    "lifetime=1.5": "lifetime must be an integer, but got lifetime=1.5",
    "lifetime=null": "lifetime must be an integer, but got lifetime=null",
    "seed=abc": "seed must be an integer, but got seed=abc",
    "epochs=-1": "epochs must be a positive integer, but got epochs=-1",
    "batch_size=0": "batch_size must be a positive integer, but got batch_size=0",
    "num_workers=-1": "num_workers must be an integer from 0 up, but got num_workers=-1",
    "device=tpu": "device must be one of auto, cpu, cuda, mps, but got device=tpu",
    "lifetme=2": "lifetme is not a key of the config; did you mean lifetime?",
    "+lifetme=2": "lifetme is not a key of the config; did you mean lifetime?",
    "trian.epochs=2": "trian.epochs is not a key of the config; did you mean epochs?",
    "model.widht=3": "model.widht is not a key of the config; did you mean model.width?",
    "augment.stored.elastic.alhpa=3": "did you mean augment.stored.elastic.alpha?",
    "+typo=1": "typo is not a key of the config; `python train.py --help` lists them",
    "data=nope": "data must be a file of conf/data, but got data=nope; known:",
    "augment=non": "augment must be a file of conf/augment, but got augment=non; did you mean",
    "curriculum={0: {magnitude: 1}}": "curriculum names one file of conf/curriculum",
    "curriculum.table={0: {magnitud: 1}}": "magnitud is no parameter of augment; did you mean mag",
    "curriculum.table={2: {magnitude: 1}}": "curriculum.table must begin at epoch 0",
    "lifetime": "lifetime must have the form key=value",
    "lifetime=1,2": "lifetime=1,2 is several values, and -m runs a job for each",
    "--lifetime=2": "--lifetime=2 is not an option; a value is set without dashes, lifetime=2",
    "--resolve": "--resolve needs --cfg",
    "--config-name=nope": "--config-name must be a file of conf/, but got nope; known: config",
    "build.noise=0.2": "as one more argument of build: +build.noise=0.2",
    "build=my_build.build": "build must be a mapping, like build._target_=my_build.build",
    "build._target_=trainnig.build.build_image": "did you mean training.build.build_image?",
    "curriculum.table={0: 3}": "curriculum.table must be rows by first epoch, like {0: {magnitude",
    "curriculum.table={0: {magnitude: abc}}": "curriculum.table, row 0: magnitude must be a number",
    "~augment.stored.blurr": "did you mean augment.stored.blur?",
    "~nope": "nope is not a key of the config",
    "trainer=3": "trainer must be a file of conf/trainer, but got trainer=3; known: default",
    "data.mean=[nan,0,0]": "data.mean must be a list of finite numbers",
    "augment.magnitude=inf": "augment.magnitude must be a finite number",
    "optimizer._target_=os.system": "optimizer._target_ must lie in this project or in one of",
    "optimizer._target_=torch.optim.AdamV": "there is no torch.optim.AdamV",
    "optimizer.lr=-1": "optimizer: torch.optim.AdamW refused its arguments",
    "hydra.run.dir=/proc/nope": "hydra.run.dir must be a folder that can be made",
    "cache.directory=/proc/nope": "directory must be a folder that can be written",
    "data.num_classes=9": "data.num_classes must be the number of classes of data.train, 10",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line(train: Trainer, mistake: str) -> None:
    outcome = train.here(mistake)
    assert outcome.code == 1
    assert MISTAKES[mistake] in outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert not any((run / "checkpoints" / "last.pt").exists() for run in outcome.runs)


@pytest.mark.slow
def test_overrides_may_stand_on_either_side_of_an_option(train: Trainer) -> None:
    argv = ["lifetime=2", "trainer.fast_dev_run=true", "--multirun", "seed=1,2"]
    outcome = train.here(*argv)
    assert outcome.code == 0, outcome.err
    assert [run.name for run in outcome.runs] == ["0", "1"]


def test_a_run_folder_may_have_any_name(train: Trainer) -> None:
    for name in ("it's (a) b", "a=1,{\u00e9} $(x)"):
        folder = str(train.folder / name)
        outcome = train.here(f"hydra.run.dir={quoted(folder)}", "trainer.fast_dev_run=true")
        assert (outcome.code, outcome.err) == (0, "")
        assert [run.name for run in outcome.runs] == [name]
        again = train.here(f"resume={folder}", "epochs=2", small=False)
        assert (again.code, again.err) == (0, "")


@pytest.mark.slow
def test_a_name_that_the_terminal_cannot_show_stops_nothing(train: Trainer) -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for name in ("\u00e9", "\u2713"):
        process = train.start(
            f"hydra.run.dir={quoted(train.folder / name)}", "epochs=1", **variables
        )
        out, err = process.communicate(timeout=280)
        assert (process.returncode, err) == (0, "")
        assert "best accuracy" in out
        assert (train.folder / name / "train.log").read_text().count("run folder") == 1


def test_a_mistake_in_the_config_leaves_no_folder(train: Trainer) -> None:
    for mistake in ("lifetime=0", "+lifetme=2", "data=nope", "curriculum.table={2: {}}"):
        train.here(mistake)
    assert [path for path in train.folder.rglob("*") if path.is_file()] == []
