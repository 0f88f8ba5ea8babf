from __future__ import annotations

from dataclasses import replace

import pytest

from training.advice import Work, advise, hiding_lifetime, work_of

WORK = Work(
    lifetime=1, num_workers=2, wait_s=48, train_s=100, built=1000, reused=0, build_s=144, read_s=0
)
"""A build takes 0.144 s; each of the two workers spends 72 s on them, and 48 s are waited."""


def test_the_lifetime_named_is_the_smallest_that_leaves_no_waiting() -> None:
    # Lifetime 2 spares a worker 36 s, lifetime 3 spares it 48 s.
    assert WORK.wait_at(2) == pytest.approx(12)
    assert WORK.wait_at(3) == pytest.approx(0)
    assert advise(WORK) == "input-bound: 48 % of the time waiting; lifetime=3 would hide it"


def test_the_first_batch_of_an_epoch_is_waited_for_at_every_lifetime() -> None:
    work = replace(WORK, num_firsts=200)  # 28.8 s, of which lifetime 3 leaves a third
    assert work.wait_at(3) == pytest.approx(9.6)
    assert work.wait_at(6) == pytest.approx(4.8)
    assert advise(work) == "input-bound: 48 % of the time waiting; lifetime=6 would hide it"
    assert replace(work, num_firsts=10**6).wait_at(2) == 48  # no more than there was


def test_what_is_spared_is_read_instead() -> None:
    work = replace(WORK, lifetime=2, built=500, reused=500, build_s=72, read_s=20, wait_s=30)

    # A build of 0.144 s becomes a read of 0.04 s: 250 of them spare each worker 13 s.
    assert work.wait_at(4) == pytest.approx(17)
    assert work.wait_at(2) == 30


def test_without_waiting_reuse_is_not_advised() -> None:
    assert advise(replace(WORK, wait_s=4.9)) == "compute-bound: reuse would not help"
    assert advise(replace(WORK, wait_s=3, lifetime=2, built=500, reused=500)) == (
        "compute-bound: 3 % of the time waiting; a longer lifetime would not help"
    )


def test_a_share_of_five_percent_counts_as_bound_by_input() -> None:
    assert advise(replace(WORK, wait_s=5)).startswith("input-bound: 5 % of the time waiting")


def test_no_lifetime_is_named_where_building_is_not_what_takes_long() -> None:
    assert advise(replace(WORK, build_s=2)) == (
        "input-bound: 48 % of the time waiting; no lifetime would hide it, little of it is building"
    )


def test_what_the_longest_lifetime_would_leave_is_said() -> None:
    # 15/16 of 80 s are spared by two workers: 37.5 of 90 s, and 10 s of compute remain.
    assert advise(replace(WORK, wait_s=90, build_s=80)) == (
        "input-bound: 90 % of the time waiting; no lifetime would hide it, "
        "lifetime=16 would leave 84 %"
    )


def test_without_workers_they_are_the_remedy() -> None:
    assert advise(replace(WORK, num_workers=0, wait_s=48, build_s=40)) == (
        "input-bound: 48 % of the time waiting; workers would prepare beside training "
        "(num_workers=1 or more)"
    )
    assert hiding_lifetime(replace(WORK, num_workers=0, wait_s=4, build_s=0.5)) is not None


def test_after_epoch_0_alone_the_lifetime_of_the_run_may_be_enough() -> None:
    assert hiding_lifetime(replace(WORK, lifetime=4)) == 4
    assert hiding_lifetime(replace(WORK, lifetime=4, built=250, reused=750)) != 4


def test_on_full_cores_it_is_not_said_that_reuse_would_not_help() -> None:
    work = replace(WORK, wait_s=2, build_s=100, num_cores=2)
    assert advise(work) == (
        "compute-bound: 2 % of the time waiting; workers and training share 2 cores"
    )
    assert advise(replace(work, num_cores=4)) == "compute-bound: reuse would not help"
    assert advise(replace(work, num_cores=None)) == "compute-bound: reuse would not help"


def test_a_run_without_anything_is_not_advised_nonsense() -> None:
    nothing = Work(lifetime=1, num_workers=0, wait_s=0, train_s=0, built=0, reused=0, build_s=0)
    assert advise(nothing) == "compute-bound: reuse would not help"
    assert advise(replace(WORK, built=0, reused=1000, build_s=0, read_s=100)).endswith(
        "little of it is building"
    )


def test_a_few_batches_are_not_judged() -> None:
    assert advise(replace(WORK, num_batches=9)) == (
        "too few batches to say what bounds it (9, of which 10 are needed)"
    )
    assert advise(replace(WORK, num_batches=10)) == advise(WORK)
    assert advise(replace(WORK, num_batches=1, wait_s=0)).startswith("too few batches")


def test_batches_are_counted_over_all_epochs_but_the_first() -> None:
    rows = [
        {"epoch": 0, "built": 100, "reused": 0, "wait_s": 1.0, "build_s": 1.0},
        {"epoch": 1, "built": 50, "reused": 51, "wait_s": 1.0, "build_s": 1.0},
        {"epoch": 2, "built": 50, "reused": 50, "wait_s": 1.0, "build_s": 1.0},
    ]

    def count(rows: list[dict[str, float]], **options: int) -> int:
        work = work_of(rows, 2, 2, None, **options)
        assert work is not None
        return work.num_batches

    assert count(rows, batch_size=10) == 11 + 10
    assert count(rows, batch_size=10, num_ranks=2) == 6 + 5  # of each rank
    assert count(rows[:1], batch_size=100) == 1
    assert count(rows) == 0  # as the size is not known
