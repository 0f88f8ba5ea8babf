"""A short form of every trial of benchmarks/faults: no wrong sample, and no run lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.faults import trial
from benchmarks.faults.kinds import KINDS, run_kind
from reuseloader import ReusePolicy

SHORT = {
    "bit flip, cut, zeros, foreign file; both formats": 200,
    "full disk, from the start and midway": 4,
    "NaN loss": 1,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_costs_no_sample_and_no_run(name: str) -> None:
    num_trials = SHORT.get(name, 2)
    tally = run_kind(name, num_trials)
    assert (tally.trials, tally.wrong, tally.lost, tally.notes) == (num_trials, 0, 0, [])


def test_what_goes_wrong_would_be_counted(tmp_path: Path) -> None:
    tally = trial.Tally()
    key = ReusePolicy(3).key(5, 1)
    sample, expected = trial.build(key), trial.build(key)
    tally.check(sample, expected)
    assert tally.wrong == 0
    sample["image"].view(-1)[77] ^= 1
    tally.check(sample, expected)
    with tally.trial():
        raise RuntimeError("lost")
    assert (tally.trials, tally.wrong, tally.lost) == (1, 1, 1)


def test_the_clean_run_is_what_the_build_makes_of_the_keys() -> None:
    policy = ReusePolicy(trial.LIFETIME, 7)
    for epoch in (0, 1, 7):
        for index, sample in enumerate(trial.clean_run(trial.LIFETIME)[epoch]):
            expected = trial.build(policy.key(index, epoch))
            assert torch.equal(expected["image"], sample["image"])
            assert expected["label"] == sample["label"]


def test_wrong_and_missing_samples_of_a_pass_are_counted(tmp_path: Path) -> None:
    tally = trial.Tally()
    loader = trial.open_loader(tmp_path / "a", 0)
    tally.go_through(loader)
    assert tally.wrong == 0
    loader = trial.open_loader(tmp_path / "b", 0, build=lambda key: trial.build(key) | {"label": 3})
    with pytest.raises(KeyError):
        tally.go_through(loader)
    assert tally.wrong > 0
