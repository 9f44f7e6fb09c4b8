"""The HTTP half of the load: a connection for each request under way, kept for those after it."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from chaos.clients import http_messages
from chaos.record.history import End
from chaos.record.outcome import DISCONNECTED, NO_ANSWER, NO_CONNECTION, now
from chaos.record.records import Invoke, Unknown
from chaos.wires.http import Broken, Connection

KEPT: Final = 2.0
"""Seconds that a connection is kept without being used: after a burst, the server is to have its descriptors back."""


class HttpClient:
    """Sends requests to one port of the loopback address. The connection that was used last is used first.

    A request that finds no idle connection opens one, so that no request ever waits for another.
    """

    def __init__(self, port: int, *, patience: float) -> None:
        self._port = port
        self._patience = patience
        self._idle: deque[tuple[float, Connection]] = deque()  # since when, longest first
        # Bytes that came on idle connections: an answer too many, or the rest of one.
        self.surplus = 0

    def retarget(self, port: int) -> None:
        """Send what comes from now on to another port, because the server was started again."""
        self._port = port
        self.close()

    def close(self) -> None:
        """Let go of idle connections; those under way end with their requests."""
        self.tidy(kept=0.0)

    def tidy(self, kept: float = KEPT) -> None:
        """Let go of what has not been used for a while."""
        while self._idle and now() - self._idle[0][0] >= kept:
            self._idle.popleft()[1].close()

    async def ask(self, invoke: Invoke) -> End:
        """Send a request and return what came of it, after `patience` seconds at the latest."""
        try:
            with trio.fail_after(self._patience):
                return await self._ask(invoke)
        except trio.TooSlowError:
            reason = f"{NO_ANSWER} within {self._patience:g} s"
        except OSError as error:
            reason = f"{NO_CONNECTION}: {error}"
        except Broken as error:
            reason = f"{DISCONNECTED}: {error}"
        return Unknown(t=now(), n=invoke.n, reason=reason)

    async def _ask(self, invoke: Invoke) -> End:
        request = http_messages.encode(invoke)
        connection, port = await self._waiting() or await Connection.open(self._port), self._port
        try:
            reply = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        at = now()
        if connection.kept and port == self._port:
            self._idle.append((at, connection))
        else:
            connection.close()
        return http_messages.end_of(invoke, reply, at)

    async def _waiting(self) -> Connection | None:
        while self._idle:
            _, connection = self._idle.pop()
            unasked = await connection.unasked()
            if unasked is None:
                return connection
            self.surplus += len(unasked)
            connection.close()
        return None
