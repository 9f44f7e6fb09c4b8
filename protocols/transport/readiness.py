"""How the tasks of a listener's connections wait for their sockets: a crowd of them in portions.

Trio runs all tasks whose sockets are ready in one turn of its loop, however many they are. So only so many of
a listener's connections, the oldest, wait with trio itself. The sockets of all others are in an epoll of the
listener's own, which is one more descriptor to trio. `protocols.transport.portions` says which of them go
first, and how many go in a turn.

A task that is woken there costs its request 8 µs more where it is the only one in its turn, and less than a
wait with trio where there are many. So a server with few connections is as fast as one without all this.

Who can take *turns* needs no task to wake: a function is called, from the listener's epoll, and the kernel
need not be told anything between two turns. Of the oldest connections, those wait there that the last turn
was enough for, and the others with trio.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio
from outcome import Error

from protocols.transport.portions import IN_USE, Portions

DIRECT: Final = 64
"""Connections of a listener that wait with trio itself."""

_TAKEN: Final = 1024  # events that are taken from the kernel in one turn: a millisecond
_IN: Final = select.EPOLLIN | select.EPOLLRDHUP
_OUT: Final = select.EPOLLOUT
_FAILED: Final = select.EPOLLHUP | select.EPOLLERR
_READS: Final = _IN | _FAILED
_WRITES: Final = _OUT | _FAILED
_GONE: Final = select.EPOLLRDHUP | _FAILED


class Waits(Protocol):
    """One connection's waits: at most one task waits to read, and one to write."""

    def readable(self) -> Awaitable[None]:
        """Wait until a read is worth a try. Raises ClosedResourceError where the task is roused."""

    def writable(self) -> Awaitable[None]:
        """Wait until a write is worth a try. Raises ClosedResourceError where the task is roused."""

    def rouse(self) -> None:
        """End all waits."""

    def end(self) -> None:
        """The socket is about to be closed."""


class Readiness:
    """The waits of a listener's connections. `run` is a task of the listener."""

    def __init__(self, *, turns: bool = False) -> None:
        """`turns`: connections take turns."""
        self._turns = turns
        self._direct = 0
        self._epoll = select.epoll()
        self._watches: dict[int, Watch] = {}
        self._portions: Portions[Watch] = Portions()
        # What is left of the portion of this turn, should `run` crash in it.
        self._portion: deque[Watch] = deque()

    def waits(self, sock: socket.socket) -> Waits:
        """Return what the connection of `sock` waits with; `end` it before the socket is closed."""
        descriptor = sock.fileno()
        left: Callable[[], None] | None = None
        if self._direct < DIRECT:
            self._direct += 1
            if not self._turns:
                return DirectWaits(descriptor, self._left)
            left = self._left
        watch = Watch(self._epoll, self._watches, descriptor, trio.current_time() + IN_USE, left)
        self._epoll.register(descriptor, select.EPOLLONESHOT)
        self._watches[descriptor] = watch
        return watch

    def readable(self, sock: socket.socket) -> Awaitable[None]:
        """Wait as the connection of `sock` would that has not begun to."""
        watch = self._watches.get(sock.fileno())
        if watch is not None:
            return watch.readable()
        return trio.lowlevel.wait_readable(sock)  # noqa: ASYNC105  # the caller awaits it

    def _left(self) -> None:
        self._direct -= 1

    def close(self) -> None:
        """Let go of the descriptor, when `run` will not be called again."""
        self._epoll.close()

    async def run(self) -> None:
        """Wake tasks, for ever. Called again after a crash, it goes on."""
        epoll, portions, watches = self._epoll, self._portions, self._watches
        portion = self._portion
        while True:
            while portion:
                portion.popleft().wake()
            if portions:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(epoll.fileno())
            now = trio.current_time()
            for descriptor, flags in epoll.poll(0, _TAKEN):
                watch = watches.get(descriptor)
                if watch is not None:
                    watch.flags |= flags
                    if not watch.queued:
                        watch.queued = True
                        portions.add(watch, gone=flags & _GONE != 0, used=now < watch.used_until)
            portion.extend(portions.take())


class DirectWaits(Waits):
    """Waits with trio itself. `left` is called at their end."""

    __slots__ = ("_descriptor", "_left")

    def __init__(self, descriptor: int, left: Callable[[], None] = lambda: None) -> None:
        self._descriptor = descriptor
        self._left: Callable[[], None] | None = left

    def readable(self) -> Awaitable[None]:
        """See `Waits`."""
        # Not a coroutine of its own, which would cost each wait a frame more.
        return trio.lowlevel.wait_readable(self._descriptor)  # noqa: ASYNC105  # the caller awaits it

    def writable(self) -> Awaitable[None]:
        """See `Waits`."""
        return trio.lowlevel.wait_writable(self._descriptor)  # noqa: ASYNC105  # as above

    def rouse(self) -> None:
        """See `Waits`."""
        trio.lowlevel.notify_closing(self._descriptor)

    def end(self) -> None:
        """See `Waits`."""
        left, self._left = self._left, None
        if left is not None:
            left()


class Watch(Waits):
    """Waits for a turn. `used_until` is until when the connection counts as in use.

    If `left` is given, this is one of the oldest connections: it waits with trio unless it takes turns, and
    calls `left` at its end.
    """

    __slots__ = (
        "_descriptor",
        "_epoll",
        "_fruitful",
        "_left",
        "_reader",
        "_turn",
        "_watches",
        "_writer",
        "flags",
        "queued",
        "used_until",
    )

    def __init__(
        self,
        epoll: select.epoll,
        watches: dict[int, Watch],
        descriptor: int,
        used_until: float,
        left: Callable[[], None] | None = None,
    ) -> None:
        self._left = left
        self._fruitful = left is None  # the last turn was enough
        self.used_until = used_until
        self.flags = 0  # what the kernel has reported since the last `wake`
        self.queued = False  # it stands in line for its `wake`, and needs no second place there
        self._epoll = epoll
        self._watches = watches
        self._descriptor = descriptor
        self._reader: trio.lowlevel.Task | None = None
        self._turn: Callable[[], bool] | None = None  # is asked before the reader is woken
        self._writer: trio.lowlevel.Task | None = None

    def use(self, now: float) -> None:
        """Note that a request came, or was answered: connections in use go first."""
        self.used_until = now + IN_USE

    def readable(self) -> Awaitable[None]:
        """See `Waits`."""
        if self._left is not None:
            return trio.lowlevel.wait_readable(self._descriptor)  # noqa: ASYNC105  # the caller awaits it
        return self._readable()

    async def _readable(self) -> None:
        self._reader = trio.lowlevel.current_task()
        self._arm()
        await trio.lowlevel.wait_task_rescheduled(self._stop_reader)

    async def turns(self, turn: Callable[[], bool]) -> None:
        """Do as `Transport.wait_turns`. From turn to turn, the kernel need not be told anything."""
        if not self._fruitful:
            await trio.lowlevel.wait_readable(self._descriptor)
            if not turn():
                return
            self._fruitful = True
        self._reader, self._turn = trio.lowlevel.current_task(), turn
        self._arm()
        await trio.lowlevel.wait_task_rescheduled(self._stop_reader)

    def writable(self) -> Awaitable[None]:
        """See `Waits`."""
        if self._left is not None:
            return trio.lowlevel.wait_writable(self._descriptor)  # noqa: ASYNC105  # as above
        return self._writable()

    async def _writable(self) -> None:
        self._writer = trio.lowlevel.current_task()
        self._arm()
        await trio.lowlevel.wait_task_rescheduled(self._stop_writer)

    def wake(self) -> None:
        """Wake the tasks that wait for what was reported."""
        self.queued = False
        flags, self.flags = self.flags, 0
        writer = self._writer
        if self._reader is not None and flags & _READS:
            self._wake_reader(flags)
        if writer is not None and flags & _WRITES:
            self._writer = None
            trio.lowlevel.reschedule(writer)
        if self._turn is None and (self._reader is not None or self._writer is not None):
            self._arm()

    def _wake_reader(self, flags: int) -> None:
        turn = self._turn
        if turn is not None and turn():
            if flags & _GONE and self._reader is not None:
                self._arm()  # the kernel tells of the end once, and the turn may not have come to it
            return
        reader, self._reader, self._turn = self._reader, None, None
        if self._left is not None and turn is not None:
            self._fruitful = False
            self._arm()  # for nothing: it waits with trio
        if reader is not None:  # the turn may have roused it
            trio.lowlevel.reschedule(reader)

    def rouse(self) -> None:
        """See `Waits`."""
        reader, self._reader, self._turn = self._reader, None, None
        writer, self._writer = self._writer, None
        for task in (reader, writer):
            if task is not None:
                trio.lowlevel.reschedule(task, Error(trio.ClosedResourceError("the connection is roused")))
        if self._left is not None:
            trio.lowlevel.notify_closing(self._descriptor)

    def end(self) -> None:
        """See `Waits`."""
        left, self._left = self._left, None
        if left is not None:
            left()
        if self._watches.get(self._descriptor) is self:
            del self._watches[self._descriptor]
            # Closing alone would leave the registration to a descriptor
            # that a process, just forked, holds for a moment.
            try:
                self._epoll.unregister(self._descriptor)
            except (OSError, ValueError):
                # The interpreter has closed the socket already: its TLS ended before it began. Or the
                # listener is closed.
                return

    def _arm(self) -> None:
        # An event disarms the socket, and so costs nothing until a task waits again. The end of the client's
        # side is a thing of readers: to a writer, it would be reported for ever.
        # A turn reads all there is, so the edge tells of more.
        if self._turn is not None:
            wanted = _IN | select.EPOLLET
        else:
            wanted = select.EPOLLONESHOT | (_IN if self._reader is not None else 0)
            wanted |= _OUT if self._writer is not None else 0
        self._epoll.modify(self._descriptor, wanted)

    def _stop_reader(self, _: object) -> trio.lowlevel.Abort:
        self._reader = self._turn = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _stop_writer(self, _: object) -> trio.lowlevel.Abort:
        self._writer = None
        return trio.lowlevel.Abort.SUCCEEDED
