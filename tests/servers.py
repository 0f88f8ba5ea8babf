"""A web server on loopback that does on purpose what goes wrong on real networks."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

FAULTS = ("500", "reset", "cut", "short", "long", "hang")
"""Answers: an error, none, half of the body, a whole but wrong body, and nothing for long."""


class Server(ThreadingHTTPServer):
    """Serves what is in `files`, and for a path in `faults` those first, one a request.

    Attributes:
        files: path without the first slash -> content.
        faults: path -> what to do wrong in the next requests.
        behind: host and port of another server, which is asked in place of `files`.
        latency_s: before each answer.
        asked: how often each path was asked for.
        most_at_once: requests that were under way at the same time.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.behind: str | None = None
        self.latency_s = 0.0
        self.asked: Counter[str] = Counter()
        self.most_at_once = 0
        self.released = threading.Event()
        self._under_way = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def begin(self, path: str) -> str | None:
        """Count a request; return the fault that it gets."""
        with self._lock:
            self.asked[path] += 1
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            waiting = self.faults.get(path)
            return waiting.pop(0) if waiting else None

    def end(self) -> None:
        """Note that an answer is given."""
        with self._lock:
            self._under_way -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away in these tests."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer, or do something wrong."""
        path = unquote(self.path[1:].partition("?")[0])
        fault = self.server.begin(path)
        try:
            time.sleep(self.server.latency_s)
            self._answer(path, fault)
        finally:
            self.server.end()

    def do_HEAD(self) -> None:
        """Answer with what a file is, and never wrongly."""
        status, body, headers = self._found(unquote(self.path[1:].partition("?")[0]))
        length = headers.pop("Content-Length", str(len(body)))
        self._send(status, b"", int(length), headers)

    def _answer(self, path: str, fault: str | None) -> None:
        if fault == "hang":
            self.server.released.wait(20)
        if fault in ("hang", "reset"):
            linger = struct.pack("ii", 1, 0)  # close with a reset
            with suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()
            return
        status, body, headers = self._found(path)
        half = body[: len(body) // 2]
        if fault == "500":
            self._send(500, b"an error page", 13, {})
        elif fault == "cut":
            self._send(status, half, len(body), headers)
            self.close_connection = True
        elif fault == "short":
            self._send(status, half, len(half), headers)
        elif fault == "long":
            self._send(status, body + b"more", len(body) + 4, headers)
        else:
            self._send(status, body, len(body), headers)

    def _found(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Return status and content, and of a server behind this one its headers."""
        if self.server.behind is None:
            body = self.server.files.get(path)
            return (404, b"an error page", {}) if body is None else (200, body, {})
        connection = http.client.HTTPConnection(self.server.behind)
        connection.request(self.command, self.path, headers=dict(self.headers))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        ours = ["connection", "date", "server", "transfer-encoding"]
        ours += ["content-length"] if self.command == "GET" else []
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in ours}
        return answer.status, body, headers

    def _send(self, status: int, body: bytes, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[Server]:
    """Serve until the block ends."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
