"""Header fields: those of answers, and what those of a request tell of its client."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from actors.values.callers import Caller, Peer, written
from actors.values.errors import TritiumError, Unauthenticated
from actors.values.marks import ClientMarks
from actors.values.requests import InferRequest
from actors.values.tracing.spans import Span
from protocols.kserve.compression import OFFERED, UnsupportedCompression
from protocols.status import retry_seconds
from protocols.transport.proxies import TrustedProxies, forwarding

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


def server_timing(timing: tuple[int, int, int, int], span: Span | None = None) -> Header:
    """Return the Server-Timing field that tells how a request's nanoseconds were spent, in milliseconds.

    Of a request whose `span` is exported it names the trace as well, in the way that browsers' agents read.
    """
    spent = [f"{name};dur={ns / 1e6:.3f}" for name, ns in zip(_PHASES, timing, strict=True)]
    if span is not None and span.trace.exported:
        spent.append(f'traceparent;desc="{span.trace.traceparent}"')
    return (b"server-timing", ", ".join(spent).encode())


def put_marks(
    marks: ClientMarks,
    request: InferRequest,
    headers: Iterable[Header],
    client: tuple[str, int] | None,
    caller: Caller | None,
) -> None:
    """Put what `marks` ask for on `request`, whose head has these `headers`, their names in lower case.

    `client` is its address and port, None where it has none. Of a repeated header the last value counts.
    """
    fields = dict(headers)

    def header(name: str) -> str:
        return fields.get(name.encode("latin-1"), b"").decode("latin-1")

    def address() -> str:
        return str(client[0]) if client else ""

    marks.put_on(request, header, address, caller)


def peer_of(client: tuple[str, int] | None) -> str:
    """Return the client's address as gRPC writes it, such as `ipv4:192.0.2.7:50312`; empty if unknown."""
    return written(str(client[0]), client[1]) if client else ""


def put_client(scope: MutableMapping[str, Any], proxies: TrustedProxies) -> None:
    """Put into a foreign server's `scope` whose request it is, if a trusted proxy brings it and says so."""
    client = scope.get("client")
    if client and proxies.trusts(str(client[0])):
        node = proxies.client(*forwarding(scope["headers"]))
        if node is not None:
            scope["client"] = (str(node.address), node.port)


def connecting(scope: MutableMapping[str, Any]) -> Peer:
    """Return the `Peer` that the connection knows, or another where the server tells none apart."""
    peer: Peer | None = scope.get("extensions", {}).get("tritium.peer")
    if peer is not None:
        return peer
    client = scope.get("client")
    return Peer(str(client[0]) if client else "")
