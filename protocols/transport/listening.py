"""The base of both protocols' listeners: accepts connections, looks after them, drains them to the last one.

The listening socket belongs to the caller of `serve`. The lifetime of connections is the caller's too: each
is given to `spawn`, to run under a supervisor of the caller's choice. A listener outlives a crash of `serve`:
called again, it goes on with the connections it had.

In the metric families, listeners of one protocol are counted together.
"""

from __future__ import annotations

import itertools
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import trio

from actors.values.families import Block, Families, MetricKind, Slice, SplitFamily, once
from protocols.transport.accepting import Door, OnceAMinute, OnExhausted
from protocols.transport.introductions import NotIntroduced, introduction
from protocols.transport.proxies import TrustedProxies
from protocols.transport.readiness import Readiness
from protocols.transport.room import AddressLimit, GoingLine, Occupant, first_to_go, reserve
from protocols.transport.sockets import ConnectionLost, address_of

_IN_A_TURN: Final = 256  # connections that are swept in one turn of the loop

Spawn = Callable[[str, Callable[[], Awaitable[None]]], None]


CROWDED: Final = (
    "the server has as many connections as it takes, and all of them are busy; see --max-connections"
)
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Guest(Generic[P]):
    """The treatment of a connection that was let in although all others are busy.

    While the server is still `crowded`, a request is answered only if its path `is_welcome`. That answer is
    the connection's last. Requests for other paths are refused, and `turned_away` is told of each.
    """

    crowded: Callable[[], bool]
    is_welcome: Callable[[P], bool]
    turned_away: Callable[[], None]


class AcceptedConnection(Occupant, Protocol):
    """What a listener asks of its connections."""

    async def serve(self) -> None:
        """Run until the connection is over."""

    def introduced(self, host: str, port: int) -> None:
        """Take this as the client's address: its proxy told it. Before `serve`, if at all."""

    def withdraw(self) -> None:
        """Have the client make its next connection elsewhere.

        What the client sends on this connection is answered. Never waits.
        """

    def drain(self) -> None:
        """Finish what is open, begin nothing new, and come to an end. Never waits."""

    def give_way(self) -> None:
        """Come to an end soon, so that another connection has room.

        Asked only of a connection that `yields_at` a time that has passed. Never waits.
        """

    def give_up(self) -> None:
        """Refuse requests that are not answered, because the process is about to end. Never waits."""

    def close(self) -> None:
        """Let go of the socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionCounts:
    """A listener's connections: those open, the most allowed, and those ended or refused since its start."""

    open: int
    most: int
    # Ended while they were idle or slow, so that others had room.
    gave_way: int
    crowded_out: int  # turned away because all others were busy
    over_address_limit: int  # turned away because their address had too many
    not_introduced: int  # ended because their proxy did not introduce its client


C = TypeVar("C", bound=AcceptedConnection)


async def in_turns(connections: Collection[C]) -> AsyncIterator[C]:
    """Yield all connections that stay open, for a sweep. There may be thousands, so others get a turn."""
    for number, connection in enumerate(list(connections), 1):
        if connection in connections:
            yield connection
        if not number % _IN_A_TURN:
            await trio.lowlevel.checkpoint()


class Listener(ABC, Generic[C]):
    """Accepts connections for as long as there is room, and drains. Subclasses say what a connection is."""

    def __init__(
        self,
        max_connections: int,
        per_address: AddressLimit | None = None,
        introducers: TrustedProxies | None = None,
        readiness: Readiness | None = None,
    ) -> None:
        """Beyond `max_connections`, idle connections make room for others (`protocols.transport.room`).

        Where none is idle, a few more are let in. Further clients wait in the kernel's backlog. Connections
        of `introducers` begin with a header of the PROXY protocol; others never do.
        """
        self._connections: dict[C, None] = {}  # in the order in which they came
        self._most = max_connections
        self._going: GoingLine[C] = GoingLine()
        self._leaving: set[C] = set()  # those that were told to give way
        self._per_address = per_address
        self._introducers = introducers
        self._strangers: dict[C, socket.socket] = {}  # whose client is still to be introduced
        self._origins: dict[C, str] = {}
        self._of_origin: dict[str, dict[C, None]] = {}
        self._gave_way = self._crowded_out = self._over_address_limit = self._not_introduced = 0
        self._readiness = readiness or Readiness()
        self._door = Door(max_connections + reserve(max_connections))
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

        `spawn(name, run)` starts a connection as a child of the caller's and returns at once. `on_exhausted`
        is told, once a minute at most, that descriptors or memory are used up.
        """
        # If `drain` was called, the socket is closed already, and this is a restart.
        if not self._drain.is_set():
            sock.setblocking(False)
        async with trio.open_nursery() as nursery:
            for care in self._care():
                nursery.start_soon(care)
            task_status.started()
            await self._door.stand_at(sock, partial(self._admit, spawn), self._relieved(on_exhausted))
            await self.wait_drained()
            nursery.cancel_scope.cancel()

    def withdraw(self) -> None:
        """Have the clients of all connections go elsewhere, and go on serving. `drain` comes later."""
        for connection in list(self._connections):
            connection.withdraw()

    def drain(self) -> None:
        """Stop accepting, and have each connection finish what is open and close.

        Clients that the kernel has connected already are let in first, as far as there is room, because they
        may have sent requests.
        """
        self._drain.set()
        self._door.shut()
        for connection in list(self._connections):
            connection.drain()
        if not self._connections:
            self._empty.set()

    def give_up(self) -> None:
        """Have each connection tell its client that it will get no answer, as the process is about to end."""
        for connection in list(self._connections):
            connection.give_up()

    async def wait_drained(self) -> None:
        """Wait until `drain` was called and no connection is left."""
        await self._drain.wait()
        await self._empty.wait()

    def close(self) -> None:
        """Release everything besides connections, when `serve` will not be called again."""
        self._readiness.close()

    def counts(self) -> ConnectionCounts:
        """Return how many connections there are, and how many were ended or turned away."""
        return ConnectionCounts(
            open=len(self._connections),
            most=self._most,
            gave_way=self._gave_way,
            crowded_out=self._crowded_out,
            over_address_limit=self._over_address_limit,
            not_introduced=self._not_introduced,
        )

    @property
    def crowded(self) -> bool:
        """Whether more connections are open than should be, without those that are coming to an end."""
        return len(self._connections) - len(self._leaving) > self._most

    def _guest(self, is_welcome: Callable[[P], bool]) -> Guest[P]:
        """Return how connections are treated for which there is no room."""

        def crowded() -> bool:
            return self.crowded and not self._make_room(trio.current_time())

        def turned_away() -> None:
            self._crowded_out += 1

        return Guest(crowded, is_welcome, turned_away)

    def _relieved(self, on_exhausted: OnExhausted | None) -> OnExhausted:
        """Return the function that is told when descriptors or memory are used up.

        It has an idle connection give some back.
        """
        tell = OnceAMinute(on_exhausted)

        def exhausted(failure: OSError) -> None:
            tell(failure)
            self._make_room(trio.current_time())

        return exhausted

    def _relieve(self, now: float) -> None:
        """Have connections give way that have become idle or slow while there were too many.

        For the sweep.
        """
        while self.crowded and self._make_room(now):
            pass

    def _make_room(self, now: float) -> bool:
        """Have one connection give way, if there is one that may."""
        return self._dismiss(self._going.next(self._connections, now))

    def _dismiss(self, connection: C | None) -> bool:
        if connection is None:
            return False
        self._leaving.add(connection)
        self._gave_way += 1
        connection.give_way()
        return True

    def _has_place(self, origin: str | None, now: float) -> bool:
        """Whether a client may have one more connection.

        One that it has and does not use makes room for it.
        """
        if origin is None or self._per_address is None:
            return True
        others = [each for each in self._of_origin.get(origin, ()) if each not in self._leaving]
        return len(others) < self._per_address.most or self._dismiss(first_to_go(others, now))

    def _admit(self, spawn: Spawn, accepted: socket.socket) -> None:
        now = trio.current_time()
        limit = self._per_address
        origin = None if limit is None else limit.origin(_host_of(accepted))
        if not self._has_place(origin, now):
            self._over_address_limit += 1
            self._turn_away(accepted)
            accepted.close()
            self._door.left()
            return
        try:
            connection = self._adopt(accepted)
        except BaseException:
            accepted.close()
            self._door.left()
            raise
        self._connections[connection] = None
        self._accepted += 1
        if self._introducers is not None and self._introducers.trusts(_host_of(accepted)):
            self._strangers[connection] = accepted
        self._count_at(origin, connection)
        if self.crowded and not self._make_room(now):
            self._squeeze_in(connection)
        if self._drain.is_set():
            connection.drain()
        try:
            spawn(f"connection-{next(self._names)}", partial(self._run, connection))
        except BaseException:
            self._forget(connection)
            raise

    def _count_at(self, origin: str | None, connection: C) -> None:
        if origin is not None:
            self._origins[connection] = origin
            self._of_origin.setdefault(origin, {})[connection] = None

    async def _run(self, connection: C) -> None:
        try:
            stranger = self._strangers.get(connection)
            if stranger is None or await self._introduce(connection, stranger):
                await self._serve(connection)
        finally:
            self._forget(connection)

    async def _introduce(self, connection: C, accepted: socket.socket) -> bool:
        """Let the proxy say whose connection it is; False where that ends it."""
        proxy = address_of(accepted)
        try:
            source = await introduction(
                accepted,
                partial(self._readiness.readable, accepted),
                lambda: self._drain.is_set() or connection in self._leaving,
            )
        except ConnectionLost:
            return False
        except NotIntroduced as failure:
            self._not_introduced += 1
            self._refused(proxy, str(failure))
            return False
        if source is None:
            return True
        connection.introduced(*source)
        origin = None if self._per_address is None else self._per_address.origin(source[0])
        if not self._has_place(origin, trio.current_time()):
            self._over_address_limit += 1
            self._turn_away(accepted)
            return False
        self._count_at(origin, connection)
        return True

    def _forget(self, connection: C) -> None:
        del self._connections[connection]
        self._leaving.discard(connection)
        self._strangers.pop(connection, None)
        origin = self._origins.pop(connection, None)
        if origin is not None:
            of_origin = self._of_origin[origin]
            del of_origin[connection]
            if not of_origin:
                del self._of_origin[origin]
        self._release(connection)
        self._door.left()
        if not self._connections and self._drain.is_set():
            self._empty.set()

    @abstractmethod
    def _care(self) -> Collection[Callable[[], Awaitable[None]]]:
        """The tasks, without an end, that look after all connections together."""

    @abstractmethod
    def _adopt(self, accepted: socket.socket) -> C:
        """Make a connection of a socket. If this raises, the caller still owns the socket."""

    def _turn_away(self, accepted: socket.socket) -> None:  # most protocols have no words for it
        """Tell a client that its address has too many connections, if that can be said at once.

        The caller closes the socket next.
        """

    def _refused(self, peer: str, reason: str) -> None:  # not every listener has a log
        """Tell that the client at `peer` is sent away, and why.

        Called here where a proxy does not introduce it. A listener that has a log overrides this, and may
        call it for reasons of its own.
        """

    def _squeeze_in(self, connection: C) -> None:
        """Note that `connection` was let in although there is no room: all others are busy."""

    async def _serve(self, connection: C) -> None:
        await connection.serve()

    def _release(self, connection: C) -> None:
        connection.close()


def _host_of(accepted: socket.socket) -> str:
    """Return the client's numeric address; empty for a Unix socket, and for a client that has left."""
    if accepted.family == socket.AF_UNIX:
        return ""
    try:
        return str(accepted.getpeername()[0])
    except OSError:
        return ""


ByProtocol = Mapping[str, Sequence[ConnectionCounts]]


def _split(
    name: str,
    kind: MetricKind,
    explanation: str,
    reads: Mapping[str, Callable[[ConnectionCounts], int]],
) -> SplitFamily[ByProtocol]:
    """Return a family with a series for each protocol and reason; the reason "" is no label."""
    return SplitFamily(
        name,
        kind,
        explanation,
        lambda listeners: (
            Slice(sum(map(read, each)), {"protocol": protocol, **({"reason": reason} if reason else {})})
            for reason, read in reads.items()
            for protocol, each in listeners.items()
        ),
    )


FAMILIES: Final[Families[ByProtocol]] = (
    _split("tritium_connections", "gauge", "Connections that are open", {"": lambda counts: counts.open}),
    _split(
        "tritium_connections_limit",
        "gauge",
        "Connections that may be open before some make room for others",
        {"": lambda counts: counts.most},
    ),
    _split(
        "tritium_connections_gave_way_total",
        "counter",
        "Connections that were ended, idle or slow, so that others had room",
        {"": lambda counts: counts.gave_way},
    ),
    _split(
        "tritium_connections_turned_away_total",
        "counter",
        "Connections that were turned away: all others were busy, their address had too many, or a trusted"
        " proxy did not begin with a header of the PROXY protocol",
        {
            "busy": lambda counts: counts.crowded_out,
            "address": lambda counts: counts.over_address_limit,
            "proxy_header": lambda counts: counts.not_introduced,
        },
    ),
)


def connection_blocks(listeners: ByProtocol) -> Iterator[Block]:
    """Yield what the listeners of each protocol count; nothing if there are none."""
    if listeners:
        yield from once(FAMILIES, listeners)
