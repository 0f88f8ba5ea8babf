"""Samples that cannot be read into a batch, or not be stacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from batching import (
    SIZE,
    assert_equal,
    image_and_label,
    loader_of,
    noise,
    passes,
    plain_collate,
)

from reuseloader import (
    ReuseKey,
)


def test_different_shapes_raise_the_same_error(tmp_path: Path) -> None:
    def build(key: ReuseKey) -> torch.Tensor:
        return torch.zeros(3 + key.index % 2)

    for number, options in enumerate([{}, {"collate_fn": plain_collate}]):
        loader = loader_of(build, tmp_path / str(number), **options)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
                list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_counts_and_warnings_are_those_of_single_samples(num_workers: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
    results = []
    for name, collate in {"a": plain_collate, "b": None}.items():
        loader = loader_of(image_and_label, tmp_path / name, collate_fn=collate, **options)
        passes(loader, 2)
        path = tmp_path / name / "00000003.pt"
        data = bytearray(path.read_bytes())
        data[-200] ^= 1
        path.write_bytes(data)
        with pytest.warns(UserWarning, match="00000003.pt is damaged") as caught:
            batches = list(loader)
        stats = loader.stats()
        counts = (stats.built, stats.reused, stats.stored, stats.damaged, stats.read_bytes)
        results.append((batches, counts, len(caught)))
    assert_equal(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]
    assert results[1][1][3] == 1


def test_every_flipped_bit_of_a_file_costs_a_rebuild(tmp_path: Path) -> None:
    def build(key: ReuseKey) -> Any:
        return {"x": noise(key, (9,)), "y": key.index}

    loader = loader_of(build, tmp_path, lifetime=10**6, size=2, batch_size=2)
    expected = passes(loader, 2)[0]
    expected[0] = {
        name: value[torch.argsort(expected[0]["y"])] for name, value in expected[0].items()
    }
    path = tmp_path / "00000001.pt"
    good = path.read_bytes()
    for bit in range(0, 8 * len(good), 7):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.warns(UserWarning, match="00000001.pt is damaged"):
            (batch,) = list(loader)
        order = torch.argsort(batch["y"])
        assert torch.equal(batch["x"][order], expected[0]["x"])
        assert loader.stats().damaged == 1
        assert path.read_bytes() == good


def test_files_that_were_cut_swapped_or_replaced_cost_a_rebuild(tmp_path: Path) -> None:
    loader = loader_of(image_and_label, tmp_path / "a", lifetime=50, batch_size=SIZE)
    plain = loader_of(
        image_and_label, tmp_path / "b", lifetime=50, batch_size=SIZE, collate_fn=plain_collate
    )
    passes(loader, 2)
    for _ in range(2):
        list(plain)
    paths = [tmp_path / "a" / f"{index:08d}.pt" for index in range(8)]
    paths[0].write_bytes(b"")
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    paths[2].write_bytes(paths[2].read_bytes() + b"\0")
    paths[3].unlink()
    paths[4].unlink()
    paths[4].mkdir()
    one, other = paths[5].read_bytes(), paths[6].read_bytes()
    paths[5].write_bytes(other)
    paths[6].write_bytes(one)
    paths[7].write_bytes(bytes(10**6))
    with pytest.warns(UserWarning, match="damaged"):
        assert_equal(list(loader), list(plain))
    assert loader.stats().built == 8
    assert loader.stats().damaged == 5


def test_a_file_whose_layout_lies_about_its_size_allocates_no_batch(tmp_path: Path) -> None:
    loader = loader_of(image_and_label, tmp_path, lifetime=50, batch_size=SIZE)
    passes(loader, 1)
    sizes = []
    for index in range(SIZE):
        if index != 3:
            (tmp_path / f"{index:08d}.pt").unlink()
    list(loader)
    reader = loader.dataset._batches  # type: ignore[attr-defined]
    reader.start(SIZE)
    sizes.append(reader._layout)
    assert sizes == [None]  # one file of a batch is not enough
    list(loader)
    reader.start(SIZE)
    assert reader._layout is not None
