"""What a run shows while it trains."""

from __future__ import annotations

import contextlib
import io
import logging
from typing import Any

import pytest
from processes import RankGroup

from training.console import progress_bar, report_epoch


class Screen(io.StringIO):
    """What tqdm takes for a terminal."""

    def isatty(self) -> bool:
        return True


def show_bar() -> str:
    screen = Screen()
    with contextlib.redirect_stderr(screen):
        assert list(progress_bar([1, 2, 3], 5, 3)) == [1, 2, 3]
    return screen.getvalue()


def test_of_several_ranks_one_shows_a_bar(rank_group: RankGroup) -> None:
    first, second = rank_group.of(2).call(show_bar)
    assert "epoch 5" in first
    assert second == ""


def test_without_a_screen_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress_bar([1, 2, 3], 5, 3)) == [1, 2, 3]
    assert capsys.readouterr().err == ""


ROW: dict[str, Any] = {
    **{"epoch": 3, "train_loss": 0.25, "val_loss": 0.5, "val_accuracy": 0.75, "built": 30},
    **{"reused": 34, "wait_s": 0.25, "epoch_s": 2.0, "samples_per_s": 1234.4},
}


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        (
            (),
            "epoch  3 of 12  loss 0.2500  val loss 0.5000  accuracy 75.00 %  "
            "built 30  reused 34  waited 0.2 of 2.0 s  1234 samples/s",
        ),
        (
            ("val_loss", "val_accuracy"),
            "epoch  3 of 12  loss 0.2500  built 30  reused 34  waited 0.2 of 2.0 s  1234 samples/s",
        ),
    ],
)
def test_an_epoch_is_one_line(
    caplog: pytest.LogCaptureFixture, left_out: tuple[str, ...], expected: str
) -> None:
    with caplog.at_level(logging.INFO, logger="training"):
        report_epoch(12, {name: value for name, value in ROW.items() if name not in left_out})
    assert [record.getMessage() for record in caplog.records] == [expected]
