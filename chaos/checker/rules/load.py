"""Whether the load was as planned, as a quiet run proves nothing, and what a model delivers of too much."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from chaos.checker.goals import Goal, quantile
from chaos.checker.rules.limits import Limits
from chaos.checker.story import Story
from chaos.record.records import Manifest, Ok, Phase

_APART: Final[frozenset[Phase]] = frozenset({"overload", "ending"})


class Load:
    """How much of the planned ordinary load was sent, in the phases that have no other load."""

    def __init__(self, manifest: Manifest, limits: Limits) -> None:
        seconds = sum(end - begin for phase, begin, end in manifest.phases if phase not in _APART)
        self._planned = manifest.rate * seconds
        self._share = limits.load
        self.sent = 0
        self._late = array("d")

    def see(self, story: Story) -> None:
        """Count a request of the load."""
        invoke = story.invoke
        if invoke.by or invoke.phase in _APART:
            return
        # A client with a lasting stream has no time when it is due: it waits for its answers.
        if invoke.due is None:
            return
        self.sent += 1
        self._late.append(invoke.t - invoke.due)

    def figures(self) -> dict[str, float]:
        """Return how late the generator itself was, in seconds.

        Its lateness adds to no latency, but it thins out the load.
        """
        return {"sent late, p99 (s)": quantile(self._late, 0.99)} if self._late else {}

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        yield Goal(
            name="load sent",
            about="requests of the ordinary load that were sent, of those that were to be",
            limit=self._share,
            figure=self.sent / self._planned if self._planned else None,
            sense="at least",
            unit="×",
            measured=self.sent,
        )


# -- a model that is asked for more than it can do

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
