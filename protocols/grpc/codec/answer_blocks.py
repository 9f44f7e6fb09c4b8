"""Header blocks of answers.

They leave the client's header table alone, so the same bytes serve every connection.

Reference: gRPC over HTTP/2 ("Responses"). Messages are cut so that
trailers stay within the 8 KiB that every client takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from grpclib.metadata import encode_grpc_message, encode_metadata

from protocols.grpc.codec.request_head import ACCEPTED_CODINGS, Refusal
from protocols.http2.header_blocks import encode_headers

Field = tuple[bytes, bytes]
Metadata = Mapping[str, "str | bytes"]

MAX_MESSAGE: Final = 4096
"""Bytes that a status message may take once it is percent-encoded."""

# Trailers that are remembered; most are errors that clients get again and again.
_KEPT: Final = 256
_OK: Final[Field] = (b":status", b"200")
_TYPE: Final[Field] = (b"content-type", b"application/grpc")
_ACCEPTED: Final[Field] = (b"grpc-accept-encoding", ACCEPTED_CODINGS)
_CUT: Final = "..."
_PUSHBACK: Final = "grpc-retry-pushback-ms"


@lru_cache(maxsize=4)
def initial(coding: bytes = b"") -> bytes:
    """Return the block in front of an answer's messages. Their `coding` is `gzip`, `deflate`, or empty."""
    return _initial(coding, ())


def initial_with(metadata: Metadata, coding: bytes = b"") -> bytes:
    """Return `initial` with a method's own metadata. Raises ValueError and TypeError as `encoded`."""
    return _initial(coding, encoded(metadata))


def _initial(coding: bytes, metadata: Iterable[Field]) -> bytes:
    encoding = ((b"grpc-encoding", coding),) if coding else ()
    return encode_headers((_OK, _TYPE, *encoding, _ACCEPTED, *metadata))


def trailers(status: int = 0, message: str = "") -> bytes:
    """Return the block behind an answer's messages. `status` is the number of a gRPC status."""
    return _trailers(status, message[: MAX_MESSAGE + 1])


@lru_cache(maxsize=_KEPT)
def _trailers(status: int, message: str) -> bytes:
    return encode_headers(_status(status, message))


def trailers_with(metadata: Metadata, status: int = 0, message: str = "") -> bytes:
    """Return `trailers` with a method's own metadata. Raises ValueError and TypeError as `encoded`."""
    return encode_headers((*_status(status, message), *encoded(metadata)))


def trailers_only(status: int, message: str = "", metadata: Metadata | None = None) -> bytes:
    """Return the one block of an answer without messages. Raises ValueError and TypeError as `encoded`."""
    return _trailers_only(status, message[: MAX_MESSAGE + 1], tuple(metadata.items()) if metadata else ())


@lru_cache(maxsize=_KEPT)
def _trailers_only(status: int, message: str, metadata: tuple[tuple[str, str | bytes], ...]) -> bytes:
    own = encoded(dict(metadata)) if metadata else ()
    return encode_headers((_OK, _TYPE, *_status(status, message), *own))


def try_again(seconds: int, *, known: bool) -> Metadata:
    """Return the trailing metadata of a call that is worth making again after `seconds`; 0 for never.

    `grpc-retry-pushback-ms` tells a client with a retry policy how long to wait before its next attempt (gRFC
    A6, "Pushback"); `retry-after` tells all other clients. A negative pushback ends a client's attempts.
    Where the time is not `known` there is no pushback: the policy's own back-off, which begins with
    milliseconds, is the better guess then.
    """
    if not seconds:
        return {_PUSHBACK: "-1"}
    told = {"retry-after": str(seconds)}
    return {**told, _PUSHBACK: str(seconds * 1000)} if known else told


def refused(refusal: Refusal) -> bytes:
    """Return the single block that answers a call which is not served."""
    status = (b":status", b"%d" % refusal.http_status)
    told = _status(refusal.status.value, refusal.message)
    return encode_headers((status, _TYPE, *told, *refusal.headers))


def encoded(metadata: Metadata) -> list[Field]:
    """Return a method's own metadata as header fields, the values of `-bin` keys in base64.

    Raises ValueError for keys and values that can't be sent, and TypeError for text under a `-bin` key and
    bytes under any other.
    """
    own = metadata
    pushback: list[Field] = []
    if _PUSHBACK in metadata:  # the only one of gRPC's own names that methods may set
        own = {name: value for name, value in metadata.items() if name != _PUSHBACK}
        pushback = [(_PUSHBACK.encode(), str(metadata[_PUSHBACK]).encode())]
    return [(name.encode(), value.encode()) for name, value in encode_metadata(own)] + pushback


def _status(status: int, message: str) -> tuple[Field, ...]:
    field = (b"grpc-status", b"%d" % status)
    return (field, (b"grpc-message", percent_encoded(message))) if message else (field,)


def percent_encoded(message: str) -> bytes:
    """Return a status message as `grpc-message` has it.

    The message is cut at a character so that it takes at most `MAX_MESSAGE` bytes.
    """
    text = message[:MAX_MESSAGE].encode("utf-8", "replace").decode()
    value = encode_grpc_message(text)
    if len(value) <= MAX_MESSAGE and len(message) <= MAX_MESSAGE:
        return value.encode()
    while len(value) > MAX_MESSAGE - len(_CUT):
        text = text[: len(text) * (MAX_MESSAGE - len(_CUT)) // (len(value) + 1)]
        value = encode_grpc_message(text)
    return (value + _CUT).encode()
