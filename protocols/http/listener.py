"""The native HTTP/1.1 listener: state that its connections share, and tasks that look after them.

Two small tasks serve all connections together. The *watcher* learns from a private epoll when a client closes
or half-closes its side. It tells the connection, so that an inference in flight is cancelled without a task
of its own. The *sweep* shuts down the sockets of connections whose deadline has passed.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from actors.seams import faults
from protocols.http.admission import Admit
from protocols.http.connection import Connection
from protocols.http.conversation import Application
from protocols.http.direct.path import DirectPath
from protocols.http.patience import ConnectionLimits, Phase
from protocols.kserve.metadata import error
from protocols.transport.listening import Listener, in_turns
from protocols.transport.proxies import TrustedProxies
from protocols.transport.readiness import Readiness
from protocols.transport.receiving import ReceivingRoom
from protocols.transport.room import AddressLimit
from protocols.transport.sockets import PlainTransport, TlsTransport, Transport

_SWEEP_PERIOD: Final = 1.0
_SCRATCH: Final = 64 * 1024
_LEAVE_AT_ONCE: Final = 64  # clients whose requests are cancelled in one turn of the loop
_CLIENT_LEFT: Final = select.EPOLLRDHUP | select.EPOLLET  # edges only, as each comes once
_SAID: Final = error("your address has as many connections as it may; see --max-connections-per-address")
_IN_THE_CLEAR: Final = error("this port speaks TLS: ask by https://")
_SPEAK_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_IN_THE_CLEAR), _IN_THE_CLEAR)
)
_TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_SAID), _SAID)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """How many connections at once, in all and from one address, and how patient each is.

    `proxies` are believed when they say whose request it is; if `introduced`, their connections begin with a
    header of the PROXY protocol.
    """

    max_connections: int = 8192
    per_address: AddressLimit | None = None
    proxies: TrustedProxies | None = None
    introduced: bool = False
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStatistics:
    """A listener at one moment. `buffered` is bytes of answers that wait for slow readers."""

    accepted: int
    phases: Mapping[Phase, int]
    buffered: int
    draining: bool


class HttpListener(Listener[Connection]):
    """Serves one ASGI application on accepted connections."""

    def __init__(
        self,
        app: Application,
        *,
        limits: ListenerLimits | None = None,
        admit: Admit | None = None,
        is_welcome: Callable[[bytes], bool] = lambda _: True,
        tls: Callable[[], ssl.SSLContext] | None = None,
        on_refused: Callable[[str, str], None] = lambda peer, reason: None,
        room: ReceivingRoom | None = None,
        direct: DirectPath | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`direct` takes the inferences that need nothing special; without it, `app` answers them, too.

        `admit` is asked whether a long body may come. Without it, every body within the limits may.

        `is_welcome` picks the paths that are answered even where all connections are busy: those of health
        checks. `tls` is asked for each connection; without it, they are in the clear. `on_refused` is told
        the address of a client, and why, if its TLS handshake fails or its proxy does not introduce it. All
        listeners of a server have one `room` for bodies on their way in. `uniform` returns random numbers in
        [0, 1), by which ages of connections differ.
        """
        self._app = app
        self._admission = admit
        self._room = room or ReceivingRoom()
        self._direct = direct
        self._uniform = uniform
        self._limits = limits or ListenerLimits()
        introducers = self._limits.proxies if self._limits.introduced else None
        readiness = Readiness(turns=direct is not None)
        super().__init__(self._limits.max_connections, self._limits.per_address, introducers, readiness)
        self._treatment = self._guest(is_welcome)
        self._by_descriptor: dict[int, Connection] = {}
        self._descriptors: dict[Connection, int] = {}
        self._epoll = select.epoll()
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._withdrawn = False
        self._tls = tls
        self._on_refused = on_refused

    def statistics(self) -> ListenerStatistics:
        """Return a snapshot."""
        return ListenerStatistics(
            accepted=self._accepted,
            phases=Counter(connection.phase for connection in self._connections),
            buffered=sum(connection.buffered for connection in self._connections),
            draining=self._drain.is_set(),
        )

    def withdraw(self) -> None:
        """Have each connection end with its next answer, also connections that are yet to come."""
        self._withdrawn = True
        super().withdraw()

    def close(self) -> None:
        """Let go of the watcher's descriptor. For when `serve` will not be called again."""
        super().close()
        self._epoll.close()

    def _care(self) -> Collection[Callable[[], Awaitable[None]]]:
        return (self._readiness.run, self._watch, self._sweep)

    def _adopt(self, accepted: socket.socket) -> Connection:
        if faults.points is not None:
            faults.points.passing("http.accept")
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(
            self._transport(accepted),
            self._app,
            self._limits.connection,
            self._scratch,
            self._admission,
            self._on_refused,
            self._room,
            self._limits.proxies,
            self._direct,
            2 * self._uniform() - 1,
        )
        if self._withdrawn:
            connection.withdraw()
        descriptor = accepted.fileno()
        self._epoll.register(descriptor, _CLIENT_LEFT)
        self._by_descriptor[descriptor] = connection
        self._descriptors[connection] = descriptor
        return connection

    def _transport(self, accepted: socket.socket) -> Transport:
        if self._tls is None:
            return PlainTransport(accepted, self._readiness.waits(accepted))
        return TlsTransport(accepted, self._tls(), self._readiness.waits(accepted), in_the_clear=_SPEAK_TLS)

    def _release(self, connection: Connection) -> None:
        descriptor = self._descriptors.pop(connection)
        del self._by_descriptor[descriptor]
        # Closing alone would leave the registration to a descriptor
        # that a process, just forked, holds for a moment.
        # If a client resets its connection just before TLS begins, the interpreter has closed it already.
        with contextlib.suppress(OSError):
            self._epoll.unregister(descriptor)
        connection.close()

    def _refused(self, peer: str, reason: str) -> None:
        # The base's hook. Connections tell of their handshakes themselves.
        self._on_refused(peer, reason)

    def _squeeze_in(self, connection: Connection) -> None:
        connection.squeeze_in(self._treatment)

    def _turn_away(self, accepted: socket.socket) -> None:
        # A client that has left, takes nothing, or speaks TLS, learns of it by the end of its connection.
        if self._tls is not None:
            return
        with contextlib.suppress(OSError):
            accepted.send(_TOO_MANY)

    async def _watch(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for descriptor, _ in self._epoll.poll(0, _LEAVE_AT_ONCE):
                connection = self._by_descriptor.get(descriptor)
                if connection is not None:
                    connection.peer_left()

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(_SWEEP_PERIOD)
            now = trio.current_time()
            async for connection in in_turns(self._connections):
                if connection.deadline <= now:
                    connection.expire()
                elif connection.retires_at <= now:
                    connection.withdraw()
            self._room.sweep(now)
            self._relieve(now)
