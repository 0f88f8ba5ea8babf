"""The mark of a build changes with all that the build depends on, and with nothing else."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from training import fingerprint as module
from training import targets
from training.config import Config
from training.fingerprint import ACCESS_KEYS, LOCATION_KEYS, code_of, fingerprint, project_code

TABLE = {0: {"stored.elastic.alpha": 1.0, "fresh.crop.padding": 1}}
ELASTIC = {"_target_": "torchvision.transforms.v2.ElasticTransform", "alpha": 3.0, "sigma": 2.0}
RGB = {"_target_": "torchvision.transforms.v2.RGB"}


def mark(config: Config, table: Any = None, stored: bool = True, content: str = "0") -> str:
    return fingerprint(config, table or TABLE, config.data.train, content, stored)


def changed(config: Config, **parts: Any) -> Config:
    """Return a config with other parts; those of `data` and `augment` go by their own names."""
    for name in ("data", "augment"):
        part = getattr(config, name)
        own = {f.name for f in dataclasses.fields(part)} & parts.keys()
        inner = {key: parts.pop(key) for key in own}
        parts[name] = dataclasses.replace(part, **inner)
    return dataclasses.replace(config, **parts)


@pytest.fixture(scope="module")
def config() -> Config:
    return changed(make_config(), stored={"elastic": ELASTIC, "rgb": RGB})


def test_everything_that_a_build_depends_on_changes_it(config: Config) -> None:
    build, train, prepare = config.build, config.data.train, config.data.prepare
    prepared = dict(reversed(prepare.items()))
    marks = [
        mark(config),
        mark(config, stored=False),
        mark(changed(config, build=build | {"noise": 0.1})),
        mark(changed(config, build=build | {"noise": 0.2})),
        mark(changed(config, build=build | {"noise": [0.1]})),
        mark(changed(config, build=build | {"root": "/data"})),  # only a source has a location
        mark(changed(config, build={"_target_": "training.build.finish_image"})),
        mark(changed(config, train=train | {"limit": 63})),
        mark(changed(config, train=train | {"split": "val"})),
        mark(changed(config, train=train | {"_target_": "training.data.digits.Other"})),
        mark(changed(config, prepare={"resize": prepare["resize"]})),
        mark(changed(config, prepare=prepared)),
        mark(changed(config, prepare=prepare | {"resize": prepare["resize"] | {"size": [8, 8]}})),
        mark(changed(config, stored={"elastic": ELASTIC | {"alpha": 4.0}, "rgb": RGB})),
        mark(changed(config, stored={"rgb": RGB, "elastic": ELASTIC})),
        mark(changed(config, stored={"elastic": ELASTIC})),
        mark(changed(config, stored={})),
        mark(changed(config, replaces_prepare=True)),
        mark(config, {0: {"stored.elastic.alpha": 2.0}}),
        mark(config, {0: {"stored.elastic.alpha": 1.0}, 4: {"stored.elastic.alpha": 2.0}}),
        mark(config, {0: {"stored.elastic.alpha": 1.0}, 5: {"stored.elastic.alpha": 2.0}}),
        mark(config, {0: {"stored.elastic.sigma": 1.0}}),
        mark(config, content="1"),
        mark(config, content=""),
    ]
    assert len(set(marks)) == len(marks)
    assert all(len(item) == 16 and int(item, 16) >= 0 for item in marks)


@pytest.mark.parametrize("name", ["torch", "torchvision"])
def test_another_version_of_torch_changes_it(
    config: Config, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = mark(config)
    monkeypatch.setattr(getattr(module, name), "__version__", "0.0.0")
    assert mark(config) != before


def test_what_a_build_does_not_see_leaves_it_alone(config: Config) -> None:
    crop = {"crop": {"_target_": "torchvision.transforms.v2.RandomCrop", "size": 64}}
    same = [
        config,
        changed(config, epochs=99, batch_size=7, lifetime=5, seed=1, num_workers=3, device="cuda"),
        changed(config, optimizer={"_target_": "torch.optim.SGD", "lr": 9.0}, model={}),
        changed(config, fresh=crop, mean=[0.0] * 3, std=[1.0] * 3, val={}),
        changed(config, magnitude=0.5),  # it counts by what follows from it
        changed(config, stored={"elastic": dict(reversed(ELASTIC.items())), "rgb": RGB}),
        *(changed(config, train=config.data.train | {key: "/a"}) for key in LOCATION_KEYS),
        *(changed(config, train=config.data.train | {key: 7}) for key in ACCESS_KEYS),
    ]
    marks = {mark(item) for item in same}
    marks |= {mark(config, {0: {"stored.elastic.alpha": 1.0, "fresh.crop.padding": 2}})}
    assert len(marks) == 1
    assert LOCATION_KEYS == ("root", "path", "directory", "url")


def test_rows_of_a_curriculum_that_change_nothing_stored_do_not_count(config: Config) -> None:
    alpha = "stored.elastic.alpha"
    fresh = {0: {"fresh.crop.padding": 1}, 1: {"fresh.crop.padding": 2}}
    assert mark(config, fresh) == mark(config, {0: {}})
    twice = {0: {alpha: 1.0}, 2: {alpha: 1.0}, 4: {alpha: 2.0}}
    assert mark(config, twice) == mark(config, {0: {alpha: 1.0}, 4: {alpha: 2.0}})
    back = {0: {alpha: 1.0}, 2: {alpha: 2.0}, 4: {alpha: 1.0}}
    assert len({mark(config, twice), mark(config, back), mark(config, {0: {alpha: 1.0}})}) == 3
    stored = changed(config, store_all=True)
    assert mark(stored, fresh) != mark(stored, {0: {"fresh.crop.padding": 1}})


def test_fresh_transforms_count_where_they_are_stored(config: Config) -> None:
    crop = {"crop": {"_target_": "torchvision.transforms.v2.RandomCrop", "size": 64}}
    all_stored = changed(config, store_all=True)
    marks = {mark(item) for item in (config, all_stored, changed(all_stored, fresh=crop))}
    marks |= {mark(all_stored, {0: {"stored.elastic.alpha": 1.0, "fresh.crop.padding": 2}})}
    assert len(marks) == 4


def test_validation_does_not_depend_on_the_stored_transforms(config: Config) -> None:
    marks = {
        mark(item, table, stored=False)
        for item in (config, changed(config, stored={"rgb": RGB}))
        for table in (TABLE, {0: {"stored.elastic.alpha": 9.0}})
    }
    assert len(marks) == 1


@pytest.mark.parametrize("own", ["v2", "", "a/b c"])
def test_a_mark_of_the_users_own_is_taken_as_it_is(config: Config, own: str) -> None:
    assert mark(changed(config, fingerprint=own)) == own


FILES = {
    "mine/__init__.py": "",
    "mine/build.py": "from . import parts\nfrom .deep.one import f\nimport helper_of_mine as h\n",
    "mine/parts.py": "from helper_with_star import *\ndef late():\n    from helper_late import f\n",
    "mine/deep/__init__.py": "",
    "mine/deep/one.py": "from ..cycle import g\nfrom .two import *\n\nf = g\n",
    "mine/deep/two.py": "import torch\n",
    "mine/cycle.py": "import mine.build\n\ng = 1\n",
    "helper_of_mine.py": "from helper_of_helper import f\n",
    "helper_of_helper.py": "import os\n\nf = 1\n",
    "helper_late.py": "import sys\n",
    "helper_with_star.py": "",
    "mine/unused.py": "from . import build\n",
    "unused.py": "import mine.build\n",
}
USED = sorted(name for name in FILES if "unused" not in name)
NODE = {"_target_": "mine.build.build"}


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder the project."""
    monkeypatch.setattr(targets, "PROJECT", folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in list(sys.modules):
        if name.split(".")[0] in ("mine", "unused") or name.startswith("helper_"):
            monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a build module that imports in every way that there is."""
    for name, text in FILES.items():
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_text(text)
    use(tmp_path / "a", monkeypatch)
    return tmp_path / "a"


def test_the_modules_that_count_are_those_that_the_build_imports(project: Path) -> None:
    names = [name.removesuffix(".py").removesuffix("/__init__") for name in USED]
    assert list(code_of(NODE)) == sorted(name.replace("/", ".") for name in names)


@pytest.mark.parametrize("file", USED)
def test_the_text_of_a_build_and_of_what_it_imports_counts(project: Path, file: str) -> None:
    before = code_of(NODE)
    (project / file).write_text((project / file).read_text() + "# changed\n")
    after = code_of(NODE)
    assert before.keys() == after.keys()
    assert sum(before[name] != after[name] for name in before) == 1


@pytest.mark.parametrize("part", ["build", "train", "prepare", "stored"])
def test_the_text_behind_every_part_counts(project: Path, config: Config, part: str) -> None:
    node = {"list": [{"a": NODE}]} if part in ("prepare", "stored") else NODE
    mine = changed(config, **{part: node})
    before = mark(mine)
    (project / "helper_of_mine.py").write_text("# changed\n")
    assert mark(mine) != before


def test_moving_and_touching_files_changes_nothing(
    project: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = changed(config, build=NODE)
    before = mark(mine)
    for name in FILES:
        os.utime(project / name, (1, 1))
    (project / "mine" / "unused.py").write_text("SIZE = 4\n")
    (project / "unused.py").unlink()
    assert mark(mine) == before
    shutil.move(project, project.parent / "b")
    monkeypatch.undo()
    use(project.parent / "b", monkeypatch)
    assert mark(mine) == before


def test_every_process_and_every_machine_computes_the_same(
    project: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each run of the tests has other hashes of strings, so a literal tells whether they matter.
    for name in ("torch", "torchvision"):
        monkeypatch.setattr(getattr(module, name), "__version__", "2.0")
    nodes = {"train": {"_target_": "mine.parts.late", "a": [1, 2.5, None, True]}, "prepare": {}}
    mine = changed(config, build=NODE, stored={"rgb": RGB, "elastic": ELASTIC}, **nodes)
    assert mark(mine) == "b330d9a466b0b44a"


def test_the_code_of_a_run_is_that_of_the_pipeline_and_of_what_the_config_names(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("training", "reuseloader"):
        shutil.copytree(targets.PROJECT / folder, tmp_path / folder)
    shutil.copy(targets.PROJECT / "train.py", tmp_path)
    (tmp_path / "helper_of_mine.py").write_text("def f(): ...\n")
    monkeypatch.setattr(module, "PROJECT", tmp_path)
    use(tmp_path, monkeypatch)
    mine = changed(config, build={"_target_": "helper_of_mine.f"})
    marks = [project_code(config), project_code(mine)]
    for name in ("helper_of_mine.py", "training/loop.py", "train.py"):
        assert marks[-1] == project_code(mine)
        (tmp_path / name).write_text((tmp_path / name).read_text() + "# changed\n")
        marks.append(project_code(mine))
    assert len({*marks}) == 5
