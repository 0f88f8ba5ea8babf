"""What a sweep says in a sentence or two: which setting to choose, and why."""

from __future__ import annotations

import math

from training.report.settings import Setting, Spread
from training.report.sweep import Sweep
from training.report.text import duration, percent

ONE_SEED_LOSS = 0.005
"""What one seed may lose and still count as equal: half a point, about what seeds scatter by."""

WORTH_IT = 1.05  # times as fast; less is within what one machine differs by from hour to hour

FEW_SEEDS = 3  # of fewer the range says little


def verdict(sweep: Sweep) -> str:
    """Return in a sentence or two which setting to choose, and why."""
    baseline = sweep.baseline
    if baseline is None:
        return "No job that ended was evaluated." if sweep.first else "No job ended."
    if sweep.is_trial:
        return "A trial of one batch a job: it works, and compares nothing."
    if len({setting.lifetime for setting in sweep.first}) < 2:
        return _best_setting(sweep)
    kept = [setting for setting in sweep.first if keeps_accuracy(setting, baseline)]
    if sweep.doubts:
        names = ", ".join(f"{s.name} {with_range(s.last_accuracy)}" for s in sweep.first)
        return (
            f"By accuracy alone, because {' and '.join(sweep.doubts)}: {names}; the longest "
            f"lifetime that keeps it is that of {max(kept, key=lambda s: s.lifetime).name}."
        )
    reached = [s for s in kept if s.time_to(sweep.target).is_complete]
    if not reached:
        return f"No setting reached {percent(sweep.target)} with every seed."
    fastest_s = min(s.time_to(sweep.target).mean for s in reached)
    enough = [s for s in reached if s.time_to(sweep.target).mean <= WORTH_IT * fastest_s]
    chosen = baseline if baseline in enough else min(enough, key=lambda s: s.lifetime)
    said = [_choice(sweep, baseline, chosen), _certainty(sweep, baseline, chosen)]
    return " ".join([*filter(None, said), *_further(sweep, chosen)])


def keeps_accuracy(setting: Setting, baseline: Setting) -> bool:
    """Say whether the seeds of two settings reach into each other, or the first is the better."""
    ours, theirs = setting.last_accuracy, baseline.last_accuracy
    return bool(ours.values) and ours.mean + _scatter(ours, theirs) >= theirs.mean


def _scatter(ours: Spread, theirs: Spread) -> float:
    """Return how far two means may lie apart for the ranges of the seeds to touch."""
    if min(len(ours.values), len(theirs.values)) == 1:
        return ONE_SEED_LOSS
    return ours.half_range + theirs.half_range


def _best_setting(sweep: Sweep) -> str:
    if len(sweep.first) == 1:
        only = sweep.first[0].last_accuracy
        return f"One setting, with {_seeds(sweep.first[0])}: {with_range(only)} in the end."
    evaluated = [setting for setting in sweep.first if setting.last_accuracy.values]
    best = max(evaluated, key=lambda setting: setting.last_accuracy.mean)
    return (
        f"{best.name} ends with the best accuracy, {with_range(best.last_accuracy)} "
        f"({_seeds(best)})."
    )


def _seeds(setting: Setting) -> str:
    return "one seed" if len(setting.runs) == 1 else f"{len(setting.runs)} seeds"


def _choice(sweep: Sweep, baseline: Setting, chosen: Setting) -> str:
    target = percent(sweep.target, 1)
    if chosen is baseline:
        return (
            f"Choose {baseline.name}: no longer lifetime reached {target} sooner and kept the "
            f"accuracy ({_seeds(baseline)})."
        )
    ours, theirs = (s.time_to(sweep.target) for s in (chosen, baseline))
    other = f"{baseline.name} does not with every seed"
    if theirs.is_complete:
        times = f"{gain(sweep, chosen):.1f} times as fast"
        other = f"{baseline.name} in {duration(theirs.mean)} ({times})"
    return (
        f"Choose {chosen.name}: it reaches {target} accuracy in {duration(ours.mean)}, {other}, "
        f"and ends at {with_range(chosen.last_accuracy)} against "
        f"{with_range(baseline.last_accuracy)} ({_seeds(chosen)}{_unknown_scatter(chosen)})."
    )


def _certainty(sweep: Sweep, baseline: Setting, chosen: Setting) -> str:
    """Say what of a choice may be chance; of one seed the choice itself says it."""
    ours, theirs = chosen.last_accuracy, baseline.last_accuracy
    num_seeds = min(len(ours.values), len(theirs.values))
    if chosen is baseline or num_seeds < 2:
        return ""
    within = abs(ours.mean - theirs.mean) <= _scatter(ours, theirs)
    said = f"The accuracies differ by {'less' if within else 'more'} than the seeds scatter"
    quick, slow = chosen.time_to(sweep.target).values, baseline.time_to(sweep.target).values
    if slow and max(quick) >= min(slow):
        said += ", and the times of some seeds lie the other way round"
    if num_seeds < FEW_SEEDS:
        said += f"; {num_seeds} seeds say little"
    return f"{said}."


def _unknown_scatter(setting: Setting) -> str:
    return ", so that its scatter is not known" if len(setting.runs) == 1 else ""


def _further(sweep: Sweep, chosen: Setting) -> list[str]:
    """Say what the choice passes over, and how the chosen lifetime does in the other sections."""
    said = []
    least = WORTH_IT * gain(sweep, chosen)
    rivals = [s for s in sweep.first if s is not chosen and gain(sweep, s) > least]
    if rivals:
        fastest = max(rivals, key=lambda s: gain(sweep, s))
        lost = 100 * (chosen.last_accuracy.mean - fastest.last_accuracy.mean)
        said.append(f"Faster still, but {lost:.1f} points lower in the end: {fastest.name}.")
    others = []
    for name, settings in list(sweep.sections.items())[1:]:
        same = next((s for s in settings if s.lifetime == chosen.lifetime), None)
        if same is None or not same.last_accuracy.values:
            continue
        best = max(settings, key=lambda s: s.last_accuracy.mean if s.last_accuracy.values else 0)
        if same.runs != chosen.runs:
            others.append(f"{name} it ends at {with_range(same.last_accuracy)}")
        elif not keeps_accuracy(same, best):
            others.append(f"{name} {best.name} ends higher, at {with_range(best.last_accuracy)}")
    return [*said, *([f"{capital(', '.join(others))}."] if others else [])]


def gain(sweep: Sweep, setting: Setting) -> float:
    """Return how many times as fast as the baseline a setting reaches the target, or NaN."""
    baseline = sweep.baseline
    if baseline is None:
        return math.nan
    ours, theirs = setting.time_to(sweep.target), baseline.time_to(sweep.target)
    return theirs.mean / ours.mean if ours.is_complete and theirs.is_complete else math.nan


def with_range(accuracy: Spread) -> str:
    """Return a mean with half the range of the seeds: `99.3 ± 0.2 %`."""
    if not accuracy.values:
        return "-"
    if len(accuracy.values) == 1:
        return percent(accuracy.mean)
    return f"{100 * accuracy.mean:.2f} ± {100 * accuracy.half_range:.2f} %"


def capital(text: str) -> str:
    """Return a text with its first letter capital."""
    return text[:1].upper() + text[1:]
