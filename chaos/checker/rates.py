"""Rates and latencies of a run, for each phase and for each model."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from chaos.checker.story import Story
from chaos.record.records import Ok


@dataclass(slots=True)
class Rates:
    """What became of some of the requests."""

    ends: Counter[str] = field(default_factory=Counter)  # by the kind of record: ok, fail, unknown
    sent: int = 0
    latencies: array[float] = field(
        default_factory=lambda: array("d"), repr=False
    )  # seconds, of good answers


class AllRates:
    """Counts each request under its phase and under its model."""

    def __init__(self) -> None:
        self.phases: dict[str, Rates] = {}
        self.models: dict[str, Rates] = {}

    def see(self, story: Story) -> None:
        """Take note of a request."""
        invoke, end = story.invoke, story.end
        for group, name in ((self.phases, invoke.phase), (self.models, invoke.model)):
            rates = group.setdefault(name, Rates())
            rates.sent += 1
            if end is not None:
                rates.ends[end.kind] += 1
            if isinstance(end, Ok):
                rates.latencies.append(end.t - invoke.t)
