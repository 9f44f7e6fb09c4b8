"""A run over its time: rates and latencies, second by second, of all models and of each."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Final

from chaos.checker.story import Story
from chaos.record.records import Ok, Unknown

MOST_BINS: Final = 600


@dataclass(slots=True)
class Lane:
    """What one model did, or all models together, in bins of equal width."""

    sent: list[int]
    good: list[int]
    errors: list[int]
    silent: list[int]  # ended without an answer
    latencies: list[array[float]] = field(repr=False)  # seconds, of the good answers


class Timeline:
    """Sorts requests into bins: requests by when they were sent, their ends by when they ended."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin = begin
        self.end = max(end, begin + 1.0)
        self.width = max(1.0, math.ceil((self.end - begin) / MOST_BINS))
        self.bins = math.ceil((self.end - begin) / self.width)
        self.all = self._lane()
        self.models: dict[str, Lane] = {}

    def see(self, story: Story) -> None:
        """Take note of a request."""
        lane = self.models.get(story.invoke.model)
        if lane is None:
            lane = self.models[story.invoke.model] = self._lane()
        for each in (self.all, lane):
            self._note(each, story)

    def _note(self, lane: Lane, story: Story) -> None:
        sent = self._place(story.invoke.t)
        if sent is not None:
            lane.sent[sent] += 1
        end = story.end
        place = None if end is None else self._place(end.t)
        if place is None or end is None:
            return
        if isinstance(end, Ok):
            lane.good[place] += 1
            lane.latencies[place].append(end.t - story.invoke.t)
        elif isinstance(end, Unknown):
            lane.silent[place] += 1
        else:
            lane.errors[place] += 1

    def _place(self, t: float) -> int | None:
        place = math.floor((t - self.begin) / self.width)
        return place if 0 <= place < self.bins else None

    def _lane(self) -> Lane:
        return Lane(
            sent=[0] * self.bins,
            good=[0] * self.bins,
            errors=[0] * self.bins,
            silent=[0] * self.bins,
            latencies=[array("d") for _ in range(self.bins)],
        )
