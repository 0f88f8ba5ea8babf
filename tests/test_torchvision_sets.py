"""torchvision's own data sets, on small files in the layout of the real ones."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import picture, write
from runs import train
from torchvision import datasets, tv_tensors

from training.config import ConfigError
from training.data.cifar10 import Cifar10
from training.data.imagenette import Imagenette

HAS_IMAGENETTE = hasattr(datasets, "Imagenette")

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
WNIDS = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of CIFAR-10 with 4 images each; their checksums are those that torchvision asks."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)

    def put(name: str, content: Any) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    def batch(name: str) -> list[str]:
        pixels = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        return [name, put(name, {"data": pixels, "labels": rng.integers(0, 10, 4).tolist()})]

    files = [batch(f"data_batch_{number}") for number in range(1, 6)]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", files)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [batch("test_batch")])
    meta = {
        "filename": "batches.meta",
        "key": "label_names",
        "md5": put("batches.meta", {"label_names": NAMES}),
    }
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    return tmp_path


@pytest.fixture
def imagenette(tmp_path: Path) -> Path:
    """The folders of Imagenette with 3 images a class for training, and 2 for validation."""
    if not HAS_IMAGENETTE:
        pytest.skip("torchvision 0.16 has no Imagenette")
    for number, wnid in enumerate(WNIDS):
        for split, count in {"train": 3, "val": 2}.items():
            for index in range(count):
                folder = tmp_path / "imagenette2-160" / split / wnid
                image = picture(9 * number + index, (48, 32 + index))
                write(folder / f"{wnid}_{split}{index}.JPEG", image)
    (tmp_path / "imagenette2-160" / "noisy_imagenette.csv").write_text("path,noisy_labels_0\n")
    return tmp_path


def test_cifar10_is_what_torchvision_reads(cifar: Path) -> None:
    for split, size in {"train": 20, "val": 4}.items():
        source = Cifar10(str(cifar), split)
        reference = datasets.CIFAR10(cifar, train=split == "train")
        assert (len(source), source.classes) == (size, NAMES)
        for index in range(size):
            image, label = reference[index]
            item = source[index]
            assert type(item["image"]) is tv_tensors.Image
            assert item["image"].permute(1, 2, 0).tolist() == np.asarray(image).tolist()
            assert (type(item["label"]), item["label"]) == (int, label)
            assert label == int(source.labels[index])
        copy = pickle.loads(pickle.dumps(source))
        assert copy.identity() == source.identity()


def test_the_identity_of_cifar10_is_its_content(cifar: Path) -> None:
    train, val = Cifar10(str(cifar), "train"), Cifar10(str(cifar), "val")
    marks = {train.identity(), val.identity(), train.identity()}
    assert len(marks) == 2
    train[3]["image"].zero_()
    assert train.identity() in marks
    train.images[3, 0, 0, 0] ^= 1
    marks.add(train.identity())
    train.labels[3] += 1
    marks.add(train.identity())
    assert len(marks) == 4


def test_imagenette_is_what_torchvision_reads(imagenette: Path) -> None:
    for split, size in {"train": 30, "val": 20}.items():
        source = Imagenette(str(imagenette), split, size="160px")
        reference = datasets.Imagenette(imagenette, split=split, size="160px")
        assert (len(source), source.classes) == (size, list(WNIDS.values()))
        for index in range(size):
            image, label = reference[index]
            item = source[index]
            assert torch.equal(
                item["image"].as_subclass(torch.Tensor),
                torch.from_numpy(np.array(image)).permute(2, 0, 1),
            )
            assert item["label"] == label


@pytest.mark.parametrize("there", [True, False])
def test_what_is_there_is_not_downloaded_again(
    imagenette: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(datasets.Imagenette, "_download", lambda self: asked.append(self._size))
    if there:
        Imagenette(str(imagenette), "train", size="160px", download=True)
    else:
        with pytest.raises(FileNotFoundError):  # as this download brings nothing
            Imagenette(str(imagenette), "train", size="320px", download=True)
    assert asked == ([] if there else ["320px"])


@pytest.mark.parametrize("name", ["cifar10", "imagenette"])
def test_a_data_set_that_is_not_there_is_named_in_a_line(name: str, tmp_path: Path) -> None:
    said = r"data\.train: .* refused .* data\.download=true fetches "
    if name == "imagenette" and not HAS_IMAGENETTE:
        said = r"data=imagenette must have torchvision 0\.17 or newer, but "
    with pytest.raises(ConfigError, match=said):
        train(tmp_path / "run", f"data={name}", f"data.root={tmp_path}")


def test_torchvision_without_imagenette_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(datasets, "Imagenette", raising=False)
    with pytest.raises(ConfigError, match=r"^data=imagenette must have torchvision 0\.17 or newer"):
        Imagenette("nowhere", "train")


@pytest.mark.parametrize(("name", "sizes"), [("cifar10", (20, 3, 32)), ("imagenette", (30, 3, 48))])
def test_a_run_trains_on_it(
    name: str, sizes: tuple[int, int, int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue("cifar" if name == "cifar10" else name)
    augment = {"cifar10": "small_photos", "imagenette": "photos"}[name]
    more = ["data.train.size=160px"] if name == "imagenette" else []
    table = train(
        tmp_path / "run",
        *(f"data={name}", f"data.root={root}", f"data.image_size={sizes[2]}", *more),
        *(f"augment={augment}", "lifetime=2"),
    )
    num_train = sizes[0]
    assert [(row["built"], row["reused"]) for row in table] == [
        (num_train, 0),
        (num_train // 2, num_train // 2),
    ]
