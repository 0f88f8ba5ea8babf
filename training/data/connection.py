"""A folder that fsspec opens, connected anew in each process; every answer within a time limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import quote

from training.checks import ConfigError


class Connection:
    """A folder of a store; a process connects when it first asks for something.

    Args:
        url: the folder, as fsspec writes it.
        options: what fsspec's file system takes: keys, endpoints.
        timeout_s: how long an answer may take.
    """

    def __init__(self, url: str, options: dict[str, Any], timeout_s: float) -> None:
        self._url, self._options, self._timeout_s = url, options, timeout_s
        self._opened: tuple[int, Any, str] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def open(self) -> tuple[Any, str]:
        """Return the file system of this process, and the folder's path in it.

        Raises:
            ConfigError: a package is missing, or fsspec cannot open the address.
        """
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = (os.getpid(), *_connect(self._url, self._options))
            return self._opened[1:]

    def read(self, name: str) -> bytes:
        """Return what comes when a file is asked for once; raise whatever the file system does."""
        system, root = self.open()
        # In an address some characters have other meanings.
        path = f"{root}/{quote(name) if root.startswith(('http:', 'https:')) else name}"
        if getattr(system, "async_impl", False):
            from fsspec.asyn import sync

            return bytes(sync(system.loop, system._cat_file, path, timeout=self._timeout_s))
        return _limited(lambda: bytes(system.cat_file(path)), self._timeout_s)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the name of each file below a folder, in order, with its size in bytes."""
        system, root = self.open()
        found = system.find(f"{root}/{folder}", detail=True)
        return {path.removeprefix(f"{root}/"): int(found[path]["size"]) for path in sorted(found)}


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


def _limited(call: Callable[[], bytes], timeout_s: float) -> bytes:
    """Call a function that cannot be told to stop, and leave it to itself when it takes long."""
    answers: SimpleQueue[tuple[bytes, BaseException | None]] = SimpleQueue()

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
    return data
