"""The digits that ship with the project."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from training.data.digits import FILE, Digits

SIZES = {"train": 1437, "val": 360}
COUNTS = {
    "train": [136, 154, 151, 135, 143, 143, 151, 153, 138, 133],
    "val": [42, 28, 26, 48, 38, 39, 30, 26, 36, 47],
}
IDENTITIES = {
    "train": "0cc0f2956d2e20ec345ce2a860c12469d8817521cb9d6020f13fc4819bf2752b",
    "val": "e28da192f0fcfc00dd445bad85cf3e95487fa54a7f5b4203cf901c997a94b127",
}
SPLITS = pytest.mark.parametrize("split", SIZES)


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    with np.load(FILE, allow_pickle=False) as loaded:
        return dict(loaded)


@SPLITS
def test_the_size_the_classes_and_the_content_are_known(split: str) -> None:
    source = Digits(split)
    assert len(source) == SIZES[split]
    assert source.classes == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
    assert np.bincount([source[i]["label"] for i in range(len(source))]).tolist() == COUNTS[split]
    assert source.identity() == IDENTITIES[split]


def test_the_published_set_has_as_many_of_each_class() -> None:
    # As scikit-learn's load_digits has them.
    published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert [sum(pair) for pair in zip(*COUNTS.values(), strict=True)] == published


def test_every_fifth_image_is_for_validation(arrays: dict[str, Any]) -> None:
    train, val = Digits("train"), Digits("val")
    assert val.images.tolist() == arrays["images"][::5].tolist()
    assert val.labels.tolist() == arrays["labels"][::5].tolist()
    rest = [i for i in range(1797) if i % 5]
    assert train.images.tolist() == arrays["images"][rest].tolist()
    assert train.labels.tolist() == arrays["labels"][rest].tolist()


def test_no_image_is_in_both_splits_or_twice_in_one() -> None:
    images = [image.tobytes() for split in SIZES for image in Digits(split).images]
    assert len(set(images)) == len(images) == 1797


@SPLITS
def test_values_from_0_to_16_become_bytes_from_0_to_255(split: str) -> None:
    source = Digits(split)
    scale = [0, 15, 31, 47, 63, 79, 95, 111, 127, 143, 159, 175, 191, 207, 223, 239, 255]
    seen = set()
    for index in range(len(source)):
        item = source[index]
        assert item.keys() == {"image", "label"}
        assert type(item["image"]) is tv_tensors.Image
        assert type(item["label"]) is int
        assert (item["image"].dtype, item["image"].shape) == (torch.uint8, (1, 8, 8))
        values = source.images[index].flatten().tolist()
        assert item["image"].flatten().tolist() == [scale[value] for value in values]
        seen.update(values)
    assert seen == set(range(17))


def test_changing_an_item_in_place_changes_no_later_one() -> None:
    source = Digits("val")
    before = source[0]["image"].clone()
    source[0]["image"].zero_()
    assert torch.equal(source[0]["image"], before)
    assert source.identity() == IDENTITIES["val"]


@SPLITS
@pytest.mark.parametrize("limit", [1, 7, 10**9])
def test_a_limit_keeps_the_first_ones(split: str, limit: int) -> None:
    source, whole = Digits(split, limit=limit), Digits(split)
    assert len(source) == min(limit, SIZES[split])
    assert source.labels.tolist() == whole.labels[:limit].tolist()
    assert source.images.tolist() == whole.images[:limit].tolist()
    assert source.classes == whole.classes
    assert (source.identity() == whole.identity()) == (limit > SIZES[split])


def test_another_content_has_another_identity() -> None:
    source = Digits("val", limit=10)
    marks = {source.identity(), Digits("val", limit=11).identity(), Digits("train", 10).identity()}
    source.labels[3] += 1
    marks.add(source.identity())
    source.labels[3] -= 1
    source.images[3, 4, 5] ^= 1
    marks.add(source.identity())
    assert len(marks) == 5


@SPLITS
def test_a_pickled_copy_is_equal(split: str) -> None:
    source = Digits(split, limit=20)
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.identity(), copy.classes, len(copy)) == (source.identity(), source.classes, 20)
    assert all(torch.equal(copy[i]["image"], source[i]["image"]) for i in range(20))
    assert [copy[i]["label"] for i in range(20)] == [source[i]["label"] for i in range(20)]


def test_an_index_beyond_the_end_is_refused_so_that_a_list_ends() -> None:
    source = Digits("val", limit=5)
    assert len(list(source)) == 5  # type: ignore[call-overload]
    assert source[np.int64(4)]["label"] == source[4]["label"]
    for index in (5, 360, -6):
        with pytest.raises(IndexError):
            source[index]


@pytest.mark.parametrize("split", ["test", "", "Train", None, 0])
def test_another_split_is_refused(split: Any) -> None:
    with pytest.raises(ValueError, match="split must be train or val") as caught:
        Digits(split)
    assert str(caught.value) == f"split must be train or val, but got split={split!r}"


@pytest.mark.parametrize("limit", [0, -1, -(2**70)])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="limit must be") as caught:
        Digits("train", limit=limit)
    assert str(caught.value) == f"limit must be null or a positive integer, but got limit={limit}"


@pytest.mark.parametrize("limit", [1.5, "3", [1]])
def test_a_limit_that_is_no_integer_is_refused(limit: Any) -> None:
    with pytest.raises((TypeError, ValueError)):  # what the config reports in a line
        Digits("train", limit=limit)


def test_the_licence_lies_beside_the_file() -> None:
    note = FILE.with_name("digits.md").read_text()
    assert "CC BY 4.0" in note
    assert "10.24432/C50P49" in note
