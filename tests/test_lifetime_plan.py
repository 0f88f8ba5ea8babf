"""Which runs a sweep over lifetimes has, in which order, and how long they are."""

from __future__ import annotations

from typing import Any

import pytest

from training.checks import ConfigError
from training.lifetime_sweep.plan import (
    Job,
    epochs_in,
    first_jobs,
    rotated,
    sections_of,
    wall_time_jobs,
)
from training.options import SweepConfig


def sweep(**changes: Any) -> SweepConfig:
    return SweepConfig(**{"lifetimes": [1, 2, 4], "seeds": [0, 1, 2], **changes})


def test_every_lifetime_has_a_run_for_every_seed() -> None:
    jobs = first_jobs(sweep(fresh=False))

    assert len(jobs) == 9
    assert {(job.lifetime, job.seed) for job in jobs} == {
        *((1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2)),
    }
    assert {job.kind for job in jobs} == {"epochs"}


def test_all_transforms_are_stored_in_further_runs_but_at_lifetime_1_where_it_is_the_same() -> None:
    stored = [job for job in first_jobs(sweep()) if job.kind == "stored"]

    assert sorted((job.lifetime, job.seed) for job in stored) == [
        *((2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2)),
    ]
    assert Job(kind="stored", lifetime=2, seed=7).overrides() == [
        *("lifetime=2", "seed=7", "augment.store_all=true"),
    ]


def test_each_seed_begins_with_another_setting_so_that_none_is_always_first() -> None:
    jobs = first_jobs(sweep(fresh=False))

    assert [job.seed for job in jobs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [job.lifetime for job in jobs] == [1, 2, 4, 2, 4, 1, 4, 1, 2]


@pytest.mark.parametrize(
    ("size", "turns", "starts"),
    [(4, 3, [0, 1, 2]), (7, 3, [0, 2, 4]), (2, 5, [0, 1, 0, 1, 0]), (5, 1, [0])],
)
def test_the_order_is_rotated_evenly(size: int, turns: int, starts: list[int]) -> None:
    orders = [rotated(range(size), turn, turns) for turn in range(turns)]

    assert [order[0] for order in orders] == starts
    assert all(order == [(order[0] + place) % size for place in range(size)] for order in orders)


def test_the_runs_at_equal_wall_time_have_the_epochs_that_were_decided() -> None:
    jobs = wall_time_jobs(sweep(), {2: 7, 4: 11})

    assert [(job.lifetime, job.seed, job.epochs) for job in jobs] == [
        *((2, 0, 7), (4, 0, 11), (4, 1, 11), (2, 1, 7), (2, 2, 7), (4, 2, 11)),
    ]
    assert jobs[1].overrides() == ["lifetime=4", "seed=0", "epochs=11"]


def test_there_are_no_runs_at_equal_wall_time_without_a_wish_or_a_measurement() -> None:
    assert wall_time_jobs(sweep(equal=["epochs"]), {2: 7}) == []
    assert {job.lifetime for job in wall_time_jobs(sweep(), {4: 9})} == {4}


def test_the_runs_of_the_shortest_lifetime_stand_in_every_section() -> None:
    def kinds(lifetime: int, **changes: Any) -> list[str]:
        return sections_of(Job(kind="epochs", lifetime=lifetime, seed=0), sweep(**changes))

    assert kinds(1) == ["epochs", "wall_time", "stored"]
    assert kinds(2) == ["epochs"]
    assert kinds(1, equal=["epochs"], fresh=False) == ["epochs"]
    assert kinds(2, lifetimes=[2, 4]) == ["epochs", "wall_time"]  # stored, it is another run
    assert sections_of(Job(kind="stored", lifetime=2, seed=0), sweep()) == ["stored"]


def test_equal_wall_time_counts_the_first_epoch_apart_and_takes_the_median_of_the_others() -> None:
    # Lifetime 1 took 40 s; lifetime 4 needs 4 s for its first epoch and 1.5 s for most others.
    assert epochs_in(40.0, [[4.0, 1.5, 1.5, 9.0]]) == 25  # 4 + 24 * 1.5 = 40
    assert epochs_in(40.0, [[3.0, 1.0, 2.0], [5.0, 1.5, 1.5]]) == 25


def test_equal_wall_time_is_one_epoch_at_least_and_the_nearest_number() -> None:
    assert epochs_in(1.0, [[4.0, 1.5]]) == 1
    assert epochs_in(4.9, [[4.0, 2.0]]) == 1
    assert epochs_in(5.1, [[4.0, 2.0]]) == 2
    assert epochs_in(12.0, [[4.0]]) == 3  # of a single epoch that one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lifetimes": [2]}, "sweep.lifetimes must be null or two or more positive whole numbers,"),
        ({"lifetimes": [0, 2]}, "sweep.lifetimes must be null or two or more positive whole nu"),
        ({"lifetimes": [2, 2]}, "sweep.lifetimes must be null or two or more positive whole nu"),
        ({"lifetimes": []}, "sweep.lifetimes must be null or two or more positive whole numbers"),
        (
            {"seeds": []},
            "sweep.seeds must be whole numbers, each once, like [0,1,2], but got sweep.seeds=[]",
        ),
        (
            {"seeds": [1, 1]},
            "sweep.seeds must be whole numbers, each once, like [0,1,2], but got sweep.seeds=[1, ",
        ),
        ({"equal": ["wall_time"]}, "sweep.equal must be a list, [epochs] or [epochs,wall_time], "),
        ({"equal": ["steps"]}, "sweep.equal must be a list, [epochs] or [epochs,wall_time], but"),
    ],
)
def test_a_sweep_that_compares_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(**changes)
    assert str(caught.value).startswith(message)
