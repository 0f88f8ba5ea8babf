"""The memory of batches: one copy from the disk, and no part that two of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from batching import (
    as_it_is,
    assert_equal,
    image_and_label,
    in_place,
    loader_of,
    passes,
    the_same_twice,
)

from reuseloader import (
    ReuseKey,
    batches,
)
from reuseloader.stack import Stack


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
