"""What `python -m training.bounds` predicts beside what train.py then takes, on the digits.

    python benchmarks/bounds.py                    lifetime 1, 2, 4 and 8, about 2 minutes a round
    python benchmarks/bounds.py --plot             draws what was kept, measures nothing
    python benchmarks/bounds.py model.width=32     overrides of train.py

Each round predicts anew and then trains 5 epochs at each lifetime, at 8 nine of them, each in a
process of its own; what is measured is the mean of the epochs after the first, which are whole
generations.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import ROOT, environment, keep, show, table

sys.path.insert(0, str(ROOT))

from training.bounds.__main__ import read
from training.bounds.measure import Bench
from training.bounds.prediction import Costs, predict

HERE = Path(__file__).parent
LIFETIMES = [1, 2, 4, 8]
MIN_EPOCHS = 4  # after the first


def predicted(overrides: list[str]) -> tuple[dict[int, float], float]:
    """Return the seconds of an epoch by lifetime, at the config's number of workers.

    And of these seconds those that are neither training nor evaluation nor checkpoint.
    """
    config, curriculum = read(overrides)
    with tempfile.TemporaryDirectory() as folder:
        costs: Costs = Bench(config, curriculum, Path(folder), lambda text: None).measure().costs
    (given,) = [one for one in costs.inputs if one.num_workers == config.num_workers]
    rest_s = costs.rest_s + costs.num_batches * costs.rest_batch_s
    return {lifetime: predict(costs, lifetime, given).epoch_s for lifetime in LIFETIMES}, rest_s


def trained(lifetime: int, overrides: list[str]) -> dict[str, float]:
    """Return the mean seconds of the epochs after the first of a run, in all and by part."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, str(ROOT / "train.py"), *overrides, f"lifetime={lifetime}"),
            *(
                f"epochs={1 + max(MIN_EPOCHS, lifetime)}",
                f"hydra.run.dir={folder}/run",
                "report.enabled=false",
            ),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(Path(folder, "run", "metrics.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
    parts = [name for name in rows[0] if name.endswith("_s") and name != "samples_per_s"]
    return {name: round(statistics.mean(float(row[name]) for row in rows[1:]), 4) for name in parts}


def measure(rounds: int, overrides: list[str]) -> Iterator[dict[str, Any]]:
    """Yield for each round and lifetime both times."""
    for number in range(rounds):
        guess, rest_s = predicted(overrides)
        order = LIFETIMES[number % 4 :] + LIFETIMES[: number % 4]
        for lifetime in order:
            parts = trained(lifetime, overrides)
            result = {
                **{"lifetime": lifetime, "predicted_s": round(guess[lifetime], 4)},
                **{"measured_s": parts["epoch_s"], "predicted_rest_s": round(rest_s, 4)},
                "parts": parts,
            }
            print(f"round {number}, lifetime {lifetime}: {result}", flush=True)
            yield result


def report(results: list[dict[str, Any]]) -> str:
    """Return a table: medians over the rounds, and how far the prediction is off."""
    rows = []
    for lifetime in LIFETIMES:
        own = [one for one in results if one["lifetime"] == lifetime]
        guess, truth = (
            statistics.median(one[name] for one in own) for name in ("predicted_s", "measured_s")
        )
        off = [100 * (one["predicted_s"] / one["measured_s"] - 1) for one in own]
        rows.append(
            [
                lifetime,
                f"{guess:.2f} s",
                f"{truth:.2f} s",
                f"{100 * (guess / truth - 1):+.0f} %",
                f"{min(off):+.0f} to {max(off):+.0f} %",
            ]
        )
    return table(["lifetime", "predicted", "measured", "off", "by round"], rows)


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Draw both times by lifetime."""
    from training.report.style import drawing, line_style, save

    with drawing(5, 3.6) as figure:
        axes = figure.add_subplot()
        for number, name in enumerate(("predicted", "measured")):
            own = [[one for one in results if one["lifetime"] == n] for n in LIFETIMES]
            middle = [statistics.median(one[f"{name}_s"] for one in some) for some in own]
            style = line_style(number, 3)
            axes.plot(LIFETIMES, middle, label=f"{name}, median of the rounds", **style)
            for lifetime, some in zip(LIFETIMES, own, strict=True):
                values = [one[f"{name}_s"] for one in some]
                places = [lifetime] * len(values)
                axes.plot(places, values, style["marker"], color=style["color"], alpha=0.4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(LIFETIMES, map(str, LIFETIMES))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("lifetime (epochs)")
        axes.set_ylabel("seconds of an epoch after the first")
        axes.legend()
        save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "bounds.json")
    parser.add_argument("--plot", action="store_true", help="draw what was kept, measure nothing")
    parser.add_argument("overrides", nargs="*", help="of the config, such as model=resnet18")
    args = parser.parse_args()
    if not args.plot:
        kept: dict[str, Any] = {"environment": environment() | {"n": f"{args.rounds} rounds"}}
        kept["overrides"] = args.overrides
        kept["results"] = []
        for result in measure(args.rounds, args.overrides):
            kept["results"].append(result)
            keep(args.output, kept)  # what there is, should it be stopped
    show(args.output, report, plot)


if __name__ == "__main__":
    main()
