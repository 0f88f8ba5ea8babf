"""Reading prepared samples: this library beside an in-memory DataLoader and other caches.

    python benchmarks/loader.py                       all sizes, 0 and 2 workers
    python benchmarks/loader.py --sizes 3x32x32-uint8 --workers 2 --repeats 3
    python benchmarks/loader.py --plot                the picture, from the figures kept

Every pass over every loader is timed in turn, and a ratio is the median of ratios to the in-memory
loader of the same round, so that what else the machine does falls on all alike. The processor time
of all processes together is what stays when other programs take turns on the cores.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from common import alternate, environment, keep, one_thread, processor_s, ratio, show, table
from peers import PEERS, Samples

HERE = Path(__file__).parent
BASE = "in memory"
WARM_PASSES = 3  # the first builds, the second and third read as all later ones do

Passes = dict[str, list[tuple[float, float]]]  # by loader, what time_pass returned

SIZES = {  # name: shape, dtype, samples
    "3x32x32-uint8": ((3, 32, 32), torch.uint8, 16384),
    "3x224x224-uint8": ((3, 224, 224), torch.uint8, 1024),
    "3x224x224-float32": ((3, 224, 224), torch.float32, 384),
}


def time_pass(loader: Iterable[Any], num_samples: int) -> tuple[float, float]:
    """Return samples a second, and microseconds of all processes' processors a sample."""
    start, processor = time.perf_counter(), processor_s()
    labels = [batch["label"] for batch in loader]
    seconds, processor = time.perf_counter() - start, processor_s() - processor
    assert sorted(torch.cat(labels).tolist()) == list(range(num_samples))
    return num_samples / seconds, 1e6 * processor / num_samples


def measure(size: str, num_workers: int, args: argparse.Namespace) -> Passes:
    """Return the rates of all loaders that are installed."""
    shape, dtype, num_samples = SIZES[size]
    samples = Samples(num_samples, shape, dtype)
    options: dict[str, Any] = {"batch_size": args.batch_size, "num_workers": num_workers}
    if num_workers > 0:
        options |= {"persistent_workers": True, "multiprocessing_context": "fork"}
    root = Path(tempfile.mkdtemp(dir=args.folder))
    loaders = {}
    contenders: dict[str, Callable[[], tuple[float, float]]] = {}
    try:
        for number, (name, make) in enumerate(PEERS.items()):
            folder = root / str(number)
            folder.mkdir()
            try:
                loader = loaders[name] = make(samples, folder, dict(options))
                for _ in range(WARM_PASSES):
                    time_pass(loader, num_samples)
            except ImportError as error:
                print(f"left out: {name} ({error})")
                continue
            except Exception as error:
                print(f"left out: {name} failed: {type(error).__name__}: {error}")
                continue
            contenders[name] = lambda loader=loader: time_pass(loader, num_samples)
        return alternate(contenders, args.repeats)
    finally:
        loaders.clear()
        contenders.clear()
        shutil.rmtree(root, ignore_errors=True)


RATE, PROCESSOR = 0, 1


def report(results: dict[str, Passes], what: int) -> str:
    """Return a table of rates or processor times, and of their ratios to the in-memory loader."""
    rows = []
    for name in PEERS:
        cells = []
        for passes in results.values():
            if name not in passes:
                cells.append("-")
                continue
            value = statistics.median(column(passes, name, what))
            cells.append(f"{value:,.0f} ({ratio_to_base(passes, name, what):.2f})")
        rows.append([name, *cells])
    return table([["samples/s (ratio)", "processor us a sample (ratio)"][what], *results], rows)


def column(passes: Passes, name: str, what: int) -> list[float]:
    return [values[what] for values in passes[name]]


def ratio_to_base(passes: Passes, name: str, what: int) -> float:
    return ratio(column(passes, name, what), column(passes, BASE, what))


def plot(results: dict[str, Passes], path: Path) -> None:
    """Draw the ratios as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cases = [case for case in results if case.endswith("2 workers")] or list(results)
    figure, axes = plt.subplots(1, len(cases), figsize=(4 * len(cases), 3.6), sharey=True)
    for axis, case in zip([axes] if len(cases) == 1 else axes, cases, strict=True):
        values = results[case]
        names = [name for name in PEERS if name in values and name != BASE][::-1]
        ratios = [ratio_to_base(values, name, RATE) for name in names]
        colors = ["tab:blue" if name.startswith("reuse") else "tab:gray" for name in names]
        axis.barh(names, ratios, color=colors)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_title(case, fontsize=9)
        axis.set_xlabel("rate / in-memory DataLoader")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--folder", help="where the caches are written; default: the system's")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "loader.json")
    parser.add_argument("--plot", action="store_true", help="draw what was kept, measure nothing")
    args = parser.parse_args()
    if not args.plot:
        one_thread()
        kept = {"environment": environment() | {"n": f"{args.repeats} passes"}, "results": {}}
        for size in args.sizes:
            for num_workers in args.workers:
                case = f"{size}, {num_workers} workers"
                kept["results"][case] = values = measure(size, num_workers, args)
                print(f"{report({case: values}, RATE)}\n", flush=True)
        keep(args.output, kept)
    show(
        args.output,
        lambda results: f"{report(results, RATE)}\n\n{report(results, PROCESSOR)}",
        plot,
    )


if __name__ == "__main__":
    main()
