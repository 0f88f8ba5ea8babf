"""When each process built and read which sample: a file a process, for a picture over time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple

from reuseloader.policy import ReuseKey


class Span(NamedTuple):
    """What a process did with a sample; times are of ``time.perf_counter_ns``.

    On Linux that clock is one for all processes of a machine.
    """

    what: str
    sample: int
    start_ns: int
    end_ns: int
    pid: int
    thread: int


class Trace:
    """Takes down spans of one epoch; as ``ReuseDataset.trace``, set before workers start.

    Args:
        directory: where the files go; made when there is something to write.
        epoch: of the samples that count; None for none of them.
        most: spans of a process, after which no more are taken down.
    """

    def __init__(
        self, directory: Path = Path(), epoch: int | None = None, most: int = 20_000
    ) -> None:
        self._directory, self._epoch, self._left = directory, epoch, most
        self._spans: list[Span] = []

    def add(self, what: str, key: ReuseKey, start_ns: int) -> None:
        """Take down something that ends now."""
        if key.epoch == self._epoch and self._left > 0:
            self._left -= 1
            thread = threading.get_native_id()
            span = Span(what, key.index, start_ns, perf_counter_ns(), os.getpid(), thread)
            self._spans.append(span)

    def write(self) -> None:
        """Append what was taken down; where that cannot be done it is lost."""
        if not self._spans:
            return
        text = "".join(" ".join(map(str, span)) + "\n" for span in self._spans)
        self._spans.clear()
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            with open(self._directory / f"{os.getpid()}.txt", "a", encoding="ascii") as file:
                file.write(text)


def read_spans(directory: Path) -> Iterator[Span]:
    """Yield what all processes have written; a line that is not whole is left out."""
    for file in sorted(directory.glob("*.txt")):
        for line in file.read_text(encoding="ascii").splitlines(keepends=True):
            what, *numbers = line.split()
            if line.endswith("\n"):
                yield Span(what, *map(int, numbers))
