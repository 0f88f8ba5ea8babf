"""The learning rate of a run that goes on with another rate, or for more epochs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from stopping import BASE, Updates, results, slow

from training.checks import ConfigError

PRESETS: dict[str, tuple[str, ...]] = {
    "onecycle": (),
    "cosine": (),
    "multistep": ("schedule.milestones=[1,2,4]",),  # the last behind the old end
    "constant": (),
    "plateau": ("schedule.patience=0", "trainer.monitor=val_loss", "schedule.threshold=0.9"),
}


FAST_AND_SLOW = [
    "onecycle",
    *(slow(name) for name in ("plateau", "cosine", "multistep", "constant")),
]


@pytest.mark.parametrize("preset", FAST_AND_SLOW)
def test_a_new_rate_scales_what_the_schedule_makes_of_it(
    updates: Updates, tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    options = (*BASE, f"schedule={preset}", *PRESETS[preset], "optimizer=sgd", "optimizer.lr=0.08")
    options = tuple(f"+{o}" if "threshold" in o else o for o in options)
    updates.start(tmp_path / "whole", *options)
    whole, updates.rates = updates.rates, []
    assert len(whole) == 12
    assert len(whole[0]) == 2  # with decay, and without
    if preset in ("multistep", "plateau"):
        assert whole[11][0] < whole[0][0] / 2  # it has come down on its way
    updates.start(tmp_path / "parts", *options, stop=5)
    lower = (*options, "optimizer.lr=0.02", "schedule.max_lr=0.08")
    lower = lower if preset == "onecycle" else lower[:-1]  # which a recorded config holds resolved
    updates.start(tmp_path / "parts", *lower, stop=6)
    assert "optimizer.lr was 0.08 and is 0.02 from here on" in capsys.readouterr().out
    updates.start(tmp_path / "parts", *lower, stop=9)  # the change stays, and is not made twice
    updates.start(tmp_path / "parts", *lower)
    expected = [[rate / (1 if step < 6 else 4) for rate in whole[step]] for step in range(12)]
    assert updates.rates == [pytest.approx(rates) for rates in expected]
    assert "optimizer.lr" not in capsys.readouterr().out
    recorded = yaml.safe_load((tmp_path / "parts" / "config.yaml").read_text())
    assert recorded["optimizer"]["lr"] == 0.02


@pytest.mark.parametrize("preset", FAST_AND_SLOW)
def test_raised_epochs_do_not_send_the_rate_up_again(
    updates: Updates, tmp_path: Path, preset: str
) -> None:
    options = (*BASE, f"schedule={preset}", *PRESETS[preset], "optimizer=sgd", "optimizer.lr=0.08")
    options = tuple(f"+{o}" if "threshold" in o else o for o in options)
    updates.start(tmp_path / "whole", *options, "epochs=6", "schedule_end=3")
    expected, rates = results(tmp_path / "whole", counts=False), updates.rates
    updates.rates = []
    updates.start(tmp_path / "parts", *options)  # to its end: its samples are removed
    updates.start(tmp_path / "parts", *options, "epochs=4", "schedule_end=null", stop=13)
    for epochs in (4, 6):  # raised twice, and stopped on the way
        updates.start(tmp_path / "parts", *options, f"epochs={epochs}", "schedule_end=3")
    assert updates.rates == rates
    assert results(tmp_path / "parts", counts=False) == expected
    assert all(later <= earlier for earlier, later in pairwise(rates[11:]))


def test_a_rate_that_was_left_at_its_default_can_be_changed_as_well(
    updates: Updates, tmp_path: Path
) -> None:
    options = (*BASE, "schedule=constant")
    updates.start(tmp_path, *options, "~optimizer.lr", stop=5)
    updates.start(tmp_path, *options, "optimizer.lr=0.5", stop=9)
    updates.start(tmp_path, *options, "optimizer.lr=0.5")
    assert [rates[0] for rates in updates.rates] == [0.001] * 6 + [0.5] * 6  # AdamW's own, at first


def test_a_rate_that_the_schedule_has_brought_to_nothing_is_said(
    updates: Updates, tmp_path: Path
) -> None:
    options = (*BASE, "schedule=cosine", "epochs=1")
    updates.start(tmp_path, *options)
    updates.start(tmp_path, *options, "epochs=2", "optimizer.lr=0.5")
    assert updates.rates[-1] == [0.0, 0.0]
    log = (tmp_path / "train.log").read_text()
    assert "optimizer.lr=0.5 is what the schedule multiplies: the rate goes on at 0" in log


def test_a_rate_of_nothing_cannot_be_scaled(updates: Updates, tmp_path: Path) -> None:
    options = (*BASE, "schedule=constant")
    updates.start(tmp_path, *options, "optimizer.lr=0.0", stop=5)
    with pytest.raises(ConfigError, match=r"optimizer\.lr must stay 0"):
        updates.start(tmp_path, *options, "optimizer.lr=0.1")
