"""Two datasets of one process in one folder: where that loses samples, it is said once."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import draw, number

from reuseloader import ReuseDataLoader, ReuseKey

SAID = r"directory must be a folder of this dataset alone, but got directory=.*, in which another"


def loader(folder: Path, lifetime: int = 3, **options: Any) -> ReuseDataLoader:
    build = options.pop("build", draw)
    return ReuseDataLoader(build, 6, folder, lifetime=lifetime, batch_size=None, **options)


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"lifetime": 2}, {"fingerprint": "x"}],
    ids=["seed", "lifetime", "fingerprint"],
)
def test_two_that_take_turns_with_other_samples_are_told_once(
    other: dict[str, Any], tmp_path: Path
) -> None:
    first, second = loader(tmp_path), loader(tmp_path, **other)
    list(first)
    list(second)
    with pytest.warns(UserWarning, match=SAID):
        list(first)
    with pytest.warns(UserWarning, match=SAID):
        list(second)
    list(first)
    list(second)


def scaled(key: ReuseKey, scale: Any = 1) -> Any:
    return key.index * scale


def closed(scale: Any) -> Any:
    def build(key: ReuseKey) -> Any:
        return [key.index * scale for _ in range(2)]

    return build


class Scaled:
    def __init__(self, scale: Any) -> None:
        self.scale = scale

    def __call__(self, key: ReuseKey) -> Any:
        return key.index * self.scale

    def build(self, key: ReuseKey) -> Any:
        return key.index * self.scale


class Counting(Scaled):
    def __init__(self, scale: Any, count: int) -> None:
        super().__init__(scale)
        self.count = count

    def __getstate__(self) -> dict[str, Any]:
        return {"scale": self.scale}


def redefined(text: str) -> Any:
    space: dict[str, Any] = {}
    exec(text, space)
    return space["build"]


TEXT = "def build(key, *, power=2):\n    return [key.index ** power for _ in (1, 2)]\n"
TENSOR = torch.arange(3)
BUILDS = {
    "function": (draw, draw, number),
    "partial": (partial(scaled, scale=2), partial(scaled, scale=2), partial(scaled, scale=3)),
    "tensor": (closed(TENSOR), closed(TENSOR.clone()), closed(TENSOR + 1)),
    "code": (redefined(TEXT), redefined("\n" + TEXT), redefined(TEXT.replace("**", "*"))),
    "default": (redefined(TEXT), redefined(TEXT), redefined(TEXT.replace("=2", "=3"))),
    "object that keeps count": (Counting(2, 5), Counting(2, 7), Counting(3, 5)),
    "object": (Scaled(2), Scaled(2), Scaled(3)),
    "method": (Scaled(2).build, Scaled(2).build, Scaled(3).build),
}


@pytest.mark.parametrize("kind", BUILDS)
def test_a_second_build_is_told_before_it_gets_samples_of_the_first(
    kind: str, tmp_path: Path
) -> None:
    build, equal, another = BUILDS[kind]
    first, same = loader(tmp_path, build=build), loader(tmp_path, build=equal)
    for _ in range(2):
        list(first)
        list(same)
    second = loader(tmp_path, build=another)
    with pytest.warns(UserWarning, match=rf"{SAID}.*its own folder, or a fingerprint of its own$"):
        next(iter(second))
    list(first)  # it was said of both
    list(second)


def test_the_same_folder_by_another_name_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    first, second = loader(tmp_path), loader(tmp_path / "link", seed=1)
    list(first)
    list(second)
    with pytest.warns(UserWarning, match=SAID):
        list(first)


def test_two_of_the_same_samples_or_one_after_the_other_are_left_alone(tmp_path: Path) -> None:
    first, second = loader(tmp_path), loader(tmp_path)
    for _ in range(2):
        list(first)
        list(second)
    for lifetime in (2, 3, 4):  # as in a loop over settings
        later = loader(tmp_path, lifetime, seed=5)
        for _ in range(2):
            list(later)


def test_what_is_never_stored_disturbs_no_one(tmp_path: Path) -> None:
    first, second = loader(tmp_path), loader(tmp_path, lifetime=1)
    for _ in range(2):
        list(first)
        list(second)


def test_folders_of_their_own_are_left_alone(tmp_path: Path) -> None:
    first, second = loader(tmp_path / "train"), loader(tmp_path / "val", seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            list(first)
            list(second)
