"""A short form of every trial of benchmarks/faults.py: no wrong sample, and no run lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import faults

SHORT = {"bit flip, cut, zeros, foreign file; both formats": 200, "NaN loss": 1}


@pytest.mark.parametrize("name", faults.KINDS)
def test_a_fault_costs_no_sample_and_no_run(name: str) -> None:
    trials = SHORT.get(name, 2)
    tally = faults.run_kind(name, trials)
    assert (tally.trials, tally.wrong, tally.lost, tally.notes) == (trials, 0, 0, [])


def test_what_goes_wrong_would_be_counted(tmp_path: Path) -> None:
    tally = faults.Tally()
    key = faults.ReusePolicy(3).key(5, 1)
    sample = faults.build(key)
    tally.check(sample, key)
    assert tally.wrong == 0
    sample["image"].view(-1)[77] ^= 1
    tally.check(sample, key)
    with tally.trial():
        raise RuntimeError("lost")
    assert (tally.trials, tally.wrong, tally.lost) == (1, 1, 1)
