from __future__ import annotations

from pathlib import Path

import pytest
from histories import EPOCH, START, write_run

from training.checks import ConfigError
from training.report.history import read_history
from training.report.run import describe_run, verdict
from training.timing import PHASES


def test_times_are_those_of_the_ends_of_epochs_without_warm_up(tmp_path: Path) -> None:
    history = read_history(write_run(tmp_path / "run"))

    assert history.times_s == [9.0, 18.0, 27.0]
    assert history.warmup_s == 2.0
    assert history.evaluations() == [(0, 9.0, 0.5), (1, 18.0, 0.75), (2, 27.0, 0.875)]
    assert history.sessions[0][0] == START
    assert (history.sessions[0][1] - START).total_seconds() == 29.0


def test_the_phases_of_an_epoch_add_up_to_it(tmp_path: Path) -> None:
    history = read_history(write_run(tmp_path / "run"))

    whole = [sum(values) for values in zip(*history.phases().values(), strict=True)]
    assert set(history.phases()) == set(PHASES)
    assert history.column("epoch_s") == whole


def test_what_is_like_the_epochs_to_come_leaves_epoch_0_out(tmp_path: Path) -> None:
    work = read_history(write_run(tmp_path / "run")).work()

    assert work is not None
    assert (work.wait_s, work.train_s, work.built, work.reused) == (8.0, 15.5, 120, 80)
    assert (work.build_s, work.read_s, work.num_cores, work.num_workers) == (12.0, 0.8, 4, 2)


def test_of_one_epoch_that_one_counts(tmp_path: Path) -> None:
    work = read_history(write_run(tmp_path / "run", [0.5])).work()

    assert work is not None and work.wait_s == 4.0


def test_a_run_reads_as_far_as_it_came(tmp_path: Path) -> None:
    history = read_history(write_run(tmp_path / "run", [], status="interrupted", start_s=None))

    assert (history.rows, history.times_s, history.work(), history.sessions) == ([], [], None, [])
    assert "Status: interrupted, 0 of 3 epochs ended." in describe_run(history, None)


def test_a_run_of_an_older_kind_has_no_phases(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    old = [name for name in EPOCH if name not in ("compute_s", "build_s", "copy_s", "other_s")]
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    kept = [number for number, name in enumerate(rows[0]) if name in ("epoch", *old)]
    text = "\n".join(",".join(row[number] for number in kept) for row in rows)
    (run / "metrics.csv").write_text(text + "\n")
    history = read_history(run)

    assert history.work() is None
    assert verdict(history) == ""
    assert len(history.times_s) == 3


@pytest.mark.parametrize("name", ["status.json", "config.yaml", "environment.json"])
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run")
    (run / name).write_text("{ [")
    with pytest.raises(ConfigError, match=rf"^{run} holds a record that cannot be read: "):
        read_history(run)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("config.yaml", "[1]", "config.yaml must hold names and values, but got [1]"),
        ("environment.json", "7", "environment.json must hold names and values, but got 7"),
        ("config.yaml", "lifetime: x", "invalid literal for int() with base 10: 'x'"),
    ],
)
def test_a_record_that_holds_something_else_is_named(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    run = write_run(tmp_path / "run")
    (run / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        read_history(run)

    assert str(error.value) == f"{run} holds a record that cannot be read: {reason}"


def test_the_report_says_what_came_out_and_what_bounded_it(tmp_path: Path) -> None:
    text = describe_run(read_history(write_run(tmp_path / "a run")), "report.png")

    assert text.startswith("# a run\n\nStatus: done, 3 of 3 epochs ended. **Input-bound: 52 % of")
    assert "![what came out, and where the time went](report.png)" in text
    assert "| accuracy, best | 87.50 % after epoch 2, in 27 s without warm-up |" in text
    assert "| samples built | 180 |" in text
    assert "| samples reused | 120, 40 % of all |" in text
    assert "| time | 27 s and 2 s of warm-up |" in text
    assert "| waiting for input | 12.00 s | 41.4 % | 4.000 s |" in text
    assert "| warm-up | 2.00 s | 6.9 % | 0.000 s |" in text
    assert "| typed | `lifetime=2 seed=0` |" in text
    assert "The curriculum" not in text


def test_the_report_of_a_failure_names_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.5], status="failed", error="RuntimeError: a\nb | c")
    text = describe_run(read_history(run), None)

    assert "Status: failed, 1 of 3 epochs ended." in text
    assert "It failed: `RuntimeError: a b | c`" in text
    assert "![" not in text


def test_a_run_without_evaluation_says_so(tmp_path: Path) -> None:
    text = describe_run(read_history(write_run(tmp_path / "run", [None, None])), None)

    assert "| accuracy | there was no evaluation |" in text
    assert "| last training loss | 0.5000 |" in text


def test_the_curriculum_is_a_table_of_its_values(tmp_path: Path) -> None:
    curriculum = {0: {"magnitude": 0.3, "name": "weak"}, 4: {"magnitude": 1.0, "name": "a|b"}}
    text = describe_run(read_history(write_run(tmp_path / "run", curriculum=curriculum)), None)

    assert "| from epoch | `magnitude` | `name` |" in text
    assert "| 4 | 1.0 | a\\|b |" in text
