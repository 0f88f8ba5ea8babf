"""What the runs of a sweep say together: settings, each with its seeds, side by side."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from training.checks import ConfigError
from training.report.history import History, is_run, read_history
from training.report.settings import Setting, baseline_of
from training.report.text import percent
from training.tables import damage

PLAN = "sweep.json"
"""File of a sweep's folder: which jobs it has, and what each is compared with."""

NOT_RUN = "not run"
"""What the plan says of a job that has not begun."""

TARGET_SHARE = 0.99  # of the best accuracy of the baseline, where no target is given

_NO_SETTING = ("seed", "hydra.", "cache.", "tracker", "report", "checkpoint.", "sweep")
_NO_PLAN: dict[str, Any] = {"jobs": [], "command": "", "notes": {}, "others": {}}
_BUSY = 0.1  # of the cores; what a machine does besides is below that
_OVERLAP_S = 1.0  # what clocks and the end of a process may differ by


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The runs of a folder.

    Attributes:
        folder: where they lie.
        sections: name -> settings that are compared; the name is empty where there is one.
        unfinished: (job, how it ended) of those that are not compared.
        target: the accuracy to be reached, a fraction; NaN where there is none.
        target_source: where the target comes from, in words.
        doubts: why the times are not compared; empty where they are.
        notes: what else should be known of the times.
        is_wanted: whether the runs ask for a report at the end of the sweep.
        command: that was typed for the sweep; empty where it is not known.
        about: section -> what its runs are.
    """

    folder: Path
    sections: dict[str, list[Setting]]
    unfinished: list[tuple[str, str]]
    target: float
    target_source: str
    doubts: list[str]
    notes: list[str]
    is_wanted: bool = True
    command: str = ""
    about: dict[str, str] = field(default_factory=dict)

    @property
    def first(self) -> list[Setting]:
        """The settings of the first section."""
        return next(iter(self.sections.values()), [])

    @property
    def baseline(self) -> Setting | None:
        """The setting of the shortest lifetime, of several the one with the best accuracy."""
        return baseline_of(self.first)

    @property
    def is_trial(self) -> bool:
        """Whether the runs were only to show that everything works."""
        runs = [run for setting in self.first for run in setting.runs]
        return any((run.config.get("trainer") or {}).get("fast_dev_run") for run in runs)


def read_sweep(folder: Path, target: float | None = None) -> Sweep:
    """Read the runs of a sweep's folder.

    Args:
        folder: of the sweep.
        target: the accuracy to be reached, a fraction; None for `report.target` of the runs, and
            where that is null for 99 % of the baseline's best.

    Raises:
        ConfigError: there is no run in the folder, or its plan cannot be read.
    """
    written = _read_plan(folder)
    plan = written["jobs"]
    places = [folder / job["folder"] for job in plan] or list(_run_folders(folder))
    if not places:
        raise ConfigError(f"{folder} must be the folder of a run or of a sweep, but it holds none")
    found = {place.relative_to(folder).as_posix(): _read(place) for place in places}
    for job in plan:
        if job.get("error") and isinstance(found[job["folder"]], str):
            found[job["folder"]] = job["error"]  # which says more than that there is no record
    sections: dict[str, dict[str, list[History]]] = {}
    ended: dict[tuple[str, str], Counter[str]] = {}
    for job in plan or _plan_of(found):
        history = found[job["folder"]]
        if isinstance(history, History) and history.status == "done":
            settings = sections.setdefault(job["section"], {})
            settings.setdefault(job["setting"], []).append(history)
        else:
            how = ended.setdefault((job["section"], job["setting"]), Counter())
            how["failed" if _has_failed(history, job) else "missing"] += 1
    grouped = {name: _settings(settings, name, ended) for name, settings in sections.items()}
    compared = [run for group in grouped.values() for one in group for run in one.runs]
    if target is None:
        targets = [(run.config.get("report") or {}).get("target") for run in compared]
        target = next((each for each in targets if each is not None), None)
    target, source = _target(target, baseline_of(next(iter(grouped.values()), [])))
    return Sweep(
        folder=folder,
        sections=grouped,
        unfinished=[(job, end) for job, h in found.items() if (end := _ending(h)) != "done"],
        target=target,
        target_source=source,
        doubts=doubts(compared),
        notes=_notes(compared) + _busy(written["others"], [run.directory.name for run in compared]),
        is_wanted=any(_wants_report(history) for history in found.values()),
        command=written["command"],
        about=written["notes"],
    )


def _read(place: Path) -> History | str:
    """Return a run, or why it is none."""
    try:
        if not is_run(place):
            return "left no record"
        history = read_history(place)
        return (damage(place) if history.status == "done" else None) or history
    except ConfigError as error:
        return str(error)


def _has_failed(history: History | str, job: dict[str, str]) -> bool:
    if isinstance(history, History):
        return history.status == "failed"
    return job.get("error", NOT_RUN) != NOT_RUN


def _wants_report(history: History | str) -> bool:
    if isinstance(history, str):
        return False
    return bool((history.config.get("report") or {}).get("enabled", True))


def _ending(history: History | str) -> str:
    if isinstance(history, str):
        return history
    return f"{history.status}: {history.error}" if history.error else history.status


def _plan_of(found: dict[str, History | str]) -> list[dict[str, str]]:
    """Return the plan of a sweep that none is written of."""
    runs = {job: history for job, history in found.items() if isinstance(history, History)}
    names = setting_names([history.overrides for history in runs.values()])
    return [
        {"folder": job, "section": "", "setting": name}
        for job, name in zip(runs, names, strict=True)
    ]


def _target(target: float | None, baseline: Setting | None) -> tuple[float, str]:
    """Return the accuracy to be reached, and where it comes from."""
    if target is not None:
        return target, "given"
    if baseline is None:
        return math.nan, ""
    share = f"{100 * TARGET_SHARE:.0f} % of the best of {baseline.name}"
    return TARGET_SHARE * baseline.best_accuracy.mean, share


def _read_plan(folder: Path) -> dict[str, Any]:
    file = folder / PLAN
    if not file.exists():
        return {**_NO_PLAN}
    try:
        plan = json.loads(file.read_text(encoding="utf-8"))
        plan = {**_NO_PLAN, **plan, "jobs": plan["jobs"]}
        for job in plan["jobs"]:
            if not all(isinstance(job[name], str) for name in ("folder", "section", "setting")):
                raise TypeError(f"a job must have a folder, section and setting, but got {job!r}")
        for name in ("others", "notes"):
            plan[name] = plan[name] or {}
            if not isinstance(plan[name], dict):
                raise TypeError(f"{name} must hold names and values, but got {plan[name]!r}")
        return plan
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def _run_folders(folder: Path) -> Iterator[Path]:
    """Yield the runs in a folder and in the folders in it, job 10 after job 9."""
    for inner in sorted(_folders(folder), key=_by_number):
        if is_run(inner):
            yield inner
        else:
            yield from filter(is_run, sorted(_folders(inner), key=_by_number))


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _by_number(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdigit() else -1, path.name)


def _settings(
    groups: dict[str, list[History]], section: str, ended: dict[tuple[str, str], Counter[str]]
) -> list[Setting]:
    settings = []
    for name, runs in groups.items():
        how = ended.get((section, name), Counter())
        setting = Setting(
            name=name,
            lifetime=runs[0].lifetime,
            runs=sorted(runs, key=lambda run: run.seed),
            num_failed=how["failed"],
            num_missing=how["missing"],
        )
        settings.append(setting)
    return sorted(settings, key=lambda setting: setting.lifetime)


def setting_names(overrides: list[list[str]]) -> list[str]:
    """Return for each run what was typed for it and not for all of them, but for the seed.

    Of a dotted name the last word stands for it where no other one ends with that.
    """
    kept = [
        [text for text in typed if not text.lstrip("+~").startswith(_NO_SETTING)]
        for typed in overrides
    ]
    common = set.intersection(*map(set, kept)) if kept else set()
    own = [[text for text in typed if text not in common] for typed in kept]
    keys = {text.partition("=")[0] for typed in own for text in typed}
    last_words = Counter(key.rpartition(".")[2] for key in keys)

    def short(text: str) -> str:
        key, equals, value = text.partition("=")
        word = key.rpartition(".")[2]
        return f"{word if last_words[word] == 1 else key}{equals}{value}"

    return [" ".join(map(short, typed)) or "as it is" for typed in own]


def doubts(histories: list[History]) -> list[str]:
    """Return why the times of runs say nothing about each other; nothing where they do."""
    found = []
    sessions = [(h, session) for h in histories for session in h.sessions]
    for (one, a), (other, b) in combinations(sessions, 2):
        shared_s = (min(a[1], b[1]) - max(a[0], b[0])).total_seconds()
        if one is not other and shared_s > _OVERLAP_S:
            found.append("jobs ran at the same time")
            break
    machines = {
        json.dumps([h.environment.get("cpu"), h.environment.get("gpu")], sort_keys=True)
        for h in histories
    }
    if len(machines) > 1:
        found.append("jobs ran on different hardware")
    return found


def _busy(others: dict[str, float], jobs: list[str]) -> list[str]:
    """Say whether the machine had other work, which lengthens times and may not do so evenly."""
    shares = {job: others[job] for job in jobs if others.get(job, 0.0) > _BUSY}
    if not shares:
        return []
    most = percent(max(shares.values()), 0)
    return [
        f"Other programs worked beside {len(shares)} of the runs, and took up to {most} of the "
        "cores: their times are longer than on an idle machine."
    ]


def _notes(histories: list[History]) -> list[str]:
    notes = []
    if any(not history.sessions for history in histories):
        notes.append("Whether jobs ran at the same time is not recorded.")
    resumed = sum(len(history.sessions) > 1 for history in histories)
    if resumed:
        notes.append(f"The times of {resumed} jobs add up what several processes took.")
    return notes
