"""Length-prefixed messages: a flag byte, four bytes of length, the message (gRPC over HTTP/2, "Requests").

`MessageReader` cuts what the client sends into messages. A length is only a claim: memory grows with what has
come. A compressed message is handed out as it came; `unfolding` comes in slices, and its caller decides where
they run.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from actors.seams.steps import at_once
from actors.values.errors import Internal
from actors.values.tensors import Buffer
from protocols.kserve import compression
from protocols.kserve.compression import BrokenStream, OverLimit, Suspicious

PREFIX_SIZE: Final = 5

LEVELS: Final = {"low": 1, "medium": 6, "high": 9}
"""zlib's levels for the words of `--grpc-infer-response-compression-level`."""

PREFIX: Final = Struct(">BI")
"""Whether a message is compressed, and its length."""

_COMPRESSED: Final = 1


class Message(NamedTuple):
    """One message without its prefix, still in the call's `grpc-encoding` where `compressed`."""

    data: Buffer
    compressed: bool

    @property
    def wire_size(self) -> int:
        """Bytes that the message took on the wire, its prefix included."""
        return PREFIX_SIZE + len(self.data)


def whole(data: memoryview, limit: int) -> bytes | None:
    """Return the uncompressed message that `data` is exactly; otherwise None: then a MessageReader is needed.

    Most unary requests come in one piece. The result is a copy.
    """
    size = len(data) - PREFIX_SIZE
    if 0 <= size <= limit and PREFIX.unpack_from(data) == (0, size):
        return bytes(data[PREFIX_SIZE:])
    return None


class MessageReader:
    """Cuts what one call's client sends into messages of at most `limit` bytes each.

    `encoded` says whether the call declared a `grpc-encoding` other than identity. Once `feed` has raised,
    the call is over, because it is unknown where the next message would begin.
    """

    __slots__ = ("_body", "_compressed", "_encoded", "_limit", "_prefix", "declared")

    def __init__(self, limit: int, *, encoded: bool = False) -> None:
        self.declared: int | None = None
        """The length of the message that is on its way, its prefix left out; None between messages."""
        self._limit = limit
        self._encoded = encoded
        self._compressed = False
        self._prefix = b""  # the received part of an incomplete prefix
        self._body = bytearray()

    @property
    def under_way(self) -> bool:
        """Whether some of a message has come, and not all.

        If the client ends its side now, it has cut the message short.
        """
        return self.declared is not None or bool(self._prefix)

    @property
    def missing(self) -> int:
        """How many bytes of the message on its way have not come; 0 between messages."""
        return 0 if self.declared is None else self.declared - len(self._body)

    def feed(self, data: memoryview) -> Sequence[Message]:
        """Take the next bytes and return the messages that are whole now, copied from `data`.

        Raises GRPCError RESOURCE_EXHAUSTED for a message over the limit, as soon as its length is known, and
        Internal for a prefix that means nothing.
        """
        if self.declared is None and not self._prefix:
            body = whole(data, self._limit)
            if body is not None:
                return (Message(body, compressed=False),)
        messages: list[Message] = []
        at = 0
        end = len(data)
        while at < end:
            if self.declared is None:
                taken = min(PREFIX_SIZE - len(self._prefix), end - at)
                self._prefix += data[at : at + taken]
                at += taken
                if len(self._prefix) < PREFIX_SIZE:
                    break
                self._open()
            at += self._take(data[at:], messages)
        return messages

    def _open(self) -> None:
        flag, size = PREFIX.unpack(self._prefix)
        self._prefix = b""
        if flag > _COMPRESSED:
            raise Internal(
                f"a message's first byte is {flag:#04x}; it must be 0 or, for a compressed message, 1"
            )
        if flag and not self._encoded:
            raise Internal("a message is marked as compressed, but its call declared no grpc-encoding")
        if size > self._limit:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._limit})"
            )
        self._compressed = flag == _COMPRESSED
        self.declared = size

    def _take(self, data: memoryview, messages: list[Message]) -> int:
        """Take the bytes that belong to the message on its way, and return how many they are."""
        size = self.declared or 0
        wanted = size - len(self._body)
        if len(data) < wanted:
            self._body += data
            return len(data)
        if self._body:
            self._body += data[:wanted]
            body: Buffer = self._body
            self._body = bytearray()
        else:
            body = bytes(data[:wanted])
        self.declared = None
        messages.append(Message(body, self._compressed))
        return wanted


def unfolding(message: Buffer, coding: bytes, limit: int) -> Generator[None, None, Buffer]:
    """Unfold a compressed message in slices; return its content.

    `coding` is the call's `grpc-encoding` (`gzip` or `deflate`). Raises Internal where the message is broken,
    and GRPCError RESOURCE_EXHAUSTED where it unfolds to more than `limit` bytes, or to suspiciously many
    (`protocols.kserve.compression`). Not many more than that are made.
    """
    try:
        content, behind = yield from compression.unfolding(message, limit, coding)
    except BrokenStream as error:
        raise Internal(
            f"failed to decompress a message of grpc-encoding {coding.decode()}: {error}"
        ) from error
    except Suspicious as error:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, f"failed to decompress a message: {error}") from error
    except OverLimit as error:
        raise GRPCError(
            Status.RESOURCE_EXHAUSTED,
            f"Received message larger than max (more than {limit} bytes after decompression vs. {limit})",
        ) from error
    if behind:
        raise Internal(f"{behind} bytes follow the end of a compressed message")
    return content


def unfold(message: Buffer, coding: bytes, limit: int) -> Buffer:
    """Do as `unfolding` does, in one go."""
    return at_once(unfolding(message, coding, limit))


def prefix(size: int, *, compressed: bool = False) -> bytes:
    """Return the prefix of a message of `size` bytes."""
    return PREFIX.pack(compressed, size)
