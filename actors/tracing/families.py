"""Metric families of traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.tracing.tracing import Tracing
from actors.values.families import Block, Families, Family, SplitFamily, by, once

FAMILIES: Final[Families[Tracing]] = (
    Family(
        "tritium_traces_sampled_total",
        "counter",
        "Requests that were traced",
        lambda tracing: tracing.sampled,
    ),
    Family(
        "tritium_traces_written_total",
        "counter",
        "Traces that were written, or handed to the exporter",
        lambda tracing: tracing.written - tracing.unwritten,
    ),
    SplitFamily(
        "tritium_traces_lost_total",
        "counter",
        "Traces that were lost: too many waited, or they could not be written",
        lambda tracing: by(
            "reason", (("queue", tracing.dropped), ("sink", tracing.failed + tracing.unwritten))
        ),
    ),
)


def trace_blocks(tracing: Tracing) -> Iterator[Block]:
    """Yield what is told of traces."""
    yield from once(FAMILIES, tracing)
    yield from tracing.sink_blocks()
