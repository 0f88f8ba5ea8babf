"""One pass of a loader: what leaves the workers, and what the user receives."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate, default_convert

from reuseloader.dataset import ReuseDataset
from reuseloader.delivery import CollatedDelivery, Delivery
from reuseloader.messages import News


@dataclass
class Position:
    """How far a pass has come."""

    epoch: int
    num_batches: int


class Collate:
    """The user's collate function; sends the dataset's counts along with the batch."""

    def __init__(self, dataset: ReuseDataset, options: dict[str, Any]) -> None:
        single = options.get("batch_size", 1) is None and options.get("batch_sampler") is None
        self._dataset = dataset
        default = default_convert if single else default_collate
        self._collate = options.get("collate_fn") or default
        self._deliver: type[Delivery] = Delivery
        if self._collate is default_collate:
            self._collate = dataset.read_batches()
            self._deliver = CollatedDelivery

    def __call__(self, samples: Any) -> Delivery:
        tally, news = self._dataset.hand_over()
        return self._deliver(self._collate(samples), tally, news)


@dataclass(eq=False)
class Pass(Iterator[Any]):
    """Unpacks the deliveries, and keeps count of what the user has received.

    Args:
        iterator: the deliveries.
        position: where the pass begins; moved with every batch.
        tally: counts of what made the batches received.
        length: gives the number of batches of an epoch.
        announce: shows messages to the user.
        begin: is told when this pass is asked for the first time.
        check_open: raises a ValueError where the loader is closed.
        in_workers: whether other processes make the batches.
    """

    iterator: Iterator[Delivery]
    position: Position
    tally: Counter[str]
    length: Callable[[int], int]
    announce: Callable[[list[News]], None]
    begin: Callable[[Pass], None]
    check_open: Callable[[], None]
    in_workers: bool
    finished: bool = False

    def __post_init__(self) -> None:
        self.epoch = self.position.epoch
        self._is_begun = False
        self._pid = os.getpid()

    def __len__(self) -> int:
        return self.length(self.epoch)

    def __next__(self) -> Any:
        self.check_open()
        if not self._is_begun:
            self._is_begun = True
            self.begin(self)
        try:
            delivery = next(self.iterator)
        except StopIteration:
            if not self.finished:
                self.position.epoch, self.position.num_batches = self.epoch + 1, 0
            self.finished = True
            raise
        except Exception as error:
            if not self.in_workers:
                raise
            if isinstance(error, (OSError, EOFError)) and (pids := self._killed()):
                # Its memory could not be received any more, which says nothing to a user.
                text = f"a worker of the loader was killed (pid {pids[0]})"
                self.let_go()
                raise RuntimeError(text) from error.with_traceback(None)
            # The text holds the worker's traceback. What this process's own holds on to, wherever
            # the error is kept, is the iterator, and its workers would be waited for 5 s each.
            self.let_go()
            error.__context__ = None  # torch's own, of an error that it cannot make again
            raise error.with_traceback(None)  # noqa: B904
        self.position.num_batches += 1
        self.tally.update(delivery.tally)
        self.announce(delivery.news)
        return delivery.batch

    def _killed(self) -> list[int]:
        workers = getattr(self.iterator, "_workers", [])  # private to torch, so not relied on
        for worker in workers:
            worker.join(0.05)  # the system may be at it
        return [worker.pid for worker in workers if (worker.exitcode or 0) < 0]

    def close(self) -> None:
        """End the workers; those of a parent that was forked are not this process's to end."""
        if os.getpid() != self._pid:
            return
        workers = getattr(self.iterator, "_workers", [])  # these two are private to torch
        getattr(self.iterator, "_shutdown_workers", lambda: None)()
        for worker in workers:
            worker.kill()  # one that is still at a build, which torch has asked to end
            worker.join()
        self.let_go()

    def let_go(self) -> None:
        """Give up the deliveries that are prepared."""
        self.iterator, self.finished = iter(()), True

    def take_over(self, other: Pass) -> None:
        """Become another pass, of which nothing was asked yet."""
        self.iterator, self.finished = other.iterator, other.finished
        self.position, self.tally, self.epoch = other.position, other.tally, other.epoch
