"""python -m training.report FOLDER: write the report of a run or of a sweep."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from training.checks import ConfigError
from training.report.writing import write_report


def main(arguments: list[str] | None = None) -> int:
    """Write the report of each folder; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.report", description="Write report.md and report.png."
    )
    parser.add_argument("folder", nargs="+", type=Path, help="of a run or of a sweep")
    parser.add_argument("--target", type=float, help="accuracy to be reached, such as 0.97")
    given = parser.parse_args(arguments)
    try:
        if given.target is not None and not 0 < given.target <= 1:
            raise ConfigError(
                f"target must be a fraction above 0 and up to 1, but got target={given.target}"
            )
        for folder in given.folder:
            print("\n".join(map(str, write_report(folder.resolve(), given.target))))
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
