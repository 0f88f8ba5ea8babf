"""What the runs of a sweep say together: settings, each with its seeds, side by side."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from training.checks import ConfigError
from training.report.caveats import busy, doubts, put_together
from training.report.history import History, is_run, read_history
from training.report.plan import NOT_RUN, plan_of, read_plan, run_folders
from training.report.settings import Setting, baseline_of
from training.tables import damage

TARGET_SHARE = 0.99  # of the best accuracy of the baseline, where no target is given


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The runs of a folder.

    Attributes:
        folder: where they lie.
        sections: name -> settings that are compared; the name is empty where there is one.
        without_runs: settings of the first section of which no run ended.
        unfinished: (job, how it ended) of those that are not compared.
        target: the accuracy to be reached, a fraction; NaN where there is none.
        target_source: where the target comes from, in words.
        doubts: why the times are not compared; empty where they are.
        notes: what else should be known of the times.
        is_wanted: whether the runs ask for a report at the end of the sweep.
        command: that was typed for the sweep; empty where it is not known.
        about: section -> what its runs are.
        others: folder of a run -> share of the cores that other programs took beside it.
    """

    folder: Path
    sections: dict[str, list[Setting]]
    without_runs: list[str]
    unfinished: list[tuple[str, str]]
    target: float
    target_source: str
    doubts: list[str]
    notes: list[str]
    is_wanted: bool = True
    command: str = ""
    about: dict[str, str] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)

    @property
    def first(self) -> list[Setting]:
        """The settings of the first section."""
        return next(iter(self.sections.values()), [])

    @property
    def runs(self) -> list[History]:
        """All runs that are compared; one that stands in several sections comes as often."""
        return [run for group in self.sections.values() for one in group for run in one.runs]

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
    written = read_plan(folder)
    plan = written["jobs"]
    places = [folder / job["folder"] for job in plan] or list(run_folders(folder))
    if not places:
        raise ConfigError(f"{folder} must be the folder of a run or of a sweep, but it holds none")
    found = {place.relative_to(folder).as_posix(): _read(place) for place in places}
    for job in plan:
        if job.get("error") and isinstance(found[job["folder"]], str):
            found[job["folder"]] = job["error"]  # which says more than that there is no record
    sections: dict[str, dict[str, list[History]]] = {}
    ended: dict[tuple[str, str], Counter[str]] = {}
    for job in plan or plan_of(found):
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
        without_runs=_without_runs(sections, ended),
        unfinished=[(job, end) for job, h in found.items() if (end := _ending(h)) != "done"],
        target=target,
        target_source=source,
        doubts=doubts(compared),
        notes=put_together(compared) + busy(written["others"], compared),
        is_wanted=any(_wants_report(history) for history in found.values()),
        command=written["command"],
        about=written["notes"],
        others=written["others"],
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


def _target(target: float | None, baseline: Setting | None) -> tuple[float, str]:
    """Return the accuracy to be reached, and where it comes from."""
    if target is not None:
        return target, "given"
    if baseline is None:
        return math.nan, ""
    share = f"{100 * TARGET_SHARE:.0f} % of the best of {baseline.name}"
    return TARGET_SHARE * baseline.best_accuracy.mean, share


def _without_runs(
    sections: dict[str, dict[str, list[History]]], ended: dict[tuple[str, str], Counter[str]]
) -> list[str]:
    first = next(iter(sections), None)
    return [name for section, name in ended if section == first and name not in sections[section]]


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
