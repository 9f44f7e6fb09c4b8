"""Denials, counted where they repeat, so that no flood of them fills the log or the memory. Pure.

The first denial of its kind is told at once. A kind is an identity, an address, a listener, an action and a
code. Those of the next minute are counted, and told as one. So many kinds are told apart as a bucket has
tokens for, which come slowly: what clients from ever new addresses do is told in sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

WINDOW: Final = 60.0
"""Seconds for which denials of one kind are counted before they are told."""

MOST_KINDS: Final = 128
"""Kinds that are told apart at once, and that may come in one burst."""

RATE: Final = 0.2
"""New kinds a second that are told apart in the long run: some 17,000 a day, of at most 1 KiB each."""

GATHERING: Final = 0.5
"""Seconds for which first denials wait for others, so that many are one write."""

SEVERAL: Final = "several"
"""Stands for identity and address where many kinds are told in sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """What was denied, to which client, and why."""

    action: str
    code: str
    reason: str
    model: str = ""
    identity: str = ""
    address: str = ""
    via: str = ""

    @property
    def kind(self) -> tuple[str, ...]:
        """What denials have in common that are counted together."""
        return self.identity, self.address, self.via, self.action, self.code


@dataclass(frozen=True, slots=True)
class Counted:
    """`count` denials of one kind within `seconds`. A model is named if it was the same in all."""

    denial: Denial
    count: int
    seconds: float


@dataclass(slots=True)
class _Window:
    latest: Denial
    begun: float
    count: int = 0

    def add(self, denial: Denial) -> None:
        same = denial.model == self.latest.model or not self.count
        self.latest = denial if same else replace(denial, model="")
        self.count += 1

    def ends(self) -> float:
        return self.begun + WINDOW


class Denials:
    """Decides which denials are told, and when. It is told the time, in seconds of a steady clock."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, ...], _Window] = {}
        self._sums: dict[str, _Window] = {}  # by code: kinds that are not told apart
        self._fresh: list[Denial] = []
        self._fresh_since = math.inf
        self._tokens = float(MOST_KINDS)
        self._filled = -math.inf

    def add(self, denial: Denial, now: float) -> bool:
        """Take a denial. Returns whether `next_due` may have come closer."""
        window = self._windows.get(denial.kind)
        if window is not None:
            window.add(denial)
            return False
        if len(self._windows) < MOST_KINDS and self._take(now):
            self._windows[denial.kind] = _Window(denial, now)
            self._fresh.append(denial)
            self._fresh_since = min(self._fresh_since, now)
            return True
        summed = self._sums.get(denial.code)
        if summed is not None:
            summed.count += 1
            return False
        several = dict.fromkeys(("action", "identity", "address", "via"), SEVERAL)
        merged = Denial(**several, code=denial.code, reason="denials that are not told apart")
        self._sums[denial.code] = _Window(merged, now, 1)
        return True

    def _take(self, now: float) -> bool:
        if self._filled > -math.inf:
            self._tokens = min(MOST_KINDS, self._tokens + (now - self._filled) * RATE)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def next_due(self) -> float:
        """Return when there will be something to tell; inf for never."""
        ends = (window.ends() for some in (self._windows, self._sums) for window in some.values())
        return min(self._fresh_since + GATHERING, min(ends, default=math.inf))

    def due(self, now: float, *, everything: bool = False) -> Sequence[Counted]:
        """Return what is to be told now, and forget it. `everything`: also what would be told later."""
        told: list[Counted] = []
        if everything or now >= self._fresh_since + GATHERING:
            told += [Counted(denial, 1, 0.0) for denial in self._fresh]
            self._fresh.clear()
            self._fresh_since = math.inf
        for window in self._over(now, everything):
            told.append(Counted(window.latest, window.count, now - window.begun))
        return told

    def _over(self, now: float, everything: bool) -> list[_Window]:
        """Take the windows that are over out. A kind that goes on is counted in another one."""
        found: list[_Window] = []
        for kind, window in list(self._windows.items()):
            if everything or now >= window.ends():
                del self._windows[kind]
                if window.count:
                    found.append(window)
                    self._windows[kind] = _Window(window.latest, now)
        for code, window in list(self._sums.items()):
            if everything or now >= window.ends():
                del self._sums[code]
                found.append(window)
        return found
