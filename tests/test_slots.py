"""Records in slots, against the plain enumeration of what is used epoch by epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from reuseloader import ReusePolicy, SlotRecords, mix, permute

TABLES: list[Any] = [
    1, 7, 24, {0: 3, 1: 8}, {0: 5, 3: 12, 6: 20}, {0: 2, 4: 2, 5: 24}, {0: 1, 1: 2, 2: 3, 7: 9},
]  # fmt: skip
LIFETIMES = [1, 2, 3, 5]


def size_at(table: Any, epoch: int) -> int:
    if isinstance(table, int):
        return table
    return [size for first, size in table.items() if first <= epoch][-1]


def uses(table: Any, lifetime: int, num_epochs: int) -> list[list[tuple[int, int]]]:
    """Return what comes into use in each epoch: (generation, slot), as the policy says."""
    policy = ReusePolicy(lifetime)
    seen: set[tuple[int, int]] = set()
    epochs = []
    for epoch in range(num_epochs):
        keys = [policy.key(slot, epoch) for slot in range(size_at(table, epoch))]
        new = {(key.generation, key.index) for key in keys} - seen
        epochs.append(sorted(new))
        seen |= new
    return epochs


@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize("table", TABLES, ids=str)
def test_uses_are_numbered_by_generation_and_slot_without_gaps(table: Any, lifetime: int) -> None:
    records = SlotRecords(table, 24, lifetime=lifetime)
    # Generations that are whole within these epochs, so that none of their uses is missing.
    num_epochs = 20 * lifetime
    everything = sorted(use for epoch in uses(table, lifetime, num_epochs) for use in epoch)
    whole = [use for use in everything if use[0] < 19]
    assert [records.number(slot, g) for g, slot in whole] == list(range(len(whole)))


@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize("table", TABLES, ids=str)
def test_every_record_comes_once_before_any_comes_twice(table: Any, lifetime: int) -> None:
    num_records = 37
    records = SlotRecords(table, num_records, lifetime=lifetime, seed=3)
    most = records.num_slots
    counts: Counter[int] = Counter({record: 0 for record in range(num_records)})
    total = 0
    for epoch in uses(table, lifetime, 30 * lifetime):
        fetched = [records.record(slot, g) for g, slot in epoch]
        counts.update(fetched)
        total += len(fetched)
        # To within one generation of slots: as many records may be ahead, or behind.
        turn = total // num_records
        behind = sum(max(0, turn - count) for count in counts.values())
        ahead = sum(max(0, count - turn - 1) for count in counts.values())
        assert behind <= most
        assert ahead <= most
    assert total > 3 * num_records or records.num_slots == 1


def test_in_the_order_of_their_numbers_each_turn_is_a_permutation() -> None:
    records = SlotRecords({0: 4, 2: 10}, 10, lifetime=2, seed=5)
    order = sorted(
        (records.number(slot, g), records.record(slot, g))
        for g in range(12)
        for slot in range(10)
        if g >= 1 or slot < 4
    )
    numbers = [number for number, _ in order]
    assert numbers == list(range(len(order)))
    turns = [[r for _, r in order[t * 10 : t * 10 + 10]] for t in range(len(order) // 10)]
    assert all(sorted(turn) == list(range(10)) for turn in turns)
    assert len({tuple(turn) for turn in turns}) == len(turns)
    assert turns[0] == [permute(i, 10, mix(5, 9, 0)) for i in range(10)]


def test_a_larger_table_leaves_the_start_as_it_was() -> None:
    small = SlotRecords({0: 5}, 100, lifetime=3, seed=1)
    grown = SlotRecords({0: 5, 6: 50}, 100, lifetime=3, seed=1)
    for generation in (0, 1):
        for slot in range(5):
            assert small.record(slot, generation) == grown.record(slot, generation)


def test_the_assignment_is_pinned() -> None:
    records = SlotRecords({0: 4, 3: 8}, 1000, lifetime=2, seed=42)
    assert [records.record(slot, 0) for slot in range(4)] == [511, 561, 616, 674]
    assert [records.record(slot, 2) for slot in range(8)] == [930, 160, 909, 437, 456, 62, 285, 350]


def test_a_billion_of_records_cost_no_more_than_ten() -> None:
    records = SlotRecords({0: 10**6, 9: 10**8}, 10**9, lifetime=4)
    found = {records.record(slot, 10**6) for slot in range(0, 10**8, 10**7)}
    assert len(found) == 10
    assert all(0 <= record < 10**9 for record in found)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "size must be a positive integer, but got size=0"),
        ({}, "size must begin at epoch 0, but got size={}"),
        ({1: 3}, "size must begin at epoch 0, but got size={1: 3}"),
        ({0: 4, 2: 3}, "size must never fall, but got size={0: 4, 2: 3}"),
        ({0: 4, 2: 5, 1: 6}, "size must list its epochs in ascending order, but got size="),
        ({0: 4, 2: 11}, "size must be at most the number of records, 10, but got size=11"),
        ({0: 1.5}, "size must be a positive integer, but got size=1.5"),
    ],
)
def test_a_table_that_breaks_a_rule_is_refused(size: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        SlotRecords(size, 10, lifetime=2)
    assert str(caught.value).startswith(said)


def test_a_slot_is_not_used_before_it_is_there() -> None:
    records = SlotRecords({0: 2, 4: 6}, 10, lifetime=2)
    for slot, generation in ((6, 5), (-1, 0)):
        with pytest.raises(ValueError, match=r"slot must be in \[0, 6\), but got slot="):
            records.number(slot, generation)
    with pytest.raises(ValueError, match="slot 4 is not used before generation 2, but got gen"):
        records.number(4, 1)
