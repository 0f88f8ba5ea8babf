import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey, load_tensors, save_tensors
from reuseloader.segments import Segment, Segments, receive, shared_segment
from reuseloader.stack import PIPE_BYTES

SIDE, SIZE = 320, 24  # 4 of 3 x 320 x 320 are more than goes through a pipe


def segment_at(pool: Segments, number: int = -1) -> Segment:
    return pool._segments[number]


@pytest.mark.parametrize("shared", [False, True])
def test_memory_is_taken_again_when_nothing_refers_to_it(shared: bool) -> None:
    pool = Segments()
    first = pool.take(1000, shared=shared)
    address = first.data_ptr()
    del first
    again = pool.take(1000, shared=shared)
    assert address == again.data_ptr()
    assert again.shape == (1000,)
    assert again.dtype is torch.uint8
    assert address % 64 == 0


@pytest.mark.parametrize(
    "refer",
    [
        lambda tensor: tensor[10:20],
        lambda tensor: tensor.view(torch.float32).view(10, 25).unbind(0)[3],
        lambda tensor: tensor.numpy()[::2],
        lambda tensor: memoryview(tensor.numpy())[5:6],
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()),
        lambda tensor: torch.from_dlpack(tensor),
        lambda tensor: tensor.detach().requires_grad_(False),
        lambda tensor: torch.frombuffer(tensor.numpy().data[4:8], dtype=torch.int32),
    ],
    ids=[
        "part",
        "row",
        "array",
        "buffer",
        "storage",
        "same storage",
        "dlpack",
        "detached",
        "again",
    ],
)
def test_memory_is_not_taken_while_anything_refers_to_it(
    refer: Callable[[torch.Tensor], Any],
) -> None:
    pool = Segments()
    first = pool.take(1000, shared=False)
    address = first.data_ptr()
    reference = refer(first)
    del first
    assert address != pool.take(1000, shared=False).data_ptr()
    del reference
    assert address in {pool.take(1000, shared=False).data_ptr() for _ in range(2)}


def test_memory_of_another_size_or_kind_is_another() -> None:
    pool = Segments()
    taken = {pool.take(1000, shared=False).data_ptr(), pool.take(1001, shared=False).data_ptr()}
    taken.add(pool.take(1000, shared=True).data_ptr())
    assert len(taken) == 3


def test_a_pool_keeps_eight_segments_at_most_and_drops_no_memory_in_use() -> None:
    pool = Segments()
    held = [pool.take(100, shared=True).fill_(number) for number in range(30)]
    assert len(pool._segments) == 8
    assert list(range(30)) == [int(tensor.unique()) for tensor in held]
    assert all(shared_segment(tensor) is not None for tensor in held)


def test_memory_stays_with_its_process_when_a_pool_is_pickled() -> None:
    pool = Segments()
    pool.take(100, shared=False)
    assert pickle.loads(pickle.dumps(pool))._segments == []


def test_lent_memory_comes_back_after_the_last_use_by_the_receiver() -> None:
    pool = Segments()
    tensor = pool.take(1000, shared=True)
    segment = segment_at(pool)
    segment.lend()
    del tensor
    assert not segment.is_free
    received = receive(segment.storage)
    part = received[1:2].numpy()
    del received
    assert not segment.is_free
    del part
    assert segment.is_free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_memory_that_a_forked_process_refers_to_does_not_come_back() -> None:
    pool = Segments()
    pool.take(1000, shared=True)
    segment = segment_at(pool)
    segment.lend()
    received = receive(segment.storage)
    pid = os.fork()
    if pid == 0:
        del received
        gc.collect()
        os._exit(segment.is_free)
    assert (pid, 0) == os.waitpid(pid, 0)
    del received
    assert not segment.is_free


def test_only_a_tensor_that_fills_shared_memory_is_sent_with_it() -> None:
    pool = Segments()
    tensor, local = pool.take(1000, shared=True), pool.take(1000, shared=False)
    assert segment_at(pool, 0) is shared_segment(tensor.view(10, 100))
    assert shared_segment(tensor[:999]) is None
    assert shared_segment(tensor[1:]) is None
    assert shared_segment(local) is None


def noise(key: ReuseKey) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(key.seed)
    image = torch.randint(0, 256, (3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    return {"image": image, "label": key.index}


def make_loader(directory: Path, **options: Any) -> ReuseDataLoader:
    return ReuseDataLoader(
        noise,
        SIZE,
        directory,
        shuffle=True,
        save=save_tensors,
        load=load_tensors,
        **({"lifetime": FOREVER, "seed": 1, "batch_size": 4} | options),
    )


def expected(loader: ReuseDataLoader, epoch: int) -> list[Any]:
    policy = loader.policy
    keys = [policy.key(policy.order(place, epoch, SIZE), epoch) for place in range(SIZE)]
    return [default_collate([noise(key) for key in keys[n : n + 4]]) for n in range(0, SIZE, 4)]


def check_epochs(loader: ReuseDataLoader, num_epochs: int, num_held: int) -> None:
    """Compare every batch when it comes, and again when ``num_held`` more have come."""
    held: list[tuple[Any, Any]] = []
    for epoch in range(num_epochs):
        for batch, right in zip(loader, expected(loader, epoch), strict=True):
            assert torch.equal(right["image"], batch["image"])
            assert torch.equal(right["label"], batch["label"])
            held.append((batch["image"].numpy()[1:], right["image"].numpy()[1:]))
            while len(held) > num_held:
                image, right_image = held.pop(0)
                assert (right_image == image).all()
                image[:] = 77  # what a user may do


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_held", [0, 1, 5, 40])
def test_batches_stay_right_for_as_long_as_they_are_held(
    num_workers: int, num_held: int, tmp_path: Path
) -> None:
    loader = make_loader(tmp_path, num_workers=num_workers, persistent_workers=num_workers > 0)
    check_epochs(loader, 6, num_held)


@pytest.mark.parametrize(
    ("start", "lifetime"),
    [("fork", 2), ("fork", FOREVER), pytest.param("spawn", FOREVER, marks=pytest.mark.slow)],
)
def test_batches_of_workers_started_anew_are_right(
    start: str, lifetime: int, tmp_path: Path
) -> None:
    loader = make_loader(tmp_path, num_workers=2, multiprocessing_context=start, lifetime=lifetime)
    check_epochs(loader, 3, 3)


def test_batches_are_right_after_passes_that_were_broken_off(tmp_path: Path) -> None:
    loader = make_loader(tmp_path, num_workers=2, persistent_workers=True)
    for epoch in range(8):
        for batch, right in zip(loader, expected(loader, epoch), strict=False):
            assert torch.equal(right["image"], batch["image"])
            if epoch % 2:
                break


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_worker_takes_the_memory_of_a_few_batches_again(tmp_path: Path) -> None:
    loader = make_loader(tmp_path, num_workers=1, persistent_workers=True)
    for _ in range(2):  # the first builds, and in the second the layout of a batch becomes known
        assert len(list(loader)) == SIZE // 4
    inodes = {inode_at(batch["image"].data_ptr()) for _ in range(4) for batch in loader}
    assert 4 * 3 * SIDE * SIDE > PIPE_BYTES
    assert "0" not in inodes
    assert len(inodes) <= 8


def inode_at(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[4]
    raise AssertionError(address)
