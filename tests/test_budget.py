"""Stored samples take no more of the disk than they may, and hold the same whatever that is."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from runs import begin, make_config, prepare, train, without_times

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey, Substitute
from training import budget
from training.budget import Kept, keep_within, predicted_bytes, share_in, stored_bytes
from training.checks import ConfigError
from training.distributed import Ranks

PIXELS = 50_000  # with its head a sample takes 13 blocks of 4096 bytes
EACH = 13 * 4096


def build(key: ReuseKey) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(key.seed)
    image = torch.randint(0, 256, (PIXELS,), dtype=torch.uint8, generator=generator)
    return {"image": image, "label": key.index}


def kept(folder: Path, size: int = 40, lifetime: int = 3, name: str = "training") -> Kept:
    loader = ReuseDataLoader(build, size, folder / name, lifetime=lifetime, seed=3)
    return Kept(name=name, loader=loader, build=build, size=size)


def on_disk(folder: Path) -> int:
    files = [file for file in folder.rglob("*.pt")]
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in files)


def test_what_fits_is_all_kept_and_said(tmp_path: Path) -> None:
    part = kept(tmp_path)
    said, fits = keep_within(tmp_path, 1e9, [part])
    assert (said, fits) == ("stored samples need about 2.1 MB, and may take 1.0 GB", True)
    assert part.loader.resident == 1.0


@pytest.mark.parametrize("allowed", [0, EACH - 1, EACH, 7.5 * EACH, 39.9 * EACH])
def test_of_what_does_not_fit_as_many_are_kept_as_do(allowed: float, tmp_path: Path) -> None:
    part = kept(tmp_path)
    said, fits = keep_within(tmp_path, allowed, [part])
    num_kept = int(allowed // EACH)
    assert not fits
    assert f"{100 * num_kept / 40:.0f} % of those for training are kept" in said
    for _ in range(4):
        list(part.loader)
        assert on_disk(tmp_path) <= allowed
    assert len(list(tmp_path.rglob("*.pt"))) == num_kept


def test_the_first_part_has_precedence(tmp_path: Path) -> None:
    parts = [kept(tmp_path, 10, FOREVER, "validation"), kept(tmp_path, 30)]
    said, fits = keep_within(tmp_path, 25 * EACH, parts)
    assert not fits
    assert parts[0].loader.resident == 1.0
    list(parts[1].loader)
    assert len(list((tmp_path / "training").glob("*.pt"))) <= 15
    assert said.startswith("stored samples need about 2.1 MB, and may take 1.3 MB; 50 % of those")


def test_a_machine_of_several_needs_room_for_the_samples_of_its_ranks_alone(
    tmp_path: Path,
) -> None:
    part = kept(tmp_path)
    said, fits = keep_within(tmp_path, 10 * EACH, [part], share=0.25)
    assert (said, fits) == ("stored samples need about 532.5 kB, and may take 532.5 kB", True)
    assert part.loader.resident == 1.0
    large = Kept(name="training", loader=part.loader, build=build, size=40_000)
    said, fits = keep_within(tmp_path, 5000 * EACH, [large], share=0.25)
    assert not fits
    # 5000 of 10,000 fit; a few less are chosen, because chance deals them to the machines.
    resident = sum(part.loader._dataset.residency.keeps(index) for index in range(40_000))
    assert resident == 4 * (5000 - 213)
    assert "; 48 % of those for training are kept" in said


def test_the_ranks_that_see_a_folder_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert share_in(tmp_path / "alone") == 1.0
    monkeypatch.setattr(budget, "ranks", lambda: Ranks(rank=1, world_size=8))
    arrivals = iter([3, 0])  # how many of the others see this folder, and are still there

    def wait() -> None:
        for rank in range(2, 2 + next(arrivals)):
            (tmp_path / "disk" / f"rank-{rank}.here").touch()

    monkeypatch.setattr(budget, "wait_for_all", wait)
    assert share_in(tmp_path / "disk") == 0.5
    assert not (tmp_path / "disk" / "rank-1.here").exists()


def test_what_is_never_stored_needs_nothing(tmp_path: Path) -> None:
    assert keep_within(tmp_path, 0, [kept(tmp_path, lifetime=1)]) == (
        "stored samples need about 0 B, and may take 0 B",
        True,
    )


def test_without_a_limit_four_fifths_of_the_free_space_may_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        total: int
        used: int
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, 10 * EACH))
    part = kept(tmp_path)
    keep_within(tmp_path, None, [part])
    list(part.loader)
    assert len(list(tmp_path.rglob("*.pt"))) <= 8
    # A run that goes on finds less free space, by what it has stored itself: that counts as free.
    used = stored_bytes(tmp_path)
    assert used > 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, 10 * EACH - used))
    before = part.loader.resident
    keep_within(tmp_path, None, [part])
    assert part.loader.resident == before


def test_a_prediction_builds_a_few_samples_and_leaves_nothing_behind(tmp_path: Path) -> None:
    built: list[int] = []

    def counting(key: ReuseKey) -> Any:
        built.append(key.index)
        random.random(), np.random.rand(), torch.rand(1)  # as no build should
        return {"image": torch.zeros(1000 * (1 + key.index // 500), dtype=torch.uint8)}

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    loader = kept(tmp_path, 1000).loader
    assert predicted_bytes(counting, loader, 1000, tmp_path) == 4096
    assert built == list(range(0, 1000, 125))
    assert (
        random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    ) == states  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["training"]


def test_a_sample_that_cannot_be_built_is_left_to_the_first_epoch(tmp_path: Path) -> None:
    def broken(key: ReuseKey) -> Any:
        if key.index < 20:
            raise ValueError("bad pixels")
        return Substitute(build(key), "skipped")

    loader = kept(tmp_path).loader
    assert predicted_bytes(broken, loader, 40, tmp_path) == EACH
    assert predicted_bytes(broken, loader, 10, tmp_path) is None
    part = Kept(name="training", loader=loader, build=broken, size=10)
    assert keep_within(tmp_path, 0, [part]) == (
        "no sample could be built to predict what stored ones will take",
        True,
    )


DIGITS = ("augment=digits", "lifetime=2", "epochs=3", "cache.keep=true")


def test_a_run_trains_to_the_same_numbers_whatever_it_may_store(tmp_path: Path) -> None:
    tables = {}
    for name, limit in {"all": "null", "some": "700000", "none": "0"}.items():
        tables[name] = train(tmp_path / name, *DIGITS, f"cache.max_bytes={limit}")
        said = (tmp_path / name / "train.log").read_text()
        assert ("are kept, the others built at each use" in said) == (name != "all")
        assert "stored samples need about 1.7 MB, and may take" in said
        if limit != "null":
            assert on_disk(tmp_path / name / "cache") <= int(limit)
    reused = {name: [row.pop("reused") for row in table] for name, table in tables.items()}
    built = {name: [row.pop("built") for row in table] for name, table in tables.items()}
    first, *others = (without_times(table) for table in tables.values())
    assert others == [first, first]
    assert reused["all"] == [0, 32, 32]
    assert reused["none"] == [0, 0, 0]
    assert all(b + r == 64 for b, r in zip(built["some"], reused["some"], strict=True))


@pytest.mark.parametrize("limit", ["-1", "nan", "inf"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit: str) -> None:
    rule = "cache.max_bytes must be null or a number of bytes from 0 up, but got cache.max_bytes="
    with pytest.raises(ConfigError, match=rule):
        make_config(f"cache.max_bytes={limit}")
    assert make_config("cache.max_bytes=2e9").cache.max_bytes == 2e9
    assert math.isclose(make_config("cache.max_bytes=100").cache.max_bytes or 0, 100)


def test_validation_has_its_share_before_training(tmp_path: Path) -> None:
    with begin(tmp_path / "run", *DIGITS, "cache.max_bytes=700000") as run:
        _, loaders, _ = prepare(run)
        assert loaders.val.resident == 1.0
        assert 0 < loaders.train.resident < 0.2
