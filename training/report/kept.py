"""Whether a setting keeps the accuracy of the baseline, by what that one's seeds scatter."""

from __future__ import annotations

from dataclasses import replace

from training.report.settings import Setting

LEAST_TOLERANCE = 0.005
"""Half a point: about what seeds scatter by, where too few say it."""

MOST_TOLERANCE = 0.02
"""Two points: a baseline that scatters by more, with a seed that collapsed, excuses no loss."""


def paired(one: Setting, other: Setting) -> tuple[Setting, Setting]:
    """Return two settings with the runs of the seeds that both have; as they are of none."""
    seeds = {run.seed for run in one.runs} & {run.seed for run in other.runs}
    if not seeds:
        return one, other
    ours, theirs = (
        replace(setting, runs=[run for run in setting.runs if run.seed in seeds])
        for setting in (one, other)
    )
    return ours, theirs


def tolerance(baseline: Setting) -> float:
    """Return how far below a baseline's mean a mean may lie, a fraction.

    Half of what its seeds range over, between half a point and two points; on a small validation
    set at least two samples of it.
    """
    sizes = [run.num_val for run in baseline.runs if run.num_val]
    quantum = 2 / min(sizes) if sizes else 0.0
    scatter = min(baseline.last_accuracy.half_range, MOST_TOLERANCE)
    return max(scatter, LEAST_TOLERANCE, quantum)


def keeps_accuracy(setting: Setting, baseline: Setting) -> bool:
    """Say whether neither the mean of a setting nor a single seed of it falls off."""
    ours, theirs = paired(setting, baseline)
    values, least = ours.last_accuracy.values, min(theirs.last_accuracy.values, default=0.0)
    if not values or not theirs.last_accuracy.values:
        return False
    allowed = tolerance(theirs) + 1e-9  # what sums of decimal fractions are off by
    all_values = setting.last_accuracy.values  # a seed that only it has may have collapsed as well
    return (
        ours.last_accuracy.mean >= theirs.last_accuracy.mean - allowed
        and min(all_values) >= least - 2 * allowed
    )


def outlier(setting: Setting, baseline: Setting) -> str:
    """Return in brackets the seed that falls off where others do not, or nothing."""
    found = [(run.evaluations(), run.seed) for run in setting.runs]
    worst, seed = min((points[-1][2], seed) for points, seed in found if points)
    near = worst + 2 * tolerance(baseline)
    if max(setting.last_accuracy.values) <= near:
        return ""
    return f" (seed {seed} ends at {100 * worst:.2f} %)"


def lost(settings: list[Setting], baseline: Setting) -> str:
    """Say which settings lose accuracy."""
    losing = [s for s in settings if s.last_accuracy.values and not keeps_accuracy(s, baseline)]
    if len(losing) == 1:
        return f"{losing[0].name} loses accuracy{outlier(losing[0], baseline)}"
    names = [f"{setting.name}{outlier(setting, baseline)}" for setting in losing]
    return f"{', '.join(names[:-1])} and {names[-1]} lose accuracy" if names else ""
