"""Header fields: those of answers, and what those of a request tell of its client and the page behind it.

A page of another site can have a visitor's browser send a POST to any address that the visitor reaches,
without the visitor's consent. A browser says so itself: in `Sec-Fetch-Site`, which no page can forge, and in
`Origin`. Other clients send neither.

References: Fetch Metadata Request Headers (W3C), section 2.3; RFC 6454, section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from actors.values.callers import Peer
from actors.values.errors import TritiumError, Unauthenticated
from actors.values.marks import ClientMarks
from actors.values.requests import InferRequest
from protocols.kserve.compression import OFFERED, UnsupportedCompression
from protocols.status import retry_seconds

Header = tuple[bytes, bytes]

JSON: Final[Header] = (b"content-type", b"application/json")
EVENTS: Final[Header] = (b"content-type", b"text/event-stream; charset=utf-8")

SOON: Final[Header] = (b"retry-after", b"1")
"""The field that goes with a status of 503 whose end is unknown."""

_PHASES: Final = ("queue", "compute_input", "compute_infer", "compute_output")


def failure_fields(error: TritiumError) -> list[Header]:
    """Return the fields that go with the status of `error`, without its Content-Type."""
    if isinstance(error, UnsupportedCompression):
        return [(b"accept-encoding", OFFERED)]
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", error.challenge.encode())]
    seconds = retry_seconds(error)
    return [(b"retry-after", b"%d" % seconds)] if seconds else []


def server_timing(timing: tuple[int, int, int, int]) -> Header:
    """Return the Server-Timing field that tells how a request's nanoseconds were spent, in milliseconds."""
    spent = (f"{name};dur={ns / 1e6:.3f}" for name, ns in zip(_PHASES, timing, strict=True))
    return (b"server-timing", ", ".join(spent).encode())


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


def connecting(scope: MutableMapping[str, Any]) -> Peer:
    """Return the connection's own `Peer`, or another where the server does not tell connections apart."""
    peer: Peer | None = scope.get("extensions", {}).get("tritium.peer")
    if peer is not None:
        return peer
    client = scope.get("client")
    return Peer(str(client[0]) if client else "")


_OF_THIS_SITE: Final = frozenset({b"same-origin", b"none"})  # `none`: the visitor typed the address
_PORTS: Final = {"http": 80, "https": 443}


def foreign_origin(fields: Mapping[bytes, bytes]) -> str | None:
    """Return which header, with its value, says that another site sends this; None where none does.

    `fields` are the request's headers, their names in lower case. `Sec-Fetch-Site` decides where it is there,
    because a proxy between may have changed the host that `Origin` is compared with.
    """
    relation = fields.get(b"sec-fetch-site")
    if relation is not None:
        return None if relation.strip().lower() in _OF_THIS_SITE else _shown(b"Sec-Fetch-Site", relation)
    origin = fields.get(b"origin")
    if origin is None or _is_this_server(origin, fields.get(b"host", b"")):
        return None
    return _shown(b"Origin", origin)


def _shown(name: bytes, value: bytes) -> str:
    return (name + b": " + value[:100]).decode("latin-1")


def _is_this_server(origin: bytes, host: bytes) -> bool:
    try:
        page = urlsplit(origin.decode("latin-1"))
        server = urlsplit("//" + host.decode("latin-1"))
        default = _PORTS.get(page.scheme)
        ports = (page.port or default, server.port or default)
    except ValueError:  # such as a port that is no number
        return False
    return page.hostname is not None and page.hostname == server.hostname and ports[0] == ports[1]
