"""Before a batch is built, whoever fetches for it hears what is about to be built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builds import draw

from reuseloader import ReuseDataLoader, ReuseKey

SIZE, BATCH, LIFETIME = 12, 4, 3


class Build:
    """Notes what was announced and what was built, batch by batch."""

    def __init__(self) -> None:
        self.announced: list[list[tuple[int, int]]] = []
        self.built: list[list[tuple[int, int]]] = []

    def prefetch(self, keys: list[ReuseKey]) -> None:
        self.announced.append([(key.index, key.generation) for key in keys])
        self.built.append([])

    def __call__(self, key: ReuseKey) -> Any:
        self.built[-1].append((key.index, key.generation))
        return draw(key)


def make(build: Build, folder: Path, **options: Any) -> ReuseDataLoader:
    defaults = {"lifetime": LIFETIME, "batch_size": BATCH, "shuffle": True}
    return ReuseDataLoader(build, SIZE, folder, prefetch=build.prefetch, **{**defaults, **options})


@pytest.mark.parametrize("resident", [1.0, 0.4, 0.0])
def test_exactly_what_is_built_is_announced_before(resident: float, tmp_path: Path) -> None:
    build = Build()
    loader = make(build, tmp_path, resident=resident)
    for _ in range(2 * LIFETIME):
        list(loader)
    assert len(build.announced) == 2 * LIFETIME * SIZE // BATCH
    assert build.announced == build.built
    assert any(len(batch) < BATCH for batch in build.built) == (resident > 0)


def test_samples_that_a_later_start_does_not_find_are_announced(tmp_path: Path) -> None:
    build = Build()
    list(make(build, tmp_path / "a", start_epoch=1))
    assert build.announced == build.built
    assert sum(map(len, build.built)) == SIZE


def test_single_samples_are_announced_one_by_one(tmp_path: Path) -> None:
    build = Build()
    list(make(build, tmp_path, batch_size=None, shuffle=False))
    assert build.announced == build.built == [[(index, 0)] for index in range(SIZE)]


def test_what_cannot_be_called_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="prefetch must be callable, but got prefetch=3"):
        ReuseDataLoader(draw, SIZE, tmp_path, lifetime=2, prefetch=3)  # type: ignore[arg-type]
