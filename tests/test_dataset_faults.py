"""Errors of build and finish, and saves that fail."""

from __future__ import annotations

import resource
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import (
    SIZE,
    FailAt,
    bad_pixels,
    check_told,
    disk_full,
    draw,
    names,
    open_dataset,
    read,
    refuse_renames,
    same,
    stop,
    told,
    two_arguments,
    write_nothing,
)

ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": bad_pixels,
    "KeyError": lambda: KeyError("bad pixels"),
    "IndexError": lambda: IndexError("bad pixels"),
    "TypeError": lambda: TypeError("bad pixels"),
    "OSError": lambda: OSError(2, "bad pixels", "a.png"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf8", b"a", 0, 1, "bad pixels"),
    "two arguments": two_arguments,
}


@pytest.mark.parametrize("role", ["build", "finish"])
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_keeps_its_type_and_text_and_names_the_key(
    name: str, role: str, tmp_path: Path
) -> None:
    dataset = open_dataset(tmp_path, **{role: FailAt(5, ERRORS[name])})
    dataset.set_epoch(4)
    with pytest.raises(type(ERRORS[name]())) as caught:
        dataset[5]
    assert "bad pixels" in told(caught.value)
    check_told(caught.value, index=5, epoch=4, generation=2)
    assert same(dataset[4]["x"], draw(dataset.policy.key(4, 4))["x"])


def test_an_error_without_text_names_the_key(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, build=FailAt(5, AssertionError))
    with pytest.raises(AssertionError) as caught:
        dataset[5]
    check_told(caught.value, index=5, epoch=0, generation=0)
    assert names(tmp_path) == []


@pytest.mark.parametrize("role", ["build", "finish"])
def test_a_stop_iteration_becomes_a_runtime_error(role: str, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, **{role: FailAt(5, stop)})
    with pytest.raises(RuntimeError) as caught:
        list(dataset)
    check_told(caught.value, index=5, epoch=0, generation=0)


@pytest.mark.parametrize("role", ["build", "finish"])
def test_an_index_error_of_the_user_does_not_end_a_list_early(role: str, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, **{role: FailAt(5, lambda: IndexError("bad pixels"))})
    with pytest.raises(IndexError, match="bad pixels"):
        list(dataset)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_in_build_passes(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error):
        open_dataset(tmp_path, build=FailAt(5, error))[5]


@pytest.mark.parametrize("fault", ["disk full", "no file", "folder gone", "rename refused"])
def test_a_failed_save_returns_the_sample_warns_once_and_counts(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    saves = {"disk full": disk_full, "no file": write_nothing}
    options = {"save": saves[fault]} if fault in saves else {}
    dataset = open_dataset(folder, 3, **options)
    if fault == "folder gone":
        shutil.rmtree(folder)
    if fault == "rename refused":
        refuse_renames(monkeypatch)
    with pytest.warns(UserWarning) as caught:
        for epoch in range(2):
            expected = [draw(dataset.policy.key(index, epoch)) for index in range(SIZE)]
            assert same(read(dataset, epoch), expected)
    assert [str(folder) in str(warning.message) for warning in caught] == [True]
    # Epoch 0 tries all but phase 2; epoch 1 builds all again, as nothing lies there, but phase 1.
    assert dataset.stats().save_errors == 7 + 7
    assert (dataset.stats().stored, dataset.stats().written_bytes) == (0, 0)
    if folder.exists():
        assert names(folder) == []


def test_a_failed_save_keeps_later_saves(tmp_path: Path) -> None:
    def save(obj: Any, path: Any) -> None:
        (disk_full if obj["sample"]["index"] == 0 else torch.save)(obj, path)

    dataset = open_dataset(tmp_path, 20, save=save)
    with pytest.warns(UserWarning):
        read(dataset, 0)
    assert (dataset.stats().save_errors, dataset.stats().stored) == (1, SIZE - 1)
    assert names(tmp_path) == [f"{index:08d}.pt" for index in range(1, SIZE)]


def test_a_sample_that_cannot_be_pickled_is_an_error_naming_the_index(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, 20, build=lambda key: {"call": lambda: key.index})
    with pytest.raises(ValueError, match=r"index\W{0,3}4\b"):
        dataset[4]
    assert names(tmp_path) == []


def test_the_default_save_survives_a_full_disk(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, 20, build=lambda key: torch.ones(100_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sample = dataset[4]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert same(sample, torch.ones(100_000))
    assert (len(caught), dataset.stats().save_errors, names(tmp_path)) == (1, 1, [])
