from __future__ import annotations

import os
from pathlib import Path

import pytest
from builds import draw

from reuseloader import ReuseDataLoader, ReusePolicy
from reuseloader.trace import Span, Trace, read_spans


def take(directory: Path, trace: Trace, num_workers: int) -> None:
    loader = ReuseDataLoader(
        draw, 8, directory / "cache", lifetime=2, seed=1, batch_size=2, num_workers=num_workers
    )
    loader._dataset.trace = trace
    for _ in range(3):
        for _batch in loader:
            pass


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_build_and_read_of_an_epoch_is_taken_down_by_its_process(
    tmp_path: Path, num_workers: int
) -> None:
    take(tmp_path, Trace(tmp_path / "trace", epoch=1), num_workers)
    spans = list(read_spans(tmp_path / "trace"))
    policy = ReusePolicy(2, 1)
    built = {index for index in range(8) if policy.key(index, 1).first_epoch == 1}

    assert {span.sample for span in spans if span.what == "build"} == built
    assert {span.sample for span in spans if span.what == "read"} == set(range(8)) - built
    assert len(spans) == 8
    assert len({span.pid for span in spans} - {os.getpid()}) == num_workers
    assert all(span.start_ns < span.end_ns for span in spans)


def test_a_process_takes_down_so_many_and_no_more(tmp_path: Path) -> None:
    take(tmp_path, Trace(tmp_path / "trace", epoch=0, most=3), 0)

    assert len(list(read_spans(tmp_path / "trace"))) == 3


def test_a_trace_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("in the way")
    take(tmp_path, Trace(tmp_path / "trace", epoch=0), 0)

    assert list(read_spans(tmp_path / "nothing")) == []


def test_a_line_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "7.txt").write_text("read 3 10 20 7 8\nbuild 4 20 3")

    assert list(read_spans(tmp_path)) == [Span("read", 3, 10, 20, 7, 8)]
