"""The two stages of a sample are functions of the key alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from omegaconf import DictConfig, OmegaConf
from runs import begin, compose_config
from torchvision import tv_tensors
from torchvision.transforms import v2

from reuseloader import ReuseDataLoader, ReuseKey, ReusePolicy, load_tensors, save_tensors
from training.build import ToRGB, build_image, compose, finish_image
from training.checks import ConfigError
from training.config import load_config
from training.curriculum import Steps, expand
from training.data.digits import Digits
from training.fingerprint import fingerprint
from training.loaders import Loaders, make_loaders
from training.records import Record, Run

SOURCE = Digits("train", limit=8)
CHAIN = Steps(
    {
        0: v2.Compose(
            [
                v2.Resize([32, 32], antialias=True),
                v2.ElasticTransform(30.0, 4.0),
                v2.GaussianBlur(5),
            ]
        ),
        3: v2.Compose([v2.Resize([32, 32], antialias=True), v2.RandomAffine(20.0)]),
    }
)


def key(index: int, epoch: int) -> ReuseKey:
    return ReusePolicy(2, 7).key(index, epoch)


def made(index: int = 3, epoch: int = 0) -> torch.Tensor:
    image: torch.Tensor = build_image(key(index, epoch), source=SOURCE, transforms=CHAIN)["image"]
    return image


def finished(epoch: int, transforms: Any) -> torch.Tensor:
    steps = transforms if isinstance(transforms, Steps) else Steps({0: transforms})
    image: torch.Tensor = finish_image({"image": made()}, key(3, epoch), transforms=steps)["image"]
    return image


def random_states() -> Any:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_stored_sample_is_small_and_plain() -> None:
    sample = build_image(key(3, 0), source=SOURCE, transforms=CHAIN)
    assert sample.keys() == {"image", "label"}
    assert type(sample["image"]) is torch.Tensor
    assert (sample["image"].dtype, sample["image"].shape) == (torch.uint8, (1, 32, 32))
    assert not sample["image"].requires_grad
    assert (type(sample["label"]), sample["label"]) == (int, SOURCE[3]["label"])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.int32])
def test_values_of_any_type_are_stored_as_bytes(dtype: torch.dtype) -> None:
    convert = Steps({0: v2.ToDtype(dtype, scale=True)})
    image = build_image(key(3, 0), source=SOURCE, transforms=convert)["image"]
    assert image.dtype == torch.uint8
    assert torch.equal(image, SOURCE[3]["image"].as_subclass(torch.Tensor))


def test_a_build_does_not_depend_on_what_was_drawn_or_built_before() -> None:
    expected = [made(index, epoch) for epoch in (0, 3) for index in range(8)]
    for seed in range(3):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        backwards = [made(index, epoch) for epoch in (3, 0) for index in range(7, -1, -1)]
        assert equal(backwards[::-1], expected)


def test_another_index_generation_or_seed_gives_another_sample() -> None:
    images = [made(index, epoch) for index in range(8) for epoch in (0, 3)]
    other = ReusePolicy(2, 8).key(3, 0)
    images.append(build_image(other, source=SOURCE, transforms=CHAIN)["image"])
    assert len({image.numpy().tobytes() for image in images}) == len(images)


@pytest.mark.parametrize("fails", [False, True])
def test_both_stages_leave_the_global_generators_alone(fails: bool) -> None:
    def draw(image: Any) -> Any:
        torch.rand(3), np.random.rand(3), random.random()
        if fails:
            raise ValueError("bad image")
        return image

    before = random_states()
    for stage in (
        lambda: build_image(key(3, 0), source=SOURCE, transforms=Steps({0: draw})),
        lambda: finish_image({"image": SOURCE[3]["image"]}, key(3, 0), transforms=Steps({0: draw})),
    ):
        try:
            stage()
        except ValueError as error:
            assert fails and str(error) == "bad image"
        assert random_states() == before


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit_and_is_left_alone(num_threads: int) -> None:
    def all_images() -> list[torch.Tensor]:
        blur = [finished(epoch, v2.GaussianBlur(9)) for epoch in range(3)]
        return [made(index, epoch) for index in range(8) for epoch in (0, 3)] + blur

    expected = all_images()
    torch.set_num_threads(num_threads)  # the fixture of all tests sets it back
    assert equal(all_images(), expected)
    assert torch.get_num_threads() == num_threads
    with pytest.raises(ZeroDivisionError):
        build_image(key(3, 0), source=SOURCE, transforms=Steps({0: lambda _: 1 / 0}))
    assert torch.get_num_threads() == num_threads


@pytest.mark.parametrize(("low", "high"), [(-2.1, 2.6), (0.0, 255.0), (math.nan, 1.0)])
def test_floats_that_are_normalised_already_are_refused_and_not_wrapped(
    low: float, high: float
) -> None:
    odd = Steps({0: lambda _: torch.tensor([[[low, high]]])})
    for stage, place in ((build_image, "augment.stored"), (finish_image, "augment.fresh")):
        arguments = {"source": SOURCE} if stage is build_image else {"sample": {"image": made()}}
        with pytest.raises(ConfigError, match=rf"^{place} must leave floats in \[0, 1\], but they"):
            stage(key=key(3, 0), transforms=odd, **arguments)


def test_what_a_resize_overshoots_is_clamped() -> None:
    edge = Steps({0: lambda _: torch.tensor([[[-0.1, 0.0, 0.5, 1.0, 1.1]]])})
    assert build_image(key(3, 0), source=SOURCE, transforms=edge)["image"].flatten().tolist() == (
        [0, 0, 127, 255, 255]
    )


def test_transforms_that_leave_no_tensor_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^augment.stored must leave a tensor, but got Image$"):
        build_image(key(3, 0), source=SOURCE, transforms=Steps({0: v2.ToPILImage()}))


def test_an_image_of_one_channel_gets_three_alike_and_others_stay() -> None:
    grey, colour = SOURCE[0]["image"], torch.rand(3, 4, 4)
    assert torch.equal(ToRGB()(grey), torch.cat([grey, grey, grey]))
    assert ToRGB()(colour) is colour


def test_the_fresh_stage_ends_in_bytes_too() -> None:
    image = finished(0, v2.ToDtype(torch.float32, scale=True))
    assert torch.equal(made(), image) and type(image) is torch.Tensor


class OnlyFirstEpoch:
    """A key that tells a build what it may know, and refuses all that moves within a generation."""

    def __init__(self, key: ReuseKey) -> None:
        self._key = key

    def __getattr__(self, name: str) -> Any:
        assert name in ("index", "generation", "seed", "first_epoch"), f"key.{name} was read"
        return getattr(self._key, name)


@pytest.mark.parametrize("epoch", [0, 1, 2, 3, 10**6])
def test_a_build_reads_nothing_of_time_but_the_first_epoch(epoch: int) -> None:
    limited: Any = OnlyFirstEpoch(key(3, epoch))
    image = build_image(limited, source=SOURCE, transforms=CHAIN)["image"]
    assert torch.equal(image, made(3, epoch))


def test_a_generation_takes_the_row_of_its_first_epoch() -> None:
    # Index 3 has phase 1: epochs 1 and 2 are one generation, which begins before the new row.
    assert [key(3, epoch).first_epoch for epoch in (1, 2, 3, 4)] == [1, 1, 3, 3]
    for epoch, row in ((1, 0), (2, 0), (3, 3), (4, 3), (10**6 + 1, 3)):
        plain = Steps({0: CHAIN.at(row)})
        expected = build_image(key(3, epoch), source=SOURCE, transforms=plain)["image"]
        assert torch.equal(made(3, epoch), expected)


def test_finish_is_new_in_every_epoch_and_the_same_when_repeated() -> None:
    crop = v2.RandomCrop(32, padding=8)
    first = [finished(epoch, crop) for epoch in range(8)]
    torch.manual_seed(3)
    again = [finished(epoch, crop) for epoch in range(7, -1, -1)]
    assert equal(again[::-1], first)
    assert len({image.numpy().tobytes() for image in first}) >= 7


def test_finish_takes_the_row_of_the_current_epoch() -> None:
    steps = Steps({0: v2.Identity(), 2: v2.RandomInvert(1.0)})
    inverted = [torch.equal(finished(epoch, steps), 255 - made()) for epoch in (0, 1, 2, 3)]
    assert inverted == [False, False, True, True]  # though epochs 1 and 2 are one generation


def test_finish_changes_neither_the_sample_nor_what_else_it_holds() -> None:
    sample = {"image": made(), "label": 4, "mask": made(4)}
    before = {"image": made(), "mask": made(4)}
    result = finish_image(sample, key(3, 0), transforms=Steps({0: v2.RandomInvert(1.0)}))
    assert result["label"] == 4
    assert result["mask"] is sample["mask"]
    assert all(torch.equal(sample[name], before[name]) for name in before)


def test_transforms_run_in_order_and_none_leave_the_image_as_it_is() -> None:
    image = SOURCE[0]["image"]
    chain = compose([lambda x: x // 2, lambda x: x + 1])
    assert torch.equal(chain(image), image // 2 + 1)
    assert compose([])(image) is image


def samples(loaders: Loaders, policy: ReusePolicy) -> Iterator[torch.Tensor]:
    """Yield stored and finished images of all rows of the curriculum."""
    assert loaders.finish is not None
    for epoch in (0, 3, 4, 9):
        for index in range(2):
            sample = loaders.build(policy.key(index, epoch))
            yield sample["image"]
            yield loaders.finish(sample, policy.key(index, epoch))["image"]


def mark_of(run: Run) -> str:
    content = SOURCE.identity()
    return fingerprint(run.config, run.curriculum, run.config.data.train, content, stored=True)


def test_a_recorded_run_builds_the_same_samples_and_a_curriculum_reaches_them(
    tmp_path: Path,
) -> None:
    overrides = ("augment=digits", "curriculum=ramp")
    with begin(tmp_path / "first", *overrides) as run:
        loaders = make_loaders(run, torch.device("cpu"), drop_single=False)
        policy = loaders.train.policy
        expected, first_mark = list(samples(loaders, policy)), mark_of(run)
    recorded = OmegaConf.load(tmp_path / "first" / "config.yaml")
    assert isinstance(recorded, DictConfig)
    recorded.curriculum.table = run.curriculum  # the command records the expanded table here too
    config = load_config(recorded)
    table = expand(recorded, config.curriculum.table)
    plain_config = yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())
    record = Record(config=plain_config, overrides=[], curriculum=table)
    with Run(tmp_path / "second", config, record) as run:
        again = make_loaders(run, torch.device("cpu"), drop_single=False)
        assert mark_of(run) == first_mark
        assert equal(list(samples(again, policy)), expected)
    flat = compose_config("augment=digits")
    assert load_config(flat).augment == config.augment
    with begin(tmp_path / "third", "augment=digits") as run:
        plain = list(samples(make_loaders(run, torch.device("cpu"), drop_single=False), policy))
    # Epochs 0 and 3 have the weak row; from 4 on the magnitude is the one without a curriculum.
    same = [torch.equal(a, b) for a, b in zip(plain, expected, strict=True)]
    begins = [policy.key(index, epoch).first_epoch for epoch in (0, 3, 4, 9) for index in (0, 1)]
    assert same == [first >= 4 for first in begins for _ in range(2)]


class Segmented:
    """An image with a mask of the values 0 and 2, a box around its twos, and a name."""

    classes = ("thing",)

    def __getitem__(self, index: int) -> dict[str, Any]:
        mask = torch.zeros(1, 24, 24, dtype=torch.uint8)
        mask[:, 4:12, 6:14] = 2
        boxes = torch.tensor([[6, 4, 14, 12]])
        return {
            "image": tv_tensors.Image((mask * 100).expand(3, -1, -1)),
            "mask": tv_tensors.Mask(mask),
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(24, 24)),
            "label": 0,
            "name": f"{index}",
        }


TOGETHER = [
    v2.Resize([37, 31], antialias=True),
    v2.RandomAffine(20.0),
    v2.RandomHorizontalFlip(),
    v2.GaussianBlur(5),
]


def test_masks_and_boxes_go_along_with_the_image_and_keep_their_values(tmp_path: Path) -> None:
    build = partial(
        build_image, source=Segmented(), transforms=Steps({0: compose(TOGETHER)})
    )  # fmt: skip
    finish = partial(finish_image, transforms=Steps({0: v2.RandomHorizontalFlip(1.0)}))
    options = {"save": save_tensors, "load": load_tensors, "batch_size": 4, "lifetime": 9}
    loader = ReuseDataLoader(build, 8, tmp_path, finish=finish, **options)  # type: ignore[arg-type]
    first, again = ([*loader] for _ in range(2))
    assert (loader.stats().built, loader.stats().reused) == (0, 8)
    for fresh, stored in zip(first, again, strict=True):
        assert all(torch.equal(fresh[name], stored[name]) for name in ("image", "mask", "boxes"))
        assert fresh["name"] == stored["name"]
        assert (fresh["mask"].dtype, fresh["mask"].shape) == (torch.uint8, (4, 1, 37, 31))
        assert fresh["mask"].unique().tolist() == [0, 2]
        assert fresh["boxes"].shape == (4, 1, 4)
        for image, mask, (box,) in zip(fresh["image"], fresh["mask"], fresh["boxes"], strict=True):
            # The image shows what the mask says, and the box holds it: all three moved alike.
            assert ((image[:1] > 100) == (mask == 2)).float().mean() > 0.95
            rows, columns = (mask[0] == 2).any(1).nonzero(), (mask[0] == 2).any(0).nonzero()
            left, top, right, bottom = box.tolist()
            assert left - 2 <= columns.min() <= columns.max() <= right + 2
            assert top - 2 <= rows.min() <= rows.max() <= bottom + 2


def test_an_image_alone_reaches_a_transform_as_it_always_did() -> None:
    seen: list[type] = []
    steps: Any = Steps({0: lambda image: seen.append(type(image)) or image})
    sample = build_image(key(3, 0), source=SOURCE, transforms=steps)
    finish_image(sample, key(3, 0), transforms=steps)
    assert seen == [tv_tensors.Image, torch.Tensor]
