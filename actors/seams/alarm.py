"""Wake-ups within a millisecond.

trio sleeps in `epoll_wait`, whose timeouts are whole milliseconds, rounded up: a queue delay of 200 µs would
take over one millisecond. A timerfd is precise, and the loop waits for it as for any other descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Final

import trio

NEAR: Final = 0.005
"""Seconds below which trio's own timers are too coarse."""

_CLOCK_MONOTONIC: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


_ITIMERSPEC: Final = ctypes.c_long * 4  # interval, then first expiry, each in seconds and nanoseconds


_rings: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("alarms", True)


def give(*, rings: bool) -> None:
    """Have the alarms that this run of trio makes from now on ring, or never ring."""
    _rings.set(rings)


class Alarm:
    """Calls `ring` a little after the time it was last set to.

    `run` is a task of its owner, which closes it. The owner has a timer of trio's for the same moment.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        """Raise OSError where the process has no descriptor left."""
        self._ring = ring
        self._rings = _rings.get()
        self._fd: int = _LIBC.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer to be had")

    def set(self, delay: float) -> None:
        """Ring in `delay` seconds. The time set before no longer counts."""
        if self._rings:
            timer = _ITIMERSPEC(0, 0, *divmod(max(1, int(delay * 1e9)), 1_000_000_000))
            _LIBC.timerfd_settime(self._fd, 0, timer, None)

    async def run(self) -> None:
        """Ring, again and again."""
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            with contextlib.suppress(BlockingIOError):  # it was set anew in the meantime
                os.read(self._fd, 8)
                self._ring()

    def close(self) -> None:
        """Give the timer back."""
        trio.lowlevel.notify_closing(self._fd)
        os.close(self._fd)
