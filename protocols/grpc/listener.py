"""The gRPC listener: accepts connections and looks after them from outside.

The listening socket belongs to whoever calls `serve`, and so does the lifetime of connections: each is given to `spawn`
to run under a supervisor of the caller's choice. A `GrpcListener` outlives a crash of `serve`: called again, it goes on
with the connections it had.

Two small tasks serve all connections together. One cancels unary calls whose deadline has passed; the *sweep* sends
keepalive pings, retires old connections, and shuts the sockets of those that are out of patience.
"""

from __future__ import annotations

import itertools
import math
import random
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from actors.fault_points import fault_point
from protocols.accepting import Door, OnceAMinute, OnExhausted
from protocols.grpc.call import Call
from protocols.grpc.connection import Environment, GrpcConnection
from protocols.grpc.deadlines import DeadlineWheel
from protocols.grpc.frames import DEFAULT_WINDOW, ErrorCode
from protocols.grpc.limits import Http2Limits
from protocols.grpc.methods import Router, Service
from protocols.grpc.offenders import Offenders
from protocols.grpc.options import GrpcOptions
from protocols.grpc.transport import PlainTransport, TlsTransport

Spawn = Callable[[str, Callable[[], Awaitable[None]]], None]

_MOST_STREAMS: Final = 1024
_SCRATCH: Final = 256 * 1024
_THREADS: Final = 2  # that compress and unfold
_SWEEP_PERIOD: Final = 1.0
_SHORTEST_PERIOD: Final = 0.01
_SWEEPS: Final = 4  # in the shortest patience of the options


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcStatistics:
    """A listener at one moment.

    `streams` counts open calls, `pending` bytes of answers that wait for slow readers. `violations` counts clients that
    were sent away for breaking HTTP/2's rules, `floods` those of them that only asked too much.
    """

    accepted: int
    connections: int
    streams: int
    pending: int
    violations: int
    floods: int
    draining: bool


class GrpcListener:
    """Serves grpclib services on accepted connections, with TLS where it is given a context.

    `on_crash` is told the path and the exception of each bug in a method, which costs one call. `on_refused` is told the
    address of a client, and why, when it is sent away for breaking HTTP/2's rules or its TLS handshake fails. `uniform`
    returns random numbers in [0, 1), by which the ages of connections differ.
    """

    def __init__(
        self,
        services: Iterable[Service],
        options: GrpcOptions | None = None,
        *,
        on_crash: Callable[[str, Exception], None],
        on_refused: Callable[[str, str], None] | None = None,
        tls: ssl.SSLContext | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._options = options = options or GrpcOptions()
        self._tls = tls
        self._uniform = uniform
        self._on_refused = on_refused
        self._deadlines = CallDeadlines()
        self._violations: Counter[ErrorCode] = Counter()
        self._offenders = Offenders()
        self._environment = Environment(
            options=options,
            router=Router(services, options),
            limits=http2_limits(options.connection_bytes),
            scratch=memoryview(bytearray(_SCRATCH)),
            threads=trio.CapacityLimiter(_THREADS),
            deadlines=self._deadlines,
            on_crash=on_crash,
            on_violation=self._violated,
            on_unsecured=self._refused,
        )
        self._connections: dict[GrpcConnection, None] = {}
        self._door = Door(options.max_connections)
        self._names = itertools.count(1)
        self._accepted = 0
        self._drain = trio.Event()
        self._empty = trio.Event()

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

    async def serve(
        self,
        sock: socket.socket,
        spawn: Spawn,
        *,
        on_exhausted: OnExhausted | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept from `sock`, a listening socket, until drained; return when the last connection has ended.

        `spawn(name, run)` starts a connection as a child of the caller's and returns at once. `on_exhausted` is told, once
        a minute at most, that descriptors or memory are used up.
        """
        if not self._drain.is_set():  # else it is closed already, and this is another life
            sock.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deadlines.watch)
            nursery.start_soon(self._sweep)
            task_status.started()
            await self._door.stand_at(sock, partial(self._admit, spawn), OnceAMinute(on_exhausted))
            await self.wait_drained()
            nursery.cancel_scope.cancel()

    def drain(self) -> None:
        """Stop accepting, and have connections finish the calls that are open, take no new ones, and close.

        Calls that were on their way are refused, which clients may take as never sent, and not reset.
        """
        self._drain.set()
        self._door.shut()
        for connection in list(self._connections):
            connection.drain()
        if not self._connections:
            self._empty.set()

    async def wait_drained(self) -> None:
        """Wait until `drain` was called and no connection is left."""
        await self._drain.wait()
        await self._empty.wait()

    def close(self) -> None:
        """Do nothing: no descriptor is held here but those of connections, which close their own."""

    def _admit(self, spawn: Spawn, accepted: socket.socket) -> None:
        try:
            connection = self._adopt(accepted)
        except BaseException:
            accepted.close()
            self._door.left()
            raise
        if self._drain.is_set():
            connection.drain()
        try:
            spawn(f"connection-{next(self._names)}", partial(self._run, connection))
        except BaseException:
            self._forget(connection)
            raise

    @fault_point("grpc.accept")
    def _adopt(self, accepted: socket.socket) -> GrpcConnection:
        try:
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = PlainTransport(accepted) if self._tls is None else TlsTransport(accepted, self._tls)
            connection = GrpcConnection(
                transport,
                self._environment,
                now=trio.current_time(),
                jitter=2 * self._uniform() - 1,
            )
        except BaseException:
            accepted.close()
            raise
        self._connections[connection] = None
        self._accepted += 1
        return connection

    async def _run(self, connection: GrpcConnection) -> None:
        try:
            while wait := self._offenders.wait(connection.peer, trio.current_time()):  # noqa: ASYNC110  # for time to pass
                await trio.sleep(wait)
            await connection.serve()
        finally:
            self._forget(connection)

    def _forget(self, connection: GrpcConnection) -> None:
        del self._connections[connection]
        connection.close()
        self._door.left()
        if not self._connections and self._drain.is_set():
            self._empty.set()

    def _violated(self, peer: str, code: ErrorCode, message: str) -> None:
        self._violations[code] += 1
        if code is ErrorCode.ENHANCE_YOUR_CALM:
            self._offenders.flooded(peer, trio.current_time())
        self._refused(peer, f"{message} ({code.name})")

    def _refused(self, peer: str, reason: str) -> None:
        if self._on_refused is not None:
            self._on_refused(peer, reason)

    async def _sweep(self) -> None:
        period = sweep_period(self._options)
        while True:
            await trio.sleep(period)
            now = trio.current_time()
            for connection in list(self._connections):
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
        # Not in `watch`, which would keep the last of them until the next expires.
        for call in self._wheel.expire(trio.current_time()):
            call.wire.expire(call)


def http2_limits(connection_bytes: int) -> Http2Limits:
    """Return limits by which first windows can't fill the connection's while no message is whole."""
    return Http2Limits(
        max_streams=max(1, min(_MOST_STREAMS, connection_bytes // DEFAULT_WINDOW)),
        connection_window=min(max(connection_bytes, DEFAULT_WINDOW), 2**30),
    )


def sweep_period(options: GrpcOptions) -> float:
    """Return how often connections are looked after: a fraction of the shortest patience, a second at most."""
    patience = (
        options.keepalive_time,
        options.keepalive_timeout,
        options.max_connection_age,
        options.max_connection_age_grace or math.inf,
        options.handshake_timeout,
        options.stall_timeout,
    )
    return max(_SHORTEST_PERIOD, min(_SWEEP_PERIOD, min(patience) / _SWEEPS))
