"""What becomes of spans, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.values.families import Block, Families, SplitFamily, by, once


class SpanCounts:
    """What became of spans. Each number is written by one thread, and read by any."""

    def __init__(self) -> None:
        self.dropped = 0  # too many waited for the collector
        self.exported = 0
        self.failed = 0


FAMILIES: Final[Families[SpanCounts]] = [
    SplitFamily(
        "tritium_trace_spans_total",
        "counter",
        "Spans of traced requests: exported to the collector, failed there, or dropped since too many waited",
        lambda counts: by(
            "outcome",
            [("exported", counts.exported), ("failed", counts.failed), ("dropped", counts.dropped)],
        ),
    )
]


def span_blocks(counts: SpanCounts) -> Iterator[Block]:
    """Yield what is told of spans in numbers."""
    return once(FAMILIES, counts)
