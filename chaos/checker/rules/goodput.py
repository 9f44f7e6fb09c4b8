"""What a model delivers while it is asked for more than it can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chaos.checker.goals import Goal
from chaos.checker.rules.limits import Limits
from chaos.checker.story import Story
from chaos.record.records import Manifest, Ok

FILLING: Final = 2.0
"""Seconds of an overload in which its queue fills and nothing is counted.

It is a fifth of the overload if that is less.
"""


class Goodput:
    """Good answers a second in the overload phase, without those that came after their deadline."""

    def __init__(self, manifest: Manifest, limits: Limits) -> None:
        self._limits = limits
        self._spans = [
            (begin + min(FILLING, (end - begin) / 5), end)
            for phase, begin, end in manifest.phases
            if phase == "overload"
        ]
        self._good = 0

    def see(self, story: Story) -> None:
        """Count an answer of use."""
        end = story.end
        if not isinstance(end, Ok) or story.invoke.model != self._limits.overloaded:
            return
        deadline = story.invoke.deadline
        if deadline is not None and end.t > deadline + self._limits.late:
            return
        self._good += any(begin <= end.t < until for begin, until in self._spans)

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        seconds = sum(end - begin for begin, end in self._spans)
        rate = self._good / seconds if seconds > 0 else None
        capacity = self._limits.capacity
        yield Goal(
            name="goodput in overload",
            about=f"good answers a second of '{self._limits.overloaded}', of the {capacity:g} that it can give",
            limit=self._limits.goodput,
            figure=None if rate is None else rate / capacity,
            sense="at least",
            unit="×",
            timed=True,
            measured=self._good,
        )
