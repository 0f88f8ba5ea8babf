"""A file of a store is fetched whole or not at all, whatever the network does."""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from servers import FAULTS, Server, serving

from training.checks import ConfigError
from training.data.images import UnreadableError
from training.data.store import Store

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

BODY = bytes(range(256)) * 40


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.files = {"a/one.bin": BODY, "a/ü 2#?.bin": b"two", "a/empty": b""}
        yield running


def store_of(server: Server | str, **options: Any) -> Store:
    url = server if isinstance(server, str) else f"{server.url}/a"
    options = {"timeout_s": 0.5, "num_attempts": 3, "pause_s": 0.01, **options}
    return Store(url, options.pop("storage_options", {}), **options)


def test_a_file_arrives_as_it_is(server: Server) -> None:
    store = store_of(server)
    assert store.fetch("one.bin", len(BODY), hashlib.sha256(BODY).hexdigest()) == BODY
    assert store.fetch("ü 2#?.bin") == b"two"
    assert store.fetch("empty", 0) == b""
    assert sum(server.asked.values()) == 3


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_once_is_tried_again(fault: str, server: Server) -> None:
    server.faults["a/one.bin"] = [fault]
    assert store_of(server).fetch("one.bin", len(BODY)) == BODY
    assert server.asked["a/one.bin"] == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_every_time_is_one_error_that_names_the_file(
    fault: str, server: Server
) -> None:
    server.faults["a/one.bin"] = [fault] * 9
    with pytest.raises(UnreadableError) as caught:
        store_of(server, timeout_s=0.2).fetch("one.bin", len(BODY))
    said = str(caught.value)
    assert said.startswith(f"{server.url}/a/one.bin cannot be read, tried 3 times: ")
    assert len(said) > len(f"{server.url}/a/one.bin cannot be read, tried 3 times: ")
    assert "\n" not in said
    # aiohttp asks once more where a connection that was used before turns out to be closed.
    assert server.asked["a/one.bin"] in ([3, 4, 5, 6] if fault == "reset" else [3])
    lengths = {"short": f"got {len(BODY) // 2} bytes instead of {len(BODY)}",
               "long": f"got {len(BODY) + 4} bytes instead of {len(BODY)}"}  # fmt: skip
    assert lengths.get(fault, "") in said


def test_a_server_that_is_gone_is_one_error(server: Server) -> None:
    with serving() as other:
        url = other.url
    with pytest.raises(UnreadableError, match=f"^{url}/one.bin cannot be read, tried 3 times: "):
        store_of(url).fetch("one.bin")


def test_a_file_that_is_not_there_is_asked_for_once(server: Server) -> None:
    with pytest.raises(FileNotFoundError):
        store_of(server).fetch("nothing.bin")
    assert server.asked["a/nothing.bin"] == 1


def test_other_bytes_than_those_of_the_digest_are_refused(server: Server) -> None:
    with pytest.raises(UnreadableError, match="its SHA-256 is another one"):
        store_of(server).fetch("one.bin", len(BODY), hashlib.sha256(b"other").hexdigest())
    assert server.asked["a/one.bin"] == 3


def test_the_pause_doubles(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("training.data.store.time.sleep", pauses.append)
    server.latency_s = 0.0
    server.faults["a/one.bin"] = ["500"] * 9
    with pytest.raises(UnreadableError, match="tried 9 times"):
        store_of(server, num_attempts=9, pause_s=0.5).fetch("one.bin")
    mine = [pause for pause in pauses if pause]  # the server's latency is 0
    assert mine == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_several_threads_fetch_at_once(server: Server) -> None:
    server.files = {f"a/{number}": bytes([number]) * 100 for number in range(24)}
    server.latency_s = 0.05
    store = store_of(server)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: store.fetch(str(number), 100), range(24)))
    assert found == [bytes([number]) * 100 for number in range(24)]
    assert server.most_at_once == 8


def test_another_process_connects_by_itself(server: Server) -> None:
    store = store_of(server)
    store.fetch("one.bin")
    copy = pickle.loads(pickle.dumps(store))
    assert copy._connection._opened is None
    assert copy.fetch("one.bin", len(BODY)) == BODY
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(sender, hashlib.sha256(store.fetch("one.bin", len(BODY))).digest())
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(receiver, 99) == hashlib.sha256(BODY).digest()
    os.close(receiver)
    os.close(sender)


def test_a_local_folder_is_a_store_too(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.bin").write_bytes(b"22")
    (tmp_path / "b" / "1.bin").write_bytes(b"1")
    for url in (str(tmp_path), f"file://{tmp_path}/"):
        store = store_of(url)
        assert store.fetch("b/2.bin", 2) == b"22"
        assert list(store.sizes("b").items()) == [("b/1.bin", 1), ("b/2.bin", 2)]


def test_a_file_system_that_cannot_be_stopped_is_left_alone_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    release = threading.Event()
    monkeypatch.setattr(LocalFileSystem, "cat_file", lambda *_: release.wait(20))
    start = time.monotonic()
    with pytest.raises(UnreadableError, match=r"tried 2 times: no answer within 0\.1 s"):
        store_of(str(tmp_path), timeout_s=0.1, num_attempts=2).fetch("a")
    release.set()
    assert time.monotonic() - start < 15  # not the 20 s of a call


@pytest.mark.parametrize("url", ["nothing://host/folder", "s3:/", "memory"])
def test_an_address_that_cannot_be_opened_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises((ConfigError, FileNotFoundError)):
        store_of(url).fetch("a")


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"^a remote store needs fsspec: pip install '\.\[remote"):
        store_of("http://127.0.0.1").fetch("a")
