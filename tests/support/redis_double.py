"""A Redis server of a few commands, in this process.

A test can stop it, start it again at its port, and make it hang.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Self


class RedisDouble:
    """PING, GET, SET, AUTH, SELECT and CLIENT over RESP2. `values` are by database and key."""

    def __init__(
        self, *, context: ssl.SSLContext | None = None, credentials: tuple[str, str] | None = None
    ) -> None:
        self.values: dict[tuple[int, bytes], bytes] = {}
        self.commands: list[bytes] = []  # names, in the order they came
        self.port = 0
        self._context = context
        self._credentials = credentials
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._lock = threading.Lock()

    # -- its life

    def start(self) -> None:
        """Listen: at the same port as before, if there was one."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._begin(self._accept, self._listener)

    def stop(self) -> None:
        """Be gone, connections and all; what it holds stays."""
        self._goes_on.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._threads.clear()

    def hang(self) -> None:
        """Accept and read, and answer nothing."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """Answer again."""
        self._goes_on.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- its work

    def _begin(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._begin(self._serve, connection)

    def _serve(self, plain: socket.socket) -> None:
        with self._lock:
            self._connections.add(plain)
        try:
            with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
                connection = stack.enter_context(self._secured(plain))
                file = stack.enter_context(connection.makefile("rwb"))
                self._answer_all(file)
        finally:
            with self._lock:
                self._connections.discard(plain)
            plain.close()

    def _secured(self, plain: socket.socket) -> socket.socket:
        return plain if self._context is None else self._context.wrap_socket(plain, server_side=True)

    def _answer_all(self, file) -> None:
        session = {"database": 0, "known": self._credentials is None}
        for words in _commands(file):
            self._goes_on.wait()
            file.write(self._answer(words, session))
            file.flush()

    def _answer(self, words: list[bytes], session: dict[str, int]) -> bytes:
        name, rest = words[0].upper(), words[1:]
        self.commands.append(name)
        if name == b"AUTH":
            user = rest[0].decode() if len(rest) == 2 else "default"
            session["known"] = (user, rest[-1].decode()) == self._credentials
            return b"+OK\r\n" if session["known"] else b"-WRONGPASS invalid username-password pair\r\n"
        if not session["known"]:
            return b"-NOAUTH Authentication required.\r\n"
        if name == b"SELECT":
            session["database"] = int(rest[0])
            return b"+OK\r\n"
        if name == b"GET":
            value = self.values.get((session["database"], rest[0]))
            return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)
        if name == b"SET":
            self.values[session["database"], rest[0]] = rest[1]
            return b"+OK\r\n"
        return b"+PONG\r\n" if name == b"PING" else b"+OK\r\n"


def _commands(file) -> Iterator[list[bytes]]:
    """Yield each command's words."""
    while line := file.readline():
        words = []
        for _ in range(int(line[1:])):
            length = int(file.readline()[1:])
            words.append(file.read(length))
            file.read(2)
        yield words
