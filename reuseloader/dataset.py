"""A map-style dataset that builds a sample once a generation and reads it until that ends."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from reuseloader.batches import BatchReader
from reuseloader.checks import check_integer
from reuseloader.folder import sample_name, sample_path, temporary_path
from reuseloader.messages import News, add_context, announce, call
from reuseloader.policy import ReuseKey, ReusePolicy
from reuseloader.requests import EpochBatch, EpochIndex
from reuseloader.residency import Residency, remove_left
from reuseloader.sample import Substitute, compact
from reuseloader.sharing import FolderUse
from reuseloader.sizes import SizeTable
from reuseloader.stats import ReuseStats
from reuseloader.store import (
    STALE,
    Identity,
    Load,
    Save,
    UnstorableSampleError,
    check_pair,
    load_torch,
    read_sample,
    save_torch,
)
from reuseloader.tensors import load_tensors
from reuseloader.trace import Trace
from reuseloader.verify import Verification

Build = Callable[[ReuseKey], Any]
Finish = Callable[[Any, ReuseKey], Any]
Prefetch = Callable[[list[ReuseKey]], None]


class ReuseDataset(Dataset[Any]):
    """Samples that serve ``policy.lifetime`` epochs each, kept as one file an index.

    For an index it computes the key of the current epoch. If the stored file has the identity
    needed (generation, sample seed, lifetime, fingerprint), it is read; otherwise ``build(key)``
    makes the sample, and it overwrites the same file unless this is its last use.

    Works in a plain ``DataLoader`` with ``set_epoch``; ``ReuseDataLoader`` sets the epoch itself.

    Args:
        build: makes a sample from a key, and draws from ``key.seed`` alone. A sample is any
            object that ``save`` can hold, on the CPU, without gradients.
        size: number of samples, or a table of numbers by first epoch, ``{0: 2000, 3: 8000}``:
            epochs ascend from 0, and sizes never fall.
        directory: folder of the stored samples, made where it does not exist.
        policy: lifetime and seed.
        fingerprint: text that changes whenever the build does; another one makes files stale.
        save: ``save(obj, path)`` writes a file; ``obj`` is a dict with the entries generation,
            seed, lifetime, fingerprint and sample.
        load: ``load(path)`` returns an equal dict. The default one unpickles: use only folders
            that this library wrote.
        finish: ``finish(sample, key)`` returns what the user gets; it runs at every use, after
            the store, and draws from ``key.use_seed``.
        verify: share of the reused samples, from 0 to 1, that are built again and compared bit
            for bit; the keys choose them, so they are the same in every run.
        resident: share of the indices, from 0 to 1, that are kept on disk; the others are built
            at each use. Chosen by ``(policy.seed, index)``; no sample depends on it.
        remove_used: remove the file of a sample after its last use, which otherwise the next
            generation overwrites; for ranks with folders of their own, where that is another's.
        prefetch: called with the keys of a batch that are about to be built, one after the other;
            so that it may begin to fetch for all of them.

    Attributes:
        trace: takes down when samples are built and read, where it is set before workers start.

    Raises:
        ValueError: an argument breaks a rule above, or the folder cannot be written.
        FolderInUseError: another process works in the folder.
        ImpureBuildError: at an index, where ``verify`` found a difference.
    """

    def __init__(
        self,
        build: Build,
        size: int | Mapping[int, int] | SizeTable,
        directory: str | os.PathLike[str],
        policy: ReusePolicy,
        *,
        fingerprint: str = "",
        save: Save = save_torch,
        load: Load = load_torch,
        finish: Finish | None = None,
        verify: float = 0.0,
        resident: float = 1.0,
        remove_used: bool = False,
        prefetch: Prefetch | None = None,
    ) -> None:
        self._check = Verification(build, verify)
        self.residency = Residency(policy.seed, resident)
        for name, function in {"build": build, "save": save, "load": load}.items():
            _check_callable(name, function)
        optional = {"finish": finish, "prefetch": prefetch}
        for name in (name for name, value in optional.items() if value is not None):
            _check_callable(name, optional[name])
        check_pair(save, load)
        if not isinstance(fingerprint, str):
            raise ValueError(f"fingerprint must be a string, but got fingerprint={fingerprint!r}")
        self.sizes = SizeTable.of(size)
        self.size = self.sizes.largest
        self.policy = policy
        self.fingerprint = fingerprint
        self.directory = Path(directory).absolute()
        self._prefix = os.path.join(self.directory, "")  # pathlib takes as long as reading a sample
        self._build = build
        self._finish = finish
        self._remove_used = bool(remove_used)
        self._prefetch = prefetch
        self._save = save
        self._load = load
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._tally: Counter[str] = Counter()
        self._news: list[News] = []
        self._said_once = False
        self._batches: BatchReader | None = None
        self._use = FolderUse(self.directory, (policy.seed, policy.lifetime, fingerprint), build)
        self.trace = Trace()

    def __len__(self) -> int:
        return self.sizes.at(int(self._epoch))

    def __iter__(self) -> Iterator[Any]:
        # Without it Python would take an IndexError of the user's build for the end.
        return (self[index] for index in range(len(self)))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the samples asked for next; running workers see it."""
        self.check_open()
        self._epoch.fill_(check_integer("epoch", epoch, minimum=0))
        if self.policy.lifetime > 1:  # else nothing is stored
            self._use.begin()

    def stats(self) -> ReuseStats:
        """Return the stats of this process since the dataset was made or a loader took them."""
        return ReuseStats.from_tally(self._tally)

    def close(self) -> None:
        """Let another process use the folder, when no worker works in it any more.

        A ``with`` block does it at its end; without either it happens when Python frees the
        dataset. Nothing can be asked of it afterwards but its stats.
        """
        self._use.close()

    def check_open(self) -> None:
        """Raise a ValueError where the dataset is closed."""
        self._use.check_open()

    def __enter__(self) -> ReuseDataset:
        self.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, index: int | EpochIndex) -> Any:
        if isinstance(index, EpochIndex):  # the loader passes the news on
            return self._get_tagged(EpochBatch(index.epoch, [index.sample]))[0]
        self.check_open()
        epoch = int(self._epoch)
        [checked] = self.sizes.check([index], epoch)
        sample = self._get(self.policy.key(checked, epoch))
        self._said_once = announce(self._news, self._said_once)
        self._news = []
        return sample

    def __getitems__(self, indices: Sequence[int] | EpochBatch) -> list[Any]:
        if not isinstance(indices, EpochBatch):
            return [self[index] for index in indices]
        return self._get_tagged(indices)

    def _get_tagged(self, batch: EpochBatch) -> list[Any]:
        if self._batches is not None:
            self._batches.start(len(batch.samples))
        try:
            indices = self.sizes.check(batch.samples, batch.epoch)
            keys = self.policy.keys(indices, batch.epoch)
            if self._prefetch is not None:
                self._prefetch([key for key in keys if self._will_build(key)])
            return [self._get(key, row) for row, key in enumerate(keys)]
        except Exception:
            self._tally.clear()  # a batch that fails is not delivered, nor are its counts
            raise

    def read_batches(self) -> Callable[[list[Any]], Any]:
        """Return what to collate with, for a loader that would use ``default_collate``.

        Where the format can do it, an ``EpochBatch`` is from now on read into the memory of its
        batch.
        """
        if self._load is not load_tensors:
            return default_collate
        self._batches = BatchReader(exposed=self._finish is not None)
        return self._batches.collate

    def hand_over(self) -> tuple[dict[str, int], list[News]]:
        """Return the counts and messages since the last call, and begin anew."""
        tally, news = self._tally, self._news
        self._tally, self._news = Counter(), []
        self.trace.write()
        return dict(tally), news

    def _get(self, key: ReuseKey, row: int | None = None) -> Any:
        identity = Identity(
            generation=key.generation,
            seed=key.seed,
            lifetime=self.policy.lifetime,
            fingerprint=self.fingerprint,
        )
        resident = self.residency.keeps(key.index)
        sample = self._read(key, identity, row) if resident else self._leave_out(key)
        if sample is STALE:
            sample, storable = self._make(key)
            if storable and resident and not key.is_last_use:
                self._store(sample, sample_path(self.directory, key.index), identity)
        elif self._check.chooses(key):
            self._check(sample, key)
        if key.is_last_use and self._remove_used:
            remove_left(self._prefix + sample_name(key.index))
        if self._finish is None:
            return sample
        return call("finish", key, self._finish, sample, key)

    def _will_build(self, key: ReuseKey) -> bool:
        """Say whether a sample is not there, as far as can be told without reading it."""
        begins = key.epoch == key.first_epoch or not self.residency.keeps(key.index)
        return begins or not os.path.exists(self._prefix + sample_name(key.index))

    def _leave_out(self, key: ReuseKey) -> Any:
        remove_left(self._prefix + sample_name(key.index))
        return STALE

    def _read(self, key: ReuseKey, identity: Identity, row: int | None) -> Any:
        """Return the stored sample, or ``STALE`` where there is none that may be used."""
        start = perf_counter_ns()
        path = self._prefix + sample_name(key.index)
        try:
            if row is None or self._batches is None:
                sample, num_bytes = read_sample(Path(path), identity, self._load)
            else:
                likely = key.epoch > key.first_epoch
                sample, num_bytes = self._batches.read(path, identity.digest(), row, likely)
        except FileNotFoundError:
            return STALE
        except Exception as error:  # whatever a damaged file makes a reader raise
            self._tally["damaged"] += 1
            text = f"{path} is damaged and is built again: {error or type(error).__name__}"
            self._news.append(News(text, once=False))
            return STALE
        if sample is not STALE:
            self._tally["reused"] += 1
            self._tally["read_ns"] += perf_counter_ns() - start
            self._tally["read_bytes"] += num_bytes
            self.trace.add("read", key, start)
        return sample

    def _make(self, key: ReuseKey) -> tuple[Any, bool]:
        """Return a new sample, and whether it may be stored."""
        start = perf_counter_ns()
        sample = call("build", key, self._build, key)
        self._tally["built"] += 1
        self._tally["build_ns"] += perf_counter_ns() - start
        self.trace.add("build", key, start)
        storable = not isinstance(sample, Substitute)
        if not storable:
            self._tally["substituted"] += 1
            text = f"{sample.reason} (index={key.index}, epoch={key.epoch})"
            self._news.append(News(text, once=False))
            sample = sample.sample
        return call("the sample", key, compact, sample), storable

    def _store(self, sample: Any, path: Path, identity: Identity) -> None:
        temporary = temporary_path(path)
        try:
            try:
                self._save(identity.envelope(sample), temporary)
                written = temporary.stat().st_size
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except UnstorableSampleError as error:
            add_context(error, f"index={path.stem.lstrip('0') or '0'}")
            raise
        except Exception as error:  # the sample itself is good
            self._tally["save_errors"] += 1
            if not path.is_dir():  # which the read has already reported
                text = f"{path} cannot be stored and will be built again: {error}"
                self._news.append(News(text, once=True))
            return
        self._tally["stored"] += 1
        self._tally["written_bytes"] += written


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name} must be callable, but got {name}={value!r}")
