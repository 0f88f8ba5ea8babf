"""A short form of every trial of benchmarks/faults.py: no wrong sample, and no run lost."""

from __future__ import annotations

import pytest

from benchmarks import faults

SHORT = {"bit flip, cut, zeros, foreign file; both formats": 200, "NaN loss": 1}


@pytest.mark.parametrize("name", faults.KINDS)
def test_a_fault_costs_no_sample_and_no_run(name: str) -> None:
    trials = SHORT.get(name, 2)
    tally = faults.run_kind(name, trials)
    assert (tally.trials, tally.wrong, tally.lost, tally.notes) == (trials, 0, 0, [])
