"""When to stop asking a service that does not answer, and when to try again."""

from __future__ import annotations

from typing import Final

FAILURES_ALLOWED: Final = 2
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0


class Breaker:
    """Lets callers through until `FAILURES_ALLOWED` + 1 calls in a row have failed.

    It lets them through again once a trial succeeded. The owner makes the trials, one after `pause` seconds
    each, so that no caller has to wait for one. It begins shut off: nothing has been tried yet.
    """

    __slots__ = ("_failures", "closed", "pause")

    def __init__(self) -> None:
        self.closed = False  # in the sense of a switch: calls go through
        self.pause = 0.0
        self._failures = 0

    def succeeded(self) -> bool:
        """A call or a trial succeeded. True if that lets callers through again."""
        came_back = not self.closed
        self.closed = True
        self._failures = 0
        self.pause = 0.0
        return came_back

    def failed(self) -> bool:
        """A call or a trial failed. True if callers are no longer let through from now on."""
        if not self.closed:
            self.pause = min(LONGEST_PAUSE, self.pause * 2 or FIRST_PAUSE)
            return False
        self._failures += 1
        if self._failures <= FAILURES_ALLOWED:
            return False
        self.closed = False
        self.pause = FIRST_PAUSE
        return True
