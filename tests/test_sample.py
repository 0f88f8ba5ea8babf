from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import Pair, Point, same
from PIL import Image
from torchvision import tv_tensors

from reuseloader import FOREVER, ReuseDataset, ReuseKey, ReusePolicy, seeded


def picture(mode: str) -> Image.Image:
    return Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).convert(mode)


def opened(folder: Path, name: str) -> Image.Image:
    picture("RGB").save(folder / name)
    return Image.open(folder / name)


def mapped(folder: Path) -> Any:
    np.arange(6, dtype=np.float32).tofile(folder / "values.bin")
    return np.memmap(folder / "values.bin", dtype=np.float32, mode="r")


def boxes() -> Any:
    values = torch.tensor([[1, 2, 3, 4]])
    return tv_tensors.BoundingBoxes(values, format="XYXY", canvas_size=(8, 9))


SAMPLES: dict[str, Callable[[], Any]] = {
    "float tensor": lambda: torch.linspace(0, 1, 6).reshape(2, 3),
    "uint8 tensor": lambda: torch.arange(6, dtype=torch.uint8),
    "int64 tensor": lambda: torch.arange(6),
    "bool tensor": lambda: torch.tensor([True, False]),
    "bfloat16 tensor": lambda: torch.linspace(0, 1, 6, dtype=torch.bfloat16),
    "float16 tensor": lambda: torch.linspace(0, 1, 6, dtype=torch.float16),
    "complex tensor": lambda: torch.tensor([1 + 2j]),
    "conjugate view": lambda: torch.tensor([1 + 2j]).conj(),
    "tensor with nan": lambda: torch.tensor([float("nan"), -0.0, float("inf")]),
    "0-d tensor": lambda: torch.tensor(3.5),
    "empty tensor": lambda: torch.empty(0, 3),
    "transposed view": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "strided view": lambda: torch.arange(12.0)[1::3],
    "expanded view": lambda: torch.ones(1).expand(5),
    "channels_last tensor": lambda: torch.rand(1, 3, 4, 4).to(memory_format=torch.channels_last),
    "ndarray": lambda: np.arange(6, dtype=np.float32).reshape(2, 3),
    "0-d ndarray": lambda: np.array(3.5),
    "empty ndarray": lambda: np.empty((0, 3), dtype=np.int16),
    "bool ndarray": lambda: np.array([True, False]),
    "string ndarray": lambda: np.array(["a", "bcd"]),
    "object ndarray": lambda: np.array([None, "a"], dtype=object),
    "big-endian ndarray": lambda: np.arange(3, dtype=">i4"),
    "reversed ndarray": lambda: np.arange(6)[::-1],
    "Fortran ndarray": lambda: np.asfortranarray(np.arange(6).reshape(2, 3)),
    "read-only ndarray": lambda: np.broadcast_to(np.float32(1), (2, 2)),
    "structured ndarray": lambda: np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    "np.float32": lambda: np.float32(1.5),
    "np.int64": lambda: np.int64(-3),
    "np.bool_": lambda: np.bool_(True),
    "np.str_": lambda: np.str_("text"),
    "int": lambda: 2**80,
    "float": lambda: float("nan"),
    "bool": lambda: True,
    "complex": lambda: 1 + 2j,
    "str": lambda: "grün",
    "bytes": lambda: b"\x00\xff",
    "None": lambda: None,
    "empty tuple": lambda: (),
    "tuple": lambda: (torch.ones(2), 3, "a"),
    "list": lambda: [torch.ones(2), [np.float64(3.0)]],
    "empty dict": lambda: {},
    "nested dict": lambda: {"a": {"b": (torch.ones(1), None)}, 3: {"c": [1]}},
    "OrderedDict": lambda: OrderedDict(b=torch.ones(1), a=2),
    "namedtuple": lambda: Pair(torch.ones(2), 3),
    "dataclass": lambda: Point(torch.ones(2), "a"),
    "PIL RGB": lambda: picture("RGB"),
    "PIL L": lambda: picture("L"),
    "PIL P": lambda: picture("P"),
    "PIL RGBA": lambda: picture("RGBA"),
    "PIL 1": lambda: picture("1"),
    "tv_tensors.Image": lambda: tv_tensors.Image(torch.zeros(3, 4, 4, dtype=torch.uint8)),
    "tv_tensors.Mask": lambda: tv_tensors.Mask(torch.ones(4, 4, dtype=torch.uint8)),
    "tv_tensors.BoundingBoxes": boxes,
    "view in a tv_tensor": lambda: tv_tensors.Mask(torch.arange(16).reshape(4, 4)[1:3, ::2]),
    "mask in a dict": lambda: {"m": tv_tensors.Mask(torch.ones(2, 2)), "i": picture("RGB")},
}


def keep(make: Callable[[], Any], folder: Path, lifetime: int = FOREVER) -> ReuseDataset:
    return ReuseDataset(lambda key: make(), 1, folder / "cache", ReusePolicy(lifetime))


@pytest.mark.parametrize("name", SAMPLES)
def test_miss_and_hit_return_what_build_made(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sample = SAMPLES[name]()
    dataset = keep(lambda: sample, tmp_path)
    miss, hit = dataset[0], dataset[0]
    assert (dataset.stats().built, dataset.stats().reused) == (1, 1)
    assert same(miss, sample)
    assert same(hit, sample)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_an_image_opened_from_a_file_is_the_same_on_miss_and_hit(name: str, tmp_path: Path) -> None:
    dataset = keep(lambda: {"image": opened(tmp_path, name)}, tmp_path)
    miss, hit, plain = dataset[0]["image"], dataset[0]["image"], opened(tmp_path, name)
    assert same(miss, hit)
    assert (hit.mode, hit.size, hit.tobytes()) == (plain.mode, plain.size, plain.tobytes())


def test_a_memory_map_is_the_same_on_miss_and_hit(tmp_path: Path) -> None:
    dataset = keep(lambda: mapped(tmp_path), tmp_path)
    miss, hit = dataset[0], dataset[0]
    assert same(miss, hit)
    assert hit.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["channels_last tensor", "transposed view", "strided view"])
def test_miss_and_hit_have_one_memory_layout(name: str, tmp_path: Path) -> None:
    dataset = keep(SAMPLES[name], tmp_path)
    miss, hit = dataset[0], dataset[0]
    assert miss.stride() == hit.stride()


def scribble(sample: Any) -> None:
    """Change everything in a sample that can be changed in place."""
    if isinstance(sample, torch.Tensor):
        sample.add_(1)
    elif isinstance(sample, np.ndarray):
        sample += 1
    elif isinstance(sample, Image.Image):
        sample.putpixel((0, 0), 255)
    elif isinstance(sample, dict | list | tuple):
        for value in sample.values() if isinstance(sample, dict) else sample:
            scribble(value)
        if not isinstance(sample, tuple):
            sample.clear()


def changeable() -> dict[str, Any]:
    mask = tv_tensors.Mask(torch.zeros(2, 2))
    tensors = (torch.zeros(2), [torch.zeros(4, 4)[1]], mask)
    return {"tensors": tensors, "array": np.zeros(2), "image": picture("L"), "list": [[1]]}


@pytest.mark.parametrize("lifetime", [1, 2, FOREVER])
@pytest.mark.parametrize("shared", [False, True])
def test_a_change_in_place_is_never_read_again(lifetime: int, shared: bool, tmp_path: Path) -> None:
    source = changeable()  # shared: build hands out what it keeps, as a source in memory does
    dataset = keep(lambda: source if shared else changeable(), tmp_path, lifetime)
    for epoch in range(4):
        dataset.set_epoch(epoch)
        sample = dataset[0]
        assert same(sample, changeable())
        scribble(sample)


def test_finish_working_in_place_does_not_reach_the_stored_sample(tmp_path: Path) -> None:
    def finish(sample: dict[str, Any], key: ReuseKey) -> dict[str, Any]:
        sample["x"].add_(1)
        return sample

    dataset = ReuseDataset(
        lambda key: {"x": torch.zeros(2)}, 1, tmp_path, ReusePolicy(FOREVER), finish=finish
    )
    assert [dataset[0]["x"].tolist() for _ in range(3)] == [[1, 1]] * 3


ROWS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.ones(1000, 1000)[7],
    "in a dict": lambda: {"a": {"b": torch.ones(1000, 1000)[7]}},
    "in a list": lambda: [torch.ones(1000, 1000)[7]],
    "in a tuple": lambda: (torch.ones(1000, 1000)[7],),
    "in a namedtuple": lambda: Pair(torch.ones(1000, 1000)[7], 1),
    "in a dataclass": lambda: Point(torch.ones(1000, 1000)[7], "a"),
    "in an OrderedDict": lambda: OrderedDict(a=torch.ones(1000, 1000)[7]),
    "column": lambda: torch.ones(1000, 1000)[:, 7],
    "mask": lambda: tv_tensors.Mask(torch.ones(1000, 1000)[7:8]),
    "ndarray": lambda: np.ones((1000, 1000), dtype=np.float32)[7],
    "ndarray column": lambda: np.ones((1000, 1000), dtype=np.float32)[:, 7],
    "tensor over an ndarray": lambda: torch.from_numpy(np.ones((1000, 1000), np.float32))[7],
    "resized storage": lambda: torch.ones(1_000_000).resize_(1000),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_slice_of_a_large_array_stores_the_slice_alone(name: str, tmp_path: Path) -> None:
    dataset = keep(ROWS[name], tmp_path)
    assert same(dataset[0], ROWS[name]())
    assert same(dataset[0], ROWS[name]())
    assert (tmp_path / "cache" / "00000000.pt").stat().st_size < 6_500  # 4,000 of data


REFUSED: dict[str, Callable[[], Any]] = {
    "requires grad": lambda: torch.ones(2, requires_grad=True),
    "result of a graph": lambda: torch.ones(2, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "mask that requires grad": lambda: tv_tensors.Mask(torch.ones(2), requires_grad=True),
    "other device": lambda: torch.ones(2, device="meta"),
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "bare": lambda tensor: tensor,
    "nested": lambda tensor: {"a": [(1, {"b": tensor})]},
    "namedtuple": lambda tensor: Pair(tensor, 1),
    "dataclass": lambda tensor: Point(tensor, "a"),
}


@pytest.mark.parametrize("lifetime", [1, 2, 3])  # never stored, at its last use, stored
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_with_grad_or_on_another_device_is_refused(
    name: str, around: str, lifetime: int, tmp_path: Path
) -> None:
    def build(key: ReuseKey) -> Any:
        return AROUND[around](REFUSED[name]())

    dataset = ReuseDataset(build, 60, tmp_path, ReusePolicy(lifetime))
    with pytest.raises(ValueError, match=r"\b55\b"):
        dataset[55]
    assert list(tmp_path.iterdir()) == []


def draws() -> tuple[Any, ...]:
    return random.random(), float(np.random.rand()), torch.rand(2).tolist()


def global_state() -> tuple[Any, ...]:
    _, keys, *rest = np.random.get_state()
    return random.getstate(), keys.tolist(), rest, torch.get_rng_state().tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 2**63 - 1])
def test_seeded_repeats_all_three_generators_and_restores_them(seed: int) -> None:
    before = global_state()
    with seeded(seed):
        first = draws()
    assert global_state() == before
    draws()
    with seeded(seed):
        assert draws() == first


def test_seeded_restores_when_its_body_raises() -> None:
    before = global_state()
    with pytest.raises(KeyError, match="body"), seeded(3):
        draws()
        raise KeyError("body")
    assert global_state() == before


def test_seeded_nests() -> None:
    with seeded(1):
        expected = [draws(), draws()]
    with seeded(1):
        actual = [draws()]
        with seeded(2):
            draws()
        assert [*actual, draws()] == expected


@pytest.mark.parametrize("other", [6, 5 + 2**32, 5 + 2**62])
def test_every_bit_of_the_seed_counts_in_every_generator(other: int) -> None:
    with seeded(5):
        first = draws()
    with seeded(other):
        second = draws()
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_seeded_leaves_accelerators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        pytest.fail("an accelerator was touched")

    for module in filter(None, (getattr(torch, name, None) for name in ("cuda", "mps", "xpu"))):
        for name in ("manual_seed", "manual_seed_all", "set_rng_state", "get_rng_state"):
            monkeypatch.setattr(module, name, refuse, raising=False)
    with seeded(5):
        draws()
