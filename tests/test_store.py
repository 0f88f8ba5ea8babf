"""Damage: whatever lies in the place of a sample's file costs one rebuild and nothing else."""

from __future__ import annotations

import os
import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import draw, load_json, number, same, save_json
from PIL import Image

from reuseloader import (
    FOREVER,
    ReuseDataset,
    ReusePolicy,
    load_tensors,
    load_torch,
    save_tensors,
    save_torch,
)

NAME = "00000001.pt"


def open_dataset(folder: Path, build: Callable[..., Any] = draw, **options: Any) -> ReuseDataset:
    return ReuseDataset(build, 4, folder, ReusePolicy(FOREVER, seed=7), **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of sample 1 in a folder that holds the files of samples 1 and 2."""
    dataset = open_dataset(tmp_path / "cache")
    assert [dataset[1]["index"], dataset[2]["index"]] == [1, 2]
    return tmp_path / "cache" / NAME


def expected(build: Callable[..., Any] = draw) -> Any:
    return build(ReusePolicy(FOREVER, seed=7).key(1, 0))


def check_rebuilt(path: Path, build: Callable[..., Any] = draw, **options: Any) -> None:
    dataset = open_dataset(path.parent, build, **options)
    with pytest.warns(UserWarning) as caught:
        sample = dataset[1]
    assert same(sample, expected(build))
    assert [NAME in str(warning.message) for warning in caught] == [True]
    assert (dataset.stats().damaged, dataset.stats().built) == (1, 1)
    assert same(dataset[1], expected(build))  # without a warning: whole again
    assert (dataset.stats().damaged, dataset.stats().reused) == (1, 1)


def scrambled(whole: bytes) -> bytes:
    return bytes(random.Random(0).sample(whole, len(whole)))


CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "one byte": lambda whole: b"P",
    "zeros": lambda whole: bytes(len(whole)),
    "ones": lambda whole: b"\xff" * len(whole),
    "zeros in the first half": lambda whole: bytes(len(whole) // 2) + whole[len(whole) // 2 :],
    "zeros in the last half": lambda whole: whole[: len(whole) // 2] + bytes(len(whole) // 2),
    "zeros in the last 16 bytes": lambda whole: whole[:-16] + bytes(16),
    "scrambled": scrambled,
    "random": lambda whole: random.Random(0).randbytes(len(whole)),
    "backwards": lambda whole: whole[::-1],
    "twice": lambda whole: whole * 2,
    "a byte more": lambda whole: whole + b"\0",
    "a byte more in front": lambda whole: b"\0" + whole,
    "a byte lost in the middle": lambda whole: whole[:500] + whole[501:],
    "two bytes swapped": lambda whole: whole[:1] + whole[2:0:-1] + whole[3:],
    "text": lambda whole: b"not a sample\n" * 100,
    "other pickle": lambda whole: pickle.dumps({"sample": 3}),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_damaged_file_costs_one_rebuild(name: str, path: Path) -> None:
    path.write_bytes(CONTENTS[name](path.read_bytes()))
    check_rebuilt(path)


def test_a_file_cut_at_any_tenth_byte_costs_one_rebuild(path: Path) -> None:
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 10), len(whole) - 1]:
        path.write_bytes(whole[:length])
        check_rebuilt(path)


def test_one_flipped_bit_anywhere_costs_one_rebuild(tmp_path: Path) -> None:
    dataset = ReuseDataset(number, 1, tmp_path, ReusePolicy(2, seed=7))
    right = dataset[0]
    path = tmp_path / "00000000.pt"
    whole = path.read_bytes()
    dataset.set_epoch(1)  # the last use: read, and after damage not stored again
    assert (dataset[0], dataset.stats().reused) == (right, 1)
    wrong = []
    with warnings.catch_warnings(), path.open("r+b", buffering=0) as file:
        warnings.simplefilter("ignore")
        for bit in range(8 * len(whole)):
            byte = whole[bit // 8]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << bit % 8]), bit // 8)
            if dataset[0] != right or dataset.stats().damaged != bit + 1:
                wrong.append(bit)
            os.pwrite(file.fileno(), bytes([byte]), bit // 8)
    assert wrong == []
    assert (dataset[0], dataset.stats().reused) == (right, 2)


def another_program(path: Path) -> None:
    torch.save({"weights": torch.ones(3)}, path)


def a_module(path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), path)


def envelope_without_checksum(path: Path) -> None:
    envelope = torch.load(path, weights_only=False)
    envelope["sample"]["x"] += 1
    torch.save(envelope, path)


def png(path: Path) -> None:
    Image.new("RGB", (8, 8)).save(path, format="PNG")


def numpy_file(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones(3))


def trailer_of_another_sample(path: Path) -> None:
    other = path.with_name("00000002.pt").read_bytes()
    path.write_bytes(path.read_bytes()[:-16] + other[-16:])


@pytest.mark.parametrize(
    "write",
    [another_program, a_module, envelope_without_checksum, png, numpy_file,
     trailer_of_another_sample],
)  # fmt: skip
def test_a_file_of_another_program_costs_one_rebuild(
    write: Callable[[Path], None], path: Path
) -> None:
    write(path)
    check_rebuilt(path)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


def to_directory(path: Path) -> None:
    path.symlink_to(path.parent.parent)


def to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_fifo(path: Path) -> None:
    os.mkfifo(path.parent.parent / "fifo")
    path.symlink_to(path.parent.parent / "fifo")


def to_foreign_file(path: Path) -> None:
    (path.parent.parent / "text").write_text("keep me")
    path.symlink_to(path.parent.parent / "text")


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)  # a hole, no blocks


@pytest.mark.usefixtures("deadline")
@pytest.mark.parametrize(
    "put", [fifo, loop, to_directory, to_device, to_fifo, to_foreign_file, huge]
)
def test_what_is_no_regular_small_file_costs_one_rebuild(
    put: Callable[[Path], None], path: Path
) -> None:
    path.unlink()
    put(path)
    check_rebuilt(path)


def test_a_foreign_file_behind_a_symlink_keeps_its_content(path: Path) -> None:
    path.unlink()
    to_foreign_file(path)
    with pytest.warns(UserWarning):
        open_dataset(path.parent)[1]
    assert (path.parent.parent / "text").read_text() == "keep me"


def test_a_dangling_symlink_is_replaced(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent / "nowhere")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing or damaged: both are true
        assert same(open_dataset(path.parent)[1], expected())
    assert not (path.parent.parent / "nowhere").exists()
    assert same(open_dataset(path.parent)[1], expected())


@pytest.mark.parametrize("full", [False, True])
def test_a_directory_in_the_place_of_a_file_is_no_stop(full: bool, path: Path) -> None:
    path.unlink()
    path.mkdir()
    if full:
        (path / "photo").write_text("keep me")
    dataset = open_dataset(path.parent)
    with pytest.warns(UserWarning, match=NAME):
        assert same(dataset[1], expected())
    assert dataset.stats().damaged == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(dataset[1], expected())
    if full:
        assert (path / "photo").read_text() == "keep me"
    assert list(path.parent.glob("*.tmp")) == []


def test_a_file_of_another_sample_is_not_taken_for_this_one(path: Path) -> None:
    path.write_bytes(path.with_name("00000002.pt").read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outdated or damaged: the format cannot tell
        assert same(open_dataset(path.parent)[1], expected())


def test_a_default_file_opens_with_plain_torch_load(path: Path) -> None:
    envelope = torch.load(path, weights_only=False)
    key = ReusePolicy(FOREVER, seed=7).key(1, 0)
    assert envelope["sample"]["index"] == 1
    assert {name: envelope[name] for name in envelope if name != "sample"} == {
        "generation": key.generation,
        "seed": key.seed,
        "lifetime": FOREVER,
        "fingerprint": "",
    }


def test_the_default_pair_works_alone(tmp_path: Path) -> None:
    obj = {"x": torch.ones(2), "name": "a"}
    save_torch(obj, tmp_path / "a.pt")
    assert same(load_torch(tmp_path / "a.pt"), obj)
    assert same(torch.load(tmp_path / "a.pt", weights_only=False), obj)


def test_the_default_load_refuses_a_damaged_file(tmp_path: Path) -> None:
    save_torch({"x": 1}, tmp_path / "a.pt")
    whole = bytearray((tmp_path / "a.pt").read_bytes())
    whole[100] ^= 1
    (tmp_path / "a.pt").write_bytes(whole)
    with pytest.raises(Exception, match="checksum"):
        load_torch(tmp_path / "a.pt")


JSON: dict[str, Any] = {"save": save_json, "load": load_json}


def test_a_custom_format_stores_and_reads(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, number, **JSON)
    assert dataset[1] == dataset[1] == expected(number)
    assert dataset.stats().reused == 1
    envelope = load_json(tmp_path / NAME)
    assert set(envelope) == {"generation", "seed", "lifetime", "fingerprint", "sample"}
    assert envelope["sample"] == expected(number)


def test_a_damaged_file_of_a_custom_format_costs_one_rebuild(tmp_path: Path) -> None:
    open_dataset(tmp_path, number, **JSON)[1]
    (tmp_path / NAME).write_text("{")
    check_rebuilt(tmp_path / NAME, number, **JSON)


@pytest.mark.parametrize(
    "content",
    ["null", "[]", "{}", "3", '"text"', '{"generation": 0}', "WITHOUT", '{"sample": 3}'],
)
def test_a_custom_load_that_returns_no_envelope_costs_one_rebuild(
    content: str, tmp_path: Path
) -> None:
    open_dataset(tmp_path, number, **JSON)[1]
    path = tmp_path / NAME
    if content == "WITHOUT":
        envelope = load_json(path)
        del envelope["sample"]
        save_json(envelope, path)
    else:
        path.write_text(content)
    check_rebuilt(path, number, **JSON)


@pytest.mark.parametrize("error", [RuntimeError, EOFError, MemoryError, RecursionError])
def test_any_error_of_load_costs_one_rebuild(error: type[Exception], path: Path) -> None:
    def load(path: Any) -> Any:
        raise error

    dataset = open_dataset(path.parent, load=load)
    with pytest.warns(UserWarning, match=NAME):
        assert same(dataset[1], expected())


def test_ctrl_c_during_a_read_is_no_damage(path: Path) -> None:
    def load(path: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_dataset(path.parent, load=load)[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"save": save_tensors}, "load must be load_tensors with save=save_tensors, but got load="),
        (
            {"load": load_tensors},
            "load must be load_torch with save=save_torch, but got load=",
        ),
    ],
)
def test_a_load_that_does_not_read_what_is_saved_is_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        ReuseDataset(torch.zeros, 3, tmp_path, ReusePolicy(2), **options)


def test_a_save_or_a_load_of_the_users_own_goes_with_any_other(tmp_path: Path) -> None:
    own: dict[str, Any] = {"save": lambda obj, path: save_tensors(obj, path), "load": load_tensors}
    ReuseDataset(torch.zeros, 3, tmp_path, ReusePolicy(2), **own)
    own = {"save": save_tensors, "load": lambda path: load_tensors(path)}
    ReuseDataset(torch.zeros, 3, tmp_path, ReusePolicy(2), **own)
