"""When to stop asking somebody who does not answer, and when to try again."""

from __future__ import annotations

from typing import Final

FAILURES_ALLOWED: Final = 2
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0


class Breaker:
    """Lets callers through until `FAILURES_ALLOWED` + 1 calls in a row have failed, and again once a trial succeeded.

    Trials are the owner's, one after `pause` seconds each, so that no caller has to wait for one. It begins
    shut off: nothing has been tried yet.
    """

    __slots__ = ("_failures", "closed", "pause")

    def __init__(self) -> None:
        self.closed = False  # as a switch is: what it is about goes through
        self.pause = 0.0
        self._failures = 0

    def succeeded(self) -> bool:
        """A call or a trial did what it should. True where that lets callers through again."""
        came_back = not self.closed
        self.closed = True
        self._failures = 0
        self.pause = 0.0
        return came_back

    def failed(self) -> bool:
        """A call or a trial failed. True where callers are let through no longer from now on."""
        if not self.closed:
            self.pause = min(LONGEST_PAUSE, self.pause * 2 or FIRST_PAUSE)
            return False
        self._failures += 1
        if self._failures <= FAILURES_ALLOWED:
            return False
        self.closed = False
        self.pause = FIRST_PAUSE
        return True
