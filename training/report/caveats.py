"""What must be known of the times of a sweep's runs before they are compared."""

from __future__ import annotations

import json
from itertools import combinations

from training.report.history import History
from training.report.text import percent

BUSY = 0.1  # of the cores; what a machine does besides is below that
_OVERLAP_S = 1.0  # what clocks and the end of a process may differ by
_MAX_NAMED = 5  # runs in a sentence


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


def busy(others: dict[str, float], histories: list[History]) -> list[str]:
    """Say beside which runs the machine had other work, which may not lengthen all times alike.

    Args:
        others: folder of a run -> share of the cores that other programs took beside it.
        histories: the runs, each one once or more.
    """
    shares = {run.directory.name: others.get(run.directory.name, 0.0) for run in histories}
    found = sorted((-share, name) for name, share in shares.items() if share > BUSY)
    if not found:
        return []
    which = _counted(len(found), "run")
    listed = _listed([f"`{name}` ({percent(-share, 0)} of the cores)" for share, name in found])
    times = "its time is" if len(found) == 1 else "their times are"
    return [
        f"Other programs worked beside {which}, so that {times} longer than on an idle machine: "
        f"{listed}."
    ]


def put_together(histories: list[History]) -> list[str]:
    """Say of which runs the times, or when they were taken, are not as plain as of the others."""
    said = []
    if any(not history.sessions for history in histories):
        said.append("Whether jobs ran at the same time is not recorded.")
    names = {run.directory.name: None for run in histories if run.num_continued}
    if names:
        said.append(
            f"The time of {_counted(len(names), 'run')} adds up what several processes took, "
            f"without what a kill lost: {_listed([f'`{name}`' for name in names])}."
        )
    return said


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more, see sweep.csv" if more > 0 else "")
