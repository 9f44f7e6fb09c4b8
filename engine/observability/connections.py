"""What the metrics tell of connections, by protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from protocols.transport.listening import ConnectionCounts


class ConnectionSource(Protocol):
    """What accepts connections. `protocols.transport.listening.Listener` does."""

    def counts(self) -> ConnectionCounts:
        """Return what is the case now."""


_FAMILIES: Final[Sequence[tuple[str, str, str, str, Callable[[ConnectionCounts], int]]]] = (
    ("tritium_connections", "gauge", "Connections that are open", "", lambda counts: counts.open),
    (
        "tritium_connections_limit",
        "gauge",
        "Connections that may be open before some make room for others",
        "",
        lambda counts: counts.most,
    ),
    (
        "tritium_connections_gave_way_total",
        "counter",
        "Connections that were ended, idle or slow, so that others had room",
        "",
        lambda counts: counts.gave_way,
    ),
    (
        "tritium_connections_turned_away_total",
        "counter",
        "Connections that were turned away: all others were busy, or their address had too many",
        "busy",
        lambda counts: counts.crowded_out,
    ),
    (
        "tritium_connections_turned_away_total",
        "counter",
        "",
        "address",
        lambda counts: counts.over_address_limit,
    ),
)


def connection_blocks(sources: Mapping[str, Sequence[ConnectionSource]]) -> Iterator[str]:
    """Yield the text of each family.

    `sources` are the listeners of each protocol; those of one protocol are counted together.
    """
    counts = {protocol: [each.counts() for each in listeners] for protocol, listeners in sources.items()}
    for name, kind, explanation, reason, read in _FAMILIES:
        head = f"# HELP {name} {explanation}\n# TYPE {name} {kind}\n" if explanation else ""
        label = f',reason="{reason}"' if reason else ""
        yield head + "".join(
            f'{name}{{protocol="{protocol}"{label}}} {sum(map(read, each))}\n'
            for protocol, each in counts.items()
        )
