from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from training.bounds.passes import trained_pass


class Loader:
    """Gives batches of some sizes, each of which takes a second."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.time_s = 0.0
        self.trained: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        assert epoch == 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for size in self.sizes:
            self.time_s += 1
            yield {"label": range(size)}

    def train(self, num_batches: int) -> None:
        self.trained.append(num_batches)
        self.time_s += 10 * num_batches

    def measured(
        self, batch_size: int, accumulate: int = 1, until_s: float = 1e9
    ) -> tuple[float, float]:
        return trained_pass(
            self, batch_size, accumulate, self.train, until_s, now=lambda: self.time_s
        )


def test_training_is_timed_from_the_end_of_an_update_to_the_end_of_the_last() -> None:
    loader = Loader(4, 4, 4)

    assert loader.measured(4) == (22.0, 2.0)
    assert loader.trained == [1, 1, 1]


def test_as_many_small_batches_are_taken_as_a_batch_of_training_needs() -> None:
    loader = Loader(2, 2, 2, 2, 2, 2)

    assert loader.measured(4) == (24.0, 2.0)
    assert loader.trained == [1, 1, 1]


def test_an_update_of_several_batches_takes_as_many() -> None:
    loader = Loader(4, 4, 4, 4, 3)

    assert loader.measured(4, accumulate=2) == (22.0, 2.0)
    assert loader.trained == [2, 2]


def test_a_pass_ends_when_its_time_is_over() -> None:
    loader = Loader(4, 4, 4, 4)

    assert loader.measured(4, until_s=20.0) == (22.0, 2.0)


@pytest.mark.parametrize("sizes", [(), (3,), (4,), (4, 3)])
def test_a_pass_too_short_for_two_updates_tells_nothing(sizes: tuple[int, ...]) -> None:
    assert Loader(*sizes).measured(4) == (0.0, 0.0)
