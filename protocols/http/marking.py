"""What an HTTP request tells of its client, for models that ask (`actors.values.marks`) and the log."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from actors.values.marks import ClientMarks
from actors.values.requests import InferRequest


def put_marks(marks: ClientMarks, request: InferRequest, scope: MutableMapping[str, Any]) -> None:
    """Put what `marks` ask for on `request`, which came with the ASGI `scope`.

    Of a repeated header the last value counts.
    """
    fields: dict[bytes, bytes] = dict(scope["headers"])

    def header(name: str) -> str:
        return fields.get(name.encode("latin-1"), b"").decode("latin-1")

    def address() -> str:
        client = scope.get("client")
        return str(client[0]) if client else ""

    marks.put_on(request, header, address)


def peer_of(scope: MutableMapping[str, Any]) -> str:
    """Return the client's address as gRPC writes it, such as `ipv4:192.0.2.7:50312`; empty if unknown."""
    client = scope.get("client")
    if not client:
        return ""
    host, port = client[0], client[1]
    return f"ipv6:[{host}]:{port}" if ":" in str(host) else f"ipv4:{host}:{port}"
