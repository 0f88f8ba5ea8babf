"""Reading an HDF5 file in random order, in the order of its chunks, and from stored samples.

    python benchmarks/hdf5.py

The chunks have 64 rows, compressed by gzip; all of it in one process, files in the page cache.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import h5py
import numpy as np
import torch
from common import one_thread, say_where, shuffled, table

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey
from training.data.hdf5 import Hdf5

SHAPE, CHUNK = (3, 96, 96), 64

CASES: dict[str, dict[str, Any]] = {
    "random order": {"lifetime": 1},
    "order of chunks": {"lifetime": 1, "block_size": CHUNK},
    "random order, lifetime 2": {"lifetime": 2},
    "order of chunks, lifetime 2": {"lifetime": 2, "block_size": CHUNK},
    "full reuse": {"lifetime": FOREVER},
}


def write(path: Path, num_rows: int) -> int:
    """Write images of soft colours with some noise; return the mean stored size of a chunk."""
    generator = torch.Generator().manual_seed(0)
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "images", (num_rows, *SHAPE), np.uint8, chunks=(CHUNK, *SHAPE), compression="gzip"
        )
        for start in range(0, num_rows, CHUNK):
            coarse = torch.rand(CHUNK, 3, 6, 6, generator=generator) * 240
            soft = torch.nn.functional.interpolate(coarse, SHAPE[1:], mode="bilinear")
            noise = torch.rand(soft.shape, generator=generator) * 15
            data[start : start + CHUNK] = (soft + noise).to(torch.uint8).numpy()
        file["labels"] = np.zeros(num_rows, np.int64)
        sizes = [data.id.get_chunk_info(n).size for n in range(data.id.get_num_chunks())]
        return sum(sizes) // len(sizes)


def build(key: ReuseKey, source: Hdf5) -> torch.Tensor:
    image: torch.Tensor = source[key.index]["image"]
    return image.as_subclass(torch.Tensor)


def read_bytes() -> int:
    """Return what this process has read from files so far, wherever Linux had it."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def epoch(loader: ReuseDataLoader) -> tuple[float, int]:
    """Return the seconds of a pass, and the bytes read from the HDF5 file."""
    start, before = perf_counter(), read_bytes()
    for _ in loader:
        pass
    seconds = perf_counter() - start
    return seconds, read_bytes() - before - loader.stats().read_bytes


def measure(case: str, source: Hdf5, folder: Path, chunk_bytes: int, repeats: int) -> list[str]:
    """Return a row of the table."""
    num_rows = len(source)
    loader = shuffled(
        partial(build, source=source), num_rows, folder / case, batch_size=64, **CASES[case]
    )
    if loader.policy.lifetime > 1:
        epoch(loader)  # fills the folder
    passes = [epoch(loader) for _ in range(repeats)]
    source.close()
    rate = num_rows / median(seconds for seconds, _ in passes)
    reads = median(num_bytes for _, num_bytes in passes) / chunk_bytes / num_rows
    mb = rate * int(np.prod(SHAPE)) / 1e6
    return [case, f"{reads:.4f}", f"{rate:,.0f}", f"{mb:,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    one_thread()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chunk_bytes = write(folder / "a.h5", args.rows)
        source = Hdf5(str(folder / "a.h5"), "images", "labels", 1)
        rows = [measure(case, source, folder, chunk_bytes, args.repeats) for case in CASES]
    print(table(["", "chunk reads a sample", "samples/s", "MB/s"], rows))
    whole = CHUNK * int(np.prod(SHAPE)) / 1e6
    print(f"\n{args.rows} rows in chunks of {CHUNK}, {chunk_bytes / 1e6:.2f} MB each as stored, ")
    print(f"{whole:.2f} MB decompressed; median of {args.repeats} passes")
    say_where()


if __name__ == "__main__":
    main()
