"""A replica at an address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.fleet.ports import Member

PORT: Final = 8000  # Triton's, as those of gRPC and of metrics below


def member(name: str, address: str, options: Mapping[str, Any]) -> Member:
    """Return the replica that listens at `address`, an IPv4 or IPv6 address or a name.

    `options` are those of a way of discovery: ports and schemes.
    """
    host = f"[{address}]" if ":" in address else address
    scheme = options.get("scheme", "http")
    metrics = f"{options.get('metrics_scheme', scheme)}://{host}:{options.get('metrics_port', 8002)}/metrics"
    return Member(
        name=name.replace(":", "-"),
        url=f"{scheme}://{host}:{options.get('port', PORT)}",
        grpc=f"{host}:{options.get('grpc_port', 8001)}",
        metrics=metrics,
    )
