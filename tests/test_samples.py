"""Samples that a build of the user's own makes, and those that the loop cannot train on."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch

from reuseloader import ReuseKey, ReusePolicy
from training.build import build_image
from training.checks import ConfigError, reason
from training.samples import Alike, CheckedBuild, check_signature

IMAGE = torch.zeros(3, 8, 8, dtype=torch.uint8)
SHAPE = "build must return {'image': uint8 C x H x W tensor, 'label': int}, but got "


def key(index: int) -> ReuseKey:
    return ReusePolicy(2, 7).key(index, 0)


def spoil(key: ReuseKey, *, source: Any, transforms: Any, how: str) -> Any:
    """Build all samples well but number 5."""
    sample = build_image(key, source=source, transforms=transforms)
    return sample if key.index != 5 else SPOILT[how][0](sample)


def check(sample: Any) -> Any:
    return CheckedBuild(lambda _: sample, 10, Alike(3, each_epoch=False))(key(5))


SPOILT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "float": (
        lambda s: {**s, "image": s["image"] / 255},
        f"{SHAPE}image: float32 3 x 64 x 64 tensor",
    ),
    "flat": (lambda s: {**s, "image": s["image"][0]}, f"{SHAPE}image: uint8 64 x 64 tensor"),
    "array": (lambda s: {**s, "image": s["image"].numpy()}, f"{SHAPE}image: ndarray"),
    "no image": (lambda s: {"label": s["label"]}, f"{SHAPE}{{'label': ...}}"),
    "no label": (lambda s: {"image": s["image"]}, f"{SHAPE}{{'image': ...}}"),
    "nothing": (lambda s: {}, f"{SHAPE}{{}}"),
    "pair": (lambda s: (s["image"], 1), f"{SHAPE}tuple"),
    "none": (lambda s: None, f"{SHAPE}NoneType"),
    "text": (lambda s: {**s, "label": "7"}, f"{SHAPE}label: str"),
    "float label": (lambda s: {**s, "label": 1.0}, f"{SHAPE}label: float"),
    "one hot": (
        lambda s: {**s, "label": torch.eye(10)[3]},
        f"{SHAPE}label: float32 10 tensor",
    ),
    "high": (
        lambda s: {**s, "label": 10},
        "label must be in [0, 10), the classes of data, but got label=10",
    ),
    "low": (
        lambda s: {**s, "label": -1},
        "label must be in [0, 10), the classes of data, but got label=-1",
    ),
    "uneven": (
        lambda s: {**s, "image": s["image"][:, :32]},
        "images must have one shape to form a batch, but got 3 x 32 x 64 after 3 x 64 x 64 of ",
    ),
}


def refusal(directory: Path, *overrides: str, epochs: int = 1) -> str:
    """Return what is said when the training samples are taken."""
    try:
        with runs.begin(directory, *overrides) as run:
            loader = runs.prepare(run)[1].train
            for _ in range(epochs):
                list(loader)
    except ConfigError as error:
        return reason(error)
    return "nothing"


@pytest.mark.parametrize("how", SPOILT)
def test_a_sample_that_is_none_is_named_in_one_line_with_its_index(
    tmp_path: Path, how: str
) -> None:
    said = refusal(tmp_path, "build._target_=test_samples.spoil", f"+build.how='{how}'")

    assert said.startswith(SPOILT[how][1])
    assert said.endswith("(in build of index=5, epoch=0, generation=0)")
    assert "\n" not in said


def test_it_is_the_same_line_from_a_worker_on_the_screen_and_in_the_record(tmp_path: Path) -> None:
    options = ["build._target_=test_samples.spoil", "+build.how=high", "num_workers=1"]
    said = refusal(tmp_path, *options)

    assert said == f"{SPOILT['high'][1]} (in build of index=5, epoch=0, generation=0)"
    assert f"ConfigError: {said}" == json.loads((tmp_path / "status.json").read_text())["error"]


@pytest.mark.parametrize(
    "label", [3, np.int64(3), np.uint8(3), torch.tensor(3), torch.tensor([3], dtype=torch.int16)]
)
def test_a_label_of_any_integer_type_becomes_an_int(label: Any) -> None:
    checked = check({"image": IMAGE, "label": label, "mask": 1})

    assert (int, 3) == (type(checked["label"]), checked["label"])
    assert list(checked) == ["image", "label", "mask"]


def test_the_config_has_a_mean_for_each_channel_or_one_for_all(tmp_path: Path) -> None:
    sample = {"image": IMAGE[:1], "label": 0}
    with pytest.raises(ConfigError) as raised:
        check(sample)
    assert str(raised.value) == (
        "data.mean must have a value for each channel of an image, 1, but has 3"
    )
    assert CheckedBuild(lambda _: sample, 10, Alike(1, each_epoch=False))(key(0)) == sample


def test_stored_images_may_differ_where_the_fresh_stage_makes_them_alike(tmp_path: Path) -> None:
    build = "build._target_=test_samples.of_two_sizes"
    crop = "+augment.fresh.crop={_target_: torchvision.transforms.v2.RandomCrop, size: 32}"
    flip = "+augment.fresh.flip={_target_: torchvision.transforms.v2.RandomHorizontalFlip}"
    uneven = "images must have one shape to form a batch, but got 3 x "

    assert refusal(tmp_path / "cropped", build, crop) == "nothing"
    assert refusal(tmp_path / "stored", build).startswith(uneven)
    said = refusal(tmp_path / "flipped", build, flip)
    assert said.startswith(uneven) and "(in finish of index=" in said


RESIZE = "_target_: torchvision.transforms.v2.Resize, size: 32, antialias: true"
GROWING = "curriculum.table={{0: {{{0}.resize.size: 32}}, 1: {{{0}.resize.size: 48}}}}"


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("stage", "lifetime"), [("fresh", 2), ("fresh", 1), ("stored", 1)])
def test_images_may_grow_from_epoch_to_epoch(
    stage: str, lifetime: int, num_workers: int, tmp_path: Path
) -> None:
    options = [f"+augment.{stage}.resize={{{RESIZE}}}", GROWING.format(stage)]
    options += [f"lifetime={lifetime}", f"num_workers={num_workers}"]
    with runs.begin(tmp_path, *options) as run:
        _, loaders, _ = runs.prepare(run)
        with loaders:
            sides = [{batch["image"].shape[-1] for batch in loaders.train} for _ in range(3)]
    assert sides == [{32}, {48}, {48}]


def test_stored_images_that_grow_while_others_are_used_again_are_refused(tmp_path: Path) -> None:
    options = [f"+augment.stored.resize={{{RESIZE}}}", GROWING.format("stored"), "lifetime=2"]

    said = refusal(tmp_path, *options, epochs=2)
    uneven = "images must have one shape to form a batch, but got 3 x 48 x 48 after 3 x 32 x 32 of "
    assert said.startswith(uneven)


def of_two_sizes(key: ReuseKey, *, source: Any, transforms: Any) -> Any:
    sample = build_image(key, source=source, transforms=transforms)
    return {**sample, "image": sample["image"][:, : 40 + 8 * (key.index % 2)]}


def test_a_checked_build_travels_to_workers() -> None:
    build = pickle.loads(pickle.dumps(CheckedBuild(key_image, 10, Alike(3, each_epoch=False))))

    assert build(key(2))["label"] == 2


def key_image(key: ReuseKey) -> Any:
    return {"image": IMAGE, "label": key.index}


def test_a_build_with_other_arguments_is_refused_before_it_is_called() -> None:
    def no_transforms(key: ReuseKey, *, source: Any) -> Any: ...

    def one_more(key: ReuseKey, *, source: Any, transforms: Any, noise: float) -> Any: ...

    for build, why in ((no_transforms, "'transforms'"), (one_more, "'noise'")):
        with pytest.raises(
            ConfigError, match=r"^build must take \(key, \*, source, trans"
        ) as raised:
            check_signature(build, "my_build.build")
        assert why in str(raised.value) and "my_build.build" in str(raised.value)
    check_signature(build_image, "training.build.build_image")
