from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from processes import Process, RankGroup

if TYPE_CHECKING:
    from stopping import Updates


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


@pytest.fixture(scope="module")
def rank_group() -> Iterator[RankGroup]:
    """Ranks on gloo that the tests of a module share: ``rank_group.of(2).call(function)``."""
    group = RankGroup()
    yield group
    group.close()


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> Updates:
    """Sees what every update of a training is made from, and sends a signal in chosen ones."""
    from stopping import Updates  # and with it all of the training

    return Updates(monkeypatch)


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
