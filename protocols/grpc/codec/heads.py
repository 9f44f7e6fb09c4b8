"""Header blocks of gRPC over HTTP/2: what a request's means (`CallHead`), and those of answers.

Reference: gRPC over HTTP/2 ("Requests", "Responses"). A `CallHead` is a value that many calls may share. A
fault of a head is told in the head itself (`refusal`), so that a bad head can be kept and shared like a good
one. The blocks of answers leave the client's header table alone, so the same bytes serve every connection.
Messages are cut so that trailers stay within the 8 KiB that every client takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Generic, TypeVar

from grpclib.const import Status
from grpclib.metadata import decode_bin_value, encode_grpc_message, encode_metadata

from actors.values.callers import presented
from protocols.http2.hpack import encode_headers
from protocols.kserve.steering import REPLICA

M = TypeVar("M")

ACCEPTED_CODINGS: Final = b"identity,deflate,gzip"
"""The value of `grpc-accept-encoding` for this server."""

_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:\+([^;\s]*))?\s*(?:;.*)?", re.IGNORECASE)
_CODINGS: Final = {b"": b"", b"identity": b"", b"gzip": b"gzip", b"deflate": b"deflate"}
_BY_LIKING: Final = (b"gzip", b"deflate")
_NOT_METADATA: Final = frozenset((b"te", b"content-type", b"content-length", b"host"))
_CODED: Final = frozenset((b"grpc-encoding", b"grpc-accept-encoding"))
_BINARY: Final = b"-bin"
_REPLICA: Final = REPLICA.encode()
_SHOWN: Final = 200  # bytes of a client's text that a refusal repeats


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not served: a gRPC status with its message.

    `http_status` is not 200 for a request that is not gRPC at all. `headers` go along with the answer.
    `forbidden`: the client may not do this here, though the call itself makes sense.
    """

    status: Status
    message: str
    http_status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    forbidden: bool = False


@dataclass(kw_only=True, eq=False)
class CallHead(Generic[M]):
    """A request's head, which nothing changes. `method` is what a table had for its path, None: nothing.

    `timeout` is in seconds, inf without one. `coding` is that of the request's messages. `answer_coding` is
    the one that the client likes for answers. Both are `gzip`, `deflate`, or empty for identity. `replica` is
    the server that the client names, empty for none. `fields` are the client's own, as they came. Where there
    is a `refusal`, only `path` can be relied on.
    """

    path: str
    method: M | None = None
    timeout: float = math.inf
    coding: bytes = b""
    answer_coding: bytes = b""
    replica: bytes = b""
    fields: Sequence[tuple[bytes, bytes]] = ()
    refusal: Refusal | None = None

    @cached_property
    def authorization(self) -> bytes:
        """The client's credentials, empty for none. Raises Unauthenticated where there are several."""
        return presented(self.fields)

    @cached_property
    def metadata(self) -> Mapping[str, str | bytes]:
        """The client's metadata, the values of `-bin` keys decoded.

        Of a repeated key the first value counts.
        """
        decoded: dict[str, str | bytes] = {}
        for name, value in self.fields:
            decoded.setdefault(name.decode("latin-1"), _decoded(name, value))
        return decoded


def _decoded(name: bytes, value: bytes) -> str | bytes:
    meant = meant_by(name, value)
    return meant if name.endswith(_BINARY) else meant.decode("latin-1")


def meant_by(name: bytes, value: bytes) -> bytes:
    """Return what the value of a metadata field stands for.

    That is the value itself, or what it holds in base64 where `name` ends in `-bin`. Raises ValueError for a
    value that is not base64; `read_head` refuses such metadata.
    """
    return decode_bin_value(value.partition(b",")[0]) if name.endswith(_BINARY) else value


def read_head(fields: Iterable[tuple[bytes, bytes]], methods: Mapping[str, M]) -> CallHead[M]:
    """Return what the header list of a request means, given the methods that are served, by path.

    Names are in lower case and the list obeys HTTP/2's rules. Nothing
    else is taken for granted, and nothing raised.
    """
    known: dict[bytes, bytes] = {}
    own: list[tuple[bytes, bytes]] = []
    for name, value in fields:
        if name.startswith((b":", b"grpc-")) or name in _NOT_METADATA:
            known[name] = value
        else:
            own.append((name, value))
    path = known.get(b":path", b"").decode("latin-1")
    method = methods.get(path)
    try:
        _check_protocol(known)
        if method is None:
            raise _unknown(path, methods)
        for name, value in own:
            _check_metadata(name, value)
        return CallHead(
            path=path,
            method=method,
            timeout=_timeout(known),
            coding=_coding(known),
            answer_coding=_answer_coding(known.get(b"grpc-accept-encoding", b"")),
            replica=_replica(own),
            fields=tuple(own),
        )
    except _Refused as refused:
        return CallHead(path=path, method=method, refusal=refused.refusal)


def read_more(head: CallHead[M], more: Iterable[tuple[bytes, bytes]]) -> CallHead[M] | None:
    """Return what a header list means that is the one of `head`, and `more` behind it.

    None for what `read_head` has to be asked: where that would refuse the call, or `more` says how messages
    are coded.
    """
    if head.refusal is not None:
        return None
    timeout, replica = head.timeout, head.replica
    own = [*head.fields]
    for field in more:
        name, value = field
        if name.startswith(b"grpc-"):
            if name == b"grpc-timeout":
                found = _TIMEOUT.fullmatch(value)
                if found is None:
                    return None
                timeout = int(found[1]) * _UNITS[found[2]]
            elif name in _CODED:
                return None
        elif name in _NOT_METADATA or (name.endswith(_BINARY) and not _is_base64(name, value)):
            return None
        else:
            own.append(field)
            if name == _REPLICA:
                replica = replica or value
    return CallHead(
        path=head.path,
        method=head.method,
        timeout=timeout,
        coding=head.coding,
        answer_coding=head.answer_coding,
        replica=replica,
        fields=tuple(own),
    )


def _replica(own: Iterable[tuple[bytes, bytes]]) -> bytes:
    return next((value for name, value in own if name == _REPLICA), b"")


def _is_base64(name: bytes, value: bytes) -> bool:
    try:
        meant_by(name, value)
    except ValueError:
        return False
    return True


class _Refused(Exception):  # carries a refusal out of the checks; other code never sees it
    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


def _check_protocol(known: Mapping[bytes, bytes]) -> None:
    method = known.get(b":method", b"")
    if method != b"POST":
        message = f"gRPC calls are POST requests, not {_shown(method)}"
        raise _Refused(Refusal(Status.INTERNAL, message, 405, ((b"allow", b"POST"),)))
    content_type = known.get(b"content-type", b"")
    found = _CONTENT_TYPE.fullmatch(content_type)
    if found is None:
        message = f"content-type is '{_shown(content_type)}'; gRPC calls have application/grpc"
        raise _Refused(Refusal(Status.UNKNOWN, message, 415))
    if found[1] not in {None, b"proto"}:
        message = f"messages in '{_shown(found[1])}' are not offered; use application/grpc+proto"
        raise _Refused(Refusal(Status.UNIMPLEMENTED, message))
    if known.get(b"te") != b"trailers":
        message = "the header 'te: trailers' is missing: a client or proxy without it loses a call's status"
        raise _Refused(Refusal(Status.INTERNAL, message, 400))


def _unknown(path: str, methods: Mapping[str, object]) -> _Refused:
    service, _, method = path.removeprefix("/").rpartition("/")
    if any(served.startswith(f"/{service}/") for served in methods):
        message = f"service {service} has no method '{method[:_SHOWN]}'"
    else:
        services = ", ".join(sorted({served.split("/")[1] for served in methods}))
        message = f"there is no service '{service[:_SHOWN]}' here, but: {services}"
    return _Refused(Refusal(Status.UNIMPLEMENTED, message))


def _check_metadata(name: bytes, value: bytes) -> None:
    if name.endswith(_BINARY) and not _is_base64(name, value):
        message = f"metadata '{_shown(name)}' is not base64, which keys that end in -bin stand for"
        raise _Refused(Refusal(Status.INTERNAL, message))


def _timeout(known: Mapping[bytes, bytes]) -> float:
    value = known.get(b"grpc-timeout")
    if value is None:
        return math.inf
    try:
        return parse_timeout(value)
    except ValueError as error:
        raise _Refused(Refusal(Status.INTERNAL, str(error))) from None


def parse_timeout(value: bytes) -> float:
    """Return the seconds that a `grpc-timeout` field says.

    Raises ValueError, whose text is for the client.
    """
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise ValueError(
            f"malformed grpc-timeout '{_shown(value)}': it takes 1 to 8 digits and one of H, M, S, m, u and n"
        )
    return int(found[1]) * _UNITS[found[2]]


def _coding(known: Mapping[bytes, bytes]) -> bytes:
    value = known.get(b"grpc-encoding", b"")
    coding = _CODINGS.get(value)
    if coding is None:
        message = f"grpc-encoding '{_shown(value)}' is not supported; use {ACCEPTED_CODINGS.decode()}"
        accepted = ((b"grpc-accept-encoding", ACCEPTED_CODINGS),)
        raise _Refused(Refusal(Status.UNIMPLEMENTED, message, headers=accepted))
    return coding


def _answer_coding(accepted: bytes) -> bytes:
    offered = {coding.strip() for coding in accepted.split(b",")}
    return next((coding for coding in _BY_LIKING if coding in offered), b"")


def _shown(value: bytes) -> str:
    return value[:_SHOWN].decode("latin-1")


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


@lru_cache(maxsize=16)
def initial(coding: bytes = b"", replica: str = "") -> bytes:
    """Return the block in front of an answer's messages. Their `coding` is `gzip`, `deflate`, or empty.

    `replica` is the server's name, if it has one.
    """
    encoding = ((b"grpc-encoding", coding),) if coding else ()
    named = ((_REPLICA, replica.encode()),) if replica else ()
    return encode_headers((_OK, _TYPE, *encoding, _ACCEPTED, *named))


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
