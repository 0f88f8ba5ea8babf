from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from runs import SMALL, compose_config
from test_bounds_prediction import COSTS, ONE, TWO

from training.bounds import __main__ as program
from training.bounds import measure
from training.bounds.measure import Bounds, worker_counts
from training.bounds.passes import Times
from training.bounds.picture import draw_bounds
from training.bounds.prediction import choose, predict_all
from training.bounds.steps import make_batch
from training.bounds.text import command, conclusion, describe_bounds
from training.config import ConfigError, load_config
from training.curriculum import expand

BOUNDS = Bounds(
    build=Times(values=[0.01] * 19 + [0.5]),
    read=Times(values=[0.0001, 0.0002, 0.0003]),
    costs=COSTS,
    batch_size=100,
    warmup_s=3.0,
    cache_bytes=3 * 2**30,
)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measure next to nothing, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "_PART_S", 0.02)
    monkeypatch.setattr(measure, "num_cores", lambda: 2)
    return tmp_path


def test_everything_is_measured_and_nothing_but_the_picture_stays(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.main([*SMALL, "augment=digits", "num_workers=2"])
    out = capsys.readouterr().out

    assert re.search(
        r"build a sample     \d+\.\d+ ms, 95 % in under \d+\.\d+ ms \(\d+ samples\)", out
    )
    assert re.search(r"\| 1 \| [\d,]+ \| [\d,]+ \| \d+ MiB \| \d\.\d\d built, .*\n\| 2 \| ", out)
    for lifetime in (1, 2, 3, 4, 8, 16):
        assert re.search(rf"\n\| {lifetime} \| \d+\.\d\d \(\w+\) \| \d+\.\d\d \(\w+\) \|", out)
    assert re.search(
        r"command line to use +python train.py lifetime=\d+ num_workers=[12] data", out
    )
    assert [path.name for path in quick.rglob("*")] == ["outputs", "bounds.png"]


@pytest.mark.slow
def test_a_config_with_other_options_is_measured(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = quick / "samples"
    program.main(
        [*SMALL, "trainer.accumulate=2", "trainer.echo=2", "trainer.limit_batches=2",
         f"cache.directory={samples}", "augment.fresh={}", "trainer.evaluate_every=3"]
    )  # fmt: skip

    out = capsys.readouterr().out
    assert "32 samples on" in out  # two batches of 16
    assert not samples.exists()
    assert [path.name for path in quick.rglob("*")] == ["outputs", "bounds.png"]


MISTAKES = {
    "lifetime=0": "lifetime must be a positive integer, but got lifetime=0",
    "lifetme=2": "lifetme is not a key of the config; did you mean lifetime?",
    "augment=non": "augment must be a file of conf/augment, but got augment=non",
    "device=cuda:99": "device must be one that this machine has",
    "model._target_=os.system": "model._target_ must lie in this project",
    "resume=x": "bounds measures one config, and takes no resume",
    "-m": "bounds measures one config, and takes no -m",
    "lifetime": "lifetime must have the form key=value",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line_as_by_train_py(
    quick: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["bounds", mistake])
    with pytest.raises(SystemExit) as exit_:
        program.main([mistake])
    out, err = capsys.readouterr()

    assert (exit_.value.code, out) == (1, "")
    assert err.startswith(f"error: {MISTAKES[mistake]}")
    assert err.count("\n") == 1
    assert list(quick.iterdir()) == []


def test_a_build_that_fails_leaves_nothing_behind(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(measure.Steps, "alone", fail)
    with pytest.raises(ZeroDivisionError):
        program.main(list(SMALL))
    assert list(quick.iterdir()) == []


def test_of_a_set_that_grows_the_first_epoch_is_measured(quick: Path) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    from test_remote import folder

    composed = compose_config(
        *("data=remote", f"data.url=file://{folder(quick / 'store')}", "data.num_classes=2"),
        *("data.image_size=16", "data.size={0: 3, 2: 8}", "lifetime=2", "epochs=3"),
    )
    config = load_config(composed)
    table = expand(composed, config.curriculum.table)
    bench = measure.Bench(config, table, quick / "bench", print)
    _, loaders = bench.loaders()

    assert len(bench.build_times(loaders).values) == 2  # of three, one of which warms up
    assert len(make_batch(loaders, 16, bench.device)["label"]) == 8


def test_the_numbers_of_workers_are_powers_of_two_the_cores_and_the_users_own() -> None:
    assert worker_counts(2, 2) == [1, 2]
    assert worker_counts(0, 1) == [0, 1]
    assert worker_counts(5, 12) == [1, 2, 4, 5, 8, 12]


def test_data_of_which_nothing_can_be_timed_is_refused() -> None:
    measure.check_counted(1, 3, 2)
    with pytest.raises(ConfigError, match=r"^data.train must have more .* it has 1 for 2 workers"):
        measure.check_counted(0, 1, 2)


def test_a_median_and_a_slow_end_are_shown() -> None:
    text = describe_bounds(BOUNDS, [])

    assert "build a sample     10.000 ms, 95 % in under 34.500 ms (20 samples)" in text
    assert "read a sample      0.200 ms, 95 % in under 0.290 ms (3 samples)" in text
    assert "train on a batch   199.00 ms for 100 samples, 503 a second (3.0 s to warm up)" in text
    assert "| 1 | 100 | 10,000 | not known | 1.00 built, 1.00 read |" in text
    assert "disk the cache will take   3 GiB" in text
    assert "| 1 | 10.95 (input) | 5.95 (input) |" in text


def test_the_conclusion_names_what_makes_compute_the_bound() -> None:
    typed = ["data.train.limit=500", "lifetime=3", "num_workers=1"]
    assert conclusion(BOUNDS, typed) == (
        "Compute becomes the bound at lifetime=4 with num_workers=2: 1.9 times as fast an epoch "
        "as at lifetime 1. Whether the accuracy is kept, a sweep will say: "
        "python train.py sweep=lifetimes 'sweep.lifetimes=[1,2,4]' num_workers=2 "
        "data.train.limit=500"
    )
    slow = replace(BOUNDS, costs=replace(COSTS, step_s=5.0))
    assert conclusion(slow) == (
        "Compute is the bound already at lifetime=1 with num_workers=1: reuse would not help."
    )
    fast = replace(BOUNDS, costs=replace(COSTS, step_s=0.001, inputs=[ONE]))
    assert conclusion(fast).startswith(
        "No lifetime up to 16 makes compute the bound: at lifetime=16 with num_workers=1 training "
    )


def test_the_command_keeps_what_was_typed_but_for_what_it_sets() -> None:
    typed = ["lifetime=1", "model=resnet18", "data.root=a folder", "num_workers=9"]

    assert command(choose(predict_all(COSTS)), typed) == (
        "python train.py lifetime=4 num_workers=2 model=resnet18 'data.root=a folder'"
    )


@pytest.mark.parametrize(
    "inputs", [[ONE], [ONE, TWO], [replace(ONE, num_workers=2**n) for n in range(7)]]
)
def test_a_picture_is_drawn(tmp_path: Path, inputs: list[Any]) -> None:
    draw_bounds(replace(BOUNDS, costs=replace(COSTS, inputs=inputs)), tmp_path / "bounds.png")

    with Image.open(tmp_path / "bounds.png") as picture:
        assert picture.size == (1100, 462)
