"""Accepting connections from a listening socket, through failures of accept(2), and up to the last one."""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable
from typing import Final

import trio

from protocols.transport.sockets import PASSING

OnExhausted = Callable[[OSError], None]
"""Told why no connection can be accepted for now. Never raises, never waits."""

EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Descriptors or memory are used up: clients wait in the kernel's backlog until some are free again."""

_EXHAUSTED_PAUSE: Final = 0.1  # seconds until the next try
_AT_ONCE: Final = 16
"""Connections that are let in during one turn of the loop.

A loop that is short of processor time has few turns a second. With one connection a turn, newcomers would
wait for seconds while requests on existing connections are answered at once.
"""

_QUIET: Final = 60.0  # seconds between two reports of exhaustion


class OnceAMinute:
    """Passes exhaustion on to `tell`, if given, once a minute at most. Otherwise each try would repeat it."""

    def __init__(self, tell: OnExhausted | None) -> None:
        self._tell = tell
        self._quiet_until = -math.inf

    def __call__(self, failure: OSError) -> None:
        """Report `failure`, unless one was reported within the last minute."""
        now = trio.current_time()
        if self._tell is not None and now >= self._quiet_until:
            self._quiet_until = now + _QUIET
            self._tell(failure)


async def accept(sock: socket.socket, on_exhausted: OnExhausted) -> socket.socket:
    """Return the next connection of `sock`, a listening socket that does not block.

    `on_exhausted` is told each time that descriptors or memory are used up; wrap it in `OnceAMinute`. Raises
    OSError where the listening socket itself is at fault.
    """
    while True:
        try:
            return sock.accept()[0]
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
        except OSError as failure:
            if failure.errno in EXHAUSTED:
                on_exhausted(failure)
                await trio.sleep(_EXHAUSTED_PAUSE)
            elif failure.errno not in PASSING:
                raise


class Door:
    """Lets connections in while there is room for them and, when it is shut, those that wait already.

    A client whose connection the kernel has made may have sent its request. If the listening socket were
    closed on it, that connection would be reset without a word.
    """

    def __init__(self, most: int) -> None:
        """There is room for `most` connections; others wait in the kernel's backlog."""
        self._room = trio.Semaphore(most)
        self._scope = trio.CancelScope()
        self._shut = trio.Event()
        self._sock: socket.socket | None = None
        self._admit: Callable[[socket.socket], None]

    async def stand_at(
        self, sock: socket.socket, admit: Callable[[socket.socket], None], on_exhausted: OnExhausted
    ) -> None:
        """Hand each connection to `admit`, until shut.

        `admit` owns the socket from then on, and sees to it that `left` is called. Raises what `admit`
        raises, and OSError where the listening socket, which must not block, is at fault.
        """
        if self._shut.is_set():
            return
        self._sock, self._admit = sock, admit
        with trio.CancelScope() as self._scope:
            while True:
                await self._room.acquire()
                try:
                    accepted = await accept(sock, on_exhausted)
                except BaseException as failure:
                    self._room.release()
                    if self._shut.is_set() and isinstance(failure, OSError):
                        return  # the listening socket was closed after the last connection
                    raise
                admit(accepted)
                self._let_in(_AT_ONCE - 1)

    def left(self) -> None:
        """One connection is over, or was not admitted after all."""
        self._room.release()

    def shut(self) -> None:
        """Let in the clients that wait already, as far as there is room, and no others any more."""
        self._shut.set()
        self._scope.cancel()
        try:
            self._let_in(math.inf)
        except Exception:  # noqa: BLE001
            # That connection is lost, as it would have been without this, and the others drain.
            return

    def _let_in(self, most: float) -> None:
        """Let in so many of the clients that wait already, as far as there is room.

        Raises what `admit` raises. Any other failure of accept(2) is left to the next call that waits there.
        """
        while self._sock is not None and most > 0:
            try:
                self._room.acquire_nowait()
            except trio.WouldBlock:
                return
            try:
                accepted = self._sock.accept()[0]
            except OSError as failure:
                self._room.release()
                if failure.errno not in PASSING:
                    return
            else:
                self._admit(accepted)
            most -= 1
