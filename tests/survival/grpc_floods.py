"""What hostile clients send to a gRPC server."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz import h2wire as wire

_OPENING = wire.PREFACE + wire.settings()
_IN_A_PIECE = 200  # frames, or streams
_BOMB = 4000  # bytes of the header that a bomb repeats; the server's table has 4,096


@dataclass(frozen=True, slots=True)
class Flood:
    """`opening`, then `piece(0)`, `piece(1)`, … for ever; the server ends it by GOAWAY, ENHANCE_YOUR_CALM."""

    name: str
    piece: Callable[[int], bytes]
    opening: bytes = _OPENING


def _streams(number: int) -> range:
    """The identifiers of a piece's streams, after the first two that an opening may use."""
    first = 5 + 2 * _IN_A_PIECE * number
    return range(first, first + 2 * _IN_A_PIECE, 2)


def _rapid_reset(number: int) -> bytes:
    return b"".join(wire.headers(stream) + wire.rst_stream(stream) for stream in _streams(number))


def _made_resets(number: int) -> bytes:
    """Have the server reset its streams (CVE-2025-8671): a WINDOW_UPDATE by 0 is a stream error."""
    return b"".join(wire.headers(stream) + wire.window_update(stream, 0) for stream in _streams(number))


def _repeated(frame: bytes) -> Callable[[int], bytes]:
    piece = frame * _IN_A_PIECE
    return lambda _: piece


def _bomb(number: int) -> bytes:
    """A stream whose header list is a thousand times its block: one large entry, named again and again."""
    entry = wire.literal(b"bomb", b"x" * _BOMB, indexed=True)
    again = wire.integer(62, 7, 0x80)  # the newest entry of the dynamic table
    block = wire.block() + (entry if number == 0 else b"") + again * 8000
    return wire.headers(5 + 2 * number, raw=block)


_REST = wire.frame(wire.CONTINUATION, 0, 1, wire.literal(b"name", b"value" * 10))
_EMPTY_REST = wire.frame(wire.CONTINUATION, 0, 1)
_UNENDED = _OPENING + wire.headers(1, flags=0)

FLOODS = (
    Flood("rapid reset", _rapid_reset),
    Flood("resets that the server is made to send", _made_resets),
    Flood("SETTINGS", _repeated(wire.settings([(wire.INITIAL_WINDOW_SIZE, 70_000)]))),
    Flood("acknowledgements of SETTINGS", _repeated(wire.frame(wire.SETTINGS, wire.ACK))),
    Flood("PING", _repeated(wire.frame(wire.PING, 0, 0, b"12345678"))),
    Flood("answers to PING", _repeated(wire.frame(wire.PING, wire.ACK, 0, b"12345678"))),
    Flood("CONTINUATION", _repeated(_REST), opening=_UNENDED),
    Flood("empty CONTINUATION", _repeated(_EMPTY_REST), opening=_UNENDED),
    Flood("WINDOW_UPDATE", _repeated(wire.window_update(0, 1))),
    Flood(
        "WINDOW_UPDATE of a stream",
        _repeated(wire.window_update(1, 1)),
        opening=_OPENING + wire.headers(1),
    ),
    Flood("PRIORITY", _repeated(wire.frame(wire.PRIORITY, 0, 1, b"\0\0\0\3\0"))),
    Flood("empty DATA", _repeated(wire.data(1)), opening=_OPENING + wire.headers(1)),
    Flood("unknown frames", _repeated(wire.frame(0xBA, 0, 0, b"?"))),
    Flood("header bombs", _bomb),
)
