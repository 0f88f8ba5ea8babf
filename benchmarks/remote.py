"""A remote store in local slots: reading what lies in them, and epochs while their number grows.

    python benchmarks/remote.py

First the rate at which reused slots reach the training process, with 2 workers, and the share of
the time in which that process held the interpreter lock: a thread spins beside the loop, and what
it neither runs nor waits for a core (as Linux counts it) it waits for the lock. Then epochs over a
store behind a web server of another process, which waits before each answer.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import environment, one_thread, table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from torchvision.transforms import v2  # noqa: E402

from reuseloader import (  # noqa: E402
    FOREVER,
    ReuseDataLoader,
    ReuseKey,
    load_tensors,
    save_tensors,
)
from training.build import build_image  # noqa: E402
from training.curriculum import Steps  # noqa: E402
from training.data.remote import Remote  # noqa: E402

SIZES = {0: 100, 2: 200, 4: 400}
NUM_RECORDS, RECORD_SHAPE = 1000, (3, 256, 256)


class Noise:
    """Samples that no compression makes smaller."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def __call__(self, key: ReuseKey) -> torch.Tensor:
        return torch.from_numpy(
            np.random.default_rng(key.seed).integers(0, 256, self.num_bytes, np.uint8)
        )


class Probe(threading.Thread):
    """Spins, and finds out which share of the time it waited for the interpreter lock."""

    def run(self) -> None:
        self.stopped = False
        file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        start = time.perf_counter_ns()
        before = sum(map(int, file.read_text().split()[:2]))
        while not self.stopped:
            pass
        on_or_queued = sum(map(int, file.read_text().split()[:2])) - before
        self.share = 1 - on_or_queued / (time.perf_counter_ns() - start)


def rate(loader: ReuseDataLoader, probed: bool) -> tuple[float, float]:
    """Return MB a second of a pass, and the share of the lock, or of the processor unprobed."""
    probe = Probe()
    if probed:
        probe.start()
        time.sleep(0.05)
    start, cpu = time.perf_counter(), time.process_time()
    num_bytes = sum(batch.nbytes for batch in loader)
    seconds = time.perf_counter() - start
    share = (time.process_time() - cpu) / seconds
    if probed:
        probe.stopped = True
        probe.join()
        share = probe.share
    return num_bytes / seconds / 1e6, share


def reused(folder: Path, sample_bytes: int, total_bytes: int, repeats: int) -> list[Any]:
    loader = ReuseDataLoader(
        Noise(sample_bytes),
        total_bytes // sample_bytes,
        folder,
        lifetime=FOREVER,
        shuffle=True,
        batch_size=max(1, 2**24 // sample_bytes),
        num_workers=2,
        persistent_workers=True,
        save=save_tensors,
        load=load_tensors,
    )
    rate(loader, False)  # fills the slots
    plain = [rate(loader, False) for _ in range(repeats)]
    probed = [rate(loader, True) for _ in range(repeats)]
    assert loader.stats().built == 0
    return [
        f"{sample_bytes / 2**20:g} MiB",
        f"{median(r for r, _ in plain):,.0f}",
        f"{100 * median(s for _, s in plain):.0f} %",
        f"{100 * median(s for _, s in probed):.1f} %",
        f"{median(r for r, _ in probed):,.0f}",
    ]


def idle_share() -> float:
    """Return what the probe finds while nothing else wants the lock."""
    probe = Probe()
    probe.start()
    time.sleep(0.5)
    probe.stopped = True
    probe.join()
    return probe.share


def record(number: int) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.random.default_rng(number).integers(0, 256, RECORD_SHAPE, np.uint8))
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    """Answers with a record or the index, after a while."""

    protocol_version = "HTTP/1.1"
    latency_s = 0.0

    def do_GET(self) -> None:
        name = self.path[1:]
        if name.endswith(".csv"):
            length = len(record(0))
            lines = [f"{n}.npy,{length},0" for n in range(NUM_RECORDS)]
            body = "\n".join(["path,num_bytes,label", *lines, ""]).encode()
        else:
            time.sleep(self.latency_s)
            body = record(int(name.removesuffix(".npy")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def serve(latency_s: float, port: Any) -> None:
    Handler.latency_s = latency_s
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def server(latency_s: float) -> Iterator[str]:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=serve, args=(latency_s, sender), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}"
    finally:
        process.terminate()
        process.join()


def growing(folder: Path, url: str, num_fetches: int) -> list[list[Any]]:
    source = Remote(url, "train", size=SIZES, lifetime=2, num_fetches=num_fetches)
    steps: Any = Steps({0: v2.Identity()})
    loader = ReuseDataLoader(
        partial(build_image, source=source, transforms=steps),
        SIZES,
        folder,
        lifetime=2,
        shuffle=True,
        batch_size=16,
        num_workers=2,
        persistent_workers=True,
        prefetch=source.prefetch,
        save=save_tensors,
        load=load_tensors,
    )
    rows = []
    for epoch in range(7):
        start = time.perf_counter()
        num_bytes = sum(batch["image"].nbytes for batch in loader)
        seconds = time.perf_counter() - start
        stats = loader.stats()
        total = stats.built + stats.reused
        rows.append(
            [epoch, total, stats.built, f"{seconds:.2f}", f"{1000 * seconds / total:.1f}",
             f"{num_bytes / seconds / 1e6:,.0f}"]
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", help="where the slots lie; default: the system's")
    parser.add_argument("--total-mib", type=int, default=1024, help="of all slots together")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--num-fetches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    one_thread()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        rows = [
            reused(Path(name) / str(size), size, args.total_mib * 2**20, args.repeats)
            for size in (2**17, 2**20, 2**22)
        ]
        head = ["sample", "MB/s", "processor, main process", "interpreter lock", "MB/s, probed"]
        print(table(head, rows))
        print(f"\nthe probe beside an idle process: {100 * idle_share():.1f} %\n")
        with server(args.latency_ms / 1000) as url:
            grown = growing(Path(name) / "grow", url, args.num_fetches)
        print(table(["epoch", "samples", "fetched", "s", "ms a sample", "MB/s"], grown))
        kb = len(record(0)) / 1000
        print(f"\nrecords of {kb:.0f} kB, {args.latency_ms:g} ms each, ", end="")
        print(f"{args.num_fetches} at once in each of 2 workers; lifetime 2; pid {os.getpid()}")
    print("\n" + "\n".join(f"{name}: {value}" for name, value in environment().items()))


if __name__ == "__main__":
    main()
