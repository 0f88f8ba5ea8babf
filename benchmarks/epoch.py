"""What reuse gains: epoch time at lifetime 1, 2, 4 and 8, beside the least that it could be.

    python benchmarks/epoch.py                        builds of 1, 6 and 20 ms
    python benchmarks/epoch.py --build-ms 6 --plot

An epoch at lifetime L has to build 1/L of its samples and to read the others, so the gain over
lifetime 1 is at most ``1 / (1/L + (1 - 1/L) * read / build)``, both parts measured here. All runs
in one process: what is measured is the time that the work takes, not how workers share it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import environment, keep, one_thread, show, table

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey, load_tensors, save_tensors

HERE = Path(__file__).parent
LIFETIMES = [1, 2, 4, 8]
SHAPE = (3, 224, 224)
IMAGE = torch.randint(0, 256, SHAPE, dtype=torch.uint8)


class Build:
    """Takes ``build_s`` of this thread's time, and gives a sample of 150 kB."""

    def __init__(self, build_s: float) -> None:
        self.build_s = build_s

    def __call__(self, key: ReuseKey) -> dict[str, Any]:
        end = time.thread_time() + self.build_s
        while time.thread_time() < end:
            pass
        return {"image": IMAGE, "label": key.index}


def loader_of(build_s: float, size: int, folder: Path, lifetime: int) -> ReuseDataLoader:
    return ReuseDataLoader(
        Build(build_s),
        size,
        folder,
        lifetime=lifetime,
        shuffle=True,
        batch_size=32,
        save=save_tensors,
        load=load_tensors,
    )


def cpu_s(loader: ReuseDataLoader) -> float:
    """Return the processor time of one pass, which other programs do not lengthen."""
    start = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - start


def epoch_s(build_s: float, size: int, folder: Path, lifetime: int, repeats: int) -> float:
    """Return the median over ``repeats`` of the mean epoch of a generation, after epoch 0."""
    loader = loader_of(build_s, size, folder, lifetime)
    cpu_s(loader)
    rounds = [[cpu_s(loader) for _ in range(lifetime)] for _ in range(repeats)]
    return statistics.median(map(statistics.mean, rounds))


def overhead_s(folder: Path, repeats: int, size: int = 200) -> float:
    """Return what a sample costs that is not there, but for its build: key, check and save."""
    times = []
    for number in range(repeats):
        loader = loader_of(0.0, size, folder / f"miss{number}", FOREVER)
        times.append((cpu_s(loader) - loader.stats().build_s) / size)
    return statistics.median(times)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    read_loader = loader_of(0.0, 256, folder / "read", FOREVER)
    cpu_s(read_loader), cpu_s(read_loader)
    read_s = statistics.median(cpu_s(read_loader) for _ in range(5)) / 256
    results: dict[str, Any] = {"read_s": read_s, "miss_s": overhead_s(folder, 5), "epochs": {}}
    for build_ms in args.build_ms:
        size = max(64, round(args.epoch_s * 1000 / build_ms))
        results["epochs"][build_ms] = {
            lifetime: epoch_s(
                build_ms / 1000, size, folder / f"{build_ms}-{lifetime}", lifetime, args.repeats
            )
            / size
            for lifetime in LIFETIMES
        }
        print(f"build {build_ms} ms: done", flush=True)
    return results


def report(results: dict[str, Any]) -> str:
    """Return a table: a sample's time, its gain over lifetime 1, and the share of the ideal."""
    rows = []
    for build_ms, seconds in results["epochs"].items():
        first = seconds["1"]
        for lifetime in LIFETIMES:
            ideal = gain_limit(lifetime, results["read_s"], float(build_ms) / 1000)
            gain = first / seconds[str(lifetime)]
            needed = float(build_ms) / 1000 / lifetime + results["read_s"]
            rows.append(
                [
                    f"{build_ms} ms",
                    lifetime,
                    f"{1000 * seconds[str(lifetime)]:.2f} ms",
                    f"{gain:.2f}",
                    f"{ideal:.2f}",
                    f"{100 * gain / ideal:.0f} %",
                    f"{seconds[str(lifetime)] / needed:.3f}",
                ]
            )
    head = ["build", "lifetime", "a sample", "gain", "ideal", "reached", "/ (build / L + read)"]
    parts = (
        f"read {1e6 * results['read_s']:.0f} us a sample; "
        f"key, check and save of a new one {1e6 * results['miss_s']:.0f} us"
    )
    return f"{table(head, rows)}\n\n{parts}"


def gain_limit(lifetime: int, read_s: float, build_s: float) -> float:
    return 1 / (1 / lifetime + (1 - 1 / lifetime) * read_s / build_s)


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw the gain beside its limit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.6))
    for color, (build_ms, seconds) in enumerate(results["epochs"].items()):
        gains = [seconds["1"] / seconds[str(lifetime)] for lifetime in LIFETIMES]
        limits = [gain_limit(n, results["read_s"], float(build_ms) / 1000) for n in LIFETIMES]
        axis.plot(LIFETIMES, gains, "o-", color=f"C{color}", label=f"build {build_ms} ms")
        axis.plot(LIFETIMES, limits, ":", color=f"C{color}")
    axis.set_xscale("log", base=2)
    axis.set_xticks(LIFETIMES, map(str, LIFETIMES))
    axis.set_xlabel("lifetime")
    axis.set_ylabel("gain over lifetime 1 (dotted: limit)")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-ms", nargs="+", type=float, default=[1, 6, 20])
    parser.add_argument("--epoch-s", type=float, default=1.5, help="of an epoch at lifetime 1")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the caches are written; default: the system's")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "epoch.json")
    parser.add_argument("--plot", action="store_true", help="draw what was kept, measure nothing")
    args = parser.parse_args()
    if not args.plot:
        one_thread()
        kept = {"environment": environment() | {"n": f"{args.repeats} generations"}}
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            kept["results"] = measure(args, Path(folder))
        keep(args.output, kept)
    show(args.output, report, plot)


if __name__ == "__main__":
    main()
