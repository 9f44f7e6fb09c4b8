"""A client of servers that Ray launched, which asks another server where one does not answer."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from engine.fleet.launching.registry import LaunchedServer

_LOOKED_EVERY: Final = 0.2  # seconds between looks at the registry
_TIMEOUT: Final = 5.0


class RetryingClient:
    """Asks the servers in turn, each time over a new connection, until it is left.

    `find` returns the servers, from a thread. `errors` are requests that no server answered, `retried` those
    attempts after which another server was asked. `slowest` is in seconds, over all attempts of a request.
    """

    def __init__(
        self, find: Callable[[], Sequence[LaunchedServer]], ask: Callable[[LaunchedServer], object]
    ) -> None:
        """`ask` makes the request, and raises OSError or HTTPException where a server does not answer."""
        self.answers = self.retried = self.errors = 0
        self.slowest = 0.0
        self._find = find
        self._ask = ask
        self._ended = threading.Event()
        self._servers = find()
        self._threads = [threading.Thread(target=self._call), threading.Thread(target=self._look)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOKED_EVERY):
            self._servers = self._find() or self._servers

    def _call(self) -> None:
        turn = 0
        while not self._ended.is_set():
            turn += 1
            began = time.monotonic()
            servers = self._servers
            if any(self._answered(servers[(turn + each) % len(servers)]) for each in range(len(servers))):
                self.answers += 1
            else:
                self.errors += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    def _answered(self, server: LaunchedServer) -> bool:
        try:
            self._ask(server)
        except (OSError, http.client.HTTPException):
            self.retried += 1
            return False
        return True


def post(server: LaunchedServer, path: str, body: bytes) -> bytes:
    """Return the answer's body. Raises OSError or HTTPException; also for another status than 200."""
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=_TIMEOUT)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise http.client.HTTPException(f"{answer.status} {told[:200].decode(errors='replace')}")
    return told
