"""A share of the reused samples is built again: a build that is not pure is found."""

from __future__ import annotations

import array
import math
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from builds import FailAt, Point, bad_pixels, draw, freshen, same
from PIL import Image
from torch.utils.data import default_collate
from torchvision import tv_tensors

from reuseloader import (
    ImpureBuildError,
    ReuseDataLoader,
    ReuseDataset,
    ReuseKey,
    ReusePolicy,
    load_tensors,
    save_tensors,
)
from reuseloader.batches import _BatchMemory
from reuseloader.verify import Verification, differences


def impure(key: ReuseKey) -> dict[str, Any]:
    return {**draw(key), "noise": torch.rand(4)}


def rich(key: ReuseKey) -> dict[str, Any]:
    """Nested tensors, one of them with a NaN, and a tensor of torchvision's."""
    values = torch.rand(200, generator=torch.Generator().manual_seed(key.seed))
    values[7] = math.nan
    return {
        "image": tv_tensors.Image((255 * values[:192].nan_to_num()).byte().view(3, 8, 8)),
        "more": {"values": values, "list": [key.index, torch.tensor(key.index)]},
    }


def impure_in_depth(key: ReuseKey) -> dict[str, Any]:
    sample = rich(key)
    if key.index == 11:
        sample["more"]["values"][3] = torch.rand(())
    return sample


def last_bit(key: ReuseKey) -> dict[str, Any]:
    """In later epochs one bit of a NaN is another one."""
    sample = rich(key)
    if key.index == 11:
        sample["more"]["values"].view(torch.int32)[7] ^= key.epoch
    return sample


def add_epoch(sample: dict[str, Any], key: ReuseKey) -> dict[str, Any]:
    """Change the sample in place, as a careless user does."""
    sample["image"] += 1
    return {**sample, "epoch": key.epoch}


class Box:
    """An object without a comparison of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Slots:
    """Another one, without a dict."""

    __slots__ = ("missing", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


def make(folder: Path, build: Any = draw, share: Any = 1.0) -> ReuseDataset:
    return ReuseDataset(build, 40, folder, ReusePolicy(9, seed=3), verify=share)


def test_a_pure_build_passes(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    first, second = list(dataset), list(dataset)
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(first, second, strict=True))
    assert dataset.stats().built + dataset.stats().reused == 80
    assert dataset.stats().reused > 30


def test_what_is_drawn_from_elsewhere_is_an_error(tmp_path: Path) -> None:
    dataset = make(tmp_path, impure)
    dataset[5]
    message = r"at index=5, epoch=0, generation=0 .* sample\['noise'\], torch.float32 \(4,\), dif"
    with pytest.raises(ImpureBuildError, match=message):
        dataset[5]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_error_comes_out_of_a_worker(tmp_path: Path, num_workers: int) -> None:
    loader = ReuseDataLoader(
        impure, 40, tmp_path, lifetime=9, verify=1.0, batch_size=8, num_workers=num_workers
    )
    list(loader)
    with pytest.raises(ImpureBuildError, match="must make the same sample from the same key"):
        list(loader)


@pytest.fixture
def read_in_batches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each sample that is read into the memory of its batch, whether that went well."""
    went_well: list[bool] = []
    read = _BatchMemory.read

    def watched(self: Any, *arguments: Any) -> Any:
        result = read(self, *arguments)
        went_well.append(result is not None)
        return result

    monkeypatch.setattr(_BatchMemory, "read", watched)
    return went_well


def fast_loader(folder: Path, build: Any, finish: Any = None, **options: Any) -> ReuseDataLoader:
    """A loader of the fast format, which reads samples into the memory of their batch."""
    settings = {"lifetime": 9, "seed": 3, "verify": 1.0, "batch_size": 8, "shuffle": True}
    return ReuseDataLoader(
        build, 40, folder, save=save_tensors, load=load_tensors, finish=finish,
        **(settings | options),
    )  # fmt: skip


@pytest.mark.parametrize("finish", [None, add_epoch])
def test_what_is_read_into_its_batch_is_verified_and_delivered(
    tmp_path: Path, finish: Any, read_in_batches: list[bool]
) -> None:
    loader = fast_loader(tmp_path, rich, finish)
    for epoch in range(3):
        keys = [loader.policy.key(loader.policy.order(n, epoch, 40), epoch) for n in range(40)]
        samples = [rich(key) if finish is None else finish(rich(key), key) for key in keys]
        for number, batch in enumerate(loader):
            expected = default_collate(samples[8 * number : 8 * number + 8])
            assert same(batch, expected)
    assert sum(read_in_batches) >= 60  # of 80 at most


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("build", "what"),
    [
        (
            impure_in_depth,
            r"sample\['more'\]\['values'\], torch.float32 \(200,\), differs in \d of",
        ),
        (last_bit, r"sample\['more'\]\['values'\], torch.float32 \(200,\), differs in 1 of 800 b"),
    ],
)
def test_of_what_is_read_into_its_batch_a_difference_is_named(
    tmp_path: Path, build: Any, what: str, num_workers: int, read_in_batches: list[bool]
) -> None:
    loader = fast_loader(tmp_path, build, num_workers=num_workers)
    list(loader)
    with pytest.raises(ImpureBuildError, match=f"at index=11, epoch=.* differ: {what}"):
        for _ in range(2):
            list(loader)
    assert num_workers or any(read_in_batches)


@pytest.mark.parametrize("options", [{}, {"save": save_tensors, "load": load_tensors}])
def test_what_finish_adds_is_no_difference(tmp_path: Path, options: dict[str, Any]) -> None:
    loader = ReuseDataLoader(
        draw, 40, tmp_path, lifetime=9, finish=freshen, verify=1.0, batch_size=8, **options
    )
    uses = [torch.cat([batch["use"] for batch in loader]) for _ in range(3)]
    assert not torch.equal(uses[0], uses[1])
    assert loader.stats().reused > 30


def test_a_build_that_fails_when_it_is_done_again_names_its_index(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    list(dataset)
    del dataset
    again = make(tmp_path, FailAt(5, bad_pixels))
    with pytest.raises(
        ValueError, match=r"bad pixels \(in build of index=5, epoch=0, generation=0"
    ):
        list(again)


def test_it_is_off_by_default(tmp_path: Path) -> None:
    dataset = ReuseDataset(impure, 40, tmp_path, ReusePolicy(9))
    assert len(list(dataset)) == len(list(dataset)) == 40


def test_the_keys_choose_the_same_share_in_every_run() -> None:
    policy = ReusePolicy(10**6, seed=3)
    keys = [policy.key(index, epoch) for index in range(1000) for epoch in range(20)]
    chosen = [[Verification(draw, 0.1).chooses(key) for key in keys] for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert 1800 < sum(chosen[0]) < 2200
    assert not any(Verification(draw, 0.0).chooses(key) for key in keys)
    assert all(Verification(draw, 1).chooses(key) for key in keys)


@pytest.mark.parametrize("share", [-0.1, 1.5, "1", None, True, float("nan")])
def test_a_share_that_is_none_is_refused(tmp_path: Path, share: Any) -> None:
    with pytest.raises(ValueError, match="verify must be a share from 0 to 1, but got verify="):
        make(tmp_path, share=share)


def boxes(form: str, size: int) -> Any:
    return tv_tensors.BoundingBoxes(
        torch.ones(1, 4), format=tv_tensors.BoundingBoxFormat[form], canvas_size=(size, 9)
    )


def palette(colour: int) -> Image.Image:
    image = Image.new("P", (2, 2))
    image.putpalette([colour] * 768)
    return image


SHOWN_ARRAYS = "sample was array('d', [1.0]) and is array('d', [2.0])"
OBJECTS = "sample[1] was 'a' and is 'b'"
CONJUGATE = "sample, torch.complex64 (2,), differs in 2 of 16 bytes"
SPARSE = "sample, torch.float32 (2, 2), differs"
BFLOAT = "sample, torch.bfloat16 (2, 2), differs in 4 of 8 bytes"
FORMAT = (
    "sample.format was <BoundingBoxFormat.XYXY: 'XYXY'> and is <BoundingBoxFormat.XYWH: 'XYWH'>"
)


@pytest.mark.parametrize(
    ("stored", "built", "text"),
    [
        (1, 1.0, "sample was int and is float"),
        ({"a": 1}, {"b": 1}, "sample had the keys ['a'] and has ['b']"),
        ([1, 2], [1, 3], "sample[1] was 2 and is 3"),
        ((1,), (1, 2), "sample had 1 items and has 2"),
        (torch.zeros(2), torch.zeros(3), "sample was torch.float32 (2,) and is torch.float32 (3,)"),
        (torch.zeros(2), -torch.zeros(2), "sample, torch.float32 (2,), differs in 2 of 8 bytes"),
        (np.zeros(2), np.ones(2), "sample, float64 (2,), differs in 4 of 16 bytes"),
        (np.int64(1), np.int32(1), "sample was int64 and is int32"),
        (Point(torch.ones(1), "a"), Point(torch.ones(1), "b"), "sample.name was 'a' and is 'b'"),
        (0.0, -0.0, "sample was 0.0 and is -0.0"),
        ([1j], [complex(0.0, math.nan)], "sample[0] was 1j and is nanj"),
        ({1, 2}, {1, 3}, "sample was {1, 2} and is {1, 3}"),
        (b"ab", b"ac", "sample was b'ab' and is b'ac'"),
        ("a" * 999, "b" * 999, f"sample was '{'a' * 99}... and is '{'b' * 99}..."),
        (Box([1, 2]), Box([1, 3]), "sample.value[1] was 2 and is 3"),
        (Slots(1), Slots(2), "sample.value was 1 and is 2"),
        (SimpleNamespace(a=1), SimpleNamespace(a=2), "sample.a was 1 and is 2"),
        (array.array("d", [1]), array.array("d", [2]), SHOWN_ARRAYS),
        (np.array([1, "a", None], object), np.array([1, "b", None], object), OBJECTS),
        (
            np.array([[1]], object),
            np.array([1], object),
            "sample was object (1, 1) and is object (1,)",
        ),
        (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse(), SPARSE),
        (torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse(), SPARSE),
        (torch.ones(2, dtype=torch.cfloat).conj(), torch.ones(2, dtype=torch.cfloat), CONJUGATE),
        (torch.eye(2).bfloat16(), torch.ones(2, 2).bfloat16(), BFLOAT),
        (boxes("XYXY", 9), boxes("XYWH", 9), FORMAT),
        (boxes("XYXY", 9), boxes("XYXY", 8), "sample.canvas_size[0] was 9 and is 8"),
        (
            tv_tensors.Image(torch.zeros(1, 2, 2)),
            torch.zeros(1, 2, 2),
            "sample was Image and is Tensor",
        ),
        (Image.new("L", (2, 2), 1), Image.new("L", (2, 2), 2), "sample has other pixels"),
        (Image.new("L", (2, 2)), Image.new("RGB", (2, 2)), "sample was L (2, 2) and is RGB (2, 2)"),
        (palette(1), palette(2), "sample has another palette"),
    ],
)
def test_what_differs_is_named(stored: Any, built: Any, text: str) -> None:
    assert list(differences(stored, built)) == [text]
    assert list(differences(stored, pickle.loads(pickle.dumps(stored)))) == []
    assert list(differences(built, pickle.loads(pickle.dumps(built)))) == []


class Node:
    """An object that leads back to itself."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.again = [self]


class Silent:
    """An object that cannot be compared, and has nothing to look into."""

    def __eq__(self, other: object) -> bool:
        raise TypeError

    __hash__ = None  # type: ignore[assignment]


def test_objects_are_compared_by_what_they_hold() -> None:
    assert list(differences(Node(1), Node(1))) == []
    assert list(differences(Node(1), Node(2))) == ["sample.value was 1 and is 2"]
    assert list(differences(Silent(), Silent())) == []
    assert list(differences(object(), object())) == []
    assert list(differences(Box(1), Node(1))) == ["sample was Box and is Node"]
    first, second = Box(1), Box(1)
    second.more = 2
    expected = "sample had the attributes ['value'] and has ['more', 'value']"
    assert list(differences(first, second)) == [expected]
    held = [SimpleNamespace(x=torch.ones(2)), SimpleNamespace(x=torch.zeros(2))]
    assert list(differences(*held)) == ["sample.x, torch.float32 (2,), differs in 4 of 8 bytes"]


def test_equal_values_have_no_difference() -> None:
    nan = torch.tensor([float("nan")])
    assert list(differences([nan, float("nan"), None, "a"], [nan, float("nan"), None, "a"])) == []


SIZE = 12
FORMAT: dict[str, Any] = {"save": save_tensors, "load": load_tensors}


class Sometimes:
    """A build that is pure until it is told not to be; `where` says what changes then."""

    def __init__(self, where: str = "", index: int = 5) -> None:
        self.where, self.index = where, index

    def __call__(self, key: ReuseKey) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(key.seed)
        nan = torch.full((3,), float("nan"))
        nan.view(torch.int32)[1] += 1  # another one: bits count, not values
        sample: dict[str, Any] = {
            "image": torch.randint(256, (3, 40, 50), dtype=torch.uint8, generator=generator),
            "nested": {"nan": nan, "half": torch.rand(70, generator=generator).half()},
            "label": key.index,
        }
        if key.index == self.index and self.where:
            self._change(sample)
        return sample

    def _change(self, sample: dict[str, Any]) -> None:
        if self.where == "label":
            sample["label"] = 99
        elif self.where == "nan":
            sample["nested"]["nan"].view(torch.int32)[2] += 1
        elif self.where == "shape":
            sample["image"] = sample["image"][:, :39]
        elif self.where == "dtype":
            sample["nested"]["half"] = sample["nested"]["half"].float()
        else:
            sample["image"][2, 39, 49] ^= 1


def spoil(sample: dict[str, Any], key: ReuseKey) -> dict[str, Any]:
    """A finish that writes into what it gets: the comparison came before."""
    sample["image"].zero_()
    return {**sample, "epoch": key.epoch}


def open_loader(folder: Path, build: Any, **options: Any) -> ReuseDataLoader:
    settings = {"lifetime": 9, "verify": 1.0, "batch_size": 4, "shuffle": True}
    return ReuseDataLoader(build, SIZE, folder, **(settings | FORMAT | options))


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"finish": spoil}, {"finish": spoil, "num_workers": 2}],
)
def test_samples_that_are_read_into_their_batch_are_compared_too(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    loader = open_loader(tmp_path, Sometimes(), **options)
    for _ in range(3):
        list(loader)
    assert loader.stats().reused > SIZE / 2
    del loader
    changed = open_loader(tmp_path, Sometimes("image"), start_epoch=2, **options)
    message = (
        r"at index=5, epoch=2, generation=0 .*\['image'\], torch.uint8 \(3, 40, 50\), differs in 1"
    )
    with pytest.raises(ImpureBuildError, match=message):
        list(changed)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("label", "sample['label'] was 5 and is 99"),
        ("nan", "sample['nested']['nan'], torch.float32 (3,), differs in 1 of 12 bytes"),
        ("shape", "sample['image'] was torch.uint8 (3, 40, 50) and is torch.uint8 (3, 39, 50)"),
        ("dtype", "sample['nested']['half'] was torch.float16 (70,) and is torch.float32 (70,)"),
    ],
)
def test_of_a_batch_the_error_names_index_and_what_differs(
    tmp_path: Path, where: str, text: str
) -> None:
    build = Sometimes()
    loader = open_loader(tmp_path, build)
    list(loader)
    list(loader)
    build.where = where  # the same loader: it knows the layout of its samples by now
    with pytest.raises(ImpureBuildError) as caught:
        list(loader)
    assert text in str(caught.value)
    assert "index=5, epoch=2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_kinds_of_tensors_are_compared_in_a_batch(tmp_path: Path) -> None:
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    kinds = [tv_tensors.Image]

    def build(key: ReuseKey) -> dict[str, Any]:
        values = torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(key.seed))
        return {"image": kinds[0](values)}

    loader = open_loader(tmp_path, build)
    list(loader)
    list(loader)
    assert loader.stats().reused > SIZE / 2
    kinds[0] = tv_tensors.Mask
    with pytest.raises(ImpureBuildError, match=r"\['image'\] was Image and is Mask"):
        list(loader)


def test_a_batch_is_left_as_it_was_by_a_comparison(tmp_path: Path) -> None:
    checked = open_loader(tmp_path / "a", Sometimes())
    plain = open_loader(tmp_path / "b", Sometimes(), verify=0.0)
    for _ in range(3):
        for ours, theirs in zip(checked, plain, strict=True):
            assert torch.equal(ours["image"], theirs["image"])
            assert torch.equal(ours["nested"]["half"], theirs["nested"]["half"])
