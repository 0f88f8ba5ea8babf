"""Reads the files that a run wrote, whatever has happened to them since."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def read_json(file: Path) -> dict[str, Any]:
    """Return what a file of a run holds; nothing where it cannot be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def earlier_sessions(directory: Path) -> list[list[str | None]]:
    """Return from when to when processes worked on a run that goes on.

    One that was killed did so until it last wrote something, which the times of the files tell as
    long as nothing else is written.
    """
    status = directory / "status.json"
    sessions: list[list[str | None]] = read_json(status).get("sessions", [])
    if sessions and sessions[-1][1] is None:
        checkpoints = (directory / "checkpoints").glob("*.pt")
        written = [status, directory / "metrics.csv", *checkpoints]
        latest_s = max(file.stat().st_mtime for file in written if file.exists())
        sessions[-1][1] = datetime.fromtimestamp(latest_s, UTC).isoformat(timespec="seconds")
    return sessions


def read_metrics(directory: Path) -> list[dict[str, str]]:
    """Return the rows of `metrics.csv`; one that a kill cut short is left out."""
    try:
        with open(
            directory / "metrics.csv", newline="", encoding="utf-8", errors="replace"
        ) as file:
            lines = [line for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []
    table = list(csv.DictReader(lines))
    return [row for row in table if None not in row.values() and row.get("epoch", "").isdigit()]


def damage(directory: Path) -> str | None:
    """Return what is wrong with the `metrics.csv` of a run that is done; None where nothing is."""
    try:
        text = (directory / "metrics.csv").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    if text and not text.endswith("\n"):
        return "metrics.csv is cut"
    for row in csv.DictReader(io.StringIO(text)):
        if None in row or None in row.values():
            return "metrics.csv has a row of another length"
        for name, value in row.items():
            if value and _number(value) is None:
                return f"metrics.csv must hold numbers, but got {name}={value!r:.40}"
    return None


def in_numbers(row: dict[str, str]) -> dict[str, float | None]:
    """Return the values of a row as numbers; None where there is none."""
    return {name: _number(value) for name, value in row.items()}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def as_csv(table: list[dict[str, str]]) -> str:
    """Return rows as the text of a file; of none, nothing."""
    text = io.StringIO()
    if table:
        writer = csv.DictWriter(text, table[0])
        writer.writeheader()
        writer.writerows(table)
    return text.getvalue()
