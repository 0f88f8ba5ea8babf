from __future__ import annotations

import io
import logging
import time
from contextlib import redirect_stderr

import pytest
from processes import RankGroup

from training import complaints
from training.complaints import cause_of, line_of, note_exit, report
from training.distributed import RankFailedError, Ranks, ranks, store

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer")


def lines(texts: list[list[str]]) -> list[str | None]:
    return [line_of(logging.WARNING, text) for text in texts[ranks().rank]]


def infos() -> list[str | None]:
    return [line_of(logging.INFO, "an epoch"), line_of(logging.ERROR, f"by {ranks().rank}")]


def fail(errors: list[str], delays: list[float]) -> list[str]:
    """Report an error of this rank, by its name; return what is printed and what is recorded."""
    shared = store()
    assert shared is not None
    time.sleep(delays[ranks().rank])
    kinds: dict[str, Exception] = {
        "lost": LOST,
        "failed": RankFailedError("another rank failed"),
        "mistake": ValueError("lifetime must be a positive integer"),
        "bug": KeyError("x"),
    }
    complaints._PATIENCE_S, complaints._MANNERS_S = 0.3, 0.0
    error = kinds[errors[ranks().rank]]
    with redirect_stderr(io.StringIO()) as printed:
        report(error, f"error: {error}")
    return [printed.getvalue(), cause_of(error)]


def test_a_process_alone_shows_and_reports_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert line_of(logging.INFO, "an epoch") == "an epoch"
    assert [line_of(logging.WARNING, "a")] * 2 == ["warning: a"] * 2
    report(ValueError("wrong"), "error: wrong")
    report(LOST, "error: lost")
    assert capsys.readouterr().err == "error: wrong\nerror: lost\n"
    assert cause_of(KeyError("x")) == "KeyError: KeyError: 'x'"


@pytest.mark.parametrize("rank", [0, 1])
def test_without_torchrun_nothing_is_asked_of_its_store(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.setattr(complaints, "store", object)  # which answers nothing
    monkeypatch.setattr(complaints, "ranks", lambda: Ranks(rank=rank, world_size=2))
    monkeypatch.setattr(complaints, "is_left_alone", lambda: True)
    note_exit(143)
    assert line_of(logging.WARNING, "a") == ("warning: a" if rank == 0 else None)


def test_news_come_from_rank_0_and_errors_from_each_rank(rank_group: RankGroup) -> None:
    first, second = rank_group.of(2).call(infos)
    assert first == ["an epoch", "error: by 0"]
    assert second == [None, "rank 1: error: by 1"]


def test_a_warning_that_all_ranks_have_is_shown_once(rank_group: RankGroup) -> None:
    texts = [["common", "first", "first"], ["common", "second"]]
    answers = rank_group.of(2).call(lines, texts)
    shown = [line for answer in answers for line in answer if line is not None]
    assert sum("warning: common" in line for line in shown) == 1
    assert answers[0][1:] == ["warning: first"] * 2  # as often as it comes
    assert answers[1][1] == "rank 1: warning: second"


@pytest.mark.parametrize(
    ("errors", "delays", "printed", "recorded"),
    [
        # The same mistake on all ranks is shown once and without a rank, whoever is first.
        (["mistake", "mistake"], [0.1, 0.0], ["error: lifetime", ""], "ValueError: lifetime"),
        # Rank 1 alone fails; that rank 0 lost it is not worth a word.
        (["lost", "bug"], [0.8, 0.0], ["", "rank 1: error: 'x'"], "rank 1: KeyError"),
        (["failed", "bug"], [0.8, 0.0], ["", "rank 1: error: 'x'"], "rank 1: KeyError"),
        # Two errors that have nothing to do with each other.
        (["mistake", "bug"], [0.0, 0.1], ["error: lifetime", "rank 1: error: 'x'"], "ValueError"),
        # Rank 1 was killed, and said nothing.
        (["lost", "lost"], [0.0, 0.1], ["error: another rank ended", ""], "another rank ended"),
    ],
)
def test_what_ends_the_run_is_reported_once_and_its_cause_recorded(
    rank_group: RankGroup,
    errors: list[str],
    delays: list[float],
    printed: list[str],
    recorded: str,
) -> None:
    group = rank_group.anew(2)  # a run fails but once
    answers = group.call(fail, errors, delays)
    for expected, (text, _) in zip(printed, answers, strict=True):
        assert text.startswith(expected) and bool(text) == bool(expected), answers
    assert answers[0][1].startswith(recorded)
