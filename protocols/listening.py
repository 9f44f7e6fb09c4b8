"""What listeners of both protocols are: accepted connections, looked after from outside, and drained to the last one.

The listening socket belongs to whoever calls `serve`, and so does the lifetime of connections: each is given to `spawn`
to run under a supervisor of the caller's choice. A listener outlives a crash of `serve`: called again, it goes on with
the connections it had.
"""

from __future__ import annotations

import itertools
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import trio

from protocols.accepting import Door, OnceAMinute, OnExhausted

LAST_CALL: Final = 5.0
"""Seconds, while the server ends, for which what a client is sending may pause before its request is whole."""

Spawn = Callable[[str, Callable[[], Awaitable[None]]], None]


class AcceptedConnection(Protocol):
    """What a listener asks of its connections."""

    async def serve(self) -> None:
        """Run until the connection is over."""

    def withdraw(self) -> None:
        """Have the client make its next connection elsewhere. What it sends on this one is answered. Never waits."""

    def drain(self) -> None:
        """Finish what is open, begin nothing new, and come to an end. Never waits."""

    def close(self) -> None:
        """Let go of the socket."""


C = TypeVar("C", bound=AcceptedConnection)


class Listener(ABC, Generic[C]):
    """Accepts connections for as long as there is room, and drains. What a connection is, subclasses say."""

    def __init__(self, max_connections: int) -> None:
        """Over `max_connections`, clients wait in the kernel's backlog."""
        self._connections: dict[C, None] = {}  # in the order in which they came
        self._door = Door(max_connections)
        self._names = itertools.count(1)
        self._accepted = 0
        self._drain = trio.Event()
        self._empty = trio.Event()

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
            for care in self._care():
                nursery.start_soon(care)
            task_status.started()
            await self._door.stand_at(sock, partial(self._admit, spawn), OnceAMinute(on_exhausted))
            await self.wait_drained()
            nursery.cancel_scope.cancel()

    def withdraw(self) -> None:
        """Have the clients of all connections go elsewhere, and serve on: `drain` comes later."""
        for connection in list(self._connections):
            connection.withdraw()

    def drain(self) -> None:
        """Stop accepting, and have each connection finish what is open and close.

        Clients that the kernel has connected already are let in first, as far as there is room: they may have sent requests.
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
        """Let go of what is held besides connections. For when `serve` will not be called again."""

    def _admit(self, spawn: Spawn, accepted: socket.socket) -> None:
        try:
            connection = self._adopt(accepted)
        except BaseException:
            accepted.close()
            self._door.left()
            raise
        self._connections[connection] = None
        self._accepted += 1
        if self._drain.is_set():
            connection.drain()
        try:
            spawn(f"connection-{next(self._names)}", partial(self._run, connection))
        except BaseException:
            self._forget(connection)
            raise

    async def _run(self, connection: C) -> None:
        try:
            await self._serve(connection)
        finally:
            self._forget(connection)

    def _forget(self, connection: C) -> None:
        del self._connections[connection]
        self._release(connection)
        self._door.left()
        if not self._connections and self._drain.is_set():
            self._empty.set()

    @abstractmethod
    def _care(self) -> Collection[Callable[[], Awaitable[None]]]:
        """The tasks, without an end, that look after all connections together."""

    @abstractmethod
    def _adopt(self, accepted: socket.socket) -> C:
        """Make a connection of a socket. Where this raises, the socket is the caller's still."""

    async def _serve(self, connection: C) -> None:
        await connection.serve()

    def _release(self, connection: C) -> None:
        connection.close()
