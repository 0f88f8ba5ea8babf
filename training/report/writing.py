"""Writes the report of a run or of a sweep into its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.records import Run
from training.report.history import is_run, read_history
from training.report.run import describe_run
from training.report.sweep import Sweep, read_sweep
from training.report.sweep_text import as_csv, describe_sweep
from training.report.verdict import verdict

log = logging.getLogger("training")

PICTURE, TEXT, TABLE = "report.png", "report.md", "sweep.csv"


def write_report(folder: Path, target: float | None = None) -> list[Path]:
    """Write report.md and report.png, of a sweep sweep.csv as well; return what was written.

    Args:
        folder: of a run or of a sweep.
        target: the accuracy to be reached, a fraction; None for the one of the runs' config.

    Raises:
        ConfigError: it is neither, or a record in it cannot be read.
    """
    return _write_run(folder) if is_run(folder) else write_sweep(read_sweep(folder, target))


def write_report_quietly(folder: Path) -> None:
    """Write a report at the end of a run or a sweep; what goes wrong is one warning, no failure."""
    try:
        write_report(folder)
    except Exception as error:  # whatever drawing and a full disk raise
        _warn(folder, error)


def _warn(folder: Path, error: Exception) -> None:
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    log.warning("the report of %s could not be written: %s", folder, reason)


def report_sweep(folder: Path) -> list[str]:
    """Write the report of a sweep as its runs ask for it; return lines for the screen."""
    try:
        sweep = read_sweep(folder)
        if not sweep.is_wanted:
            return []
        return [f"report         {write_sweep(sweep)[-1]}", f"verdict        {verdict(sweep)}"]
    except Exception as error:  # whatever drawing and a full disk raise, and a sweep without runs
        _warn(folder, error)
        return []


@contextmanager
def reported(run: Run) -> Iterator[None]:
    """Write the report of a run when the block has ended, in whatever way."""
    try:
        yield
    finally:
        is_training = run.config.trainer.evaluate is None
        if run.config.report.enabled and run.is_begun and is_training:
            write_report_quietly(run.directory)


def _write_run(folder: Path) -> list[Path]:
    history = read_history(folder)
    drawn = None
    if history.rows:
        # Imported here: matplotlib takes half a second, and there may be nothing to draw.
        from training.report.run_picture import draw_run

        draw_run(history, folder / PICTURE)
        drawn = PICTURE
    return [*_written(folder, drawn), _write(folder / TEXT, describe_run(history, drawn))]


def write_sweep(sweep: Sweep) -> list[Path]:
    """Write the report of a sweep into its folder; return what was written."""
    folder, drawn = sweep.folder, None
    if sweep.first:
        from training.report.sweep_picture import draw_sweep

        draw_sweep(sweep, folder / PICTURE)
        drawn = PICTURE
    texts = {TABLE: as_csv(sweep), TEXT: describe_sweep(sweep, drawn)}
    return [*_written(folder, drawn), *(_write(folder / n, text) for n, text in texts.items())]


def _written(folder: Path, name: str | None) -> list[Path]:
    return [folder / name] if name is not None else []


def _write(path: Path, text: str) -> Path:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", newline="")
    temporary.replace(path)
    return path
