"""Batches into which samples are read equal those of single samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from batching import (
    BUILDS,
    FINISHES,
    SIZE,
    alone,
    assert_equal,
    every_kind,
    image_and_label,
    loader_of,
    noise,
    passes,
    plain_collate,
)
from torch.utils.data import DataLoader, default_collate
from torchvision import tv_tensors

from reuseloader import (
    ReuseDataset,
    ReuseKey,
    ReusePolicy,
    batches,
    delivery,
    load_tensors,
    save_tensors,
    stack,
)


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
