"""Length-prefixed messages: however a stream is cut, the reader finds the same messages in it.

An input's first byte tells whether the call declared an encoding; the rest is the stream.
"""

import gzip
import zlib
from collections.abc import Iterator
from random import Random

from grpclib.exceptions import GRPCError

from actors.values.errors import Internal
from protocols.grpc.codec.messages import PREFIX_SIZE, MessageReader, unfold, whole
from tests.fuzz.campaign import chance_of
from tests.fuzz.mutation import damaged

_LIMIT = 3_000
_ERRORS = ("over the limit", "bad flag")


class MessageStreams:
    """Feeds a stream in pieces, and takes apart what is marked as compressed."""

    name = "messages"
    prefix = "messages"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Honest messages, some compressed, some over the limit; damaged or not."""
        octets = _honest(chance) if chance.random() < 0.6 else chance.choice(corpus)
        return octets if chance.random() < 0.3 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Compare the reader with `_expected`, and hold `unfold` to its limit."""
        chance = chance_of(octets)
        encoded, stream = octets[:1] > b"\x7f", octets[1:]
        messages, ending = _expected(stream, encoded=encoded)
        heard, heard_ending = _read(stream, _some_cuts(stream, chance), encoded=encoded)
        assert heard_ending == ending
        lost = ending in _ERRORS and len(heard) < len(messages)  # what came in one piece with the error
        assert heard == (messages[: len(heard)] if lost else messages)
        only = whole(memoryview(stream), _LIMIT)
        assert (only is not None) == (ending == "complete" and [(False, only)] == messages)
        unfolded = {_unfolded(data) for compressed, data in messages if compressed}
        return " and ".join((ending, *sorted(unfolded)))


def _read(stream: bytes, cuts: list[int], *, encoded: bool) -> tuple[list[tuple[bool, bytes]], str]:
    reader = MessageReader(_LIMIT, encoded=encoded)
    heard: list[tuple[bool, bytes]] = []
    given = 0
    previous = 0
    for cut in [*cuts, len(stream)]:
        piece = bytearray(stream[previous:cut])
        previous = cut
        given += len(piece)
        try:
            found = reader.feed(memoryview(piece))
        except GRPCError:
            return heard, "over the limit"
        except Internal:
            return heard, "bad flag"
        piece[:] = bytes(len(piece))  # the buffer is the reader's during the call only
        heard += [(one.compressed, bytes(one.data)) for one in found]
        taken = sum(PREFIX_SIZE + len(data) for _, data in heard)
        assert reader.under_way == (given > taken)
        assert reader.missing == _missing(stream[taken:given])
        assert reader.declared is None or reader.declared <= _LIMIT
    return heard, "cut short" if reader.under_way else "complete"


def _missing(begun: bytes) -> int:
    if len(begun) < PREFIX_SIZE:
        return 0
    return int.from_bytes(begun[1:PREFIX_SIZE], "big") - (len(begun) - PREFIX_SIZE)


def _expected(stream: bytes, *, encoded: bool) -> tuple[list[tuple[bool, bytes]], str]:
    """Read the stream as the protocol describes it, up to the first error."""
    messages: list[tuple[bool, bytes]] = []
    for flag, size, body in _prefixes(stream):
        if flag > 1 or (flag and not encoded):
            return messages, "bad flag"
        if size > _LIMIT:
            return messages, "over the limit"
        if len(body) < size:
            return messages, "cut short"
        messages.append((bool(flag), body))
    end = sum(PREFIX_SIZE + len(body) for _, body in messages)
    return messages, "complete" if end == len(stream) else "cut short"


def _prefixes(stream: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at + PREFIX_SIZE <= len(stream):
        size = int.from_bytes(stream[at + 1 : at + PREFIX_SIZE], "big")
        yield stream[at], size, stream[at + PREFIX_SIZE : at + PREFIX_SIZE + size]
        at += PREFIX_SIZE + size


def _unfolded(data: bytes) -> str:
    coding = b"gzip" if data[:1] == b"\x1f" else b"deflate"
    try:
        content = unfold(data, coding, _LIMIT)
    except GRPCError:
        return "unfolds too far"
    except Internal:
        return "broken"
    assert len(content) <= _LIMIT
    assert bytes(content) == zlib.decompress(data, 47 if coding == b"gzip" else 15)
    return "unfolded"


def _some_cuts(stream: bytes, chance: Random) -> list[int]:
    if chance.random() < 0.1:
        return list(range(1, len(stream)))
    return sorted(chance.randrange(len(stream) + 1) for _ in range(chance.randrange(6)))


def _honest(chance: Random) -> bytes:
    encoded = chance.random() < 0.5
    written = bytearray((255 * encoded,))
    for _ in range(chance.randrange(5)):
        size = chance.choice((0, 1, 5, 80, 2_999, 3_000, 3_001))
        body = bytes(size) if chance.random() < 0.5 else chance.randbytes(size)
        compressed = encoded and chance.random() < 0.6
        if compressed:
            body = _compressed(body * chance.choice((1, 1, 1, 50)), chance)
        written += bytes((compressed,)) + len(body).to_bytes(4, "big") + body
    return bytes(written)


def _compressed(body: bytes, chance: Random) -> bytes:
    made = gzip.compress(body, 6, mtime=0) if chance.random() < 0.5 else zlib.compress(body)
    return made if chance.random() < 0.8 else damaged(made, chance, [made])
