from __future__ import annotations

from dataclasses import replace

import pytest

from training.bounds.prediction import (
    LIFETIMES,
    Costs,
    Input,
    Step,
    choose,
    predict,
    predict_all,
    slowdown,
)

ONE = Input(
    num_workers=1,
    built_per_s=100,
    stored_per_s=80,
    reused_per_s=10_000,
    built_cpu_s=0.01,
    stored_cpu_s=0.0125,
    reused_cpu_s=0.0002,
    receive_s=0.001,
)
TWO = replace(ONE, num_workers=2, built_per_s=200, stored_per_s=160, reused_per_s=20_000)
COSTS = Costs(
    num_samples=1000,
    num_batches=10,
    num_cores=64,
    step_s=0.199,
    step_cpu_s=0.1,
    eval_s=0.5,
    checkpoint_s=0.25,
    inputs=[ONE, TWO],
)
"""Computing takes 2 s of an epoch, with what it takes to receive its batches."""


def test_workers_that_are_slower_than_the_training_are_the_bound() -> None:
    one = predict(COSTS, 1, ONE)

    assert (one.bound, one.compute_s) == ("input", pytest.approx(2.0))
    # 1000 samples at 100 a second, and the step that follows the last of them.
    assert one.epoch_s == pytest.approx(10 + 0.2 + 0.75)


def test_what_else_an_epoch_and_a_batch_take_is_added() -> None:
    costs = replace(COSTS, rest_s=0.03, rest_batch_s=0.01)
    first, sixteen = predict(costs, 1, ONE), predict(costs, 16, TWO)

    # Where input is the bound, only behind the last batch is it waited for; else in each of ten.
    assert first.epoch_s == pytest.approx(10 + 0.2 + 0.75 + 0.03 + 0.01)
    assert sixteen.epoch_s == pytest.approx(predict(COSTS, 16, TWO).epoch_s + 0.03 + 10 * 0.01)
    assert sixteen.compute_s == pytest.approx(2.1)


def test_at_a_longer_lifetime_the_share_that_is_built_is_stored_as_well() -> None:
    one = predict(COSTS, 4, ONE)

    assert one.epoch_s == pytest.approx(250 / 80 + 750 / 10_000 + 0.2 + 0.75)


def test_a_training_that_is_slower_than_the_workers_waits_for_its_first_batch_alone() -> None:
    sixteen = predict(COSTS, 16, TWO)

    # A worker makes the 100 samples of the first batch at half the rate of both.
    first_s = 100 * 2 * (1 / 16 / 160 + 15 / 16 / 20_000)
    assert sixteen.bound == "compute" and sixteen.is_bound_by_compute
    assert sixteen.epoch_s == pytest.approx(2.0 + first_s + 0.75)


def test_all_the_work_over_the_cores_may_be_the_bound() -> None:
    # 10 s of building and 1 s of the host for the training, on one core.
    one = predict(replace(COSTS, num_cores=1), 1, TWO)

    assert one.bound == "cores"
    # And the last step, which has the core for itself.
    assert one.epoch_s == pytest.approx(11 + 0.2 + 0.75)


def test_an_epoch_is_slowed_down_as_training_was_beside_workers_by_the_share_that_is_built() -> (
    None
):
    slower = replace(ONE, building=1.5, reading=1.1)

    at_1, at_4 = predict(COSTS, 1, slower), predict(COSTS, 4, slower)
    assert at_1.epoch_s == pytest.approx(1.5 * 10 + 0.2 + 0.75)
    assert at_4.epoch_s == pytest.approx(1.2 * (250 / 80 + 750 / 10_000) + 0.2 + 0.75)
    assert at_4.train_s == pytest.approx(at_4.epoch_s - 0.75)


def test_what_slows_computing_down_keeps_it_from_being_the_bound() -> None:
    assert predict(COSTS, 16, replace(TWO, reading=1.04)).bound == "compute"
    slower = predict(COSTS, 16, replace(TWO, building=1.3, reading=1.3))

    assert (slower.bound, slower.compute_s) == ("cores", pytest.approx(2.0))


def test_workers_that_are_told_late_of_an_epoch_begin_it_late() -> None:
    # All of the first batch is read in 0.01 s by a worker; 0.4 s pass until it is there.
    late = predict(COSTS, 1, replace(ONE, start_s=0.41))

    assert late.epoch_s == pytest.approx(10 + 0.4 + 0.2 + 0.75)


def test_a_step_takes_as_long_as_the_longest_of_its_parts() -> None:
    step = Step(num_samples=100, step_s=0.199, cpu_s=0.1, num_cores=2)

    assert step.parts(ONE, 0.5) == pytest.approx((0.505, 0.2, (0.51 + 0.1) / 2))
    assert step.seconds(ONE, 0.5) == pytest.approx(0.505)
    assert step.seconds(ONE, 0.0) == pytest.approx(0.2)
    assert step.seconds(ONE, 1.0, stored=True) == pytest.approx(100 / 80)
    assert step.seconds(replace(ONE, num_workers=0), 1.0) == pytest.approx(1.199)


def test_nothing_is_faster_than_its_parts_and_what_was_not_tried_is_taken_as_it_is() -> None:
    assert slowdown(1.2, 1.0) == 1.2
    assert slowdown(0.9, 1.0) == 1.0
    assert slowdown(None, 1.0) == 1.0


def test_without_workers_one_comes_after_the_other() -> None:
    alone = predict(COSTS, 2, replace(ONE, num_workers=0))

    assert alone.bound == "input"
    assert alone.epoch_s == pytest.approx(500 / 80 + 500 / 10_000 + 1.99 + 0.75)
    fast = replace(ONE, num_workers=0, stored_per_s=10**6, reused_per_s=10**6)
    assert predict(COSTS, 2, fast).bound == "compute"


def test_the_smallest_lifetime_that_makes_compute_the_bound_is_chosen() -> None:
    table = predict_all(COSTS)
    best = choose(table)

    assert [row[0].lifetime for row in table] == list(LIFETIMES)
    assert (best.lifetime, best.num_workers) == (4, 2)
    assert not table[2][1].is_bound_by_compute  # lifetime 3
    assert not any(row[0].is_bound_by_compute for row in table[:4])  # one worker


def test_of_several_numbers_of_workers_the_fewest_that_are_enough_are_chosen() -> None:
    best = choose(predict_all(replace(COSTS, step_s=2.0)))

    assert (best.lifetime, best.num_workers) == (1, 1)


def test_where_nothing_makes_compute_the_bound_the_fastest_is_chosen() -> None:
    best = choose(predict_all(replace(COSTS, step_s=1e-5, inputs=[ONE])))

    assert (best.lifetime, best.num_workers, best.bound) == (16, 1, "input")
