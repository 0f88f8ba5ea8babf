"""Rows of an HDF5 file: layouts, lazy opening in each process, and what its identity covers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import begin, make_config, prepare, train
from torchvision import tv_tensors

from reuseloader import ReuseDataLoader, ReusePolicy
from training.build import build_image, compose
from training.checks import ConfigError
from training.curriculum import Steps
from training.data import hdf5 as module
from training.data.hdf5 import Hdf5
from training.data.images import UnreadableError

h5py = pytest.importorskip("h5py")

NUM_ROWS, CHUNK = 100, 16
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (NUM_ROWS, 3, 8, 10), dtype=np.uint8)
LABELS = RNG.integers(0, 4, NUM_ROWS)
LABELS[:4] = range(4)


def write(path: Path, **options: Any) -> Path:
    """Write the rows to a new file, in chunks of 16 unless it is said otherwise."""
    images = options.pop("images", IMAGES)
    options = {"chunks": (CHUNK, *images.shape[1:]), "compression": "gzip", **options}
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=images, **options)
        file["y"] = LABELS
    return path


def change(path: Path, action: Callable[[Any], None]) -> None:
    with h5py.File(path, "r+") as file:
        action(file)


def opened(path: Path, **options: Any) -> Hdf5:
    return Hdf5(str(path), "x", "y", 4, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.h5")


def test_every_row_is_what_was_written(path: Path) -> None:
    source = opened(path)
    assert (len(source), source.classes, source.block_size) == (100, ["0", "1", "2", "3"], 16)
    assert source.labels.tolist() == LABELS.tolist()
    for index in RNG.permutation(NUM_ROWS).tolist():
        item = source[index]
        assert type(item["image"]) is tv_tensors.Image
        assert item["image"].tolist() == IMAGES[index].tolist()
        assert (type(item["label"]), item["label"]) == (int, LABELS[index])
    with pytest.raises(IndexError):
        source[NUM_ROWS]


@pytest.mark.parametrize(
    ("axes", "channels"), [((0, 2, 3, 1), 3), ((0, 2, 3, 1), 1), ((0, 1, 2, 3), 1), (None, 1)]
)
def test_channels_may_come_first_last_or_not_at_all(
    axes: tuple[int, ...] | None, channels: int, tmp_path: Path
) -> None:
    images = IMAGES[:, :channels]
    stored = images[:, 0] if axes is None else images.transpose(axes)
    source = opened(write(tmp_path / "a.h5", images=stored))
    plain = opened(tmp_path / "a.h5", rgb=False)
    for index in (0, 57, 99):
        assert plain[index]["image"].tolist() == images[index].tolist()
        rgb = np.broadcast_to(images[index], (3, 8, 10))
        assert source[index]["image"].tolist() == rgb.tolist()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8"])
def test_fractions_are_read_as_they_are(dtype: str, tmp_path: Path) -> None:
    fractions = (IMAGES / 255).astype(dtype)
    source = opened(write(tmp_path / "a.h5", images=fractions))
    assert source[7]["image"].dtype.is_floating_point
    assert source[7]["image"].tolist() == fractions[7].tolist()


def test_a_file_without_chunks_has_blocks_of_one(tmp_path: Path) -> None:
    source = opened(write(tmp_path / "a.h5", chunks=None, compression=None))
    assert source.block_size == 1
    assert source[3]["image"].tolist() == IMAGES[3].tolist()


def test_names_of_classes_are_taken_from_the_file(path: Path) -> None:
    change(path, lambda file: file.attrs.__setitem__("classes", ["ant", "bee", "cow", "doe"]))
    assert opened(path).classes == ["ant", "bee", "cow", "doe"]


def test_a_process_opens_the_file_at_its_first_row_and_none_inherits_it(path: Path) -> None:
    source = opened(path)
    assert source._file is None
    source[0]
    assert source._file is not None
    assert pickle.loads(pickle.dumps(source))._file is None
    if os.name != "posix":
        return
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            inherited = source._file is not None or bool(module._opened - {source})
            sender.send((inherited, source[5]["image"].tolist() == IMAGES[5].tolist()))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert receiver.recv() == (False, True)
    assert source._file is None  # closed before the fork
    assert source[9]["image"].tolist() == IMAGES[9].tolist()


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_what_one_process_reads(start: str, path: Path, tmp_path: Path) -> None:
    build = Build(opened(path))
    build(ReusePolicy(2).key(0, 0))  # the file is open here
    options = {"lifetime": 2, "batch_size": 10, "multiprocessing_context": start}
    loader = ReuseDataLoader(build, NUM_ROWS, tmp_path / "cache", num_workers=2, **options)  # type: ignore[arg-type]
    for _ in range(2):
        found = torch.cat([batch["image"] for batch in loader])
        assert torch.equal(found, torch.from_numpy(IMAGES))


class Build:
    """A build of whole rows that spawned workers can import."""

    def __init__(self, source: Hdf5) -> None:
        self.source = source

    def __call__(self, key: Any) -> Any:
        return build_image(key, source=self.source, transforms=Steps({0: compose([])}))


def read_bytes() -> int:
    """Return what this process has read from files so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def test_in_blocks_a_chunk_is_read_once_and_at_random_nearly_once_a_row(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    rows = RNG.integers(0, 256, (64 * 16, 3, 8, 10), dtype=np.uint8)
    labels = np.arange(len(rows)) % 4
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(16, 3, 8, 10), compression="gzip")
        file["y"] = labels
        chunk_bytes = file["x"].id.get_chunk_info(0).size

    def reads_a_row(order: list[int]) -> float:
        source = opened(tmp_path / "a.h5")
        source[order[0]]
        before = read_bytes()
        for index in order:
            source[index]
        return (read_bytes() - before) / chunk_bytes / len(order)

    blocks = [16 * b + r for b in RNG.permutation(64) for r in RNG.permutation(16)]
    assert reads_a_row(blocks) < 1.5 / 16
    assert reads_a_row(RNG.permutation(len(rows)).tolist()) > 0.7


def test_a_cache_that_holds_no_chunk_is_refused(path: Path) -> None:
    needed = CHUNK * 3 * 8 * 10
    opened(path, cache_bytes=needed)
    with pytest.raises(ConfigError, match=f"cache_bytes must be at least {needed}, for the 16 "):
        opened(path, cache_bytes=needed - 1)


def test_the_identity_is_the_content_and_neither_place_nor_time(path: Path, tmp_path: Path) -> None:
    before = opened(path).identity()
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.move(path, tmp_path / "elsewhere" / "b.h5"))
    os.utime(moved, (7, 7))
    assert opened(moved).identity() == before
    assert opened(write(tmp_path / "again.h5")).identity() == before
    assert opened(moved, cache_bytes=10**6).identity() == before


CHANGES: dict[str, Callable[[Any], None]] = {
    "a pixel": lambda file: file["x"].__setitem__((50, 0, 0, 0), file["x"][50, 0, 0, 0] ^ 1),
    "a row": lambda file: file["x"].__setitem__(99, file["x"][0]),
    "an order": lambda file: file["x"].__setitem__(slice(0, 2), file["x"][[0, 1]][::-1]),
    "a label": lambda file: file["y"].__setitem__(3, 0),
    "an attribute": lambda file: file["x"].attrs.__setitem__("unit", "K"),
    "a class": lambda file: file.attrs.__setitem__("classes", ["a", "b", "c", "d"]),
}


@pytest.mark.parametrize("chunks", [(CHUNK, 3, 8, 10), None])
@pytest.mark.parametrize("what", CHANGES)
def test_the_identity_changes_with(what: str, chunks: Any, tmp_path: Path) -> None:
    options = {"compression": "gzip" if chunks else None, "chunks": chunks}
    path = write(tmp_path / "a.h5", **options)
    before = opened(path).identity()
    change(path, CHANGES[what])
    assert opened(path).identity() != before


def test_of_a_large_file_a_change_of_any_stored_size_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.data.hdf5_content._WHOLE_BYTES", 1)
    monkeypatch.setattr("training.data.hdf5_content._NUM_SAMPLED", 1)
    before = opened(path).identity()
    change(path, lambda file: file["x"].__setitem__(slice(32, 48), 7))  # a chunk not sampled
    assert opened(path).identity() != before


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        ("z", "y", "must hold a data set z, but holds x, y"),
        ("x", "z", "must hold a data set z, but holds x, y"),
        ("y", "y", "/y must be N x H x W, N x C x H x W or N x H x W x C, of uint8 or floats"),
        ("x", "x", "x must hold an integer for each of the 100 rows of x, but is uint8 of shape"),
    ],
)
def test_a_data_set_that_does_not_fit_is_named(
    images: str, labels: str, said: str, path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        Hdf5(str(path), images, labels, 4)
    assert said in str(caught.value)


def test_labels_beyond_the_classes_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"y must lie in \[0, 3\), the classes, but go from 0 to"):
        Hdf5(str(path), "x", "y", 3)


def test_a_row_that_cannot_be_decompressed_is_named(path: Path) -> None:
    with h5py.File(path, "r") as file:
        info = file["x"].id.get_chunk_info(2)
    with open(path, "r+b") as file:
        file.seek(info.byte_offset)
        file.write(bytes(info.size))
    source = opened(path)
    assert source[0]["image"].tolist() == IMAGES[0].tolist()
    with pytest.raises(UnreadableError, match=rf"^row 40 of x in {path} cannot be read: .*filter"):
        source[40]


@pytest.mark.parametrize("value", [-0.5, 1.5, 255.0, np.nan])
def test_floats_beyond_0_and_1_are_refused_with_file_row_and_value(
    value: float, tmp_path: Path
) -> None:
    fractions = (IMAGES / 255).astype("f4")
    fractions[7, 1, 2, 3] = value
    fractions[8, 0, 0, 0] = 1.0001  # as rounding leaves it
    path = write(tmp_path / "a.h5", images=fractions)
    source = opened(path)
    assert source[8]["image"].max() > 1
    said = rf"^row 7 of x in {path}: floats must lie in \[0, 1\], but got {value}$"
    with pytest.raises(UnreadableError, match=said):
        source[7]


def test_floats_of_more_than_64_bits_are_refused_at_the_start(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", images=(IMAGES / 255).astype(np.longdouble))
    with pytest.raises(ConfigError, match=r"^/x must be N x .* in at most 64 bits, but is float"):
        opened(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file or directory"), (b"no HDF5", ".*signature"), (b"", ".")],
)
def test_a_file_that_cannot_be_opened_is_named(
    content: bytes | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{path} cannot be opened as HDF5: {why}"):
        opened(path)


@pytest.mark.parametrize("value", ["ant", 3, np.array([], "S3"), h5py.Empty("S3"), [["a", "b"]]])
def test_names_of_classes_that_are_no_list_are_refused(value: Any, path: Path) -> None:
    change(path, lambda file: file.attrs.__setitem__("classes", value))
    with pytest.raises(
        ConfigError, match=r"^the attribute classes of .*a\.h5 must be a list of 4 "
    ):
        opened(path)


def test_a_run_trains_on_it(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for split, rows in {"train": slice(0, 60), "val": slice(60, 100)}.items():
            images = IMAGES[rows].transpose(0, 2, 3, 1)
            file.create_dataset(f"{split}/images", data=images, chunks=(8, 8, 10, 3))
            file[f"{split}/labels"] = LABELS[rows]
    options = ("data=hdf5", f"data.path={tmp_path / 'a.h5'}", "data.num_classes=4")
    options = (*options, "data.image_size=16", "augment=photos", "lifetime=2")
    table = train(tmp_path / "run", *options)
    assert [(row["built"], row["reused"]) for row in table] == [(60, 0), (30, 30)]


def test_a_run_reads_chunk_by_chunk(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for split in ("train", "val"):
            file.create_dataset(f"{split}/images", data=IMAGES, chunks=(CHUNK, 3, 8, 10))
            file[f"{split}/labels"] = LABELS
    words = ("data=hdf5", f"data.path={tmp_path / 'a.h5'}", "data.num_classes=4")
    with begin(tmp_path / "run", *words) as run:
        order = prepare(run)[1].train.order
    assert order is not None
    places = np.array([order.index(place, 0) // CHUNK for place in range(NUM_ROWS)])
    assert np.count_nonzero(np.diff(places)) == NUM_ROWS // CHUNK  # each chunk in one piece


@pytest.mark.parametrize("given", [{}, {"data.num_classes": "4"}, {"data.path": "a.h5"}])
def test_what_is_missing_on_the_command_line_is_named(given: dict[str, str]) -> None:
    (name, *_) = [n for n in ("data.path", "data.num_classes") if n not in given]
    words = [f"{key}={value}" for key, value in given.items()]
    with pytest.raises(ConfigError, match=f"^{name} must be given, for example on the command"):
        make_config("data=hdf5", *words)


def test_without_h5py_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"^HDF5 files need h5py: pip install '\.\[hdf5\]'$"):
        opened(path)
