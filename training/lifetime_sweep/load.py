"""What other programs took of the processors while a run ran."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal: proc(5)


class Others:
    """Measures from when it is made; on Linux alone, elsewhere nothing is known."""

    def __init__(self) -> None:
        self._began = (time.monotonic(), _busy_s(), _own_s())

    def share(self) -> float | None:
        """Return the share of all cores that other programs took since then.

        Processes that this one started count as its own once they have been waited for.
        """
        began_s, busy_before_s, own_before_s = self._began
        busy_s, cores_s = _busy_s(), (time.monotonic() - began_s) * (os.cpu_count() or 1)
        if busy_s is None or busy_before_s is None or cores_s <= 0:
            return None
        others_s = (busy_s - busy_before_s) - (_own_s() - own_before_s)
        return min(1.0, max(0.0, others_s / cores_s))


def _busy_s() -> float | None:
    """Return the seconds in which a core worked, over all cores and programs."""
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        ticks = [int(field) for field in fields[1:]]
        return sum(ticks[place] for place in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _own_s() -> float:
    """Return the processor seconds of this process, and of those that it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
