"""The order in which connections whose sockets are ready get their turn, and how many do in one turn.

A crowd of thousands may become ready at the same moment, when its process dies or a network comes back. If
all of them ran in one turn of the loop, every other client would wait for a second. So a turn has a portion
of each of three lines, and each line goes in its order, so that none starves:

- Connections that are *in use*: they came, or brought a request, within the last `IN_USE` seconds.
- Those that were quiet for longer.
- Those whose client has left. Taking leave costs several times what a read does, and no client waits for it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

IN_USE: Final = 2.0
"""Seconds for which a connection that came, or brought a request, counts as in use."""

# Some 2 ms of processor time each: a request that is read takes some 50 µs, other bytes 20 and an end 200.
_USED_AT_ONCE: Final = 32
_QUIET_AT_ONCE: Final = 64
_GONE_AT_ONCE: Final = 8

T = TypeVar("T")


class Portions(Generic[T]):
    """The three lines of one listener."""

    def __init__(self) -> None:
        self._used: deque[T] = deque()
        self._quiet: deque[T] = deque()
        self._gone: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._used) + len(self._quiet) + len(self._gone)

    def add(self, ready: T, *, gone: bool, used: bool) -> None:
        """Put a connection that is ready into its line, at the end."""
        (self._gone if gone else self._used if used else self._quiet).append(ready)

    def take(self) -> list[T]:
        """Take out the connections of one turn."""
        taken: list[T] = []
        for line, most in (
            (self._used, _USED_AT_ONCE),
            (self._quiet, _QUIET_AT_ONCE),
            (self._gone, _GONE_AT_ONCE),
        ):
            if line:
                taken += [line.popleft() for _ in range(min(most, len(line)))]
        return taken
