from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import train, without_times

from reuseloader.trace import Span
from training.profiling import NoProfiler, add_spans
from training.targets import PROJECT

EPOCHS = ("epochs=2", "lifetime=2", "augment=digits", "tracker.profile=true")


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    trace = json.loads((directory / "trace.json").read_text())
    return [event for event in trace["traceEvents"] if event["name"] == name]


def inside(event: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    """Say whether an event lies in another of its thread, to 50 us: the clocks are not the same."""
    return any(
        (event["pid"], event["tid"]) == (other["pid"], other["tid"])
        and other["ts"] - 50 <= event["ts"]
        and event["ts"] + event["dur"] <= other["ts"] + other["dur"] + 50
        for other in others
    )


def test_without_workers_builds_and_reads_lie_in_the_wait_of_the_training_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(run, *EPOCHS, "batch_size=4")

    waits = events(run, "wait for input")
    assert sum(e["name"].startswith("ProfilerStep") for e in all_complete(run)) == 6
    assert {"build", "read"} == {e["name"] for e in all_complete(run) if e.get("cat") == "loader"}
    assert events(run, "compute")
    # The last step of the trace may end while a batch is waited for.
    last = max(e["ts"] for e in all_complete(run) if e["name"].startswith("ProfilerStep"))
    early = [e for what in ("build", "read") for e in events(run, what) if e["ts"] < last]
    assert len(early) > 10 and all(inside(event, waits) for event in early)
    assert f"trace          {run / 'trace.json'}, with " in "".join(capsys.readouterr())
    assert not (run / ".trace").exists()


def all_complete(directory: Path) -> list[dict[str, Any]]:
    trace = json.loads((directory / "trace.json").read_text())
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]


def test_builds_and_reads_of_workers_are_shown_as_theirs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, *EPOCHS, "batch_size=4", "num_workers=2")

    own = {event["pid"] for event in events(run, "compute")}
    named = {event["pid"] for event in events(run, "process_name")
             if event["args"]["name"] == "loader worker"}  # fmt: skip
    makers = {event["pid"] for what in ("build", "read") for event in events(run, what)}
    assert len(own) == 1 and makers and not makers & own
    assert makers == named
    assert {"build", "read"} <= {event["name"] for event in all_complete(run)}
    first = min(e["ts"] for e in all_complete(run) if e["name"].startswith("ProfilerStep"))
    assert all(event["ts"] + event["dur"] >= first for event in events(run, "build"))


def test_a_trace_changes_no_number(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", *EPOCHS, "tracker.profile=false")
    traced = train(tmp_path / "traced", *EPOCHS)

    assert without_times(plain) == without_times(traced)
    assert not (tmp_path / "plain" / "trace.json").exists()
    assert (tmp_path / "traced" / "trace.json").exists()


def test_an_epoch_of_one_update_is_too_short_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", "trainer.fast_dev_run=true", "tracker.profile=true")

    assert "there is no trace: epoch 0 has too few updates for one" in "".join(capsys.readouterr())
    assert not (tmp_path / "run" / "trace.json").exists()


def test_a_trace_that_cannot_be_written_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "trace.json" / "held").mkdir(parents=True)
    rows = train(tmp_path / "run", *EPOCHS)

    assert len(rows) == 2
    assert "the trace could not be written: " in "".join(capsys.readouterr())


def test_times_of_the_loader_are_moved_to_the_clock_of_the_profiler() -> None:
    def event(name: str, start_us: float, length_us: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "ts": start_us, "dur": length_us, "pid": 1, "tid": 1}

    trace = {
        "traceEvents": [
            event("clock of the loader", 1000.0, 2.0),
            event("clock of the loader", 900.0, 2.0),
            event("ProfilerStep#5", 1000.0, 500.0),
            {"ph": "i", "name": "an instant"},
        ]
    }
    spans = [
        Span("read", 3, 6_990_000, 7_010_000, 8, 9),  # 20 us around the mark, at 7,000,000 ns
        Span("build", 4, 6_000_000, 6_900_000, 8, 9),  # ends before the trace
        Span("build", 5, 7_500_001, 7_600_000, 8, 9),  # begins after it
    ]
    assert add_spans(trace, spans, [(6_000_000, 6_999_999), (7_000_000, 7_000_005)]) == 1
    assert trace["traceEvents"][4] == {
        "ph": "X", "cat": "loader", "name": "read", "pid": 8, "tid": 9, "ts": 990.0, "dur": 20.0,
        "args": {"index": 3},
    }  # fmt: skip
    assert trace["traceEvents"][5]["name"] == "process_name"


@pytest.mark.slow
def test_on_a_cpu_the_profiler_prints_nothing_of_its_own(tmp_path: Path) -> None:
    # In a process of its own: the level is read once in each.
    code = "import sys, pathlib, runs; runs.train(pathlib.Path(sys.argv[1]), *sys.argv[2:])"
    variables = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    variables |= {"PYTHONPATH": f"{PROJECT}{os.pathsep}{PROJECT / 'tests'}"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run"), *EPOCHS, "batch_size=4"],
        env=variables | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )

    assert (tmp_path / "run" / "trace.json").exists()
    assert done.stderr == ""
    assert "trace          " in done.stdout and ".cpp:" not in done.stdout


def test_nothing_is_done_where_no_trace_is_wanted() -> None:
    profiler = NoProfiler()
    with profiler.epoch(1, 100):
        assert profiler.step() is None
