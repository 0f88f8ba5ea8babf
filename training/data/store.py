"""Files of a remote store: fetched whole or not at all, in as many attempts as that may take."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Any

from training.data.connection import Connection
from training.data.images import UnreadableError

_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)
"""What another attempt would not change."""

_LONGEST_PAUSE_S = 10.0


class Store:
    """A folder of a store.

    Args:
        url: the folder: s3://bucket/folder, https://host/folder, or any other that fsspec knows.
        storage_options: what fsspec's file system takes: keys, endpoints.
        timeout_s: how long one attempt to fetch a file may take.
        num_attempts: how often a fetch is begun, at most.
        pause_s: before the second attempt; it doubles with each further one.
    """

    def __init__(
        self,
        url: str,
        storage_options: dict[str, Any],
        timeout_s: float,
        num_attempts: int,
        pause_s: float,
    ) -> None:
        self.url = url.rstrip("/")
        self._connection = Connection(self.url, storage_options, timeout_s)
        self._num_attempts = num_attempts
        self._pause_s = pause_s

    def fetch(self, name: str, num_bytes: int | None = None, digest: str | None = None) -> bytes:
        """Return all that a file holds.

        Args:
            name: relative to the folder.
            num_bytes: how long it is; None where that is not known.
            digest: its SHA-256 in hex; None where that is not known.

        Raises:
            FileNotFoundError: there is no such file.
            UnreadableError: it could not be fetched in any attempt; names it and says why.
        """
        self._connection.open()  # a mistake in the address is no matter of attempts
        pause_s = self._pause_s
        for attempt in range(1, self._num_attempts + 1):
            try:
                data = self._connection.read(name)
                _check_whole(data, num_bytes, digest)
                return data
            except FileNotFoundError:
                raise
            except Exception as error:  # of any of fsspec's file systems
                if attempt == self._num_attempts or isinstance(error, _FINAL):
                    reason = " ".join(str(error).split()) or type(error).__name__
                    times = "once" if attempt == 1 else f"{attempt} times"
                    raise UnreadableError(
                        f"{self.url}/{name} cannot be read, tried {times}: {reason}"
                    ) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the name of each file below a folder, in order, with its size in bytes."""
        return self._connection.sizes(folder)


def _check_whole(data: bytes, num_bytes: int | None, digest: str | None) -> None:
    if num_bytes is not None and len(data) != num_bytes:
        raise ValueError(f"got {len(data)} bytes instead of {num_bytes}")
    if digest is not None and sha256(data).hexdigest() != digest.lower():
        raise ValueError("its SHA-256 is another one")
