"""What the pictures show, as numbers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import runs
import torch

from reuseloader import ReuseKey, Substitute
from training.build import build_image
from training.pictures import confusion_picture, sample_grid


def standing_in(key: ReuseKey, *, source: Any, transforms: Any) -> Any:
    return Substitute(build_image(key, source=source, transforms=transforms), "unreadable")


def test_what_stands_in_for_unreadable_samples_is_shown_as_well(tmp_path: Path) -> None:
    grids = []
    for name in ("test_pictures.standing_in", "training.build.build_image"):
        with runs.begin(tmp_path / name, "augment=digits", f"build._target_={name}") as run:
            grids.append(sample_grid(runs.prepare(run)[1], 3))
    assert torch.equal(*grids)


def test_each_sample_of_the_first_batch_lies_beside_what_becomes_of_it(tmp_path: Path) -> None:
    options = ["augment=digits", "lifetime=3", "num_workers=0"]
    with runs.begin(tmp_path, *options) as run:
        _, loaders, _ = runs.prepare(run)
        before = torch.get_rng_state()
        grid = sample_grid(loaders, 6)
        assert torch.equal(before, torch.get_rng_state())
        policy = loaders.train.policy
        first = next(iter(loaders.train))["image"]
    assert loaders.finish is not None
    assert (torch.uint8, (3, 4 + 2 * (66 + 4), 4 + 4 * (131 + 4))) == (grid.dtype, grid.shape)
    for number in range(6):
        key = policy.key(policy.order(number, 0, 64), 0)
        stored = loaders.build(key)["image"]
        top, left = 5 + 70 * (number // 4), 5 + 135 * (number % 4)
        assert torch.equal(stored, grid[:, top : top + 64, left : left + 64])
        assert torch.equal(first[number], grid[:, top : top + 64, left + 65 : left + 129])
        assert not torch.equal(stored, first[number])


def of_one_channel(key: Any, *, source: Any, transforms: Any) -> dict[str, Any]:
    sides = (20 + 4 * (key.index % 2), 20)
    return {"image": torch.full((1, *sides), key.index, dtype=torch.uint8), "label": 0}


def test_grey_images_of_several_sizes_are_shown_alike(tmp_path: Path) -> None:
    crop = "+augment.fresh.crop={_target_: torchvision.transforms.v2.RandomCrop, size: 16}"
    options = ["build._target_=test_pictures.of_one_channel", crop, "data.train.limit=3"]
    with runs.begin(tmp_path, *options, "data.mean=[0.5]", "data.std=[0.5]") as run:
        _, loaders, _ = runs.prepare(run)
        grid = sample_grid(loaders, 8)

    assert grid.shape[0] == 3 and torch.equal(grid[0], grid[2])
    assert {0, 1, 2} <= {*grid.flatten().tolist()}


def test_the_name_of_a_class_is_no_formula() -> None:
    names = ["$5 and $10", r"$\nope{$"]

    assert confusion_picture(torch.eye(2, dtype=torch.int64), names).shape[0] == 3


@pytest.mark.parametrize("num_classes", [1, 2, 12, 130])
def test_a_confusion_matrix_of_any_size_is_drawn_and_no_larger_than_a_screen_bears(
    num_classes: int,
) -> None:
    counts = torch.eye(num_classes, dtype=torch.int64) * 3
    names = [f"a class with a long name of its own {n}" for n in range(num_classes)]

    picture = confusion_picture(counts, names)

    assert (torch.uint8, 3) == (picture.dtype, picture.shape[0])
    assert max(picture.shape) <= 2000


def test_rows_of_a_confusion_matrix_are_true_classes_and_shares_of_them() -> None:
    # All of the first class was taken for the second: of the four cells the upper right is dark.
    counts = torch.tensor([[0, 7], [0, 0]])

    picture = confusion_picture(counts, ["a", "b"])[0].float()
    dark = (picture < 60).float()  # Blues is at (8, 48, 107) for a share of 1
    height, width = picture.shape
    shares = [
        dark[top : top + height // 5, left : left + width // 5].mean().item()
        for top in (height // 8, height // 2 + height // 8)
        for left in (width // 4, width // 2 + width // 6)
    ]
    assert [share > 0.5 for share in shares] == [False, True, False, False]


def test_looking_for_fonts_is_no_news() -> None:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    try:
        assert not logging.getLogger("matplotlib.font_manager").isEnabledFor(logging.INFO)
    finally:
        root.setLevel(level)
