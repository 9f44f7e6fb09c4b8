"""How many runs of each step of one request may be on their way at once: `max_inflight_requests`. Pure."""

from __future__ import annotations

from collections import OrderedDict


class Gates:
    """The gates of one request, one before each step.

    A run that finds its gate closed waits until one of the same step has ended, or until its patience is
    over.
    """

    def __init__(self, limit: int) -> None:
        """`limit` of 0 keeps every gate open."""
        self._limit = limit
        self._outside: dict[int, int] = {}  # runs that have passed and not ended, by step
        self._waiting: dict[int, OrderedDict[object, None]] = {}  # by step, in order

    def enter(self, step: int, run: object) -> bool:
        """Whether `run` may go; else it waits here."""
        if self._limit and self._outside.get(step, 0) >= self._limit:
            self._waiting.setdefault(step, OrderedDict())[run] = None
            return False
        self._pass(step)
        return True

    def ended(self, step: int) -> object | None:
        """A run of `step` has ended. Return the one that may go in its place, if one waits."""
        self._outside[step] -= 1
        waiting = self._waiting.get(step)
        if not waiting or self._outside[step] >= self._limit:
            return None
        run = next(iter(waiting))
        del waiting[run]
        self._pass(step)
        return run

    def give_up(self, step: int, run: object) -> bool:
        """The patience of `run` is over, so it goes. False if it went before."""
        if not self.withdraw(step, run):
            return False
        self._pass(step)
        return True

    def withdraw(self, step: int, run: object) -> bool:
        """Take `run` out, because it is not to go any more. False if it does not wait."""
        waiting = self._waiting.get(step)
        if waiting is None or run not in waiting:
            return False
        del waiting[run]
        return True

    def _pass(self, step: int) -> None:
        self._outside[step] = self._outside.get(step, 0) + 1
