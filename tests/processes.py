"""Other processes of a test, alone or as the ranks of a run."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SERVER = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
scope = {}
for line in sys.stdin:
    try:
        exec(json.loads(line), scope)
        answer = [scope.pop("answer", None), None]
    except Exception as error:
        answer = [None, f"{type(error).__name__}: {error}"]
    print(json.dumps(answer), file=answers, flush=True)
"""


class Process:
    """Another Python process, which runs the source text it is asked to run."""

    def __init__(self, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
            start_new_session=True,
        )
        self.pid = self._process.pid

    def run(self, source: str) -> Any:
        """Return what the source leaves in ``answer``; an exception comes as a RuntimeError."""
        self.send(source)
        return self.receive()

    def send(self, source: str) -> None:
        """Let the source run; its answer has to be received."""
        assert self._process.stdin is not None
        print(json.dumps(source), file=self._process.stdin, flush=True)

    def receive(self) -> Any:
        """Wait for the answer to what was sent."""
        assert self._process.stdout is not None
        answer, error = json.loads(self._process.stdout.readline())
        if error is not None:
            raise RuntimeError(error)
        return answer

    def kill(self) -> None:
        """End this process alone, as the kernel does when memory runs out."""
        self._process.kill()
        self._process.wait()

    def answers(self, within_s: float) -> bool:
        """Say whether an answer comes in time."""
        return bool(select.select([self._process.stdout], [], [], within_s)[0])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its workers too; the group is its own
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


_HANG_S = 60.0


class RankGroup:
    """Processes that are the ranks of a run, as torchrun would start them."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._size = 0

    def of(self, size: int) -> RankGroup:
        """Let so many of them meet, and the others part."""
        return self if size == self._size else self.anew(size)

    def anew(self, size: int) -> RankGroup:
        """Let so many of them meet as for a new run."""
        self._each("training.distributed.leave_group()")
        while len(self._processes) < size:
            self._processes.append(Process({}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank, process in enumerate(self._processes[:size]):
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
            env = {"MASTER_ADDR": "127.0.0.1", **{name: str(n) for name, n in names.items()}}
            process.send(
                "import importlib, os, traceback, training.distributed\n"
                f"os.environ.update({env})\n"
                "training.distributed.join_group()"
            )
        self._size = size
        self._receive()
        return self

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function of a test module on every rank; return the answers by rank.

        Arguments and answers are whatever JSON holds, and paths.
        """
        values = [str(value) if isinstance(value, Path) else value for value in arguments]
        name = f"importlib.import_module({function.__module__!r}).{function.__name__}"
        self._each(
            f"try: answer = {name}(*{values!r})\nexcept Exception: traceback.print_exc(); raise"
        )
        return self._answers

    def _each(self, source: str) -> None:
        for process in self._processes[: self._size]:
            process.send(source)
        self._receive()

    def _receive(self) -> None:
        self._answers, errors = [], []
        give_up = time.monotonic() + _HANG_S
        for rank, process in enumerate(self._processes[: self._size]):
            while not process.answers(within_s=0.05) and time.monotonic() < give_up:
                # A rank that waits for one that failed does not answer.
                others = self._processes[rank + 1 : self._size]
                if any(other.answers(within_s=0) for other in others):
                    give_up = min(give_up, time.monotonic() + 5)
            if time.monotonic() >= give_up and not process.answers(within_s=0):
                errors.append(RuntimeError(f"rank {rank} hangs"))
                continue
            try:
                self._answers.append(process.receive())
            except RuntimeError as error:
                errors.insert(0, error)
        if errors:
            self.close()  # what the others wait for does not come
            raise errors[0]

    def close(self) -> None:
        """End the processes; `of` starts others."""
        for process in self._processes:
            process.close()
        self._processes, self._size = [], 0
