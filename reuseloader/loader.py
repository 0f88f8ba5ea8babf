"""A DataLoader whose workers make only ``1 / lifetime`` of the samples in an epoch."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, default_collate, default_convert

from reuseloader.dataset import Build, Finish, Prefetch, ReuseDataset
from reuseloader.delivery import CollatedDelivery, Delivery, widen_pipe
from reuseloader.messages import News, announce
from reuseloader.policy import ReusePolicy, check_integer, mix
from reuseloader.sampler import EpochTagger, ReuseSampler
from reuseloader.stats import ReuseStats
from reuseloader.store import Load, Save, load_torch, save_torch

_STATE_VERSION = 1
_TO_SEED_WORKERS = 4  # after the three streams of the policy


class ReuseDataLoader(DataLoader[Any]):
    """A DataLoader in which a prepared sample serves ``lifetime`` consecutive epochs.

    The epoch rises by one at every started pass, also at one that is broken off. It travels to
    the workers with each index, so that a sample belongs to the epoch of the pass that asked.

    Args:
        build, size, directory, fingerprint, save, load, finish, verify, resident, prefetch: as
            in ``ReuseDataset``.
        lifetime: epochs that a sample serves, a positive integer.
        seed: any integer, taken modulo 2^64.
        start_epoch: epoch of the first pass, from 0 up; with it a run continues after an epoch.
        shuffle: follow ``policy.order``, a new order in every epoch. Reuse does not depend on the
            order: a ``sampler`` or ``batch_sampler`` is followed as it is.
        dataloader_options: every other option of ``torch.utils.data.DataLoader``. Without a
            ``generator``, the global seeds of workers follow from ``(seed, epoch)`` and the
            global generator of this process is left alone.

    Raises:
        ValueError: an argument breaks a rule above, or the folder cannot be written.
        FolderInUseError: another process works in the folder.
    """

    def __init__(
        self,
        build: Build,
        size: int,
        directory: str | os.PathLike[str],
        *,
        lifetime: int,
        seed: int = 0,
        start_epoch: int = 0,
        shuffle: bool = False,
        fingerprint: str = "",
        save: Save = save_torch,
        load: Load = load_torch,
        finish: Finish | None = None,
        verify: float = 0.0,
        resident: float = 1.0,
        prefetch: Prefetch | None = None,
        **dataloader_options: Any,
    ) -> None:
        self.policy = ReusePolicy(lifetime, seed)
        self._epoch = check_integer("start_epoch", start_epoch, minimum=0)
        self._skip = 0  # batches that the next pass leaves out, after a state was loaded
        self._current = _Position(self._epoch, 0)  # of the pass that was started last
        self._tally: Counter[str] = Counter()
        self._said_once = False
        self._persistent_pass: weakref.ref[_Pass] | None = None
        self._dataset = dataset = ReuseDataset(
            build,
            size,
            directory,
            self.policy,
            fingerprint=fingerprint,
            save=save,
            load=load,
            finish=finish,
            verify=verify,
            resident=resident,
            prefetch=prefetch,
        )
        options = dict(dataloader_options)
        self._own_generator = options.get("generator") is None
        if self._own_generator:
            options["generator"] = torch.Generator()
        self._own_order: ReuseSampler | None = None
        if shuffle and options.get("sampler") is None and options.get("batch_sampler") is None:
            shuffle = False
            options["sampler"] = self._own_order = ReuseSampler(self.policy, dataset.size)
        options["collate_fn"] = _Collate(dataset, options)
        super().__init__(dataset, shuffle=shuffle, **options)

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self._epoch

    @property
    def resident(self) -> float:
        """The share of the indices that are kept on disk; it may be set between any two uses."""
        return self._dataset.residency.share

    @resident.setter
    def resident(self, share: float) -> None:
        self._dataset.residency.share = share

    def stats(self) -> ReuseStats:
        """Return counts and seconds of the last started pass, for the batches received so far."""
        return ReuseStats.from_tally(self._tally)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; the one it has already keeps a loaded position."""
        epoch = check_integer("epoch", epoch, minimum=0)
        if epoch != self._epoch:
            self._epoch, self._skip = epoch, 0
            self._current = _Position(epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """Return where the last started pass is, by the batches that the user has received.

        After the last batch of an epoch the state stands at its end; when the pass has ended, at
        the start of the next epoch. It survives JSON.
        """
        epoch, num_batches = self._current.epoch, self._current.num_batches
        return {**self._signature(), "epoch": epoch, "num_batches": num_batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next pass continue with the batch behind a state, in the epoch of the state.

        What was passed is neither built nor read; with ``shuffle`` or in the plain order this
        costs O(1), with a sampler of the user's own its indices are drawn and dropped.

        Raises:
            ValueError: the state is none, or that of a loader with other settings.
        """
        names = {*self._signature(), "epoch", "num_batches"}
        if not isinstance(state, dict) or state.keys() != names:
            raise ValueError(
                f"state must have the entries {', '.join(sorted(names))}, but got {state!r}"
            )
        for name, value in self._signature().items():
            if state[name] != value:
                raise ValueError(
                    f"state must have the {name} of this loader, {value}, "
                    f"but got {name}={state[name]}"
                )
        epoch = check_integer("epoch", state["epoch"], minimum=0)
        skip = check_integer("num_batches", state["num_batches"], minimum=0)
        if skip > len(self):
            raise ValueError(f"num_batches must be at most {len(self)}, but got num_batches={skip}")
        self._epoch, self._skip = epoch, skip
        self._current = _Position(epoch, skip)

    def _signature(self) -> dict[str, int]:
        return {
            "version": _STATE_VERSION,
            "seed": self.policy.seed,
            "lifetime": self.policy.lifetime,
            "size": self._dataset.size,
            "batch_size": self.batch_size or 0,  # 0: batches are not this loader's to make
            "world_size": 1,
        }

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._current = _Position(self._epoch, self._skip)
        self._epoch, self._skip = self._epoch + 1, 0
        if self._own_generator:
            seed = mix(self.policy.seed, _TO_SEED_WORKERS, self._current.epoch) >> 1
            self.generator.manual_seed(seed)
        self._tally = Counter()
        self._dataset.hand_over()  # what was looked at in between belongs to no pass
        persistent = self.persistent_workers and self.num_workers > 0
        current = None if self._persistent_pass is None else self._persistent_pass()
        if persistent and current is not None and not current.finished:
            # A pass over the persistent workers is still alive: this one gets its own.
            return _Pass(self, self._get_iterator())
        reuse_pass = _Pass(self, super().__iter__())
        if persistent:
            self._persistent_pass = weakref.ref(reuse_pass)
        return reuse_pass

    def _get_iterator(self) -> Any:
        iterator = super()._get_iterator()
        widen_pipe(iterator)
        return iterator

    @property
    def _index_sampler(self) -> EpochTagger:
        # Where DataLoader takes its indices from, for single samples and for batches alike.
        # The tagger knows this loader weakly: persistent workers hold it, and deleting the loader
        # has to end them at once.
        loader = weakref.proxy(self)
        batched = self.batch_sampler is not None
        return EpochTagger(
            super()._index_sampler, lambda sampler: loader._start_order(sampler), batched
        )

    def _announce(self, news: list[News]) -> None:
        self._said_once = announce(news, self._said_once)

    def _start_order(self, sampler: Any) -> tuple[int, Iterator[Any]]:
        """Return the epoch of the pass that starts now, and its indices or batches of indices."""
        epoch, skip = self._current.epoch, self._current.num_batches
        if self._own_order is None:
            return epoch, islice(iter(sampler), skip, None)
        if self.batch_size is None:
            return epoch, self._own_order.at(epoch, skip)
        order = self._own_order.at(epoch, skip * self.batch_size)
        return epoch, iter(BatchSampler(order, self.batch_size, self.drop_last))


@dataclass
class _Position:
    """How far a pass has come."""

    epoch: int
    num_batches: int


class _Collate:
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


class _Pass(Iterator[Any]):
    """One pass: unpacks the deliveries, and keeps count of what the user has received."""

    def __init__(self, loader: ReuseDataLoader, iterator: Iterator[Delivery]) -> None:
        self._loader = loader
        self._iterator = iterator
        self._tally = loader._tally
        self._position = loader._current
        self.finished = False

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        try:
            delivery = next(self._iterator)
        except StopIteration:
            if not self.finished:
                self._position.epoch, self._position.num_batches = self._position.epoch + 1, 0
            self.finished = True
            raise
        except Exception as error:
            if self._loader.num_workers == 0:
                raise
            # The text holds the worker's traceback. This process's own would keep the iterator
            # alive in a cycle, and its workers would be waited for 5 s each.
            raise error.with_traceback(None)  # noqa: B904
        self._position.num_batches += 1
        self._tally.update(delivery.tally)
        self._loader._announce(delivery.news)
        return delivery.batch
