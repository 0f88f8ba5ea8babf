from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from runs import make_config

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey, load_tensors, save_tensors
from training.checks import ConfigError
from training.device import (
    Preprocess,
    autocast,
    choose_device,
    repeat,
    set_up,
    spread,
    to_device,
)
from training.timing import Clock

CPU = torch.device("cpu")


def make_batch(size: int = 8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return {"image": images, "label": torch.arange(size)}


def test_images_are_normalised_with_the_mean_and_deviation_of_the_data() -> None:
    config = make_config("data.mean=[0.5,0.25,0.0]", "data.std=[0.5,1.0,2.0]")
    batch = {"image": torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1), "label": 0}

    images, _ = Preprocess(config, CPU).for_evaluation(batch)

    assert pytest.approx(images.flatten().tolist()) == [-1.0, -0.05, 0.5]


def test_a_batch_is_not_changed_in_place() -> None:
    prepare = Preprocess(make_config("trainer.mixup_alpha=1.0"), CPU)
    batch = make_batch()

    prepare.for_training(batch)

    assert all(torch.equal(make_batch()[name], batch[name]) for name in batch)


def test_channels_last_changes_the_memory_order_alone() -> None:
    plain, _ = Preprocess(make_config(), CPU).for_training(make_batch())
    config = make_config("trainer.channels_last=true")
    changed, _ = Preprocess(config, CPU).for_training(make_batch())

    assert changed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, changed)


@pytest.mark.parametrize("option", ["trainer.mixup_alpha=1.0", "trainer.cutmix_alpha=1.0"])
def test_mixing_gives_shares_of_classes_drawn_anew_at_every_use(option: str) -> None:
    torch.manual_seed(0)
    prepare = Preprocess(make_config(option), CPU)
    batch = make_batch()

    images, labels = prepare.for_training(batch)
    again, _ = prepare.for_training(batch)
    evaluated, classes = prepare.for_evaluation(batch)

    assert tuple(labels.shape) == (8, 10)
    assert pytest.approx(labels.sum(1).tolist()) == [1.0] * 8
    assert not torch.equal(images, again)
    assert torch.equal(batch["label"], classes)
    assert torch.equal(Preprocess(make_config(), CPU).for_training(batch)[0], evaluated)


def test_with_both_each_batch_gets_mixup_or_cutmix() -> None:
    torch.manual_seed(0)
    config = make_config("trainer.mixup_alpha=1.0", "trainer.cutmix_alpha=1.0")
    prepare = Preprocess(config, CPU)
    plain, _ = prepare.for_evaluation(make_batch())

    # CutMix leaves pixels as they were, MixUp hardly any.
    kept = [
        (prepare.for_training(make_batch())[0] == plain).float().mean().item() for _ in range(20)
    ]

    assert any(share > 0.1 for share in kept) and any(share < 0.1 for share in kept)


def test_batch_transforms_are_named_and_see_normalised_images() -> None:
    erase = "{_target_: torchvision.transforms.v2.RandomErasing, p: 1.0, value: 7.0}"
    config = make_config(f"+trainer.batch_transforms.erase={erase}")
    prepare = Preprocess(config, CPU)

    images, labels = prepare.for_training(make_batch())

    assert (images == 7.0).any()
    assert torch.equal(make_batch()["label"], labels)


def test_mixing_one_class_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^data\.num_classes must be at least 2, but got data"):
        make_config("trainer.mixup_alpha=1.0", "data.num_classes=1")


def test_on_the_cpu_nothing_is_copied() -> None:
    batch = make_batch()

    (moved,) = to_device([batch], CPU, Clock())

    assert batch["image"].data_ptr() == moved["image"].data_ptr()


def test_no_batch_is_taken_ahead() -> None:
    taken = []

    def batches() -> Any:
        for number in range(3):
            taken.append(number)
            yield {"image": torch.zeros(1)}

    iterator = repeat(to_device(batches(), CPU, Clock()), 2)
    for expected in ([0], [0], [0, 1], [0, 1], [0, 1, 2]):
        next(iterator)
        assert expected == taken


def test_what_is_no_tensor_passes_through() -> None:
    (moved,) = to_device([{"image": torch.zeros(1), "name": ["a"]}], CPU, Clock())

    assert moved["name"] == ["a"]


@pytest.mark.parametrize(
    "precision", ["fp32", "tf32", "bf16", pytest.param("fp16", marks=runs.needs_fp16)]
)
def test_precision_is_that_of_the_forward_pass(precision: str) -> None:
    expected = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    with autocast(CPU, precision):
        assert expected == torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype


def switches() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.get_num_threads(),
        random.random(),
        np.random.rand(),
        torch.rand(1).item(),
    )


def test_what_a_run_before_left_does_not_matter() -> None:
    set_up(make_config())
    alone = switches()
    set_up(make_config("deterministic=false", "trainer.precision=tf32", "num_threads=2", "seed=7"))
    other = switches()

    set_up(make_config())

    assert alone == switches()
    assert all(mine != theirs for mine, theirs in zip(alone, other, strict=True))


def test_a_device_that_is_not_there_is_named() -> None:
    missing = "mps" if torch.cuda.is_available() else "cuda:1"

    with pytest.raises(ConfigError, match=f"but got device={missing}"):
        choose_device(missing)


@pytest.mark.gpu
def test_copies_on_a_side_stream_arrive_whole() -> None:
    device = torch.device("cuda")
    batches = [{"image": torch.full((64, 3, 64, 64), i).pin_memory()} for i in range(50)]
    busy = torch.rand(2000, 2000, device=device)
    for number, batch in enumerate(to_device(batches, device, Clock.of(device))):
        for _ in range(5):
            busy = busy @ busy / busy.norm()
        assert batch["image"].device.type == "cuda"
        assert bool((batch["image"] == number).all())


def test_only_cuda_copies_while_the_memory_of_the_batch_may_be_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    to = torch.Tensor.to

    def spy(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        asked.append(options.get("non_blocking"))
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    list(to_device([make_batch()], torch.device("meta"), Clock()))

    assert asked == [False, False]


def build_large(key: ReuseKey) -> dict[str, Any]:
    return {"image": torch.full((3, 512, 512), key.index, dtype=torch.uint8), "label": key.index}


@pytest.mark.gpu
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_memory_that_workers_take_again_is_copied_before(
    tmp_path: Path, num_workers: int, pin_memory: bool
) -> None:
    device = torch.device("cuda")
    loader = ReuseDataLoader(
        *(build_large, 96, tmp_path),
        lifetime=FOREVER,
        shuffle=True,
        batch_size=8,
        num_workers=num_workers,
        pin_memory=pin_memory,
        save=save_tensors,
        load=load_tensors,
    )
    busy = torch.rand(4000, 4000, device=device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(4):  # from the second pass on samples are read into the memory of their batch
        for batch in to_device(loader, device, Clock.of(device)):
            for _ in range(5):  # the GPU lags far behind the loader
                busy = busy @ busy / busy.norm()
            wrong += (batch["image"] != batch["label"].view(-1, 1, 1, 1)).sum()

    assert wrong.item() == 0


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_jobs_beside_each_other_take_the_devices_in_turn(name: str) -> None:
    taken = [spread(name, job, 3) for job in range(7)]
    assert [f"cuda:{index}" for index in (0, 1, 2, 0, 1, 2, 0)] == taken


@pytest.mark.parametrize("name", ["auto", "cuda", "cpu", "mps", "cuda:1"])
@pytest.mark.parametrize("num_devices", [0, 1, 4])
def test_a_device_that_is_named_or_alone_is_kept(name: str, num_devices: int) -> None:
    if num_devices < 2 or name not in ("auto", "cuda"):
        assert [name] * 3 == [spread(name, job, num_devices) for job in range(3)]
