"""A replica at an address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.fleet.ports import Member


def ports(options: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the ports of HTTP, gRPC and metrics: what a way of discovery says, or Triton's."""
    return (
        int(options.get("port", 8000)),
        int(options.get("grpc_port", 8001)),
        int(options.get("metrics_port", 8002)),
    )


def member(name: str, address: str, ports: tuple[int, int, int]) -> Member:
    """Return the replica that listens at `address`, an IPv4 or IPv6 address or a name."""
    host = f"[{address}]" if ":" in address else address
    http, grpc, metrics = ports
    return Member(
        name=name.replace(":", "-"),
        url=f"http://{host}:{http}",
        grpc=f"{host}:{grpc}",
        metrics=f"http://{host}:{metrics}/metrics",
    )
