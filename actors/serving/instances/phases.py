"""How long each phase of a version's load took. Pure: the caller tells the time, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAMES: Final = {
    "reading": "reading",
    "downloading": "downloading",
    "building its environment": "environment",
    "waiting": "waiting",
    "waiting for its models": "waiting",
    "starting": "starting",
    "warming up": "warming_up",
    "probing": "probing",
}
_OVER: Final = frozenset({"serving", "passive"})
"""What an instance is busy with once its load is over. Others of the version may still load."""

_OTHER: Final = "loading"
"""The worker loads the model. Backends name what they do then in words of their own, which may be any."""


class LoadPhases:
    """The time that a load spent in each phase. The one entered last goes on until the next, or the end.

    Where several instances load at once, the phase is what any of them entered last.
    """

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        """`before`: phases that were over before the version was made."""
        self._seconds = dict(before or {})
        self._current = ""
        self._since = 0.0
        self._ended = False

    def enter(self, phase: str, now: float) -> None:
        """The load is busy with something else, in the words that operators read."""
        name = _NAMES.get(phase, _OTHER)
        if self._ended or phase in _OVER or name == self._current:
            return
        self._close(now)
        self._current, self._since = name, now

    def end(self, now: float) -> None:
        """The load is over. What instances are busy with later, after a death, is no part of it."""
        self._close(now)
        self._current, self._ended = "", True

    def _close(self, now: float) -> None:
        if self._current:
            spent = self._seconds.get(self._current, 0.0)
            self._seconds[self._current] = spent + now - self._since

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds of each phase so far, by the phase's name in metrics."""
        told = dict(self._seconds)
        if self._current:
            told[self._current] = told.get(self._current, 0.0) + now - self._since
        return told
