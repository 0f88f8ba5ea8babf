"""What a sweep says in a sentence or two: which setting to choose, and why."""

from __future__ import annotations

import math
import re

from training.report.caveats import BUSY
from training.report.kept import MOST_TOLERANCE, keeps_accuracy, lost, outlier, paired, tolerance
from training.report.settings import Setting, Spread
from training.report.sweep import Sweep
from training.report.text import duration, percent

WORTH_IT = 1.05  # times as fast; less is within what one machine differs by from hour to hour

FEW_SEEDS = 3  # of fewer the range says little


def verdict(sweep: Sweep) -> str:
    """Return in a sentence or two which setting to choose, and why."""
    return " ".join(filter(None, [_verdict(sweep), _scattered(sweep), _gone(sweep)]))


def _scattered(sweep: Sweep) -> str:
    """Say that the baseline scatters by more than what a loss is told by."""
    if sweep.baseline is None or len(sweep.first) < 2:
        return ""
    theirs = sweep.baseline.last_accuracy
    if theirs.half_range <= MOST_TOLERANCE:
        return ""
    low, high = (percent(end(theirs.values)) for end in (min, max))
    return f"More seeds would tell: those of {sweep.baseline.name} end from {low} to {high}."


def _gone(sweep: Sweep) -> str:
    """Say of which settings no run ended, and what is compared with where it was the baseline."""
    if sweep.baseline is None or not sweep.without_runs:
        return ""
    lifetimes = [re.search(r"\blifetime=(\d+)", name) for name in sweep.without_runs]
    shorter = [found for found in lifetimes if found and int(found[1]) < sweep.baseline.lifetime]
    then = f"; {sweep.baseline.name} is compared with in its place" if shorter else ""
    return f"Of {' and '.join(sweep.without_runs)} no run ended{then}."


def _verdict(sweep: Sweep) -> str:
    baseline = sweep.baseline
    if baseline is None:
        return "No job that ended was evaluated." if sweep.first else "No job ended."
    if sweep.is_trial:
        return "A trial of one batch a job: it works, and compares nothing."
    if len({setting.lifetime for setting in sweep.first}) < 2:
        return _best_setting(sweep)
    if _is_one_epoch(sweep):
        return "One epoch: every sample is built in it, whatever the lifetime; more would tell."
    kept = [setting for setting in sweep.first if keeps_accuracy(setting, baseline)]
    whole = [setting for setting in kept if not setting.num_failed]
    if sweep.doubts:
        return _by_accuracy(sweep, baseline, whole)
    if not whole:
        return f"No choice: of each that keeps the accuracy a run failed ({_failed(kept)})."
    reached = _reached(whole, sweep.target)
    if not reached:
        return " ".join([_none_reached(sweep), *_reached_elsewhere(sweep, baseline)])
    pace = {s.name: _pace(sweep, baseline, s) for s in reached}
    enough = [s for s in reached if pace[s.name] <= WORTH_IT * min(pace.values())]
    chosen = baseline if baseline in enough else min(enough, key=lambda s: s.lifetime)
    said = [_choice(sweep, baseline, chosen), _certainty(sweep, baseline, chosen)]
    if chosen is not baseline and chosen.lifetime == max(s.lifetime for s in sweep.first):
        said.append("Longer ones were not tried.")
    if short := [s.name for s in whole if s not in reached]:
        do = "does" if len(short) == 1 else "do"
        said.append(
            f"{' and '.join(short)} {do} not reach {percent(sweep.target, 1)} with every seed."
        )
    said += [*_further(sweep, baseline, chosen), _disturbed(sweep)]
    return " ".join(filter(None, said))


def _is_one_epoch(sweep: Sweep) -> bool:
    return all(setting.epochs == "1" for setting in sweep.first)


def _reached(settings: list[Setting], target: float) -> list[Setting]:
    return [setting for setting in settings if setting.time_to(target).is_complete]


def _none_reached(sweep: Sweep) -> str:
    name = capital(next(iter(sweep.sections)))
    start = f"{name} no" if name and len(sweep.sections) > 1 else "No"
    return (
        f"{start} setting that keeps the accuracy reached {percent(sweep.target)} with every seed."
    )


def _reached_elsewhere(sweep: Sweep, baseline: Setting) -> list[str]:
    """Say which settings of the other sections reached the target, the quickest of each."""
    said = []
    for name, settings in list(sweep.sections.items())[1:]:
        if reached := _reached(settings, sweep.target):
            quickest = min(reached, key=lambda setting: setting.time_to(sweep.target).mean)
            shortest = next((s for s in settings if s.lifetime == baseline.lifetime), quickest)
            said.append(
                f"{capital(name)} {quickest.name} is the first to do so, in "
                f"{duration(quickest.time_to(sweep.target).mean)}, and ends at "
                f"{_beside(quickest, shortest)}."
            )
    return said


def _disturbed(sweep: Sweep) -> str:
    """Say that the times compared were taken while other programs were at work."""
    runs = [run.directory.name for setting in sweep.first for run in setting.runs]
    shares = [share for name in runs if (share := sweep.others.get(name, 0.0)) > BUSY]
    if not shares:
        return ""
    which = f"{len(shares)} of these {len(runs)} runs"
    if len(shares) == len(runs):
        which = "both runs" if len(runs) == 2 else f"all of these {len(runs)} runs"
    return f"Beside {which} other programs took up to {percent(max(shares), 0)} of the cores."


def rule(sweep: Sweep) -> str:
    """Return by what rule a lifetime is chosen; nothing where none is, or not by time."""
    baseline = sweep.baseline
    lifetimes = {setting.lifetime for setting in sweep.first}
    if baseline is None or sweep.is_trial or sweep.doubts or len(lifetimes) < 2:
        return ""
    if _is_one_epoch(sweep) or not _reached(sweep.first, sweep.target):
        return ""
    points = 100 * tolerance(baseline)
    return (
        f"The choice: a lifetime keeps the accuracy if its mean ends at most {points:.2g} points "
        f"below {baseline.name} on the same seeds, and no seed of it more than {2 * points:.2g} "
        f"below the lowest there. Of those that do, the one that reaches the target soonest is "
        f"chosen; of several within {percent(WORTH_IT - 1, 0)} of that, the shortest lifetime."
    )


def _by_accuracy(sweep: Sweep, baseline: Setting, whole: list[Setting]) -> str:
    """Choose where no times are compared."""
    names = ", ".join(f"{s.name} {with_range(s.last_accuracy)}" for s in sweep.first)
    said = f"By accuracy alone, because {' and '.join(sweep.doubts)}: {names}; "
    if whole:
        longest = max(whole, key=lambda s: s.lifetime)
        said += f"the longest lifetime that keeps it is that of {longest.name}"
        said += f"{_short_of(longest, baseline)}."
    else:
        said += "of each that keeps it a run failed."
    others = [lost(sweep.first, baseline), _failed(sweep.first)]
    return " ".join([said, *(f"{text}." for text in others if text)])


def _pace(sweep: Sweep, baseline: Setting, setting: Setting) -> float:
    """Return the time to the target, by the baseline's over the same seeds where that is known."""
    if baseline.time_to(sweep.target).is_complete:
        return 1 / gain(sweep, setting)
    return setting.time_to(sweep.target).mean


def _short_of(setting: Setting, baseline: Setting) -> str:
    """Say how many runs of a setting are missing or failed; nothing where all are there."""
    seeds = {run.seed for run in baseline.runs} - {run.seed for run in setting.runs}
    num_missing = max(setting.num_missing, len(seeds) - setting.num_failed)
    counts = {"failed": setting.num_failed, "missing": num_missing}
    said = [f"{number} {how}" for how, number in counts.items() if number > 0]
    return f"; of its runs {' and '.join(said)}" if said else ""


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _failed(settings: list[Setting]) -> str:
    return ", ".join(
        f"{_runs(setting.num_failed)} of {setting.name} failed"
        for setting in settings
        if setting.num_failed
    )


def _best_setting(sweep: Sweep) -> str:
    if len(sweep.first) == 1:
        only = sweep.first[0].last_accuracy
        return f"One setting, with {_seeds(sweep.first[0])}: {with_range(only)} in the end."
    evaluated = [setting for setting in sweep.first if setting.last_accuracy.values]
    whole = [setting for setting in evaluated if not setting.num_failed] or evaluated
    best = max(whole, key=lambda setting: setting.last_accuracy.mean)
    said = (
        f"{best.name} ends with the best accuracy, {with_range(best.last_accuracy)} "
        f"({_seeds(best)}{_short_of(best, best)})."
    )
    failed = _failed([setting for setting in sweep.first if setting is not best])
    return f"{said} {failed}, and not judged." if failed else said


def _seeds(setting: Setting) -> str:
    return "one seed" if len(setting.runs) == 1 else f"{len(setting.runs)} seeds"


def _choice(sweep: Sweep, baseline: Setting, chosen: Setting) -> str:
    target = percent(sweep.target, 1)
    if chosen is baseline:
        return (
            f"Choose {baseline.name}: no longer lifetime reached {target} sooner and kept the "
            f"accuracy ({_seeds(baseline)}{_short_of(baseline, baseline)})."
        )
    mine, its = paired(chosen, baseline)
    ours, theirs = (s.time_to(sweep.target) for s in (mine, its))
    other = f"{baseline.name} does not with every seed"
    if theirs.is_complete:
        times = f"{gain(sweep, chosen):.1f} times as fast"
        other = f"{baseline.name} in {duration(theirs.mean)} ({times})"
    return (
        f"Choose {chosen.name}: it reaches {target} accuracy in {duration(ours.mean)}, {other}, "
        f"and ends at {with_range(mine.last_accuracy)} against {with_range(its.last_accuracy)} "
        f"({_seeds(mine)}{_unknown_scatter(mine)}{_short_of(chosen, baseline)})."
    )


def _certainty(sweep: Sweep, baseline: Setting, chosen: Setting) -> str:
    """Say what of a choice may be chance; of one seed the choice itself says it."""
    mine, its = paired(chosen, baseline)
    ours, theirs = mine.last_accuracy, its.last_accuracy
    num_seeds = min(len(ours.values), len(theirs.values))
    if chosen is baseline or num_seeds < 2:
        return ""
    within = abs(ours.mean - theirs.mean) <= theirs.half_range
    said = f"The accuracies differ by {'less' if within else 'more'} than the seeds scatter"
    quick, slow = mine.time_to(sweep.target).values, its.time_to(sweep.target).values
    if slow and max(quick) >= min(slow):
        said += ", and the times of some seeds lie the other way round"
    if num_seeds < FEW_SEEDS:
        said += f"; {num_seeds} seeds say little"
    return f"{said}."


def _unknown_scatter(setting: Setting) -> str:
    return ", so that its scatter is not known" if len(setting.runs) == 1 else ""


def _further(sweep: Sweep, baseline: Setting, chosen: Setting) -> list[str]:
    """Say what the choice passes over, and how the chosen lifetime does in the other sections."""
    said = []
    least = WORTH_IT * gain(sweep, chosen)
    rivals = [s for s in sweep.first if s is not chosen and gain(sweep, s) > least]
    worse = [s for s in rivals if not keeps_accuracy(s, baseline)]
    rest = sweep.first
    if worse:
        fastest = max(worse, key=lambda s: gain(sweep, s))
        points = 100 * (chosen.last_accuracy.mean - fastest.last_accuracy.mean)
        odd = outlier(fastest, baseline)
        said.append(f"Faster still, but {points:.1f} points lower in the end: {fastest.name}{odd}.")
        rest = [setting for setting in sweep.first if setting is not fastest]
    said += [f"{text}." for text in (lost(rest, baseline), _failed(sweep.first)) if text]
    others = []
    for name, settings in list(sweep.sections.items())[1:]:
        same = next((s for s in settings if s.lifetime == chosen.lifetime), None)
        if same is None or not same.last_accuracy.values:
            continue
        best = max(settings, key=lambda s: s.last_accuracy.mean if s.last_accuracy.values else 0)
        if same.runs != chosen.runs:
            shortest = next((s for s in settings if s.lifetime == baseline.lifetime), same)
            higher = "" if keeps_accuracy(same, best) else f", {best.name} at {after_epochs(best)}"
            others.append(f"{name} it ends at {_beside(same, shortest)}{higher}")
        elif not keeps_accuracy(same, best):
            others.append(f"{name} {best.name} ends higher, at {_beside(best, same)}")
    return [*said, *([f"{capital(', '.join(others))}."] if others else [])]


def gain(sweep: Sweep, setting: Setting) -> float:
    """Return how many times as fast as the baseline a setting reaches the target, or NaN."""
    baseline = sweep.baseline
    if baseline is None:
        return math.nan
    ours, theirs = (one.time_to(sweep.target) for one in paired(setting, baseline))
    return theirs.mean / ours.mean if ours.is_complete and theirs.is_complete else math.nan


def with_range(accuracy: Spread) -> str:
    """Return a mean with half the range of the seeds: `99.3 ± 0.2 %`."""
    if not accuracy.values:
        return "-"
    if len(accuracy.values) == 1:
        return percent(accuracy.mean)
    return f"{100 * accuracy.mean:.2f} ± {100 * accuracy.half_range:.2f} %"


def _beside(setting: Setting, other: Setting) -> str:
    """Return the accuracy of a setting, with that of another one; epochs where they differ."""
    if other is not setting and other.epochs == setting.epochs:
        return with_range(setting.last_accuracy)
    text = after_epochs(setting)
    return text if other is setting else f"{text} ({other.name}: {after_epochs(other)})"


def after_epochs(setting: Setting) -> str:
    """Return an accuracy with the epochs that it took: `99.3 ± 0.2 % after 8 epochs`."""
    epochs = "1 epoch" if setting.epochs == "1" else f"{setting.epochs} epochs"
    return f"{with_range(setting.last_accuracy)} after {epochs}"


def capital(text: str) -> str:
    """Return a text with its first letter capital."""
    return text[:1].upper() + text[1:]
