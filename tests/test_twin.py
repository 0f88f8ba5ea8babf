"""What the training process looks at before there are workers leaves them nothing behind."""

from __future__ import annotations

import os
import threading
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from torch import nn
from torchvision import tv_tensors

from training.twin import twin_of

SIDE = 8


class Records:
    """Images in one file, which is opened at the first item of a process and kept.

    Args:
        file: grey images, uint8.
    """

    _file: Any = None

    def __init__(self, file: str, split: str, limit: int | None) -> None:
        self.classes = [str(label) for label in range(10)]
        self._path = file
        self._size = Path(file).stat().st_size // SIDE**2
        self.opened_by = 0

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._file is None:
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 for __del__
            self.opened_by = os.getpid()
        assert self.opened_by == os.getpid(), "opened by another process"
        self._file.seek(index * SIDE**2)
        pixels = np.frombuffer(self._file.read(SIDE**2), np.uint8).copy()
        image = torch.from_numpy(pixels).reshape(1, SIDE, SIDE)
        return {"image": tv_tensors.Image(image), "label": index % 10}

    def identity(self) -> str:
        return sha256(Path(self._path).read_bytes()).hexdigest()


def options_of(tmp_path: Path) -> list[str]:
    """Return the options of a run on images in a file."""
    images = np.random.default_rng(5).integers(0, 256, 24 * SIDE**2, np.uint8)
    (tmp_path / "records").write_bytes(images.tobytes())
    nodes = [f"data.{part}._target_=test_twin.Records" for part in ("train", "val")]
    files = [f"+data.{part}.file={tmp_path / 'records'}" for part in ("train", "val")]
    return [
        *(*nodes, *files, "data.train.limit=null", "data.val.limit=null"),
        *("augment=none", "batch_size=6"),
        *("tracker=tensorboard", "tracker.num_pictures=4"),
    ]


@pytest.mark.parametrize("lifetime", [1, 2])
@pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(n, marks=pytest.mark.slow) for n in ("spawn", "forkserver"))]
)
def test_a_source_that_keeps_its_file_open_reads_it_in_each_worker(
    context: str, lifetime: int, tmp_path: Path
) -> None:
    options = [*options_of(tmp_path), f"lifetime={lifetime}"]
    workers = ["num_workers=2", f"loader.multiprocessing_context={context}"]

    alone = runs.train(tmp_path / "alone", *options)
    shared = runs.train(tmp_path / "shared", *options, *workers)

    assert runs.without_times(shared) == runs.without_times(alone)
    assert "left out" not in (tmp_path / "shared" / "train.log").read_text()


def test_a_twin_has_its_own_files_and_the_same_arrays(tmp_path: Path) -> None:
    options_of(tmp_path)
    source = Records(str(tmp_path / "records"), "train", None)
    array, tensor = np.arange(1000), torch.arange(6.0)
    parameter = nn.Parameter(tensor)
    original = {"source": partial(Records.__getitem__, source), "arrays": [array, array[::2]]}
    original |= {"tensors": (tensor, parameter), "same": array, "names": ["a", "b"]}

    twin: Any = twin_of(original)

    assert twin is not original and twin["names"] == ["a", "b"]
    assert twin["arrays"][0] is array is twin["same"]
    assert twin["arrays"][1] is original["arrays"][1]
    assert twin["tensors"][0] is tensor and twin["tensors"][1] is parameter
    assert twin["source"](3)["label"] == 3
    assert source.opened_by == 0
    assert array.tolist() == list(range(1000))


def test_what_cannot_be_pickled_is_its_own_twin() -> None:
    for value in ({"lock": threading.Lock()}, [lambda: 0], Unwilling()):
        assert twin_of(value) is value


class Unwilling:
    def __reduce__(self) -> Any:
        raise OSError("no")
