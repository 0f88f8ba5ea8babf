from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

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
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(source), file=self._process.stdin, flush=True)
        answer, error = json.loads(self._process.stdout.readline())
        if error is not None:
            raise RuntimeError(error)
        return answer

    def kill(self) -> None:
        """End this process alone, as the kernel does when memory runs out."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its workers too; the group is its own
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Start further processes, which end with the test: ``start(RANK="0")`` sets variables."""
    processes: list[Process] = []

    def start_one(**env: str) -> Process:
        processes.append(Process(env))
        return processes[-1]

    yield start_one
    for process in processes:
        process.close()


@pytest.fixture
def deadline() -> Iterator[None]:
    """Turn a hang into a failure after 20 s."""

    def expire(signum: int, frame: object) -> None:
        pytest.fail("the test hung")  # no OSError, which the code under test might catch

    previous = signal.signal(signal.SIGALRM, expire)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def torch_switches() -> Iterator[None]:
    """Give each test torch's own switches, whatever a training inside the one before set."""
    num_threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, False
    torch.set_num_threads(num_threads)
