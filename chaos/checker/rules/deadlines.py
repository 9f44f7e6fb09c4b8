"""Whether answers came while they were of use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chaos.checker.goals import Findings, Goal
from chaos.checker.injections import Blow
from chaos.checker.rules.limits import Limits
from chaos.checker.story import Story
from chaos.record.records import Ok


class Deadlines:
    """Good answers to requests whose deadline had passed.

    A deadline travels as the time that is left, and the server counts that time from when it reads the
    request. A server that was stopped and could not read owes its client nothing for that time.
    """

    def __init__(self, hits: Sequence[Blow], limits: Limits, began: float) -> None:
        self._stops = [(blow.t, blow.healed) for blow in hits if blow.injected.stops]
        self._late = limits.late
        self._began = began
        self._found = Findings()
        self._seen = 0

    def see(self, story: Story) -> None:
        """Look at when an answer came."""
        deadline = story.invoke.deadline
        if deadline is None or not isinstance(story.end, Ok):
            return
        self._seen += 1
        over = story.end.t - deadline - self._unread(story.invoke.t)
        if over > self._late:
            self._found.add(f"{over * 1e3:.0f} ms late", story.invoke.id, story.told(self._began))

    def _unread(self, sent: float) -> float:
        return max((end - sent for begin, end in self._stops if begin <= sent <= end), default=0.0)

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        yield self._found.goal(
            "answered late",
            f"good answers more than {self._late * 1e3:.0f} ms after their request's deadline",
            measured=self._seen,
            timed=True,
        )
