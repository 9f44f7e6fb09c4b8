"""Accepting connections from a listening socket, through what accept(2) fails for."""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable
from typing import Final

import trio

OnExhausted = Callable[[OSError], None]
"""Told why no connection can be accepted for now. Never raises, never waits."""

EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Descriptors or memory are used up: clients wait in the kernel's backlog until some are free again."""

PASSING: Final = frozenset(
    (
        errno.ECONNABORTED,
        errno.EPERM,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
    )
)
"""What accept(2) reports of a client that is gone already, or of the network, rather than of the listening socket."""

_EXHAUSTED_PAUSE: Final = 0.1  # seconds until the next try
_QUIET: Final = 60.0  # seconds after one word of exhaustion in which there is no other


class OnceAMinute:
    """Passes exhaustion on to `tell`, where there is one, once a minute at most: each try would repeat it."""

    def __init__(self, tell: OnExhausted | None) -> None:
        self._tell = tell
        self._quiet_until = -math.inf

    def __call__(self, failure: OSError) -> None:
        """Tell of `failure`, unless that was done within the last minute."""
        now = trio.current_time()
        if self._tell is not None and now >= self._quiet_until:
            self._quiet_until = now + _QUIET
            self._tell(failure)


async def accept(sock: socket.socket, on_exhausted: OnExhausted) -> socket.socket:
    """Return the next connection of `sock`, a listening socket that does not block.

    `on_exhausted` is told each time that descriptors or memory are used up; wrap it in `OnceAMinute`. Raises OSError where the
    listening socket itself is at fault.
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
