"""The gRPC listener: state that its connections share, and tasks that look after them.

Two small tasks serve all connections together. One cancels unary calls whose deadline has passed; the *sweep*
sends keepalive pings, retires old connections, and shuts the sockets of those that are out of patience.

Its metric families are those of all listeners together, that of the port and that of the Unix socket.
"""

from __future__ import annotations

import math
import random
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from actors.seams import faults
from actors.values.callers import Action
from actors.values.families import Block, Families, Family, MetricKind, once
from protocols.grpc.call import Call
from protocols.grpc.calls import Environment
from protocols.grpc.connection import GrpcConnection
from protocols.grpc.methods import CATEGORIES, HeadReader, Service
from protocols.grpc.policy import DeadlineWheel, GrpcOptions
from protocols.http2.frames import DEFAULT_WINDOW, ErrorCode
from protocols.http2.streams import Http2Limits
from protocols.transport.listening import Listener, in_turns
from protocols.transport.offenders import Offenders
from protocols.transport.receiving import ReceivingRoom
from protocols.transport.sockets import PlainTransport, TlsTransport, Transport

ALPN: Final = "h2"
"""What a client of TLS must say that it speaks (RFC 9113, section 3.3)."""

_MOST_STREAMS: Final = 1024
_SCRATCH: Final = 256 * 1024
_THREADS: Final = 2  # threads that compress and unfold
_SWEEP_PERIOD: Final = 1.0
_SEE_OFF_PERIOD: Final = 0.1
_SHORTEST_PERIOD: Final = 0.01
_SWEEPS: Final = 4  # sweeps within the shortest patience of the options


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcStatistics:
    """A listener at one moment.

    `streams` counts open calls, `pending` bytes of answers that wait for slow readers. `violations` counts
    clients that were sent away for breaking HTTP/2's rules. `floods` counts those of them that only asked too
    much.
    """

    accepted: int
    connections: int
    streams: int
    pending: int
    violations: int
    floods: int
    draining: bool


class GrpcListener(Listener[GrpcConnection]):
    """Serves grpclib services on accepted connections.

    `tls` is asked for a context for each connection; without it, they are in the clear.
    `on_crash` is told the path and the exception of each bug in a method, which costs one call. `on_refused`
    is told the address of a client, and why, when it is sent away for breaking HTTP/2's rules, its TLS
    handshake fails or its proxy does not introduce it. `uniform` returns random numbers in [0, 1), by which
    the ages of connections differ. All listeners of a server have one `room` for requests on their way in.
    """

    def __init__(
        self,
        services: Iterable[Service],
        options: GrpcOptions | None = None,
        *,
        on_crash: Callable[[str, Exception], None],
        on_refused: Callable[[str, str], None] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        uniform: Callable[[], float] = random.random,
        room: ReceivingRoom | None = None,
    ) -> None:
        self._options = options = options or GrpcOptions()
        introducers = options.proxies if options.introduced else None
        super().__init__(options.max_connections, options.per_address, introducers)
        self._tls = tls
        self._treatment = self._guest(_is_health)
        self._uniform = uniform
        self._on_refused = on_refused
        self._deadlines = CallDeadlines()
        self._violations: Counter[ErrorCode] = Counter()
        self._offenders = Offenders()
        self._environment = Environment(
            options=options,
            heads=HeadReader(services, options),
            limits=http2_limits(options.connection_bytes),
            scratch=memoryview(bytearray(_SCRATCH)),
            threads=trio.CapacityLimiter(_THREADS),
            deadlines=self._deadlines,
            room=room or ReceivingRoom(),
            on_crash=on_crash,
            on_violation=self._violated,
            on_unsecured=self._refused,
        )

    def statistics(self) -> GrpcStatistics:
        """Return a snapshot."""
        return GrpcStatistics(
            accepted=self._accepted,
            connections=len(self._connections),
            streams=sum(connection.streams for connection in self._connections),
            pending=sum(connection.pending for connection in self._connections),
            violations=self._violations.total(),
            floods=self._violations[ErrorCode.ENHANCE_YOUR_CALM],
            draining=self._drain.is_set(),
        )

    def _care(self) -> Collection[Callable[[], Awaitable[None]]]:
        return (self._readiness.run, self._deadlines.watch, self._sweep, self._see_off)

    def _adopt(self, accepted: socket.socket) -> GrpcConnection:
        if faults.points is not None:
            faults.points.passing("grpc.accept")
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return GrpcConnection(
            self._transport(accepted),
            self._environment,
            now=trio.current_time(),
            jitter=2 * self._uniform() - 1,
        )

    def _transport(self, accepted: socket.socket) -> Transport:
        if self._tls is None:
            return PlainTransport(accepted, self._readiness.waits(accepted))
        return TlsTransport(accepted, self._tls(), self._readiness.waits(accepted), alpn=ALPN)

    async def _serve(self, connection: GrpcConnection) -> None:
        # This sleeps for time to pass; no event could replace the loop.
        while wait := self._offenders.wait(connection.peer, trio.current_time()):  # noqa: ASYNC110
            await trio.sleep(wait)
        await connection.serve()

    def _squeeze_in(self, connection: GrpcConnection) -> None:
        connection.squeeze_in(self._treatment)

    def _violated(self, peer: str, code: ErrorCode, message: str) -> None:
        self._violations[code] += 1
        if code is ErrorCode.ENHANCE_YOUR_CALM:
            self._offenders.flooded(peer, trio.current_time())
        self._refused(peer, f"{message} ({code.name})")

    def _refused(self, peer: str, reason: str) -> None:
        # The base's hook, and of the handshakes and violations here.
        if self._on_refused is not None:
            self._on_refused(peer, reason)

    async def _sweep(self) -> None:
        period = sweep_period(self._options)
        while True:
            await trio.sleep(period)
            now = trio.current_time()
            async for connection in in_turns(self._connections):
                connection.sweep(now)
            self._environment.room.sweep(now)
            self._relieve(now)

    async def _see_off(self) -> None:
        """End connections in time that were told to give way: until then, they take the room of others."""
        while True:
            await trio.sleep(_SEE_OFF_PERIOD)
            now = trio.current_time()
            async for connection in in_turns(self._leaving):
                connection.sweep(now)


class CallDeadlines:
    """A wheel of deadlines, and the task that turns it."""

    def __init__(self) -> None:
        self._wheel: DeadlineWheel[Call] = DeadlineWheel()
        self._alarm = trio.CancelScope()

    def add(self, call: Call, deadline: float) -> None:
        """Have `call` expire once `deadline` has passed."""
        self._wheel.add(call, deadline)
        if deadline < self._alarm.deadline:
            self._alarm.deadline = self._wheel.next_expiry()

    def discard(self, call: Call) -> None:
        """Forget the deadline of `call`."""
        self._wheel.discard(call)

    async def watch(self) -> None:
        """Expire calls, for ever."""
        while True:
            with trio.CancelScope(deadline=self._wheel.next_expiry()) as self._alarm:
                await trio.sleep_forever()
            self._expire()

    def _expire(self) -> None:
        # This is not in `watch`, which would keep the last call until the next one expires.
        for call in self._wheel.expire(trio.current_time()):
            call.wire.expire(call)


def http2_limits(connection_bytes: int) -> Http2Limits:
    """Return limits by which first windows can't fill the connection's window while no message is whole."""
    return Http2Limits(
        max_streams=max(1, min(_MOST_STREAMS, connection_bytes // DEFAULT_WINDOW)),
        connection_window=min(max(connection_bytes, DEFAULT_WINDOW), 2**30),
    )


def sweep_period(options: GrpcOptions) -> float:
    """Return the sweep's period in seconds: a fraction of the shortest patience, a second at most."""
    patience = (
        options.keepalive_time,
        options.keepalive_timeout,
        options.max_connection_age,
        options.idle_timeout,
        options.max_connection_age_grace or math.inf,
        options.handshake_timeout,
        options.stall_timeout,
    )
    return max(_SHORTEST_PERIOD, min(_SWEEP_PERIOD, min(patience) / _SWEEPS))


def _is_health(path: str) -> bool:
    """Whether the RPC at `path` is asked by health checks, and answered at once."""
    return CATEGORIES.get(path) is Action.HEALTH


def _sum(
    name: str, kind: MetricKind, explanation: str, read: Callable[[GrpcStatistics], int]
) -> Family[Sequence[GrpcStatistics]]:
    return Family(name, kind, explanation, lambda listeners: sum(map(read, listeners)))


FAMILIES: Final[Families[Sequence[GrpcStatistics]]] = (
    _sum("tritium_grpc_connections", "gauge", "gRPC connections that are open", lambda s: s.connections),
    _sum("tritium_grpc_streams", "gauge", "gRPC calls that are open", lambda s: s.streams),
    _sum(
        "tritium_grpc_pending_bytes",
        "gauge",
        "Answers that wait for gRPC clients to read, in bytes",
        lambda s: s.pending,
    ),
    _sum(
        "tritium_grpc_accepted_total",
        "counter",
        "gRPC connections that were accepted",
        lambda s: s.accepted,
    ),
    _sum(
        "tritium_grpc_violations_total",
        "counter",
        "gRPC connections that were ended because the client broke the rules of HTTP/2",
        lambda s: s.violations,
    ),
    _sum(
        "tritium_grpc_floods_total",
        "counter",
        "Those of them whose client asked too much",
        lambda s: s.floods,
    ),
)


def grpc_blocks(listeners: Sequence[GrpcStatistics]) -> Iterator[Block]:
    """Yield what the listeners count; nothing if there are none."""
    if listeners:
        yield from once(FAMILIES, listeners)
