"""Records of a store by their number: fetched when they are asked for, or ahead of that."""

from __future__ import annotations

import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from torchvision import tv_tensors

from training.data.images import UnreadableError, decode, from_array
from training.data.remote_index import Index
from training.data.store import Store


class Records:
    """What an index lists.

    Args:
        store: where they are.
        index: their names, lengths and digests.
        num_fetches: made ahead at the same time, in each process.
    """

    def __init__(self, store: Store, index: Index, num_fetches: int) -> None:
        self._store, self._index, self._num_fetches = store, index, num_fetches
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._ahead: dict[int, Future[bytes]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_ahead": {}}

    def begin(self, records: list[int]) -> None:
        """Begin to fetch records, some at a time."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = (os.getpid(), ThreadPoolExecutor(self._num_fetches, "fetch"))
        pool = self._pool[1]
        self._ahead = {record: pool.submit(self.fetch, record) for record in dict.fromkeys(records)}

    def image(self, record: int, rgb: bool) -> tv_tensors.Image:
        """Return the image of a record; wait for it where it is fetched already.

        Raises:
            UnreadableError: it cannot be had; names it.
        """
        begun = self._ahead.pop(record, None)
        data = self.fetch(record) if begun is None else begun.result()
        try:
            return _image(self._name(record), data, rgb)
        except UnreadableError as error:
            raise UnreadableError(f"record {record}, {self._place(record)}: {error}") from error

    def fetch(self, record: int) -> bytes:
        """Return what a record holds, whole.

        Raises:
            UnreadableError: it cannot be had; names it.
        """
        digest = bytes(self._index.digests[record]).decode() or None
        try:
            return self._store.fetch(self._name(record), int(self._index.num_bytes[record]), digest)
        except FileNotFoundError as error:
            text = f"record {record}, {self._place(record)}, is not there any more"
            raise UnreadableError(text) from error
        except UnreadableError as error:
            raise UnreadableError(f"record {record}, {error}") from error

    def _name(self, record: int) -> str:
        return bytes(self._index.names[record]).decode()

    def _place(self, record: int) -> str:
        return f"{self._store.url}/{self._name(record)}"


def _image(name: str, data: bytes, rgb: bool) -> tv_tensors.Image:
    if not name.lower().endswith(".npy"):
        return decode(data)
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (EOFError, OSError, ValueError) as error:
        raise UnreadableError(f"no array: {error}") from error
    return from_array(array, rgb)
