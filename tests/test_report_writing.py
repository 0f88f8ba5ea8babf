"""Pictures are drawn of every kind of run; what they look like is for the eye."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from histories import write_run, write_serial_runs
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from training.report import run_picture, sweep_picture, writing
from training.report.__main__ import main
from training.report.plan import PLAN
from training.report.writing import report_sweep, write_report, write_report_quietly

RAMP = {0: {"magnitude": 0.3, "alpha": 3.0}, 4: {"magnitude": 1.0, "alpha": 10.0}}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    saved: list[Figure] = []

    def save(figure: Figure, path: Path) -> None:
        FigureCanvasAgg(figure).draw()  # lays it out
        saved.append(figure)
        path.touch()

    for module in (run_picture, sweep_picture):
        monkeypatch.setattr(module, "save", save)
    return saved


def panels(figure: Figure) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_visible()]


def shown_texts(figure: Figure) -> list[Any]:
    """Return the title, and the titles, labels, ticks and legends of the panels."""
    texts = [figure._suptitle, figure._supxlabel]
    for axes in panels(figure):
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label]
        legend = axes.get_legend()
        texts += legend.get_texts() if legend else []
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    for inner in [figure, *figure.subfigs]:
        texts += [text for legend in inner.legends for text in legend.get_texts()]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Return pairs of texts of which one covers another, and texts that leave the picture."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown_texts(figure)]
    paper = figure.bbox.padded(1)
    corners = [(text, [(box.x0, box.y0), (box.x1, box.y1)]) for text, box in boxes]
    cut = [(text, "edge") for text, ends in corners if not all(paper.contains(*e) for e in ends)]
    return cut + [
        (one, other)
        for number, (one, a) in enumerate(boxes)
        for other, b in boxes[:number]
        if a.padded(-1).overlaps(b.padded(-1))
    ]


RUNS: dict[str, dict[str, Any]] = {
    "three epochs": {},
    "one epoch": {"accuracies": [0.5]},
    "200 epochs": {"accuracies": [0.9 - 0.8 / (n + 1) for n in range(200)]},
    "no evaluation": {"accuracies": [None, None]},
    "an evaluation now and then": {"accuracies": [None, 0.5, None, 0.7]},
    "failed": {"accuracies": [0.5], "status": "failed", "error": "no"},
    "a curriculum": {"accuracies": [0.5] * 6, "curriculum": RAMP},
    "a loss that is no number": {"row": {"train_loss": "nan"}},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_drawn_and_nothing_lies_on_anything(
    tmp_path: Path, figures: list[Figure], name: str
) -> None:
    write_report(write_run(tmp_path / "a run", **RUNS[name]))
    (figure,) = figures

    titles = [axes.get_title() for axes in panels(figure)]
    assert titles[1].startswith("accuracy")
    assert [titles[0], *titles[2:4]] == ["loss", "where the time went", "samples built and reused"]
    assert (len(titles) == 5) == ("curriculum" in RUNS[name])
    assert overlaps(figure) == []


def test_a_run_in_which_no_epoch_ended_has_no_picture(
    tmp_path: Path, figures: list[Figure]
) -> None:
    run = write_run(tmp_path / "run", [], status="interrupted")

    assert write_report(run) == [run / "report.md"]
    assert figures == []


def sweep_of(folder: Path, num_lifetimes: int, num_epochs: int, names: str = "") -> Path:
    runs = {}
    for lifetime in range(1, num_lifetimes + 1):
        for seed in range(2):
            accuracies = [0.99 - 0.5 / (n + 1) - 0.01 * lifetime for n in range(num_epochs)]
            runs[f"{lifetime}-{seed}"] = {
                "accuracies": accuracies,
                "lifetime": lifetime,
                "seed": seed,
                "overrides": [f"lifetime={lifetime}", *([f"{names}={lifetime}"] if names else [])],
            }
    return write_serial_runs(folder, runs)


LONG = "augment.stored.perspective.distortion_scale_of_the_second_of_two_transforms"


@pytest.mark.parametrize(
    ("num_lifetimes", "num_epochs", "names"),
    [(1, 3, ""), (2, 1, ""), (4, 15, ""), (8, 200, LONG)],
)
def test_a_sweep_is_drawn_and_nothing_lies_on_anything(
    tmp_path: Path, figures: list[Figure], num_lifetimes: int, num_epochs: int, names: str
) -> None:
    write_report(sweep_of(tmp_path / "sweep", num_lifetimes, num_epochs, names))
    (figure,) = figures

    assert len(panels(figure)) == 6
    assert overlaps(figure) == []
    labels = [axes.get_xlabel() for axes in panels(figure)]
    assert labels[0].startswith("time without warm-up (")
    assert labels[2].startswith("time to ") and labels[2].endswith((" (s)", " (min)"))


def test_a_plan_of_several_sections_is_drawn(tmp_path: Path, figures: list[Figure]) -> None:
    folder = sweep_of(tmp_path / "sweep", 3, 5)
    sections = {"0": "at equal epochs", "1": "at equal time"}
    jobs = [
        {"folder": f"{n}-{seed}", "section": section, "setting": f"lifetime={n}"}
        for seed, section in sections.items()
        for n in (1, 2, 3)
    ]
    (folder / PLAN).write_text(json.dumps({"jobs": jobs}))
    write_report(folder)

    (legend,) = figures[0].subfigs[1].legends
    assert [text.get_text() for text in legend.get_texts()] == list(sections.values())
    assert overlaps(figures[0]) == []


def test_seeds_that_do_not_reach_the_target_are_counted_beside_those_that_do(
    tmp_path: Path, figures: list[Figure]
) -> None:
    write_serial_runs(
        tmp_path / "sweep",
        {
            "0": {"lifetime": 1, "accuracies": [0.5, 1.0]},
            "1": {"lifetime": 2, "accuracies": [0.5, 1.0]},
            "2": {"lifetime": 2, "accuracies": [0.5, 0.6], "seed": 1},
            "3": {"lifetime": 4, "accuracies": [0.5, 0.6]},
        },
    )
    write_report(tmp_path / "sweep")

    times = panels(figures[0])[2]
    assert [text.get_text() for text in times.texts] == ["1 of 2 seeds", "not reached"]


def test_times_that_are_not_compared_are_not_drawn(tmp_path: Path, figures: list[Figure]) -> None:
    write_serial_runs(
        tmp_path / "sweep",
        {str(n): {"lifetime": n + 1, "start_s": 0.0} for n in range(2)},
    )
    write_report(tmp_path / "sweep")
    (figure,) = figures

    assert len(panels(figure)) == 4
    assert not any("time" in axes.get_xlabel() for axes in panels(figure))
    assert not panels(figure)[0].lines


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_the_command_writes_the_files_and_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder = write_run(tmp_path / "run") if kind == "run" else sweep_of(tmp_path / "sweep", 2, 2)
    assert main([str(folder)]) == 0

    names = ["report.png", "report.md"] if kind == "run" else [
        "report.png", "sweep.csv", "report.md"
    ]  # fmt: skip
    assert capsys.readouterr().out.split() == [str(folder / name) for name in names]
    with Image.open(folder / "report.png") as picture:
        assert picture.size[0] == 1100
    assert not list(folder.glob("*.tmp"))
    assert main([str(folder)]) == 0  # over what is there


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "error: {here} must be the folder of a run or of a sweep, but it holds none\n"),
        (
            ["", "--target=1.5"],
            "error: target must be a fraction above 0 and up to 1, but got target=1.5\n",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([str(tmp_path), *arguments[1:]]) == 1
    assert capsys.readouterr().err == message.format(here=tmp_path)


def test_a_target_is_passed_on(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path / "sweep", 2, 2)
    main([str(folder), "--target", "0.4"])

    assert "40.00 % accuracy, given" in (folder / "report.md").read_text()


def test_what_goes_wrong_at_the_end_of_a_run_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left\non the device")

    run = write_run(tmp_path / "run")
    monkeypatch.setattr(writing, "describe_run", fail)
    with caplog.at_level(logging.WARNING, "training"):
        write_report_quietly(run)

    assert caplog.messages == [f"the report of {run} could not be written: no space left"]


def test_the_report_of_a_sweep_is_written_where_its_runs_ask_for_it(tmp_path: Path) -> None:
    off = {"report": {"enabled": False, "target": None}}
    silent = write_serial_runs(tmp_path / "silent", {"0": off, "1": {"seed": 1, **off}})
    assert report_sweep(silent) == []
    assert not (silent / "report.md").exists()

    wanted = write_serial_runs(tmp_path / "wanted", {"0": off, "1": {"seed": 1}})
    said = report_sweep(wanted)
    assert said[0] == f"report         {wanted / 'report.md'}"
    assert said[1].startswith("verdict        One setting, with 2 seeds: ")


def test_a_sweep_of_which_nothing_began_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "training"):
        assert report_sweep(tmp_path) == []
    assert len(caplog.messages) == 1
