"""The two stages of a sample are functions of the key alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from reuseloader import ReuseKey, ReusePolicy
from training.build import build_image, compose, finish_image
from training.curriculum import Steps
from training.data.digits import Digits

SOURCE = Digits("train", limit=8)
CHAIN = Steps(
    {
        0: v2.Compose([v2.Resize([32, 32]), v2.ElasticTransform(30.0, 4.0), v2.GaussianBlur(5)]),
        3: v2.Compose([v2.Resize([32, 32]), v2.RandomAffine(20.0)]),
    }
)


def key(index: int, epoch: int) -> ReuseKey:
    return ReusePolicy(2, 7).key(index, epoch)


def made(index: int = 3, epoch: int = 0) -> torch.Tensor:
    image: torch.Tensor = build_image(key(index, epoch), source=SOURCE, transforms=CHAIN)["image"]
    return image


def test_a_stored_sample_is_small_and_plain() -> None:
    sample = build_image(key(3, 0), source=SOURCE, transforms=CHAIN)
    assert type(sample["image"]) is torch.Tensor
    assert (sample["image"].dtype, sample["image"].shape) == (torch.uint8, (1, 32, 32))
    assert sample["label"] == SOURCE[3]["label"]


def test_floats_between_0_and_1_are_stored_as_bytes() -> None:
    to_float = Steps({0: v2.ToDtype(torch.float32, scale=True)})
    image = build_image(key(3, 0), source=SOURCE, transforms=to_float)["image"]
    assert torch.equal(image, SOURCE[3]["image"].as_subclass(torch.Tensor))


def test_a_build_does_not_depend_on_what_was_drawn_before() -> None:
    expected = made()
    for seed in range(3):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        made(5)
        assert torch.equal(made(), expected)


def test_a_build_draws_nothing_from_the_global_generators() -> None:
    def state() -> Any:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    before = state()
    made()
    finish_image({"image": made()}, key(3, 0), transforms=CHAIN)
    assert state() == before


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit_and_is_left_alone(num_threads: int) -> None:
    expected, before = [made(index) for index in range(8)], torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        found = [made(index) for index in range(8)]
        assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_generation_takes_the_row_of_its_first_epoch() -> None:
    # Index 3 has phase 1: epochs 1 and 2 are one generation, which begins before the new row.
    assert key(3, 2).first_epoch == 1
    assert torch.equal(made(3, 1), made(3, 2))
    assert key(3, 3).first_epoch == 3
    plain = Steps({0: CHAIN.at(3)})
    expected = build_image(key(3, 3), source=SOURCE, transforms=plain)["image"]
    assert torch.equal(made(3, 3), expected)


def test_finish_is_new_in_every_epoch_and_the_same_when_repeated() -> None:
    crop = Steps({0: v2.RandomCrop(32, padding=8)})

    def finished(epoch: int) -> torch.Tensor:
        image: torch.Tensor = finish_image({"image": made()}, key(3, epoch), transforms=crop)[
            "image"
        ]
        return image

    assert torch.equal(finished(1), finished(1))
    assert len({finished(epoch).numpy().tobytes() for epoch in range(6)}) > 3


def test_no_transforms_leave_the_image_as_it_is() -> None:
    image = SOURCE[0]["image"]
    assert compose([])(image) is image
