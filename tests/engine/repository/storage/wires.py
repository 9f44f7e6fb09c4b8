"""What stands between a source and a storage: a wire that counts and breaks, a listener that records."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler

from tests.support.answering import answering


class Wire:
    """Forwards to a port on loopback, counts what the server sends, and may stop after so many bytes."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._left: int | None = None
        self._stall = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._open = True
        self.down = 0
        self.broken = threading.Event()
        self._start(self._accept)

    def break_after(self, nbytes: int, *, stall: bool = False) -> None:
        """Let `nbytes` more through, then close every connection, or leave them open and silent (`stall`)."""
        with self._lock:
            self._left = nbytes
            self._stall = stall
        self.broken.clear()

    def mend(self) -> None:
        """Forward everything again, and count from nought."""
        with self._lock:
            self._left = None
            self.down = 0

    def close(self) -> None:
        self._open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._drop()
        for thread in list(self._threads):
            thread.join(5)

    def _accept(self) -> None:
        while self._open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            self._start(partial(self._pump, client, server, self._up))
            self._start(partial(self._pump, server, client, self._through))

    def _pump(self, source: socket.socket, target: socket.socket, admit: Callable[[int], int]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                admitted = admit(len(data))
                if admitted:
                    target.sendall(data[:admitted])
                if admitted < len(data):
                    self.broken.set()
                    if self._stall:
                        continue
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _up(self, nbytes: int) -> int:
        return nbytes

    def _through(self, nbytes: int) -> int:
        with self._lock:
            admitted = nbytes if self._left is None else min(nbytes, self._left)
            if self._left is not None:
                self._left -= admitted
            self.down += admitted
            return admitted

    def _drop(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()


@dataclass
class Recorder:
    """An HTTP server that records its requests and answers with one status."""

    port: int = 0
    status: int = 404
    body: bytes = b""
    asked: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        """Return a header of the newest request."""
        return self.asked[-1][2].get(name.lower())


@contextmanager
def recorder() -> Iterator[Recorder]:
    record = Recorder()

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        headers = {name.lower(): value for name, value in request.headers.items()}
        record.asked.append((request.command, request.path, headers))
        return record.status, record.body

    with answering(answer) as url:
        record.port = int(url.rpartition(":")[2])
        yield record
