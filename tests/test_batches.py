from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import same
from torch.utils.data import DataLoader, default_collate
from torchvision import tv_tensors

from reuseloader import (
    ReuseDataLoader,
    ReuseDataset,
    ReuseKey,
    ReusePolicy,
    batches,
    delivery,
    load_tensors,
    save_tensors,
    stack,
)
from reuseloader.stack import Stack

SIZE, EPOCHS = 12, 4

INT16: Any = np.uint16 if hasattr(torch, "uint16") else np.int16  # torch 2.1 collates no uint16


def noise(key: ReuseKey, shape: tuple[int, ...] = (3, 8, 8)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(key.seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def image_and_label(key: ReuseKey) -> Any:
    return {"image": noise(key), "label": key.seed % 10}


def pair(key: ReuseKey) -> Any:
    return noise(key).float(), key.index


def alone(key: ReuseKey) -> Any:
    return noise(key, (7,))


def every_kind(key: ReuseKey) -> Any:
    return {
        "image": noise(key),
        "bf16": noise(key, (5,)).bfloat16(),
        "bool": noise(key, (2, 3)) > 127,
        "zero_d": torch.tensor(key.seed),
        "empty": torch.empty(0, 3),
        "channels_last": noise(key, (4, 5, 3)).permute(2, 0, 1),
        "ones": noise(key, (3, 1, 1)),
        "array": noise(key, (4, 2)).numpy(),
        "array16": np.arange(3, dtype=INT16) + INT16(key.index),
        "fortran": noise(key, (4, 2)).numpy().T,
        "number": np.float32(key.index),
        "int": key.seed,
        "float": key.seed / 3,
        "flag": key.index % 2 == 0,
        "name": "x" * (key.index + key.generation),
        "nested": [{"a": (noise(key, (2,)), 1)}, b"bytes"],
        "tv": tv_tensors.Image(noise(key)),
        "mask": tv_tensors.Mask(noise(key, (1, 8, 8)) > 3),
        "boxes": tv_tensors.BoundingBoxes(
            noise(key, (2, 4)).float(), format="XYXY", canvas_size=(8, 8)
        ),
    }


def twice(key: ReuseKey) -> Any:
    image = noise(key)
    return {"x": image, "target": image}


def varied_layout(key: ReuseKey) -> Any:
    # The same shape, but every third sample lies otherwise in memory, and some are larger tuples.
    image = noise(key)
    if key.index % 3 == 0:
        image = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return {"image": image}


def varied_dtype(key: ReuseKey) -> Any:
    return noise(key).float() if key.index % 3 == 0 else noise(key).double()


def long_text(key: ReuseKey) -> Any:
    return {"image": noise(key), "text": "y" * (5000 if key.index % 3 == 0 else 3)}


BUILDS = [image_and_label, pair, alone, every_kind, twice, varied_layout, varied_dtype, long_text]


def as_it_is(sample: Any, key: ReuseKey) -> Any:
    return sample


def in_place(sample: Any, key: ReuseKey) -> Any:
    sample["image"].add_(key.epoch)
    return {**sample, "use": key.use_seed}


def some_replaced(sample: Any, key: ReuseKey) -> Any:
    image = sample["image"]
    return {**sample, "image": image.flip(-1) if key.use_seed % 2 else image}


def all_replaced(sample: Any, key: ReuseKey) -> Any:
    return {"image": sample["image"].float().div_(255)}


def the_same_twice(sample: Any, key: ReuseKey) -> Any:
    return {"a": sample["image"], "b": sample["image"], "c": sample["image"][:, 1:]}


def swapped(sample: Any, key: ReuseKey) -> Any:
    other = sample["image"].clone()
    names = ["a", "b"] if key.use_seed % 2 else ["b", "a"]
    return dict(sorted(zip(names, [sample["image"], other], strict=True)))


def seen_otherwise(sample: Any, key: ReuseKey) -> Any:
    return {"image": sample["image"].transpose_(1, 2), "as": sample["image"].view(torch.int8)}


KEPT: list[Any] = []


def from_before(sample: Any, key: ReuseKey) -> Any:
    """Give every sample the tensor of the one before it, which lies in another row."""
    KEPT.append(sample["image"])
    return {"image": KEPT[-2] if len(KEPT) > 1 else KEPT[-1]}


FINISHES = [
    as_it_is, in_place, some_replaced, all_replaced, the_same_twice, swapped, seen_otherwise,
    from_before,
]  # fmt: skip


def plain_collate(samples: list[Any]) -> Any:
    """Keep the loader from reading into batches: it does so for default_collate alone."""
    return default_collate(samples)


def loader_of(build: Callable[..., Any], folder: Path, **options: Any) -> ReuseDataLoader:
    size = options.pop("size", SIZE)
    options = {"lifetime": 3, "batch_size": 4, "save": save_tensors, "load": load_tensors} | options
    return ReuseDataLoader(build, size, folder, seed=5, shuffle=True, **options)


def passes(loader: ReuseDataLoader, num: int = EPOCHS) -> list[list[Any]]:
    KEPT.clear()
    return [list(loader) for _ in range(num)]


def strides(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: strides(part) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return [strides(part) for part in batch]
    return batch.stride() if isinstance(batch, torch.Tensor) else None


def assert_equal(a: Any, b: Any) -> None:
    assert same(a, b)
    assert strides(a) == strides(b)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The batch tensors into which samples were read directly, in this process."""
    stacks: list[torch.Tensor] = []
    take = Stack.take

    def spy(stack: Any) -> torch.Tensor:
        stacks.append(take(stack))
        return stacks[-1]

    monkeypatch.setattr(Stack, "take", spy)
    return stacks


@pytest.mark.parametrize("build", BUILDS)
def test_batches_equal_those_of_single_samples(build: Any, tmp_path: Path) -> None:
    expected = passes(loader_of(build, tmp_path / "a", collate_fn=plain_collate))
    assert_equal(passes(loader_of(build, tmp_path / "b")), expected)


@pytest.mark.parametrize("pipe_bytes", [0, stack.PIPE_BYTES])
def test_batches_of_workers_equal_those_of_single_samples(
    pipe_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (stack, delivery):
        monkeypatch.setattr(module, "PIPE_BYTES", pipe_bytes)
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    expected = passes(loader_of(every_kind, tmp_path / "a", collate_fn=plain_collate, **options))
    assert_equal(passes(loader_of(every_kind, tmp_path / "b", **options)), expected)


@pytest.mark.parametrize("finish", FINISHES)
def test_batches_with_finish_equal_those_of_single_samples(finish: Any, tmp_path: Path) -> None:
    options = {"finish": finish}
    plain = loader_of(image_and_label, tmp_path / "a", collate_fn=plain_collate, **options)
    expected = passes(plain)
    assert_equal(passes(loader_of(image_and_label, tmp_path / "b", **options)), expected)


@pytest.mark.parametrize("finish", [None, as_it_is, in_place])
def test_one_copy_from_disk_to_batch(
    finish: Any, tmp_path: Path, taken: list[torch.Tensor]
) -> None:
    loader = loader_of(image_and_label, tmp_path, finish=finish)
    passes(loader, 2)
    del taken[:]
    for batch in loader:
        assert any(batch["image"] is stack for stack in taken)


def test_built_samples_are_copied_into_the_batch_of_the_others(
    tmp_path: Path, taken: list[torch.Tensor]
) -> None:
    loader = loader_of(image_and_label, tmp_path, lifetime=2, size=40, batch_size=8)
    passes(loader, 3)
    assert len(taken) > 4
    assert loader.stats().built == 20
    assert loader.stats().reused == 20


def test_batches_through_the_pipe_can_be_changed_and_shared(tmp_path: Path) -> None:
    batch = next(iter(loader_of(image_and_label, tmp_path, num_workers=1)))
    batch["image"] += 1
    assert batch["label"].share_memory_().is_shared()


def test_different_shapes_raise_the_same_error(tmp_path: Path) -> None:
    def build(key: ReuseKey) -> torch.Tensor:
        return torch.zeros(3 + key.index % 2)

    for number, options in enumerate([{}, {"collate_fn": plain_collate}]):
        loader = loader_of(build, tmp_path / str(number), **options)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
                list(loader)


def test_two_parts_of_a_batch_never_share_memory(tmp_path: Path) -> None:
    loader = loader_of(image_and_label, tmp_path, finish=the_same_twice)
    passes(loader, 2)
    for batch in loader:
        before = batch["b"].clone()
        batch["a"].zero_()
        assert torch.equal(batch["b"], before)


def test_batches_do_not_share_memory_with_later_ones(tmp_path: Path) -> None:
    loader = loader_of(image_and_label, tmp_path)
    passes(loader, 1)
    first = list(loader)
    copies = [batch["image"].clone() for batch in first]
    passes(loader, 2)
    assert all(torch.equal(b["image"], copy) for b, copy in zip(first, copies, strict=True))


def test_samples_in_finish_are_tensors_of_their_own(tmp_path: Path) -> None:
    seen = []

    def finish(sample: Any, key: ReuseKey) -> Any:
        image = sample["image"]
        seen.append((image._is_view(), image.untyped_storage().nbytes() == image.numel()))
        return {"image": image.detach_()}

    passes(loader_of(image_and_label, tmp_path, finish=finish))
    assert set(seen) == {(False, True)}


def test_a_tensor_that_finish_makes_require_grad_stays_so(tmp_path: Path) -> None:
    def build(key: ReuseKey) -> torch.Tensor:
        return torch.ones(3)

    def finish(sample: Any, key: ReuseKey) -> Any:
        return sample.requires_grad_()

    for epoch in passes(loader_of(build, tmp_path, finish=finish)):
        assert all(batch.requires_grad for batch in epoch)


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


def test_a_collate_function_registered_for_tensors_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = batches.torch_collate.default_collate_fn_map

    def total(tensors: Any, *, collate_fn_map: Any = None) -> Any:
        return sum(tensors)

    loader = loader_of(alone, tmp_path, lifetime=50)
    passes(loader, 2)
    monkeypatch.setitem(functions, torch.Tensor, total)
    assert {batch.shape for batch in loader} == {(7,)}


def test_a_subclass_that_stack_keeps_is_kept(tmp_path: Path) -> None:
    def build(key: ReuseKey) -> Any:
        return tv_tensors.Image(noise(key))

    loader = loader_of(build, tmp_path, lifetime=50)
    passes(loader, 2)
    assert {type(batch) for batch in loader} == {torch.Tensor}
    with tv_tensors.set_return_type("TVTensor"):
        assert {type(batch) for batch in loader} == {tv_tensors.Image}


def test_a_plain_data_loader_reads_the_format_too(tmp_path: Path) -> None:
    policy = ReusePolicy(3, 5)
    dataset = ReuseDataset(
        image_and_label, SIZE, tmp_path, policy, save=save_tensors, load=load_tensors
    )
    for epoch in range(3):
        dataset.set_epoch(epoch)
        expected = [image_and_label(policy.key(index, epoch)) for index in range(SIZE)]
        batches = list(DataLoader(dataset, batch_size=6))
        assert_equal(batches, [default_collate(expected[:6]), default_collate(expected[6:])])


def test_without_readv_samples_are_read_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[torch.Tensor]
) -> None:
    expected = passes(loader_of(image_and_label, tmp_path / "a"))
    del taken[:]
    monkeypatch.delattr("os.readv")
    assert_equal(passes(loader_of(image_and_label, tmp_path / "b")), expected)
    assert taken == []


def test_a_batch_survives_when_the_checksum_is_crc32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[torch.Tensor]
) -> None:
    expected = passes(loader_of(image_and_label, tmp_path / "a"))
    monkeypatch.delitem(batches.CHECKSUMS, 2, raising=False)
    del taken[:]
    assert_equal(passes(loader_of(image_and_label, tmp_path / "b")), expected)
    assert taken
