"""A remote store in local slots: reading what lies in them, and epochs while their number grows.

    python benchmarks/remote.py

First the rate at which reused slots reach the training process with 2 workers; that process sums
every batch, so that all of it is read. Beside it stands the share of the time in which it held the
interpreter lock, in two ways: by py-spy, which looks 250 times a second, and by a thread that spins
beside the loop, and waits for the lock when it neither runs nor waits for a core (as Linux counts
both). Then epochs over a store behind a web server of another process, which waits before each
answer.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import shutil
import subprocess
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
from common import one_thread, say_where, shuffled, table
from torchvision.transforms import v2

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey
from training.build import build_image
from training.curriculum import Steps
from training.data.remote import Remote

BATCH_BYTES = 2**24
AIM_MB = 600  # a second
SIZES = {0: 200, 2: 400, 4: 800}
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

    share = 0.0

    def __enter__(self) -> Probe:
        self._on = True
        # So often the lock is asked back from a thread that spins; 5 ms would slow the loop down.
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on = False
        self.join()
        sys.setswitchinterval(self._interval)

    def run(self) -> None:
        file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        start, before = time.perf_counter_ns(), _on_or_queued_ns(file)
        while self._on:
            pass
        spent = _on_or_queued_ns(file) - before
        self.share = max(0.0, 1 - spent / (time.perf_counter_ns() - start))


def _on_or_queued_ns(schedstat: Path) -> int:
    return sum(map(int, schedstat.read_text().split()[:2]))


def rate(loader: ReuseDataLoader) -> tuple[float, float]:
    """Return MB a second of a pass, and the share of a processor that this process took."""
    start, cpu = time.perf_counter(), time.process_time()
    num_bytes = 0
    for batch in loader:
        batch.view(torch.int64).sum()
        num_bytes += batch.nbytes
    seconds = time.perf_counter() - start
    return num_bytes / seconds / 1e6, (time.process_time() - cpu) / seconds


def probed(loader: ReuseDataLoader) -> tuple[float, float]:
    """Return MB a second of a pass, and the share of the time that it held the lock."""
    with Probe() as probe:
        fast, _ = rate(loader)
    return fast, probe.share


def spied(loader: ReuseDataLoader, folder: Path, seconds: int = 3) -> float:
    """Return the share of the time in which py-spy found the lock held by this process."""
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.defpath}")
    if program is None:
        return float("nan")
    found, looks_a_s = folder / "stacks.txt", 250
    words = f"record --gil --rate {looks_a_s} --duration {seconds} --format raw".split()
    spy = subprocess.Popen(
        [program, *words, "--pid", str(os.getpid()), "--output", str(found)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while spy.poll() is None:
        rate(loader)
    # A stack and how often it was seen; no file where it never was.
    lines = found.read_text().splitlines() if found.exists() else []
    found.unlink(missing_ok=True)
    return sum(int(line.rpartition(" ")[2]) for line in lines) / (looks_a_s * seconds)


def cold(loader: ReuseDataLoader, folder: Path) -> float:
    """Return MB a second of a pass over files that Linux does not have in its page cache."""
    for file in folder.glob("*.pt"):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return rate(loader)[0]


def reused(folder: Path, sample_bytes: int, total_bytes: int, repeats: int) -> list[str]:
    """Return a row of the table: passes over slots that hold what they need already."""
    loader = shuffled(
        Noise(sample_bytes),
        total_bytes // sample_bytes,
        folder,
        lifetime=FOREVER,
        batch_size=max(1, BATCH_BYTES // sample_bytes),
        num_workers=2,
        persistent_workers=True,
    )
    for _ in range(3):  # the first fills the slots
        rate(loader)
    plain = [rate(loader) for _ in range(repeats)]
    assert loader.stats().built == 0
    with_probe = [probed(loader) for _ in range(repeats)]
    spy = spied(loader, folder)
    from_disk = [cold(loader, folder) for _ in range(repeats)]
    fast = median(mb for mb, _ in plain)
    # The probe slows the loop down; the lock is held for each byte, not for each second.
    lock = median(share / mb for mb, share in with_probe) * fast
    return [
        f"{sample_bytes / 2**20:g} MiB",
        f"{fast:,.0f}",
        f"{100 * median(share for _, share in plain):.0f} %",
        f"{100 * spy:.1f} %",
        f"{100 * lock:.1f} %",
        f"{100 * lock * AIM_MB / fast:.1f} %",
        f"{median(from_disk):,.0f}",
    ]


def idle_share() -> float:
    """Return what the probe finds while nothing else wants the lock."""
    with Probe() as probe:
        time.sleep(1)
    return probe.share


def record(number: int) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.random.default_rng(number).integers(0, 256, RECORD_SHAPE, np.uint8))
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    """Answers with a record or the index, after a while."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # which holds the end of an answer back for 40 ms
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
    """Run the web server in a process of its own; yield its address."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=serve, args=(latency_s, sender), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}"
    finally:
        process.terminate()
        process.join()


def growing(folder: Path, url: str, num_fetches: int) -> list[list[Any]]:
    """Return the rows of the table: epochs over more and more slots."""
    source = Remote(url, "train", size=SIZES, lifetime=2, num_fetches=num_fetches)
    steps: Any = Steps({0: v2.Identity()})
    loader = shuffled(
        partial(build_image, source=source, transforms=steps),
        SIZES,
        folder,
        lifetime=2,
        batch_size=16,
        num_workers=2,
        persistent_workers=True,
        prefetch=source.prefetch,
    )
    rows = []
    for epoch in range(8):
        start = time.perf_counter()
        num_bytes = sum(batch["image"].nbytes for batch in loader)
        seconds = time.perf_counter() - start
        stats = loader.stats()
        total = stats.built + stats.reused
        ms, mb = 1000 * seconds / total, num_bytes / seconds / 1e6
        rows.append([epoch, total, stats.built, f"{seconds:.2f}", f"{ms:.1f}", f"{mb:,.0f}"])
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
        head = ["sample", "MB/s", "processor", "lock, py-spy", "lock, probe"]
        head += [f"probe, at {AIM_MB} MB/s", "MB/s from disk"]
        print(table(head, rows))
        print(f"\nthe probe beside an idle loop: {100 * idle_share():.1f} %\n", flush=True)
        with server(args.latency_ms / 1000) as url:
            grown = growing(Path(name) / "grow", url, args.num_fetches)
        print(table(["epoch", "samples", "fetched", "s", "ms a sample", "MB/s"], grown))
        print(f"\nrecords of {len(record(0)) / 1000:.0f} kB, {args.latency_ms:g} ms each, ", end="")
        print(f"{args.num_fetches} at once in each of 2 workers; lifetime 2")
    say_where()


if __name__ == "__main__":
    main()
