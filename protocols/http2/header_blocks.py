"""Header blocks of requests: their frames, and what RFC 9113, sections 8.2 and 8.3, lets them say.

`BlockAssembler` makes one block of HEADERS and its CONTINUATION frames (sections 4.3, 6.2 and 6.10).

A client that repeats a call repeats its header block byte for byte, once its headers are in the dynamic
table. Decoding such a block in Python costs more than all else that a unary call asks of HTTP/2. So the
meaning of a block is kept. That is sound only while the table is the one that the block was decoded with.
`BlockDecoder` counts whatever might change the table. A block during which the count rose is not kept, and
all meanings kept before it are forgotten.

Where a call differs from the last one by a literal, such as its trace or its timeout, the fields before that
are the same. So the meaning of such a *front* is kept as well: under the fields themselves, which mean the
same whatever the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from protocols.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    WITH_PRIORITY,
    ConnectionViolation,
    ErrorCode,
    StreamViolation,
)
from protocols.http2.hpack import BlockDecoder, ListTooLarge, NotHpack

T = TypeVar("T")

Fields = Sequence[tuple[bytes, bytes]]

_LARGEST_CACHED: Final = 2048  # bytes of the largest header list that is kept
# Bytes of all header lists that are kept for one connection.
_MOST_CACHED: Final = 32 * 1024
_FRONTS: Final = 8  # of a connection
# Names that mean something beside the fields before them.
_TIED: Final = frozenset((b"host", b"content-length"))
# Section 8.2.1: no controls, space, upper case, colon or non-ASCII
_NAME: Final = re.compile(rb"[!-9;-@\[-~]+")
_PLAIN_VALUE: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
# Names that every gRPC call has or may have, and that no rule in this module concerns.
_USUAL: Final = frozenset(
    (
        b"content-type",
        b"grpc-timeout",
        b"user-agent",
        b"grpc-accept-encoding",
        b"grpc-encoding",
        b"traceparent",
    )
)
_FORBIDDEN_IN_VALUE: Final = re.compile(rb"[\x00\n\r]")
_REQUEST_PSEUDO: Final = frozenset((b":method", b":scheme", b":authority", b":path"))
_CONNECTION_SPECIFIC: Final = frozenset(  # section 8.2.2
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_DIGITS: Final = re.compile(rb"[0-9]{1,19}")


class BlockAssembler:
    """Collects the block that is under way. There is one at the most, as nothing may come between its frames.

    `stream_id` and `ends` (END_STREAM) are those of the HEADERS it began with.
    """

    __slots__ = (
        "_block",
        "_continuations",
        "_max_continuations",
        "_max_size",
        "ends",
        "stream_id",
        "under_way",
    )

    def __init__(self, *, max_size: int, max_continuations: int) -> None:
        self.under_way = False
        self.stream_id = 0
        self.ends = False
        self._block = bytearray()
        self._continuations = 0
        self._max_size = max_size
        self._max_continuations = max_continuations

    def begin(self, payload: memoryview, flags: int, stream_id: int) -> bytes | None:
        """Take the payload of HEADERS, less padding and priority. Returns the block if that is all of it."""
        self.stream_id = stream_id
        self.ends = bool(flags & END_STREAM)
        self._continuations = 0
        self._block += _fragment(payload, flags)
        return self._finish(flags)

    def go_on(self, payload: memoryview, flags: int) -> bytes | None:
        """Take the payload of CONTINUATION. Returns the block if that was the rest of it."""
        self._continuations += 1
        if self._continuations > self._max_continuations:
            raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, "too many CONTINUATION frames")
        self._block += payload
        return self._finish(flags)

    def _finish(self, flags: int) -> bytes | None:
        if len(self._block) > self._max_size:
            raise too_large(len(self._block), self._max_size)
        self.under_way = not flags & END_HEADERS
        if self.under_way:
            return None
        block = bytes(self._block)
        self._block.clear()
        return block


def too_large(size: int, limit: int) -> ConnectionViolation:
    """Return the violation for `size` bytes of a header block, where `limit` are accepted."""
    message = f"{size} bytes of metadata, more than the {limit} taken"
    return ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, message)


def _fragment(payload: memoryview, flags: int) -> memoryview:
    start, stop = 0, len(payload)
    if flags & PADDED:
        start = 1
        stop -= payload[0] if payload else 0
    if flags & WITH_PRIORITY:
        start += 5
    if start > len(payload):
        message = "HEADERS without the fields that its flags announce"
        raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, message)
    if start > stop:
        raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, "more padding than there is payload")
    return payload[start:stop]


class HeaderDecoder(Generic[T]):
    """Decodes the header blocks of one connection, in the order they came in.

    `read_head` is told the header list of a request that is well-formed and says what it means. The result is
    kept in `heads` under the block, with its `content-length`. A caller that needs speed asks `heads` first:
    a hit needs no decoding, and changes no state. `read_more` is told what a list means, and the fields that
    another list has behind those. It says what that means; where it returns None, `read_head` is told all.

    Lists over `max_header_list` (bytes, as section 6.5.2 counts them) cost their stream ENHANCE_YOUR_CALM,
    which is the code that gRPC clients show as RESOURCE_EXHAUSTED. Lists over twice that are not decoded to
    their end. So the table is lost, and with it the connection.
    """

    def __init__(
        self,
        read_head: Callable[[Fields], T],
        read_more: Callable[[T, Fields], T | None],
        *,
        max_header_list: int,
        cached_heads: int,
    ) -> None:
        self.heads: dict[bytes, tuple[T, int]] = {}
        self._read_head = read_head
        self._read_more = read_more
        self._max_header_list = max_header_list
        self._cached_heads = cached_heads
        self._sizes: dict[bytes, int] = {}  # of the header lists of `heads`, in the same order
        self._cached = 0  # their sum
        # What lists mean that others begin with, and their `content-length`; empty: nothing that helps.
        self._fronts: dict[Fields, tuple[T, int] | tuple[()]] = {}
        self._decoder = BlockDecoder()

    def request(self, block: bytes) -> tuple[T, int]:
        """What a request's block means, and its `content-length`, which is -1 where it has none.

        Raises StreamViolation if the request is malformed, ConnectionViolation if the block can't be decoded.
        """
        known = self.heads.get(block)
        if known is not None:
            return known
        changes = self._decoder.changes
        decoded, size = self._decode(block)
        self._check_size(size)
        meaning = self._read_behind_front(decoded, size) if self._cached_heads else None
        if meaning is None:
            fields, length = checked_request(decoded)
            meaning = self._read_head(fields), length
        if changes == self._decoder.changes and size <= _LARGEST_CACHED:
            self._keep(block, meaning, size)
        return meaning

    def _read_behind_front(self, fields: list[tuple[bytes, bytes]], size: int) -> tuple[T, int] | None:
        """What a request means whose first fields are those of another one; None where that does not help.

        Raises StreamViolation if it is malformed.
        """
        leading = self._decoder.leading
        if not 0 < leading < len(fields) or size > _LARGEST_CACHED:
            return None
        key = tuple(fields[:leading])
        front = self._fronts.get(key)
        if front is None:
            front = self._read_front(key)
        if not front:
            return None
        more = fields[leading:]
        for place, (name, value) in enumerate(more):
            if name[:1] == b":" or name in _TIED:
                return None
            if _PLAIN_VALUE.fullmatch(value) is None or name not in _USUAL:
                _check_field(name, value)
                if value[:1].isspace() or value[-1:].isspace():
                    more[place] = (name, value.strip(b" \t"))
        head = self._read_more(front[0], more)
        return None if head is None else (head, front[1])

    def _read_front(self, fields: Fields) -> tuple[T, int] | tuple[()]:
        """What the fields mean that a request begins with, if they would be a request of their own."""
        front: tuple[T, int] | tuple[()]
        try:
            checked, length = checked_request(fields)
        except StreamViolation:
            front = ()
        else:
            front = self._read_head(checked), length
        fronts = self._fronts
        if len(fronts) >= _FRONTS:
            del fronts[next(iter(fronts))]
        fronts[fields] = front
        return front

    def trailers(self, block: bytes) -> None:
        """Decode the block that ends a request, for what it does to the table.

        Raises StreamViolation if the trailers are malformed,
        ConnectionViolation if the block can't be decoded.
        """
        fields, size = self._decode(block)
        self._check_size(size)
        for name, value in fields:
            _check_field(name, value)  # which refuses pseudo-headers: section 8.1

    def skip(self, block: bytes) -> None:
        """Decode a block that means nothing any more, for what it does to the table.

        Raises ConnectionViolation.
        """
        self._decode(block)

    def _decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], int]:
        """Return the fields of a block, and the size of its header list."""
        decoder = self._decoder
        changes = decoder.changes
        most = 2 * self._max_header_list
        try:
            fields, room = decoder.decode(block, most)
        except ListTooLarge as excess:
            raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, "header list too large") from excess
        except NotHpack as fault:  # another name, because compiled code gives a name one type
            message = f"the header block is not HPACK: {fault}"
            raise ConnectionViolation(ErrorCode.COMPRESSION_ERROR, message) from fault
        if changes != decoder.changes and self.heads:
            self.heads.clear()
            self._sizes.clear()
            self._cached = 0
        return fields, most - room

    def _check_size(self, size: int) -> None:
        if size > self._max_header_list:
            message = f"a header list of {size} bytes, more than the {self._max_header_list} announced"
            raise StreamViolation(ErrorCode.ENHANCE_YOUR_CALM, message)

    def _keep(self, block: bytes, meaning: tuple[T, int], size: int) -> None:
        heads = self.heads
        while len(heads) >= self._cached_heads or self._cached + size > _MOST_CACHED:
            if not heads:
                return
            # The oldest goes. So blocks that never repeat can't stay, and blocks that do repeat come back.
            oldest = next(iter(heads))
            del heads[oldest]
            self._cached -= self._sizes.pop(oldest)
        heads[block] = meaning
        self._sizes[block] = size
        self._cached += size


def checked_request(fields: Fields) -> tuple[Fields, int]:
    """A request's fields, checked by RFC 9113, sections 8.2 and 8.3, and its `content-length` (-1: none).

    A regular field's value is returned without surrounding whitespace. Section 8.2.1 would refuse such a
    value. But gRPC's protocol lets metadata have whitespace and be stripped, and its clients send the value
    as the user gave it. Raises StreamViolation (PROTOCOL_ERROR).
    """
    pseudo: dict[bytes, bytes] = {}
    host: bytes | None = None
    length = -1
    stripped = False
    plain_value = _PLAIN_VALUE.fullmatch
    regular = 0
    for name, value in fields:
        if name[:1] == b":":
            spoilt = plain_value(value) is None and _is_spoilt(value)
            if regular or spoilt or name in pseudo or name not in _REQUEST_PSEUDO:
                raise _malformed(
                    f"pseudo-header {name!r} is unknown, repeated, late or has a forbidden value"
                )
            pseudo[name] = value
            continue
        regular += 1
        if name not in _USUAL or plain_value(value) is None:
            _check_field(name, value)
            stripped |= value != value.strip(b" \t")
            if name == b"host":
                host = value.strip(b" \t")
            elif name == b"content-length":
                length = _length(value.strip(b" \t"), length)
    _check_pseudo(pseudo, host)
    if stripped:
        fields = [(name, value.strip(b" \t")) for name, value in fields]
    return fields, length


def _is_spoilt(value: bytes) -> bool:
    """Whether section 8.2.1 forbids the value."""
    return _FORBIDDEN_IN_VALUE.search(value) is not None or value != value.strip(b" \t")


def _check_field(name: bytes, value: bytes) -> None:
    if _NAME.fullmatch(name) is None:
        raise _malformed(f"field name {name!r} has characters that are not allowed here")
    if _FORBIDDEN_IN_VALUE.search(value) is not None:
        raise _malformed(f"the value of {name!r} holds NUL, CR or LF")
    if name in _CONNECTION_SPECIFIC:
        raise _malformed(f"{name!r} is about a connection, which HTTP/2 has other means for")
    if name == b"te" and value.strip(b" \t") != b"trailers":
        raise _malformed("te may be 'trailers' only")


def _check_pseudo(pseudo: dict[bytes, bytes], host: bytes | None) -> None:
    method = pseudo.get(b":method")
    authority = pseudo.get(b":authority")
    if method == b"CONNECT":  # section 8.5
        if authority is None or len(pseudo) != 2:
            raise _malformed("CONNECT takes :method and :authority")
    elif not method or not pseudo.get(b":scheme") or not _is_path(method, pseudo.get(b":path")):
        raise _malformed(":method, :scheme and :path are required, and :path begins with '/'")
    if host is not None and authority is not None and host != authority:
        raise _malformed("host and :authority differ")  # section 8.3.1


def _is_path(method: bytes, path: bytes | None) -> bool:
    return path is not None and (path.startswith(b"/") or (path == b"*" and method == b"OPTIONS"))


def _length(value: bytes, known: int) -> int:
    if _DIGITS.fullmatch(value) is None:
        raise _malformed(f"content-length {value!r} is no number")
    length = int(value)
    if known not in (-1, length):
        raise _malformed(f"content-length is both {known} and {length}")
    return length


def _malformed(message: str) -> StreamViolation:
    return StreamViolation(ErrorCode.PROTOCOL_ERROR, message)
