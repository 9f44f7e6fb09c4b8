"""HPACK blocks of a connection's calls, in order, made before they are needed. Pure.

Each function returns an endless iterator for one new connection. A block is good only in its place, because
the one before it has changed the table that it refers to (RFC 7541 section 2.3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, cycle, repeat
from typing import Final

from hpack import Encoder

from benchmarks.grpc.scenarios import Way

# Values after which they come again: many more than any server keeps decoded.
CYCLE: Final = 4096
# Two size updates (RFC 7541 section 6.3): to 0, which evicts all, and to 4096.
_EMPTY_TABLE: Final = b"\x20\x3f\xe1\x1f"

Headers = Sequence[tuple[str, str]]


def traceparent(number: int) -> str:
    """Return the `number`th trace context: version, trace, span, flags (W3C Trace Context section 3.2)."""
    return f"00-{number + 1:032x}-{number + 1:016x}-01"


_TRACEPARENTS: Final = [traceparent(number) for number in range(CYCLE)]
# RFC 7541 section 6.2.2, literal without indexing: a new name, and a value of 55 bytes.
_LITERALS: Final = [b"\0\x0btraceparent\x37" + each.encode() for each in _TRACEPARENTS]


def request_headers(authority: str, path: str) -> Headers:
    """Return the headers of a call of grpcio's client, in its order, without its metadata."""
    return [
        (":path", path),
        (":authority", authority),
        (":method", "POST"),
        (":scheme", "http"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-accept-encoding", "identity, deflate, gzip"),
        ("user-agent", "tritium-benchmarks"),
    ]


def repeated(headers: Headers) -> Iterator[bytes]:
    """Yield the same headers: in full the first time, then as references to the table."""
    encoder = Encoder()
    first = encoder.encode(headers)
    return chain([first], repeat(encoder.encode(headers)))


def with_literals(headers: Headers) -> Iterator[bytes]:
    """Yield the headers and a fresh `traceparent`, plain and kept out of the table.

    This is how grpcio encodes metadata.
    """
    repetition = repeated(headers)
    first, rest = next(repetition), next(repetition)
    return chain([first + _LITERALS[0]], (rest + each for each in cycle([*_LITERALS[1:], _LITERALS[0]])))


def with_indexing(headers: Headers) -> Iterator[bytes]:
    """Yield the headers and a `traceparent` put into the table, which pushes the oldest entries out of it.

    This is how grpc-go and hpack encode metadata. The first block empties the table, so that the blocks can
    come again.
    """
    return cycle(_indexed(tuple(headers)))


@cache
def _indexed(headers: tuple[tuple[str, str], ...]) -> Sequence[bytes]:
    encoder = Encoder()
    first, *others = (encoder.encode([*headers, ("traceparent", each)]) for each in _TRACEPARENTS)
    return [_EMPTY_TABLE + first, *others]


def of(way: Way, headers: Headers) -> Iterator[bytes]:
    """Return the blocks of a connection's calls."""
    match way:
        case Way.UNARY | Way.STREAM | Way.SCRIPT:
            return repeated(headers)
        case Way.METADATA:
            return with_literals(headers)
        case Way.METADATA_INDEXED:
            return with_indexing(headers)
