"""What becomes of spans, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.values.families import Block, Families, SplitFamily, by, once


class SpanCounts:
    """What became of spans. Each number is written by one thread, and read by any."""

    def __init__(self) -> None:
        self.handed = 0  # to those that wait for the collector
        self.overflown = 0  # there were too many of them
        self.taken = 0  # from there, to be exported
        self.exported = 0
        self.failed = 0

    @property
    def waiting(self) -> int:
        """How many wait for the collector."""
        return self.handed - self.taken


_FAMILIES: Final[Families[SpanCounts]] = [
    SplitFamily(
        "tritium_trace_spans_total",
        "counter",
        "Spans of traced requests: exported to the collector, failed there, or dropped since too many waited",
        lambda counts: by(
            "outcome",
            [("exported", counts.exported), ("failed", counts.failed), ("dropped", counts.overflown)],
        ),
    )
]


def span_blocks(counts: SpanCounts) -> Iterator[Block]:
    """Yield what is told of spans in numbers."""
    return once(_FAMILIES, counts)
