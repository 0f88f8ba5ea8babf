"""The digits that ship with the project."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from training.data.digits import FILE, Digits


def test_every_fifth_image_is_for_validation() -> None:
    with np.load(FILE, allow_pickle=False) as arrays:
        labels = arrays["labels"]
    train, val = Digits("train"), Digits("val")
    assert (len(train), len(val)) == (1437, 360)
    assert val.labels.tolist() == labels[::5].tolist()
    assert train.labels.tolist() == [label for i, label in enumerate(labels.tolist()) if i % 5]


def test_all_classes_are_in_both_splits() -> None:
    assert np.bincount(Digits("train").labels).sum() == 1437
    assert np.bincount(Digits("train").labels).min() > 100
    assert np.bincount(Digits("val").labels).min() > 20


def test_values_from_0_to_16_become_bytes() -> None:
    source = Digits("train")
    item = source[0]
    assert (item["image"].dtype, item["image"].shape) == (torch.uint8, (1, 8, 8))
    assert max(int(source[index]["image"].max()) for index in range(100)) == 255
    assert item["image"].flatten().tolist() == [
        v * 255 // 16 for v in source.images[0].flatten().tolist()
    ]
    assert item["label"] == int(source.labels[0])


def test_the_content_has_an_identity() -> None:
    assert Digits("train").identity()[:16] == "0cc0f2956d2e20ec"
    assert Digits("train").identity() != Digits("val").identity()
    assert Digits("train", limit=10).identity() != Digits("train", limit=11).identity()
    copy = pickle.loads(pickle.dumps(Digits("train", limit=10)))
    assert copy.identity() == Digits("train", limit=10).identity()


@pytest.mark.parametrize(
    "arguments", [{"split": "test"}, {"split": "train", "limit": 0}, {"split": "val", "limit": -1}]
)
def test_wrong_arguments_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be .* but got"):
        Digits(**arguments)
