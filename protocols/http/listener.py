"""The native HTTP/1.1 listener: accepts connections and looks after them from outside.

The listening socket belongs to whoever calls `serve`, and so does the lifetime of connections: each is given to `spawn`
to run under a supervisor of the caller's choice. A `HttpListener` outlives a crash of `serve`: called again, it goes on
with the connections it had.

Two small tasks serve all connections together. The *watcher* learns from a private epoll when a client closes or
half-closes its side and tells the connection, so that an inference in flight is cancelled without a task of its own.
The *sweep* shuts down the sockets of connections whose deadline has passed.
"""

from __future__ import annotations

import itertools
import select
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from actors.fault_points import fault_point
from protocols.accepting import Door, OnceAMinute, OnExhausted
from protocols.http.connection import Application, Connection, ConnectionLimits, Phase, watched_events

Spawn = Callable[[str, Callable[[], Awaitable[None]]], None]

_SWEEP_PERIOD: Final = 1.0
_SCRATCH: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """How many connections at once, and how patient each is. Over the limit, clients wait in the kernel's backlog."""

    max_connections: int = 8192
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStatistics:
    """A listener at one moment. `buffered` is bytes of answers that wait for slow readers."""

    accepted: int
    phases: Mapping[Phase, int]
    buffered: int
    draining: bool


class HttpListener:
    """Serves one ASGI application on accepted connections."""

    def __init__(self, app: Application, *, limits: ListenerLimits | None = None) -> None:
        self._app = app
        self._limits = limits or ListenerLimits()
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._door = Door(self._limits.max_connections)
        self._epoll = select.epoll()
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._names = itertools.count(1)
        self._accepted = 0
        self._drain = trio.Event()
        self._empty = trio.Event()

    def statistics(self) -> ListenerStatistics:
        """Return a snapshot."""
        connections = self._connections.values()
        return ListenerStatistics(
            accepted=self._accepted,
            phases=Counter(connection.phase for connection in connections),
            buffered=sum(connection.buffered for connection in connections),
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
            nursery.start_soon(self._watch)
            nursery.start_soon(self._sweep)
            task_status.started()
            await self._door.stand_at(sock, partial(self._admit, spawn), OnceAMinute(on_exhausted))
            await self.wait_drained()
            nursery.cancel_scope.cancel()

    def drain(self) -> None:
        """Stop accepting, close idle connections, and have busy ones close after the request in hand.

        What clients have sent before is answered, even on connections that nobody had accepted yet.
        """
        self._drain.set()
        self._door.shut()
        for connection in list(self._connections.values()):
            connection.drain()
        if not self._connections:
            self._empty.set()

    async def wait_drained(self) -> None:
        """Wait until `drain` was called and no connection is left."""
        await self._drain.wait()
        await self._empty.wait()

    def close(self) -> None:
        """Let go of the watcher's descriptor. For when `serve` will not be called again."""
        self._epoll.close()

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

    @fault_point("http.accept")
    def _adopt(self, accepted: socket.socket) -> Connection:
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(accepted, self._app, self._limits.connection, self._scratch)
        self._epoll.register(accepted, watched_events())
        self._connections[accepted.fileno()] = connection
        self._accepted += 1
        return connection

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.serve()
        finally:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        del self._connections[connection.fileno]
        # Closing alone would leave the registration to a descriptor that a process, just forked, holds for a moment.
        self._epoll.unregister(connection.fileno)
        connection.close()
        self._door.left()
        if not self._connections and self._drain.is_set():
            self._empty.set()

    async def _watch(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for descriptor, _ in self._epoll.poll(0):
                connection = self._connections.get(descriptor)
                if connection is not None:
                    connection.peer_left()

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(_SWEEP_PERIOD)
            now = trio.current_time()
            for connection in list(self._connections.values()):
                if connection.deadline <= now:
                    connection.expire()
