"""The HTTP half of the load: a connection for each request under way, kept for those after it."""

from __future__ import annotations

import trio

from chaos.clients import http_messages
from chaos.clients.idle import Idle
from chaos.record.history import End
from chaos.record.outcome import DISCONNECTED, NO_ANSWER, NO_CONNECTION, now
from chaos.record.records import Invoke, Unknown
from chaos.wires.http import Broken, Connection


class HttpClient:
    """Sends requests to one port of the loopback address. The connection that was used last is used first.

    A request that finds no idle connection opens one, so that no request ever waits for another.
    """

    def __init__(self, port: int, *, patience: float) -> None:
        self._port = port
        self._patience = patience
        self._idle: Idle[Connection] = Idle()
        # Bytes that came on idle connections: an answer too many, or the rest of one.
        self.surplus = 0

    def retarget(self, port: int) -> None:
        """Send what comes from now on to another port, because the server was started again."""
        self._port = port
        self.close()

    def close(self) -> None:
        """Let go of idle connections; those under way end with their requests."""
        for connection in self._idle.all():
            connection.close()

    def tidy(self) -> None:
        """Let go of what has not been used for a while."""
        for connection in self._idle.expired(now()):
            connection.close()

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
            self._idle.put(connection, at)
        else:
            connection.close()
        return http_messages.end_of(invoke, reply, at)

    async def _waiting(self) -> Connection | None:
        while connection := self._idle.take():
            unasked = await connection.unasked()
            if unasked is None:
                return connection
            self.surplus += len(unasked)
            connection.close()
        return None
