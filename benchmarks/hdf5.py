"""Reading an HDF5 file in random order, in the order of its chunks, and from stored samples.

    python benchmarks/hdf5.py

The chunks have 64 rows, compressed by gzip; all of it in one process, files in the page cache.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import h5py
import numpy as np
import torch
from common import environment, one_thread, table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from reuseloader import (  # noqa: E402
    FOREVER,
    ReuseDataLoader,
    ReuseKey,
    load_tensors,
    save_tensors,
)
from training.data.hdf5 import Hdf5  # noqa: E402

SHAPE, CHUNK = (3, 96, 96), 64


def write(path: Path, num_rows: int) -> int:
    """Write images of soft colours with some noise; return the stored size of a chunk."""
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
        return int(sum(data.id.get_chunk_info(n).size for n in range(num_rows // CHUNK))) // (
            num_rows // CHUNK
        )


def build(key: ReuseKey, source: Hdf5) -> torch.Tensor:
    image: torch.Tensor = source[key.index]["image"]
    return image.as_subclass(torch.Tensor)


def read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def epoch(loader: ReuseDataLoader) -> tuple[float, int]:
    """Return the seconds of a pass, and the bytes read from the HDF5 file."""
    start, before = perf_counter(), read_bytes()
    for _ in loader:
        pass
    seconds = perf_counter() - start
    return seconds, read_bytes() - before - loader.stats().read_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    one_thread()
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chunk_bytes = write(folder / "a.h5", args.rows)
        source = Hdf5(str(folder / "a.h5"), "images", "labels", 1)
        row_bytes = int(np.prod(SHAPE))

        def make(case: str, **options: Any) -> ReuseDataLoader:
            return ReuseDataLoader(
                partial(build, source=source),
                args.rows,
                folder / case,
                shuffle=True,
                batch_size=64,
                save=save_tensors,
                load=load_tensors,
                **options,
            )

        cases: dict[str, Callable[[], ReuseDataLoader]] = {
            "random order": lambda: make("random", lifetime=1),
            "order of chunks": lambda: make("blocks", lifetime=1, block_size=CHUNK),
            "order of chunks, lifetime 2": lambda: make("two", lifetime=2, block_size=CHUNK),
            "random order, full reuse": lambda: make("all", lifetime=FOREVER),
        }
        for case, start in cases.items():
            loader = start()
            if loader.policy.lifetime > 1:
                epoch(loader)  # fills the folder
            passes = [epoch(loader) for _ in range(args.repeats)]
            seconds = median(s for s, _ in passes)
            reads = median(b for _, b in passes) / chunk_bytes / args.rows
            rows.append(
                [
                    case,
                    f"{reads:.4f}",
                    f"{args.rows / seconds:,.0f}",
                    f"{args.rows * row_bytes / seconds / 1e6:,.0f}",
                ]
            )
            source.close()
            print(f"{case}: done", flush=True)
        print(f"\nchunks of {CHUNK} rows, {chunk_bytes / 1e6:.2f} MB stored,", end=" ")
        print(f"{CHUNK * row_bytes / 1e6:.2f} MB decompressed; {args.rows} rows\n")
    print(table(["", "chunk reads a sample", "samples/s", "MB/s"], rows))
    print("\n" + "\n".join(f"{name}: {value}" for name, value in environment().items()))


if __name__ == "__main__":
    main()
