"""Sweeps: one run for each value, none of which knows of the others."""

from __future__ import annotations

import pytest
from commands import Trainer, without_times


def test_a_job_of_a_sweep_equals_the_run_alone(train: Trainer) -> None:
    sweep = train.here("-m", "lifetime=1,2,4")
    alone = train.apart("lifetime=4")
    assert sweep.code == 0, sweep.err
    assert [run.name for run in sweep.runs] == ["0", "1", "2"]
    assert without_times(sweep.runs[2]) == without_times(alone.run)


def test_what_one_job_changes_is_not_seen_by_the_next(train: Trainer) -> None:
    sweep = train.here("-m", "deterministic=true,false", "num_threads=2,1", "seed=1")
    alone = train.apart("deterministic=false", "seed=1")
    assert without_times(sweep.runs[3]) == without_times(alone.run)


def test_a_failed_job_is_named_and_stops_no_other(train: Trainer) -> None:
    sweep = train.here("-m", "lifetime=1,0,2")
    assert sweep.code == 1
    assert [run.name for run in sweep.runs] == ["0", "2"]
    assert "lifetime=0) failed: lifetime must be a positive integer" in sweep.err


@pytest.mark.parametrize("values", ["1,2", "2,1"])
def test_the_order_of_a_sweep_changes_nothing(train: Trainer, values: str) -> None:
    runs = dict(zip(values.split(","), train.here("-m", f"lifetime={values}").runs, strict=True))
    assert without_times(runs["2"]) == without_times(train.here("lifetime=2").run)
