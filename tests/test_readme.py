"""What the README shows is run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import begin, prepare, train
from torchvision import tv_tensors

PROJECT = Path(__file__).resolve().parent.parent
README = (PROJECT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
LIBRARY, PLAIN, OWN_BUILD, OWN_SOURCE, OWN_MODEL = BLOCKS


@pytest.mark.parametrize(
    ("block", "samples", "files"), [(LIBRARY, 1200, 600), (PLAIN, 120, 80)], ids=["own", "plain"]
)
def test_the_examples_of_the_library_run(
    block: str, samples: int, files: int, tmp_path: Path
) -> None:
    code = block.replace("range(100)", "range(1)").replace("range(6)", "range(1)")
    code = code.replace("num_workers=8", "num_workers=2")
    run([sys.executable, "-W", "error", "-c", code], tmp_path, PYTHONPATH=str(PROJECT))
    # After epoch 0 all are stored but those whose generation ends with it.
    assert len(list((tmp_path / "cache").rglob("*.pt"))) == files
    assert f", {samples}, " in block


def copy_project(folder: Path) -> None:
    """Copy what a user's own module is put beside."""
    for name in ("conf", "reuseloader", "training"):
        shutil.copytree(PROJECT / name, folder / name)
    shutil.copy(PROJECT / "train.py", folder)


def test_a_build_function_of_the_users_own_trains(tmp_path: Path) -> None:
    copy_project(tmp_path)
    (tmp_path / "my_build.py").write_text(OWN_BUILD)
    command = re.search(r"python (train\.py build\._target_.*)", README)
    assert command is not None
    small = "data.train.limit=64 data.val.limit=20 epochs=3 num_workers=0"
    printed = run([sys.executable, *command[1].split(), *small.split()], tmp_path)
    assert "built 32  reused 32" in printed


def test_a_source_of_the_users_own_trains(tmp_path: Path) -> None:
    assert len(OWN_SOURCE.splitlines()) <= 20
    copy_project(tmp_path)
    (tmp_path / "my_source.py").write_text(OWN_SOURCE)
    command = re.search(r"python (train\.py data\.train\._target_.*)", README)
    assert command is not None
    small = "augment=none epochs=3 num_workers=0"
    printed = run([sys.executable, *command[1].split(), *small.split()], tmp_path)
    assert "400 samples for training, 100 for validation, 2 classes" in printed
    assert "built 200  reused 200" in printed


own: dict[str, Any] = {"__name__": "own"}
exec(OWN_SOURCE, own)


class Marked(own["Stripes"]):  # type: ignore[misc]
    """The source of the README, with a mask and boxes in the item."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        mask = torch.zeros(1, 8, 8, dtype=torch.uint8)
        mask[:, 2:6, 2:6] = 2
        boxes = torch.tensor([[2.0, 2.0, 6.0, 6.0]])
        item["mask"] = tv_tensors.Mask(mask)
        item["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(8, 8))  # type: ignore[call-arg]
        return item


def test_masks_and_boxes_go_along_with_the_image(tmp_path: Path) -> None:
    assert "Masks and boxes go along" in README
    nodes = [f"data.{split}._target_=test_readme.Marked" for split in ("train", "val")]
    words = [*nodes, "data.num_classes=2", "augment=digits", "trainer.fast_dev_run=true"]
    train(tmp_path / "run", *words)
    with begin(tmp_path / "again", *words) as started:
        loaders = prepare(started)[1]
        for batch in (next(iter(loaders.train)), next(iter(loaders.val))):
            assert batch["image"].shape == (16, 3, 64, 64)
            assert batch["mask"].shape == (16, 1, 64, 64)
            assert set(batch["mask"].unique().tolist()) == {0, 2}
            assert batch["boxes"].shape == (16, 1, 4)
        assert batch["boxes"].unique(dim=0).tolist() == [[[16.0, 16.0, 48.0, 48.0]]]
        assert batch["mask"][0].sum() == 2 * 32 * 32


def test_a_model_an_optimizer_and_a_schedule_of_the_users_own_train(tmp_path: Path) -> None:
    copy_project(tmp_path)
    (tmp_path / "my_model.py").write_text(OWN_MODEL)
    command = re.search(r"python (train\.py model\._target_=my_model.*)", README)
    assert command is not None
    small = "augment=none data.train.limit=64 data.val.limit=20 epochs=2 num_workers=0"
    printed = run([sys.executable, *shlex.split(command[1]), *small.split()], tmp_path)
    assert "Sequential with 1930 parameters" in printed
    assert "best accuracy" in printed


def test_every_file_of_the_run_folder_is_explained() -> None:
    for name in ("config.yaml", "overrides", "curriculum.yaml", "environment.json"):
        assert f"`{name}`" in README


def run(command: list[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
