"""The line that says what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from histories import LOG, write_run, write_serial_runs

from training.report.history import read_history
from training.report.run import describe_run
from training.report.sweep import read_sweep
from training.report.sweep_text import describe_sweep
from training.report.trained import trained


def of(folder: Path, runs: list[dict[str, Any]], environment: dict[str, Any] | None = None) -> str:
    """Return the line for some runs; each is what `write_run` takes."""
    histories = []
    for number, options in enumerate(runs):
        run = write_run(folder / str(number), **{"log": LOG, **options})
        file = run / "environment.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | (environment or {})))
        histories.append(read_history(run))
    return trained(histories)


def test_model_batches_data_device_and_version_stand_in_a_line(tmp_path: Path) -> None:
    assert of(tmp_path, [{}]) == (
        "SmallConvNet (62,106 parameters), batch size 10, 2 workers, lifetime 2, 1,437 samples for "
        "training and 360 for validation, on cpu, torch 2.9"
    )


def test_what_differs_between_runs_stands_side_by_side(tmp_path: Path) -> None:
    other = LOG.replace("62106", "11181642").replace("1437", "700")
    runs = [
        {"lifetime": 4, "num_workers": 1},
        {"lifetime": 1, "num_workers": 1, "batch_size": 64},
        {"lifetime": 2, "num_workers": 1, "log": other, "model": {"_target_": "a.b.resnet18"}},
    ]
    assert of(tmp_path, runs) == (
        "SmallConvNet (62,106 parameters) or resnet18 (11,181,642 parameters), batch size 10 or "
        "batch size 64, 1 worker, lifetime 1, 2 and 4, 1,437 samples for training and 360 for "
        "validation or 700 samples for training and 360 for validation, on cpu, torch 2.9"
    )


def test_of_many_lifetimes_the_first_and_the_last_are_named(tmp_path: Path) -> None:
    line = of(tmp_path, [{"lifetime": lifetime} for lifetime in (16, 1, 2, 4, 8)])
    assert ", lifetime 1 to 16, " in line


def test_a_gpu_and_several_ranks_are_named(tmp_path: Path) -> None:
    environment = {"gpu": ["H200", "H200"], "ranks": {"world_size": 2, "num_nodes": 1}}
    line = of(tmp_path, [{"log": LOG.replace("on cpu", "on cuda:0")}], environment)

    assert ", batch size 10 on each of 2 ranks, " in line
    assert ", on cuda:0 (H200), " in line
    assert ", on cpu, " in of(tmp_path / "cpu", [{}], environment)


@pytest.mark.parametrize(("target", "name"), [("timm.create_model", "convnext_atto"), (None, "")])
def test_a_model_has_the_name_that_it_was_asked_for_by(
    tmp_path: Path, target: str | None, name: str
) -> None:
    model = {"_target_": target, "model_name": name} if target else None
    line = of(tmp_path, [{"model": model, "log": ""}])

    assert line.startswith(f"{name or 'unknown model'}, batch size 10, ")
    assert line.endswith(", lifetime 2, on auto, torch 2.9")  # what the log does not say


def test_reports_of_runs_and_sweeps_say_it(tmp_path: Path) -> None:
    runs = {str(n): {"lifetime": n, "log": LOG} for n in (1, 2)}
    folder = write_serial_runs(tmp_path / "sweep", runs)
    start = "\n\nTrained: SmallConvNet (62,106 parameters), batch size 10, 2 workers, lifetime "

    assert f"{start}1 and 2, 1,437 samples" in describe_sweep(read_sweep(folder), None)
    assert f"{start}1, 1,437 samples" in describe_run(read_history(folder / "1"), None)
