"""The loaders of a run against a plain DataLoader over the same build."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import begin, prepare
from torch.utils.data import DataLoader

from reuseloader import ReuseKey, ReusePolicy
from training.build import build_image
from training.config import ConfigError
from training.data.digits import Digits

AUGMENTED = ("augment=digits", "data.train.limit=24", "data.val.limit=9", "batch_size=5")


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(first[name], second[name]) for name in ("image", "label"))


@pytest.mark.parametrize("lifetime", [1, 2, 3])
def test_batches_are_those_of_a_plain_loader_over_the_build(lifetime: int, tmp_path: Path) -> None:
    with begin(tmp_path / "run", *AUGMENTED, f"lifetime={lifetime}", "seed=5") as run:
        _, loaders, _ = prepare(run)
        policy = ReusePolicy(lifetime, 5)
        for epoch in range(4):
            keys = [policy.key(policy.order(i, epoch, 24), epoch) for i in range(24)]
            assert loaders.finish is not None
            samples = [loaders.make(key)[1] for key in keys]
            plain = list(DataLoader(samples, batch_size=5))
            found = list(loaders.train)
            assert len(found) == len(plain)
            assert all(same(a, b) for a, b in zip(found, plain, strict=True))


@pytest.mark.parametrize("store_all", ["false", "true"])
@pytest.mark.parametrize("name", ["stored.affine.degrees", "fresh.brightness.brightness"])
def test_a_curriculum_sets_what_it_names_of_either_stage(
    name: str, store_all: str, tmp_path: Path
) -> None:
    made = {}
    options = [*AUGMENTED, "lifetime=1", f"augment.store_all={store_all}"]
    for given in (f"{{0: {{{name}: 0.0}}, 1: {{{name}: 0.5}}}}", "null"):
        value = [] if given != "null" else [f"augment.{name}=0.5"]
        table = [f"curriculum.table={given}"]
        with begin(tmp_path / given[:2], *options, *table, *value) as run:
            _, loaders, _ = prepare(run)
            with loaders:
                made[given[:2]] = [batch for _ in range(2) for batch in loaders.train]
    grown, constant = made.values()
    half = len(grown) // 2
    assert not any(same(a, b) for a, b in zip(grown[:half], constant[:half], strict=True))
    assert all(same(a, b) for a, b in zip(grown[half:], constant[half:], strict=True))


@pytest.mark.parametrize(
    ("augment", "table", "is_said"),
    [
        ("digits", "{0: {magnitude: 0.3}, 1: {magnitude: 1.0}}", False),
        ("digits", "{0: {stored.blur.kernel_size: 3}}", False),
        ("randaugment", "{0: {magnitude: 0.3}, 1: {magnitude: 1.0}}", True),
        ("none", "{0: {magnitude: 0.3}}", True),
        ("none", "{0: {magnitude: 1.0}}", False),  # as it is without
    ],
)
def test_a_curriculum_over_a_magnitude_that_nothing_follows_is_mentioned(
    augment: str, table: str, is_said: bool, tmp_path: Path
) -> None:
    with begin(tmp_path, f"augment={augment}", f"curriculum.table={table}") as run:
        _, loaders, _ = prepare(run)
    assert loaders.facts[0].startswith("epochs from 0 on: ")
    found = [note for note in loaders.notes if "which no transform of augment follows" in note]
    assert len(found) == is_said


def test_with_store_all_a_sample_is_the_same_in_all_epochs_of_its_generation(
    tmp_path: Path,
) -> None:
    images = {}
    for name in ("false", "true"):
        options = [*AUGMENTED, "lifetime=4", f"augment.store_all={name}"]
        with begin(tmp_path / name, *options) as run:
            _, loaders, _ = prepare(run)
            keys = [loaders.train.policy.key(0, epoch) for epoch in (1, 2)]
            made = [loaders.make(key)[1] for key in keys]
            images[name] = [sample["image"] for sample in made]

    assert keys[0].generation == keys[1].generation
    assert not torch.equal(*images["false"])
    assert torch.equal(*images["true"])
    assert images["true"][0].shape == (3, 64, 64)
    assert not torch.equal(images["true"][0], loaders_without_fresh(tmp_path / "none", keys[0]))


def loaders_without_fresh(directory: Path, key: ReuseKey) -> torch.Tensor:
    with begin(directory, *AUGMENTED, "lifetime=4") as run:
        image: torch.Tensor = prepare(run)[1].build(key)["image"]
    return image


def test_validation_is_prepared_once_for_the_whole_run(tmp_path: Path) -> None:
    with begin(tmp_path / "run", *AUGMENTED) as run:
        _, loaders, _ = prepare(run)
        first = list(loaders.val)
        assert (loaders.val.stats().built, loaders.val.stats().reused) == (9, 0)
        for _ in range(3):
            again = list(loaders.val)
            assert (loaders.val.stats().built, loaders.val.stats().reused) == (0, 9)
            assert all(same(a, b) for a, b in zip(first, again, strict=True))
        assert sorted(path.name for path in run.cache.iterdir()) == ["train", "val"]


def slow_image(key: ReuseKey, **parts: Any) -> Any:
    """Build what takes longer than a test may."""
    if key.epoch > 0:
        Path(os.environ["AT_A_BUILD"]).touch()
        time.sleep(60)
    return build_image(key, **parts)


def test_a_block_that_an_error_leaves_waits_for_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: None
) -> None:
    # How long torch waits for a worker before it asks it to end: 5 s, for each.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 60.0)
    at_a_build = tmp_path / "building"
    monkeypatch.setenv("AT_A_BUILD", str(at_a_build))
    options = ["build._target_=test_loaders.slow_image", "num_workers=2", "lifetime=1"]
    with pytest.raises(KeyError), begin(tmp_path / "run", *options) as run:
        _, loaders, _ = prepare(run)
        with loaders:
            loaders.train.set_epoch(1)
            running = iter(loaders.train)
            while not at_a_build.exists():
                time.sleep(0.01)
            raise KeyError(str(running))
    assert torch.multiprocessing.active_children() == []
    with pytest.raises(ValueError, match="closed"):
        next(running)


def test_validation_is_not_augmented(tmp_path: Path) -> None:
    with begin(tmp_path / "a", *AUGMENTED, "seed=1") as run:
        first = list(prepare(run)[1].val)
    with begin(tmp_path / "b", *AUGMENTED, "seed=2", "augment=none") as run:
        second = list(prepare(run)[1].val)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


def test_data_that_does_not_fit_the_config_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"data\.num_classes must be the number of classes"),
        begin(tmp_path / "run", "data.num_classes=11") as run,
    ):
        prepare(run)


class NoDigits(Digits):
    """Digits of which there are none."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_set_without_samples_is_said_before_training(tmp_path: Path, split: str) -> None:
    with (
        pytest.raises(ConfigError) as raised,
        begin(tmp_path / "run", f"data.{split}._target_=test_loaders.NoDigits") as run,
    ):
        prepare(run)
    assert str(raised.value) == f"data.{split} must hold at least one sample, but it is empty"
