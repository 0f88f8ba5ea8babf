"""A DataLoader whose workers make only ``1 / lifetime`` of the samples in an epoch."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from reuseloader.checks import check_integer
from reuseloader.dataset import Build, Finish, Prefetch, ReuseDataset
from reuseloader.delivery import widen_pipe
from reuseloader.messages import News, announce
from reuseloader.mixing import TO_SEED_WORKERS, mix
from reuseloader.order import EpochOrder
from reuseloader.passes import Collate, Pass, Position
from reuseloader.policy import ReusePolicy
from reuseloader.sampler import PassIndices, ToldSampler, tag
from reuseloader.state import position_of, state_at
from reuseloader.stats import ReuseStats
from reuseloader.store import Load, Save, load_torch, save_torch


class ReuseDataLoader(DataLoader[Any]):
    """A DataLoader in which a prepared sample serves ``lifetime`` consecutive epochs.

    The epoch rises by one at every started pass, also at one that is broken off. It travels to
    the workers with each index, so that a sample belongs to the epoch of the pass that asked.

    Args:
        build, size, directory, fingerprint, save, load, finish, verify, resident, remove_used,
            prefetch: as in ``ReuseDataset``.
        lifetime: epochs that a sample serves, a positive integer.
        seed: any integer, taken modulo 2^64.
        start_epoch: epoch of the first pass, from 0 up; with it a run continues after an epoch.
        shuffle: a new order in every epoch. Reuse does not depend on the order: a ``sampler`` or
            ``batch_sampler`` is followed as it is.
        num_replicas, rank, block_size: as in ``EpochOrder``. Each rank may have a folder of its
            own, or all of one machine the same.
        min_batch_size: fewest samples of the last batch of an epoch: one of fewer is left out, as
            with 2 for a norm over the batch.
        drop_uneven: make the ranks equal by leaving out up to ``num_replicas - 1`` samples of an
            epoch, where otherwise as many are used twice. (``drop_last`` is DataLoader's, and
            leaves out the short batch of each rank.)
        dataloader_options: every other option of ``torch.utils.data.DataLoader``. Without a
            ``generator``, the global seeds of workers follow from ``(seed, epoch, rank)`` and the
            global generator of this process is left alone.

    Attributes:
        order: which index comes at a position of an epoch, and how many of them are this rank's
            alone; None with a sampler of the user's own.

    Raises:
        ValueError: an argument breaks a rule above, or the folder cannot be written.
        FolderInUseError: another process works in the folder.
    """

    def __init__(
        self,
        build: Build,
        size: int | Mapping[int, int],
        directory: str | os.PathLike[str],
        *,
        lifetime: int,
        seed: int = 0,
        start_epoch: int = 0,
        shuffle: bool = False,
        num_replicas: int = 1,
        rank: int = 0,
        drop_uneven: bool = False,
        min_batch_size: int = 1,
        block_size: int = 1,
        fingerprint: str = "",
        save: Save = save_torch,
        load: Load = load_torch,
        finish: Finish | None = None,
        verify: float = 0.0,
        resident: float = 1.0,
        remove_used: bool = False,
        prefetch: Prefetch | None = None,
        **dataloader_options: Any,
    ) -> None:
        self.policy = ReusePolicy(lifetime, seed)
        epoch = check_integer("start_epoch", start_epoch, minimum=0)
        self._min_batch_size = check_integer("min_batch_size", min_batch_size, minimum=1)
        self._current = Position(epoch, 0)  # of the pass that was started last
        self._tally: Counter[str] = Counter()
        self._said_once = False
        self._persistent_pass: weakref.ref[Pass] | None = None
        self._passes: list[weakref.ref[Pass]] = []  # that may be alive
        self._pid = os.getpid()
        options = dict(dataloader_options)
        sampler = ToldSampler(
            self.policy,
            size,
            num_replicas=num_replicas,
            rank=rank,
            shuffle=shuffle,
            drop_last=drop_uneven,
            block_size=block_size,
        )
        self.order: EpochOrder | None = None
        if options.get("sampler") is None and options.get("batch_sampler") is None:
            self.order = sampler.order
            options["sampler"], shuffle = sampler, False
        else:
            _check_alone(num_replicas=num_replicas, block_size=block_size)
        self._own_sampler = sampler
        self._go_to(epoch)
        self._dataset = dataset = ReuseDataset(
            build,
            sampler.order.sizes,
            directory,
            self.policy,
            fingerprint=fingerprint,
            save=save,
            load=load,
            finish=finish,
            verify=verify,
            resident=resident,
            remove_used=remove_used,
            prefetch=prefetch,
        )
        self._own_generator = options.get("generator") is None
        if self._own_generator:
            options["generator"] = torch.Generator()
        options["collate_fn"] = Collate(dataset, options)
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

    def __len__(self) -> int:
        """Return the number of batches of the next pass, from the first batch of its epoch on."""
        return self.num_batches(self._epoch)

    def stats(self) -> ReuseStats:
        """Return counts and seconds of the last started pass, for the batches received so far."""
        return ReuseStats.from_tally(self._tally)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; the one it has already keeps a loaded position."""
        epoch = check_integer("epoch", epoch, minimum=0)
        if epoch != self._epoch:
            self._go_to(epoch)
            self._current = Position(epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """Return where the last started pass is, by the batches that the user has received.

        After the last batch of an epoch the state stands at its end; when the pass has ended, at
        the start of the next epoch. It survives JSON, and is the same on all ranks.
        """
        return state_at(self._current, self._own_sampler.order, self.batch_size)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next pass continue with the batch behind a state, in the epoch of the state.

        What was passed is neither built nor read; this costs O(1), but with a sampler of the
        user's own its indices are drawn and dropped. A state at the start of an epoch may be of
        another number of ranks: every sample stays what it is, and rank 0 warns that it may have
        to be built again. It may also be of a loader that did not grow in this epoch.

        Raises:
            ValueError: the state is none, or that of a loader with other settings.
        """
        position = position_of(state, self._own_sampler.order, self.batch_size)
        epoch, skip = position.epoch, position.num_batches
        if skip > 0 and skip > (most := self.num_batches(epoch)):
            raise ValueError(f"num_batches must be at most {most}, but got num_batches={skip}")
        self._go_to(epoch, skip)
        self._current = position

    def close(self) -> None:
        """End the workers, and let another process use the folder.

        A ``with`` block does it at its end; without either it happens when Python frees the loader
        and its passes. Neither can be iterated afterwards. A worker is waited for while it builds a
        sample, for 5 s at most. No other thread may be waiting for a batch.
        """
        try:
            for reuse_pass in self._living_passes():
                reuse_pass.close()
        finally:
            if os.getpid() == self._pid:
                self._iterator = None  # torch's own, of persistent workers
            self._dataset.close()

    def __enter__(self) -> ReuseDataLoader:
        self._dataset.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _go_to(self, epoch: int, skip: int = 0) -> None:
        """Set the epoch of the next pass, and how many batches it leaves out."""
        self._epoch, self._skip = epoch, skip
        self._own_sampler.go_to(epoch)

    def num_batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        if self.order is None:
            return super().__len__()
        num = self.order.length(epoch)
        if self.batch_size is None:
            return num
        num_whole, rest = divmod(num, self.batch_size)
        return num_whole + (0 if self.drop_last else rest >= self._min_batch_size)

    def __iter__(self) -> Pass:  # type: ignore[override]
        self._dataset.check_open()
        if self._own_sampler.told is not None:
            self.set_epoch(self._own_sampler.told)
        self._current = Position(self._epoch, self._skip)
        self._dataset.set_epoch(self._epoch)
        self._go_to(self._epoch + 1)
        if self._own_generator:
            rank = 0 if self.order is None else self.order.rank
            place = (self._current.epoch, rank) if rank else (self._current.epoch,)
            seed = mix(self.policy.seed, TO_SEED_WORKERS, *place) >> 1
            self.generator.manual_seed(seed)
        self._tally = Counter()
        self._dataset.hand_over()  # what was looked at in between belongs to no pass
        persistent = self.persistent_workers and self.num_workers > 0
        last = None if self._persistent_pass is None else self._persistent_pass()
        if persistent and last is not None and not last.finished:
            # A pass over the persistent workers is still alive: this one gets its own.
            return self._pass(self._get_iterator())
        reuse_pass = self._pass(super().__iter__())
        if persistent:
            self._persistent_pass = weakref.ref(reuse_pass)
        return reuse_pass

    def _get_iterator(self) -> Any:
        iterator = super()._get_iterator()
        widen_pipe(iterator)
        return iterator

    def _pass(self, iterator: Any) -> Pass:
        reuse_pass = Pass(
            iterator=iterator,
            position=self._current,
            tally=self._tally,
            length=self.num_batches,
            announce=self._announce,
            begin=self._begin,
            check_open=self._dataset.check_open,
            in_workers=self.num_workers > 0,
        )
        self._passes = [weakref.ref(one) for one in (*self._living_passes(), reuse_pass)]
        return reuse_pass

    def _living_passes(self) -> list[Pass]:
        return [one for one in (ref() for ref in self._passes) if one is not None]

    def _begin(self, started: Pass) -> None:
        """Let a pass that is asked for the first time be of the epoch told after its start."""
        told, epoch = self._own_sampler.told, self._current.epoch
        self._own_sampler.go_to(self._epoch)
        if told is None or told == epoch or started.position is not self._current:
            return
        started.let_go()
        self.set_epoch(told)
        started.take_over(iter(self))
        if self._persistent_pass is not None:
            self._persistent_pass = weakref.ref(started)

    @property
    def _index_sampler(self) -> PassIndices:
        # Where DataLoader takes its indices from, for single samples and for batches alike.
        # It knows this loader weakly: persistent workers hold it, and deleting the loader has to
        # end them at once.
        loader, sampler = weakref.proxy(self), super()._index_sampler
        return PassIndices(sampler, lambda: loader._start(sampler))

    def _announce(self, news: list[News]) -> None:
        self._said_once = announce(news, self._said_once)

    def _start(self, sampler: Any) -> Iterator[Any]:
        """Return the indices or batches of indices of the pass that starts now, with its epoch."""
        epoch, skip = self._current.epoch, self._current.num_batches
        batched = self.batch_sampler is not None
        if self.order is None:
            return tag(epoch, islice(iter(sampler), skip, None), batched)
        if self.batch_size is None:
            return tag(epoch, self._own_sampler.at(epoch, skip), batched)
        indices = self._own_sampler.at(epoch, skip * self.batch_size)
        batches = BatchSampler(indices, self.batch_size, drop_last=False)
        return tag(epoch, islice(batches, self.num_batches(epoch) - skip), batched)


def _check_alone(**settings: int) -> None:
    for name, value in settings.items():
        if value != 1:
            raise ValueError(
                f"{name} must be 1 with a sampler of your own, which decides what comes when, "
                f"but got {name}={value}"
            )
