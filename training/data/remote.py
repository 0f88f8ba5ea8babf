"""Records of a remote store, of which a part at a time lies on the local disk."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from reuseloader import ReuseKey, SlotRecords
from training.checks import check, check_minimum
from training.data.images import UnreadableError
from training.data.remote_index import read_index
from training.data.remote_records import Records
from training.data.standin import read_or_next, skips
from training.data.store import Store

_LONGEST_S = 1e6  # eleven days; clocks end behind it
_NUM_SAMPLED = 8  # records that the identity reads


class Remote:
    """Images, or arrays as .npy, in a store that may be larger than the disk.

    An index of the loader is a slot on the local disk. In each generation it gets another record,
    and each record is used once before any is used twice. Below the folder lie `train.csv` and
    `val.csv` with the columns path, num_bytes, label and perhaps sha256, or else class folders
    `train/CLASS/` and `val/CLASS/`.

    Args:
        url: the folder, as fsspec writes it.
        split: `train` or `val`.
        size: number of slots, or a table of first epoch -> slots; None keeps all records.
        lifetime: of the loader.
        seed: of the run.
        storage_options: what fsspec's file system takes.
        timeout_s: how long one attempt to fetch a record may take.
        num_attempts: to fetch it, at most.
        num_fetches: at the same time, in each process.
        on_error: `raise` where a record cannot be had, or `skip` it.
        pause_s: before the second attempt; it doubles with each further one.
        rgb: make three channels of one.

    Raises:
        ValueError: an argument breaks a rule, or the store does not hold what it has to.
    """

    def __init__(
        self,
        url: str,
        split: str,
        size: int | Mapping[int, int] | None = None,
        lifetime: int = 1,
        seed: int = 0,
        storage_options: dict[str, Any] | None = None,
        timeout_s: float = 60.0,
        num_attempts: int = 5,
        num_fetches: int = 8,
        on_error: str = "raise",
        pause_s: float = 0.2,
        rgb: bool = True,
    ) -> None:
        check("split", split, split in ("train", "val"), "train or val")
        folder = "the folder of a store, like s3://bucket/folder"
        check("url", repr(url), bool(url.strip()), folder)
        holds = 0 < timeout_s <= _LONGEST_S
        check("timeout_s", timeout_s, holds, "a positive number, at most a million")
        check_minimum("num_attempts", num_attempts, 1)
        check_minimum("num_fetches", num_fetches, 1)
        self._skips, self._rgb = skips(on_error), rgb
        store = Store(url, storage_options or {}, timeout_s, num_attempts, pause_s)
        self._index = read_index(store, split)
        self._records = Records(store, self._index, num_fetches)
        known = self._index if split == "train" else read_index(store, "train")
        self.classes = known.classes()
        number = {name: label for label, name in enumerate(self.classes)}
        if strange := set(self._index.labels) - set(number):
            raise ValueError(f"{min(strange)} must be a class of training as well, but is none")
        self.labels = np.array([number[name] for name in self._index.labels])
        self.size_table = size
        self._slots: SlotRecords | None = None
        if size is not None:
            self._slots = SlotRecords(size, len(self), lifetime=lifetime, seed=seed)

    def __len__(self) -> int:
        return len(self.labels)

    def record_of(self, key: ReuseKey) -> int:
        """Return the record that a slot holds in a generation."""
        return key.index if self._slots is None else self._slots.record(key.index, key.generation)

    def prefetch(self, keys: list[ReuseKey]) -> None:
        """Begin to fetch the records of these keys, some at a time."""
        self._records.begin([self.record_of(key) for key in keys])

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the record `{"image": C x H x W, "label": int}`.

        Raises:
            UnreadableError: it cannot be had; names it.
        """
        return read_or_next(self._read, index, len(self)) if self._skips else self._read(index)

    def _read(self, record: int) -> dict[str, Any]:
        label = int(self.labels[record])
        return {"image": self._records.image(record, self._rgb), "label": label}

    def identity(self) -> str:
        """Return a digest of names, lengths, classes and digests, and of some of the records."""
        index = self._index
        total = sha256(f"{self.classes!a} {self._rgb}".encode())
        for column in (index.names, index.num_bytes, self.labels, index.digests):
            total.update(f"{column.dtype.str} {column.shape}".encode() + column.tobytes())
        for record in sorted({*range(0, len(self), -(-len(self) // _NUM_SAMPLED)), len(self) - 1}):
            total.update(self._sampled(record))
        return total.hexdigest()

    def _sampled(self, record: int) -> bytes:
        try:
            return self._records.fetch(record)
        except UnreadableError:
            if not self._skips:
                raise
            return b"unreadable"  # its name and length count already
