"""What goes wrong on real machines, done on purpose: python -m benchmarks.faults

Each trial is followed by a look at samples: every bit has to be that of a clean run, in a folder of
its own that nothing happens to. `wrong` counts samples that were not; `lost` counts runs that could
not go on, or that were not told what happened.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.common import environment
from benchmarks.faults.kinds import KINDS, run_kind


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of trials")
    parser.add_argument("--only", default="", help="kinds whose name holds this text")
    options = parser.parse_args()
    share = options.share
    for name, value in environment().items():
        print(f"{name}: {value}")
    print("\n| fault | trials | wrong samples | runs lost |\n|---|---:|---:|---:|")
    failed = False
    for name, (_, trials) in KINDS.items():
        if options.only not in name:
            continue
        tally = run_kind(name, max(1, round(share * trials)))
        print(f"| {name} | {tally.trials} | {tally.wrong} | {tally.lost} |", flush=True)
        for note in tally.notes[:3]:
            print(note, file=sys.stderr)
        failed = failed or bool(tally.wrong or tally.lost)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
