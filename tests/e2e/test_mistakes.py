"""What a user gets wrong is answered in one line, before any work."""

from __future__ import annotations

import pytest
from commands import Trainer

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


def test_a_mistake_in_the_config_leaves_no_folder(train: Trainer) -> None:
    for mistake in ("lifetime=0", "+lifetme=2", "data=nope", "curriculum.table={2: {}}"):
        train.here(mistake)
    assert [path for path in train.folder.rglob("*") if path.is_file()] == []
