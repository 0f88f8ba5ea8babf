"""A sample that cannot be made: something stands in for it, is counted, and is never stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builds import draw, same

from reuseloader import ReuseDataLoader, ReuseKey, ReusePolicy, Substitute

SIZE = 6


@dataclass(frozen=True)
class Broken:
    """Makes samples but of one index, for which that of index 0 stands in while a file exists."""

    index: int
    while_exists: Path

    def __call__(self, key: ReuseKey) -> Any:
        if key.index == self.index and self.while_exists.exists():
            return Substitute(draw(ReusePolicy(3).key(0, 0)), "sample 4 has no pixels")
        return draw(key)


def make(folder: Path, **options: Any) -> ReuseDataLoader:
    (folder / "broken").touch()
    build = Broken(4, folder / "broken")
    return ReuseDataLoader(build, SIZE, folder / "cache", lifetime=9, batch_size=None, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_is_used_counted_and_built_again_at_the_next_use(
    num_workers: int, tmp_path: Path
) -> None:
    loader = make(tmp_path, num_workers=num_workers)
    for epoch in range(3):
        with pytest.warns(UserWarning) as warned:
            samples = list(loader)
        told = [str(w.message) for w in warned if w.category is UserWarning]
        assert [f"sample 4 has no pixels (index=4, epoch={epoch})"] == told
        assert draw(ReusePolicy(3).key(0, 0))["x"].tolist() == samples[4]["x"].tolist()
        assert loader.stats().substituted == 1
        assert not (tmp_path / "cache" / "00000004.pt").exists()
    assert (loader.stats().built, loader.stats().reused) == (1, SIZE - 1)
    (tmp_path / "broken").unlink()
    policy = ReusePolicy(9)
    again = list(loader)
    assert all(same(a, draw(policy.key(i, 3))) for i, a in enumerate(again))
    assert loader.stats().substituted == 0
    assert (tmp_path / "cache" / "00000004.pt").exists()


def test_a_sample_that_was_stored_is_not_compared_with_a_stand_in(tmp_path: Path) -> None:
    loader = make(tmp_path, verify=1.0)
    (tmp_path / "broken").unlink()
    list(loader)
    (tmp_path / "broken").touch()
    assert len(list(loader)) == SIZE  # no ImpureBuildError
