"""Whether an engine, or a text worker, hangs: it has work and shows no sign of life. Pure.

Signs of an engine are tokens, and the steps that it counts: between two steps it is silent, for longer where
a step computes a long prompt at once. So the time that it is given grows with the tokens of prompts that wait
to be computed, by what such a token took before. What is not busy can't be told from what hangs; it is given
something to do now and then.

Silence is counted by looks, so a server that was stopped for a while itself blames it on nothing.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

LONGEST: Final = 5.0
"""How many times as long as usual an engine may be silent at most, while long prompts wait."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at most."""

_LOOKS: Final = 8  # in the time for which a silence may last
_LONG_PROMPT: Final = 256  # tokens, from which on a silence tells what one of them takes


class Seen(NamedTuple):
    """What one look finds."""

    busy: bool  # it has something to do
    signs: int  # signs of life so far
    prompts: int = 0  # tokens of prompts of which nothing has come yet
    taking_in_since: float = math.inf  # since when it has been taking in the same request


class Progress:
    """What is remembered of one process."""

    def __init__(self, within: float, now: float, *, probe_every: float = 0.0) -> None:
        """It hangs after `within` seconds of silence. After `probe_every` idle ones, probe it; 0: never."""
        self.silent = 0.0
        """Seconds for which it has been silent at its work."""
        self._within = within
        self._probe_every = probe_every
        self._last = Seen(busy=False, signs=0)
        self._looked_at = now
        self._heard_at = now  # or probed
        self._stuck = 0.0  # seconds of taking in
        self._prompts = 0  # as the silence began
        self._pace = 0.0  # seconds that a token of a long prompt took at most

    @property
    def bound(self) -> float:
        """Seconds for which it may be silent now."""
        return min(LONGEST * self._within, self._within + self._pace * self._last.prompts)

    @property
    def hangs(self) -> bool:
        """Whether it counts as hung."""
        return self._waits >= self.bound

    @property
    def suspected(self) -> bool:
        """Whether it has used up half of its time."""
        return 2 * self._waits >= self.bound

    @property
    def _waits(self) -> float:
        return max(self.silent, self._stuck)

    def look(self, seen: Seen, now: float) -> None:
        """Take in what is seen of it."""
        passed = min(now - self._looked_at, 2 * look_every(self._within))
        self._looked_at = now
        last, self._last = self._last, seen
        if seen.taking_in_since == math.inf or seen.taking_in_since != last.taking_in_since:
            self._stuck = 0.0
        else:
            self._stuck += passed
        if seen.signs != last.signs:
            self._learn(self.silent + passed)
            self._heard_at = now
            self.silent = 0.0
        elif seen.busy and last.busy:
            self.silent += passed
        else:
            self.silent = 0.0
        if not self.silent:
            self._prompts = seen.prompts

    def _learn(self, silent: float) -> None:
        """A silence has ended in which it computed."""
        if self._prompts >= _LONG_PROMPT and silent > 2 * look_every(self._within):
            self._pace = max(self._pace, silent / self._prompts)

    def probe_due(self, now: float) -> bool:
        """Whether it is to be given something to do, as it has been idle for long. Then it is."""
        if not self._probe_every or self._last.busy or now - self._heard_at < self._probe_every:
            return False
        self._heard_at = now
        return True


def look_every(within: float) -> float:
    """Return the seconds between two looks at what may be silent for `within` seconds."""
    return min(LOOK_EVERY, within / _LOOKS)
