"""Two datasets of one process in one folder: where that loses samples, it is said once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from builds import draw, number

from reuseloader import ReuseDataLoader

SAID = r"directory must be a folder of this dataset alone, but got directory=.*, in which another"


def loader(folder: Path, lifetime: int = 3, **options: Any) -> ReuseDataLoader:
    build = options.pop("build", draw)
    return ReuseDataLoader(build, 6, folder, lifetime=lifetime, batch_size=None, **options)


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"lifetime": 2}, {"fingerprint": "x"}, {"build": number}],
    ids=["seed", "lifetime", "fingerprint", "build"],
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
