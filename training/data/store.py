"""Files of a remote store, by fsspec: fetched whole or not at all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import quote

from training.checks import ConfigError
from training.data.images import UnreadableError

_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)
"""What another attempt would not change."""

_LONGEST_PAUSE_S = 10.0


class Store:
    """A folder of a store; each process connects by itself, at its first file.

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
        self._options = storage_options
        self._timeout_s = timeout_s
        self._num_attempts = num_attempts
        self._pause_s = pause_s
        self._connection: tuple[int, Any, str] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

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
        self._connected()  # a mistake in the address is no matter of attempts
        pause_s = self._pause_s
        for attempt in range(1, self._num_attempts + 1):
            try:
                data = self._fetch_once(name)
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

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of each file below a folder, in the order of the names."""
        system, root = self._connected()
        found = system.find(f"{root}/{folder}", detail=True)
        for path in sorted(found):
            yield path.removeprefix(f"{root}/"), int(found[path]["size"])

    def _fetch_once(self, name: str) -> bytes:
        system, root = self._connected()
        # In an address some characters have other meanings.
        path = f"{root}/{quote(name) if root.startswith(('http:', 'https:')) else name}"
        if getattr(system, "async_impl", False):
            from fsspec.asyn import sync

            return bytes(sync(system.loop, system._cat_file, path, timeout=self._timeout_s))
        return _limited(lambda: bytes(system.cat_file(path)), self._timeout_s)

    def _connected(self) -> tuple[Any, str]:
        with self._lock:
            if self._connection is None or self._connection[0] != os.getpid():
                self._connection = (os.getpid(), *_connect(self.url, self._options))
            return self._connection[1:]


def _connect(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConfigError("a remote store needs fsspec: pip install '.[remote]'") from error
    try:
        system, root = url_to_fs(url, use_listings_cache=False, **options)
    except (ImportError, ValueError) as error:  # a package is missing, or no such protocol
        raise ConfigError(
            f"url must be one that fsspec can open, but got {url}: {error}"
        ) from error
    return system, str(root)


def _check_whole(data: bytes, num_bytes: int | None, digest: str | None) -> None:
    if num_bytes is not None and len(data) != num_bytes:
        raise ValueError(f"got {len(data)} bytes instead of {num_bytes}")
    if digest is not None and sha256(data).hexdigest() != digest.lower():
        raise ValueError("its SHA-256 is another one")


def _limited(call: Any, timeout_s: float) -> bytes:
    """Call a function that cannot be told to stop, and leave it to itself when it takes long."""
    answers: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((b"", error))

    threading.Thread(target=run, daemon=True).start()
    try:
        data, error = answers.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError(f"no answer within {timeout_s} s") from None
    if error is not None:
        raise error
    return bytes(data)
