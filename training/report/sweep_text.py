"""A sweep as text and tables: report.md and sweep.csv."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from training.report.history import History
from training.report.settings import Setting, Spread
from training.report.sweep import Sweep
from training.report.text import duration, percent, table
from training.report.trained import trained
from training.report.verdict import after_epochs, capital, gain, rule, verdict, with_range


def describe_sweep(sweep: Sweep, picture: str | None) -> str:
    """Return the report as Markdown; `picture` is a file's name beside it, or None."""
    parts = [f"# {sweep.folder.name}", f"**{verdict(sweep)}**"]
    if sweep.runs:
        parts.append(f"Trained: {trained(sweep.runs)}.")
    if picture is not None:
        parts.append(f"![accuracy over time and over epochs, by setting]({picture})")
    if len(sweep.sections) > 1:
        parts += ["## Accuracy in the end", _accuracy_table(sweep)]
    for name, settings in sweep.sections.items():
        parts += [f"## {capital(name) or 'Side by side'}", _settings_table(sweep, settings)]
        parts += [sweep.about[name]] if name in sweep.about else []
    parts += _legend(sweep)
    if sweep.unfinished:
        rows = [(f"`{job}`", how) for job, how in sweep.unfinished]
        parts += ["## Not compared", table(("job", "ended"), rows)]
    if sweep.runs:
        parts += ["## How it was made", _making(sweep, sweep.runs)]
    return "\n\n".join(parts) + "\n"


def _settings_table(sweep: Sweep, settings: list[Setting]) -> str:
    timed = not sweep.doubts
    head = ["setting", "seeds", "epochs", "last accuracy", "best accuracy", "samples built"]
    if timed:
        target = percent(sweep.target, 1)
        head += [f"time to {target}", "epochs to it", "faster", "time", "warm-up", "waiting"]
    rows = []
    for setting in settings:
        row = [
            f"`{setting.name}`",
            len(setting.runs),
            setting.epochs,
            with_range(setting.last_accuracy),
            with_range(setting.best_accuracy),
            f"{setting.built.mean:,.0f}",
        ]
        if timed:
            times = [setting.time_s, setting.warmup_s]
            row += [
                _reached(setting.time_to(sweep.target)),
                _rounded(setting.epochs_to(sweep.target)),
                _gain(sweep, setting),
                *(duration(spread.mean) for spread in times),
                percent(setting.wait_share.mean, 0),
            ]
        rows.append(row)
    return table(head, rows)


def _accuracy_table(sweep: Sweep) -> str:
    """Return the accuracies of all sections beside each other, a row for each setting's name."""
    names = {setting.name: 0 for group in sweep.sections.values() for setting in group}
    rows = []
    for name in names:
        found = [{s.name: s for s in group}.get(name) for group in sweep.sections.values()]
        cells = ["-" if s is None else after_epochs(s) for s in found]
        rows.append([f"`{name}`", *cells])
    return table(["setting", *sweep.sections], rows)


def _reached(times: Spread) -> str:
    if not times.values:
        return "not reached"
    text = duration(times.mean)
    return text if times.is_complete else f"{text} ({len(times.values)} of {times.num_seeds} seeds)"


def _rounded(epochs: Spread) -> str:
    return f"{epochs.mean:.3g}" if epochs.values else "-"


def _gain(sweep: Sweep, setting: Setting) -> str:
    value = gain(sweep, setting)
    return "-" if math.isnan(value) else f"{value:.2f} x"


def _legend(sweep: Sweep) -> list[str]:
    said = [
        "Accuracies are means over seeds, ± half the distance between the extremes; in the "
        "picture, bands reach from one extreme to the other, and a bar is a mean."
    ]
    if not math.isnan(sweep.target):
        said.append(f"The target is {percent(sweep.target)} accuracy, {sweep.target_source}.")
    if sweep.doubts:
        said.append(f"No times are compared: {' and '.join(sweep.doubts)}.")
    else:
        said.append(
            "Times are wall-clock seconds of the epochs with their evaluations, without the "
            "warm-up beside them; waiting is a share of the training after epoch 0."
        )
    return [*filter(None, [rule(sweep)]), " ".join([*said, *sweep.notes])]


def _making(sweep: Sweep, histories: list[History]) -> str:
    first = histories[0]
    cpu = first.environment.get("cpu", {})
    commits = {(h.environment.get("git") or {}).get("commit") or "unknown" for h in histories}
    common = [t for t in first.overrides if all(t in h.overrides for h in histories)]
    typed = ("typed for all", f"`{' '.join(common)}`" if common else "nothing")
    rows = [
        ("command", f"`{sweep.command}`") if sweep.command else typed,
        ("CPU", f"{cpu.get('model', 'unknown')}, {cpu.get('num_cores', '?')} cores"),
        ("GPU", ", ".join(first.environment.get("gpu", [])) or "none"),
        ("commit", ", ".join(sorted(commits))),
    ]
    began = [h.sessions[0][0] for h in histories if h.sessions]
    if began:
        rows.append(("began", f"{min(began):%Y-%m-%d %H:%M %Z}"))
    return table(("", ""), rows)


CSV_COLUMNS = (
    *("section", "setting", "job", "lifetime", "seed", "epochs", "last_accuracy", "best_accuracy"),
    *("time_s", "warmup_s", "time_to_target_s", "epochs_to_target", "target", "built", "reused"),
    *("wait_share", "began", "ended", "num_continued", "others_share"),
)


def as_csv(sweep: Sweep) -> str:
    """Return a row for each run that is compared; accuracies and shares are fractions."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS)
    writer.writeheader()
    for section, settings in sweep.sections.items():
        for setting in settings:
            for run in setting.runs:
                writer.writerow(_csv_row(sweep, section, setting, run))
    return text.getvalue()


def _csv_row(sweep: Sweep, section: str, setting: Setting, run: History) -> dict[str, Any]:
    one = Setting(name=setting.name, lifetime=setting.lifetime, runs=[run])
    values = {
        "last_accuracy": one.last_accuracy,
        "best_accuracy": one.best_accuracy,
        "time_s": one.time_s,
        "warmup_s": one.warmup_s,
        "time_to_target_s": one.time_to(sweep.target),
        "epochs_to_target": one.epochs_to(sweep.target),
        "wait_share": one.wait_share,
    }
    return {
        "section": section,
        "setting": setting.name,
        "job": run.directory.relative_to(sweep.folder),
        "lifetime": setting.lifetime,
        "seed": run.config.get("seed"),
        "epochs": len(run.rows),
        "target": "" if math.isnan(sweep.target) else round(sweep.target, 6),
        "built": round(run.total("built")),
        "reused": round(run.total("reused")),
        "began": run.sessions[0][0].isoformat() if run.sessions else "",
        "ended": run.sessions[-1][1].isoformat() if run.sessions else "",
        "num_continued": run.num_continued,
        "others_share": sweep.others.get(run.directory.name, ""),
        **{name: round(v.mean, 6) if v.values else "" for name, v in values.items()},
    }
