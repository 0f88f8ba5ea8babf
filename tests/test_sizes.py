"""One size, or a table of sizes by first epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reuseloader.sizes import SizeTable

TABLE = {0: 2_000, 3: 8_000, 6: 20_000}


def test_a_row_holds_until_the_next_one_begins() -> None:
    sizes = SizeTable.of(TABLE)
    expected = [2_000] * 3 + [8_000] * 3 + [20_000] * 4
    assert expected == [sizes.at(epoch) for epoch in range(10)]
    assert sizes.at(2**70) == sizes.largest == 20_000


def test_one_size_holds_always() -> None:
    assert SizeTable.of({0: 5}) == SizeTable.of(5) == SizeTable.of(np.int64(5))
    assert [SizeTable.of(5).at(epoch) for epoch in (0, 10**9)] == [5, 5]


def test_a_table_is_taken_as_it_is_and_frozen() -> None:
    rows = dict(TABLE)
    sizes = SizeTable.of(rows)
    rows[9] = 1
    assert SizeTable.of(sizes) is sizes
    assert sizes == SizeTable.of(TABLE)
    assert hash(sizes) == hash(SizeTable.of(TABLE))


def test_the_ranges_that_were_added_lie_end_to_end() -> None:
    sizes = SizeTable.of({0: 4, 1: 4, 2: 9, 7: 10})
    assert sizes.steps(0) == sizes.steps(1) == [(0, 4)]
    assert sizes.steps(3) == [(0, 4), (4, 9)]
    assert sizes.steps(70) == [(0, 4), (4, 9), (9, 10)]


def test_an_index_is_there_from_the_epoch_on_that_brings_it() -> None:
    sizes = SizeTable.of({0: 4, 2: 9})
    assert sizes.check([0, np.int64(3)], 1) == [0, 3]
    assert sizes.check([8], 2) == [8]
    for index, epoch, size in [(4, 0, 4), (8, 1, 4), (9, 2, 9), (-1, 0, 4)]:
        with pytest.raises(IndexError) as caught:
            sizes.check([0, index], epoch)
        assert str(caught.value) == f"index must be in [0, {size}), but got index={index}"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ({}, "size must begin at epoch 0, but got size={}"),
        ({1: 5}, "size must begin at epoch 0, but got size={1: 5}"),
        ({0: 5, 4: 6, 2: 7}, "size must list its epochs in ascending order, but got "
         "size={0: 5, 4: 6, 2: 7}"),
        ({0: 5, 2: 4}, "size must never fall, but got size={0: 5, 2: 4}"),
        ({0: 5, 2: 0}, "size must be a positive integer, but got size=0"),
        ({0: 5, 2: 7.5}, "size must be a positive integer, but got size=7.5"),
        ({0: 5, "2": 7}, "an epoch of size must be an integer from 0 up, but got an epoch of "
         "size='2'"),
        ({0: 5, True: 7}, "an epoch of size must be an integer from 0 up, but got an epoch of "
         "size=True"),
        (0, "size must be a positive integer, but got size=0"),
        ([5], "size must be a positive integer, but got size=[5]"),
        (None, "size must be a positive integer, but got size=None"),
    ],
)  # fmt: skip
def test_a_table_that_breaks_a_rule_is_refused_in_a_line(size: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        SizeTable.of(size)
    assert str(caught.value) == text
