"""The mark of a build changes with all that the build depends on, and with nothing else."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from training import fingerprint as module
from training import targets
from training.config import Config
from training.data.digits import Digits
from training.fingerprint import code_of, fingerprint
from training.targets import PROJECT

TABLE = {0: {"stored.elastic.alpha": 1.0, "fresh.crop.padding": 1}}
STORED = {"elastic": {"_target_": "torchvision.transforms.v2.ElasticTransform", "alpha": 3.0}}


class Source(Digits):
    content = "0"

    def identity(self) -> str:
        return self.content


def mark(config: Config, table: Any = None, stored: bool = True, content: str = "0") -> str:
    source = Source("train", limit=2)
    source.content = content
    return fingerprint(config, table or TABLE, config.data.train, source, stored)


def changed(config: Config, **parts: Any) -> Config:
    data = {name: parts.pop(name) for name in ("train", "prepare") if name in parts}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data), **parts)


@pytest.fixture
def config() -> Config:
    plain = make_config()
    return changed(plain, augment=dataclasses.replace(plain.augment, stored=STORED))


def test_everything_that_a_build_depends_on_changes_it(config: Config) -> None:
    train, prepare, augment = config.data.train, config.data.prepare, config.augment
    other = {"elastic": STORED["elastic"] | {"alpha": 4.0}}
    order = {"b": STORED["elastic"], "a": STORED["elastic"]}
    marks = [
        mark(config),
        mark(changed(config, build=config.build | {"noise": 0.1})),
        mark(changed(config, build={"_target_": "training.build.finish_image"})),
        mark(changed(config, train=train | {"limit": 63})),
        mark(changed(config, prepare={"resize": prepare["resize"]})),
        mark(changed(config, augment=dataclasses.replace(augment, stored=other))),
        mark(changed(config, augment=dataclasses.replace(augment, stored=order))),
        mark(config, {0: {"stored.elastic.alpha": 2.0}}),
        mark(config, {0: {"stored.elastic.alpha": 1.0}, 4: {"stored.elastic.alpha": 2.0}}),
        mark(config, content="1"),
        mark(config, stored=False),
    ]
    assert len(set(marks)) == len(marks)


def test_the_order_of_the_transforms_counts(config: Config) -> None:
    first = {"a": STORED["elastic"], "b": {"_target_": "torchvision.transforms.v2.RGB"}}
    second = dict(reversed(first.items()))
    marks = {
        mark(changed(config, augment=dataclasses.replace(config.augment, stored=stored)))
        for stored in (first, second)
    }
    assert len(marks) == 2


@pytest.mark.parametrize("name", ["torch", "torchvision"])
def test_another_version_of_torch_changes_it(
    config: Config, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = mark(config)
    monkeypatch.setattr(getattr(module, name), "__version__", "0.0.0")
    assert mark(config) != before


def test_what_a_build_does_not_see_leaves_it_alone(config: Config) -> None:
    fresh = {"crop": {"_target_": "torchvision.transforms.v2.RandomCrop", "size": 64}}
    same = [
        config,
        changed(config, epochs=99, batch_size=7, lifetime=5, seed=1, num_workers=3),
        changed(config, optimizer={"_target_": "torch.optim.SGD"}),
        changed(config, augment=dataclasses.replace(config.augment, fresh=fresh)),
        changed(config, train=config.data.train | {"root": "/elsewhere"}),
    ]
    marks = {mark(item) for item in same}
    marks |= {mark(config, {0: {"stored.elastic.alpha": 1.0, "fresh.crop.padding": 2}})}
    assert len(marks) == 1


def test_a_mark_of_the_users_own_is_taken_as_it_is(config: Config) -> None:
    assert mark(changed(config, fingerprint="v2")) == "v2"


def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder with a build module, which imports two of its neighbours, the project."""
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "__init__.py").write_text("")
    (folder / "mine" / "build.py").write_text("from . import parts\nimport helper_of_mine\n")
    (folder / "mine" / "parts.py").write_text("SIZE = 3\n")
    (folder / "mine" / "other.py").write_text("SIZE = 3\n")
    (folder / "helper_of_mine.py").write_text("def f(): return 1\n")
    monkeypatch.setattr(targets, "PROJECT", folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] in ("mine", "helper_of_mine")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("file", ["mine/build.py", "mine/parts.py", "helper_of_mine.py"])
def test_the_text_of_a_build_and_of_what_it_imports_counts(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path, monkeypatch)
    node = {"_target_": "mine.build.build"}
    before = code_of(node)
    (tmp_path / file).write_text((tmp_path / file).read_text() + "# changed\n")
    assert code_of(node) != before
    assert set(before) == {"helper_of_mine", "mine", "mine.build", "mine.parts"}


def test_moving_and_touching_files_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path / "a", monkeypatch)
    before = code_of({"_target_": "mine.build.build"})
    os.utime(tmp_path / "a" / "mine" / "build.py", (1, 1))
    (tmp_path / "a" / "mine" / "other.py").write_text("SIZE = 4\n")  # which nothing imports
    assert code_of({"_target_": "mine.build.build"}) == before
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").mkdir()
    monkeypatch.undo()
    monkeypatch.setattr(targets, "PROJECT", tmp_path / "b")
    monkeypatch.syspath_prepend(str(tmp_path / "b"))
    for name in [name for name in sys.modules if name.split(".")[0] in ("mine", "helper_of_mine")]:
        monkeypatch.delitem(sys.modules, name)
    assert code_of({"_target_": "mine.build.build"}) == before


def test_every_process_computes_the_same(config: Config) -> None:
    code = (
        "import sys; sys.path[:0] = ['.', 'tests']\n"
        "from runs import make_config\n"
        "from training.data.digits import Digits\n"
        "from training.fingerprint import fingerprint\n"
        "config = make_config()\n"
        "print(fingerprint(config, {0: {}}, config.data.train, Digits('train'), True))"
    )
    marks = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=PROJECT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(marks) == 1
