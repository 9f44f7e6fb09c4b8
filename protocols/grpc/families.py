"""Metric families of gRPC: those of all listeners together, that of the port and that of the Unix socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from actors.values.families import Block, Families, Family, MetricKind, once
from protocols.grpc.listener import GrpcStatistics


def _sum(
    name: str, kind: MetricKind, explanation: str, read: Callable[[GrpcStatistics], int]
) -> Family[Sequence[GrpcStatistics]]:
    return Family(name, kind, explanation, lambda listeners: sum(map(read, listeners)))


FAMILIES: Final[Families[Sequence[GrpcStatistics]]] = (
    _sum("tritium_grpc_connections", "gauge", "gRPC connections that are open", lambda s: s.connections),
    _sum("tritium_grpc_streams", "gauge", "gRPC calls that are open", lambda s: s.streams),
    _sum(
        "tritium_grpc_pending_bytes",
        "gauge",
        "Answers that wait for gRPC clients to read, in bytes",
        lambda s: s.pending,
    ),
    _sum(
        "tritium_grpc_accepted_total",
        "counter",
        "gRPC connections that were accepted",
        lambda s: s.accepted,
    ),
    _sum(
        "tritium_grpc_violations_total",
        "counter",
        "gRPC connections that were ended because the client broke the rules of HTTP/2",
        lambda s: s.violations,
    ),
    _sum(
        "tritium_grpc_floods_total",
        "counter",
        "Those of them whose client asked too much",
        lambda s: s.floods,
    ),
)


def grpc_blocks(listeners: Sequence[GrpcStatistics]) -> Iterator[Block]:
    """Yield what the listeners count; nothing if there are none."""
    if listeners:
        yield from once(FAMILIES, listeners)
