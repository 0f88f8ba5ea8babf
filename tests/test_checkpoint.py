"""A checkpoint is there whole, or the one before it is."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.checkpoint import (
    PARTS,
    check_loadable,
    keep_numbered,
    plain,
    read_newest,
    write_checkpoint,
)
from training.checks import ConfigError

fork = get_context("fork")


def content_of(step: int, size: int = 10) -> dict[str, Any]:
    """Every part, and weights from which the step can be told."""
    return {
        **dict.fromkeys(PARTS),
        "step": step,
        "model": torch.full((size,), float(step)),
        "loader": {"epoch": step // 4, "num_batches": step % 4},
    }


def save_forever(path: Path, said: Any) -> None:
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    for step in range(1, 10**9):
        write_checkpoint(path, content_of(step, size=1_000_000))  # 4 MB
        keep_numbered(path, step, 1)
        said.set()


def test_of_a_process_killed_while_saving_a_whole_checkpoint_is_found(tmp_path: Path) -> None:
    for trial in range(20):
        folder = tmp_path / str(trial)
        folder.mkdir()
        said = fork.Event()
        process = fork.Process(target=save_forever, args=(folder / "last.pt", said))
        process.start()
        assert said.wait(60)
        time.sleep(random.uniform(0, 0.05))
        process.kill()
        process.join()
        found = read_newest(folder, tmp_path)
        assert found.path == folder / "last.pt"
        assert found.damaged == []
        assert (found.content["model"] == found.content["step"]).all()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "trailer", "folder"])
def test_a_damaged_one_is_named_and_the_next_newest_used(tmp_path: Path, damage: str) -> None:
    for name, step in {"best": 3, "step-00000007": 7, "last": 9}.items():
        write_checkpoint(tmp_path / f"{name}.pt", content_of(step))
    last = tmp_path / "last.pt"
    data = bytearray(last.read_bytes())
    if damage == "cut":
        last.write_bytes(data[: len(data) // 2])
    elif damage in ("flip", "trailer"):
        data[-5 if damage == "trailer" else 700] ^= 1
        last.write_bytes(data)
    elif damage == "folder":
        last.unlink()
        last.mkdir()
    else:
        last.write_bytes(b"" if damage == "empty" else b"no checkpoint at all")
    found = read_newest(tmp_path, tmp_path)
    assert (found.path.name, found.content["step"]) == ("step-00000007.pt", 7)
    assert [line.partition(" is damaged")[0] for line in found.damaged] == [str(last)]


def test_the_newest_is_the_one_that_had_come_furthest(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "last.pt", content_of(11))
    write_checkpoint(tmp_path / "best.pt", content_of(12))  # a kill came between the two
    assert read_newest(tmp_path, tmp_path).path.name == "best.pt"


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    content = content_of(3)
    del content["optimizer"]
    write_checkpoint(tmp_path / "best.pt", content_of(2))
    for write in (write_checkpoint, lambda path, content: torch.save(content, path)):
        write(tmp_path / "last.pt", content)
        with pytest.raises(ConfigError, match=r"last\.pt must be .* but lacks optimizer$"):
            read_newest(tmp_path, tmp_path)


def test_where_there_is_none_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume=here: there is none"):
        read_newest(tmp_path, Path("here"))


def test_so_many_numbered_ones_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 15, 15, 20):
        write_checkpoint(tmp_path / "last.pt", content_of(step))
        keep_numbered(tmp_path / "last.pt", step, 2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["last.pt", "step-00000015.pt", "step-00000020.pt"]
    assert not any(sign in name for name in names for sign in "=, ")
    assert torch.load(tmp_path / "step-00000015.pt", weights_only=True)["step"] == 15


def test_the_newest_are_kept_by_number_and_not_by_name(tmp_path: Path) -> None:
    for step in (99_999_998, 99_999_999, 100_000_000):
        write_checkpoint(tmp_path / "last.pt", content_of(step))
        keep_numbered(tmp_path / "last.pt", step, 2)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"last.pt", "step-99999999.pt", "step-100000000.pt"}


def test_without_hard_links_a_copy_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no hard links here")

    monkeypatch.setattr("os.link", refuse)
    write_checkpoint(tmp_path / "last.pt", content_of(1))
    keep_numbered(tmp_path / "last.pt", 1, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "step-00000001.pt"]
    assert read_newest(tmp_path, tmp_path).content["step"] == 1


def test_what_is_written_last_replaces_the_file_not_its_content(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "last.pt", content_of(1))
    keep_numbered(tmp_path / "last.pt", 1, 2)
    write_checkpoint(tmp_path / "last.pt", content_of(2))
    assert torch.load(tmp_path / "step-00000001.pt", weights_only=True)["step"] == 1


def test_numbers_of_numpy_become_those_of_python() -> None:
    made = plain({"a": [np.float64(0.5), (np.int64(3),)], np.int64(1): np.bool_(True)})

    assert made == {"a": [0.5, (3,)], 1: True}
    assert [type(made["a"][0]), type(made["a"][1][0]), type(made[1])] == [float, int, bool]
    check_loadable(made, "state")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"scheduler": {"arr": np.arange(3)}}, "state.scheduler.arr must .* a numpy.ndarray$"),
        ({"a": [1, Path("x")]}, r"state.a\[1\] must .* but is a pathlib"),
        ({"a": OrderedDict(b=object())}, "state.a.b must .* but is a builtins.object$"),
    ],
)
def test_what_could_not_be_loaded_again_is_refused_by_name(content: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_loadable(content, "state")


def test_a_whole_file_of_objects_is_not_called_damaged(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "last.pt", content_of(1) | {"best": Path("x")})
    with pytest.raises(ConfigError) as caught:
        read_newest(tmp_path, tmp_path)

    assert str(caught.value).endswith(
        "last.pt is whole, but holds what weights_only=True does not load"
    )
    assert "\x1b" not in str(caught.value)
