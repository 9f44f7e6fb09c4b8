"""Metric families of connections, by protocol. Listeners of one protocol are counted together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from actors.values.families import Block, Families, MetricKind, Slice, SplitFamily, once
from protocols.transport.listening import ConnectionCounts

ByProtocol = Mapping[str, Sequence[ConnectionCounts]]


def _split(
    name: str,
    kind: MetricKind,
    explanation: str,
    reads: Mapping[str, Callable[[ConnectionCounts], int]],
) -> SplitFamily[ByProtocol]:
    """Return a family with a series for each protocol and reason; the reason "" is no label."""
    return SplitFamily(
        name,
        kind,
        explanation,
        lambda listeners: (
            Slice(sum(map(read, each)), {"protocol": protocol, **({"reason": reason} if reason else {})})
            for reason, read in reads.items()
            for protocol, each in listeners.items()
        ),
    )


FAMILIES: Final[Families[ByProtocol]] = (
    _split("tritium_connections", "gauge", "Connections that are open", {"": lambda counts: counts.open}),
    _split(
        "tritium_connections_limit",
        "gauge",
        "Connections that may be open before some make room for others",
        {"": lambda counts: counts.most},
    ),
    _split(
        "tritium_connections_gave_way_total",
        "counter",
        "Connections that were ended, idle or slow, so that others had room",
        {"": lambda counts: counts.gave_way},
    ),
    _split(
        "tritium_connections_turned_away_total",
        "counter",
        "Connections that were turned away: all others were busy, or their address had too many",
        {"busy": lambda counts: counts.crowded_out, "address": lambda counts: counts.over_address_limit},
    ),
)


def connection_blocks(listeners: ByProtocol) -> Iterator[Block]:
    """Yield what the listeners of each protocol count; nothing if there are none."""
    if listeners:
        yield from once(FAMILIES, listeners)
