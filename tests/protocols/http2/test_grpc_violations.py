"""What RFC 9113 obliges a server to refuse, and with which error: each row is its own reading of the RFC.

The bytes are made by hand. A row names its section. Where the RFC leaves a choice, the row lists each
permitted answer, and first the one that costs the peer least.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from protocols.http2.frames import ConnectionViolation, ErrorCode
from protocols.http2.hpack import encode_headers
from protocols.http2.streams import Http2Limits
from tests.fuzz import h2wire as wire
from tests.fuzz.h2wire import Field
from tests.fuzz.recorder import Rig


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection error (section 5.4.1): GOAWAY with `code`, and nothing after it."""

    code: int


@dataclass(frozen=True, slots=True)
class OneStream:
    """A stream error (section 5.4.2): RST_STREAM with `code`; the connection lives on."""

    code: int
    stream: int = 1


@dataclass(frozen=True, slots=True)
class Tolerated:
    """No error at all: the peer keeps to the RFC, or the RFC says to ignore it."""


Answer = Connection | OneStream | Tolerated

ALLOWED = (Tolerated(),)


def connection(*codes: int) -> tuple[Answer, ...]:
    return tuple(Connection(code) for code in codes)


def stream(*codes: int) -> tuple[Answer, ...]:
    return tuple(OneStream(code) for code in codes)


MALFORMED = stream(wire.PROTOCOL_ERROR)


def nothing(rig: Rig) -> None:
    """Leave the connection without a stream."""


def opened(rig: Rig) -> None:
    """Stream 1 is open on both sides."""
    rig.send(wire.headers(1))


def asked(rig: Rig) -> None:
    """The client has ended stream 1: half-closed (remote)."""
    rig.send(wire.headers(1, flags=wire.END_HEADERS | wire.END_STREAM))


def answered(rig: Rig) -> None:
    """Both sides have ended stream 1: closed."""
    asked(rig)
    _answer(rig, 1)


def answered_early(rig: Rig) -> None:
    """The server has answered stream 1, which the client has not ended: closed by our RST_STREAM."""
    opened(rig)
    _answer(rig, 1)


def cancelled(rig: Rig) -> None:
    """The client has reset stream 1."""
    opened(rig)
    rig.send(wire.rst_stream(1))


def refused(rig: Rig) -> None:
    """The server has reset stream 1."""
    opened(rig)
    rig.connection.answers.reset(rig.recorder.open.pop(1), ErrorCode.CANCEL)
    rig.drain()


def skipped(rig: Rig) -> None:
    """Stream 5 was opened first: 1 and 3 went from idle to closed (section 5.1.1)."""
    rig.send(wire.headers(5, flags=wire.END_HEADERS | wire.END_STREAM))


def going_away(rig: Rig) -> None:
    """The server has said that it takes nothing after stream 1."""
    opened(rig)
    rig.connection.control.go_away(ErrorCode.NO_ERROR)
    rig.drain()


def _answer(rig: Rig, number: int) -> None:
    head = encode_headers([(b":status", b"200"), (b"content-type", b"application/grpc")])
    trailers = encode_headers([(b"grpc-status", b"0")])
    message = b"\0\0\0\0\2ok"
    rig.connection.answers.answer(rig.recorder.open.pop(number), head, [message], len(message), trailers)
    rig.drain()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    section: str
    name: str
    sent: bytes
    permitted: tuple[Answer, ...]
    given: Callable[[Rig], None] = nothing
    limits: Http2Limits | None = None


def row(
    section: str,
    name: str,
    sent: bytes,
    permitted: tuple[Answer, ...],
    given: Callable[[Rig], None] = nothing,
    *,
    limits: Http2Limits | None = None,
) -> Row:
    return Row(section=section, name=name, sent=sent, permitted=permitted, given=given, limits=limits)


SMALL = Http2Limits(max_frame_size=16_384)
BOTH = wire.END_HEADERS | wire.END_STREAM


def padded(kind: int, stream_id: int, flags: int, padding: int, body: bytes) -> bytes:
    return wire.frame(kind, flags | wire.PADDED, stream_id, bytes((padding,)) + body)


FRAMES = [
    row("4.1", "an unknown frame type is ignored", wire.frame(0xFA, 0xFF, 0, b"??"), ALLOWED),
    row("4.1", "an unknown frame type on an idle stream is ignored", wire.frame(0xFA, 0, 9, b"??"), ALLOWED),
    row("4.1", "unused flags are ignored", wire.frame(wire.PING, 0xFE, 0, bytes(8)), ALLOWED),
    row(
        "4.1",
        "the reserved bit is ignored",
        wire.headers(1 | 1 << 31, flags=BOTH),
        ALLOWED,
    ),
    row(
        "4.2",
        "DATA over the frame size",
        wire.data(1, bytes(16_385)),
        (OneStream(wire.FRAME_SIZE_ERROR), Connection(wire.FRAME_SIZE_ERROR)),
        opened,
        limits=SMALL,
    ),
    row(
        "4.2",
        "HEADERS over the frame size",
        wire.frame(wire.HEADERS, wire.END_HEADERS, 1, bytes(16_385)),
        connection(wire.FRAME_SIZE_ERROR),
        limits=SMALL,
    ),
    row(
        "4.2",
        "an unknown frame over the frame size",
        wire.frame(0xFA, 0, 0, bytes(16_385)),
        connection(wire.FRAME_SIZE_ERROR),
        limits=SMALL,
    ),
    row("4.2", "DATA of exactly the frame size", wire.data(1, bytes(16_384)), ALLOWED, opened, limits=SMALL),
    row(
        "4.3",
        "an index outside the table",
        wire.headers(1, raw=b"\xff\x80\x01"),
        connection(wire.COMPRESSION_ERROR),
    ),
    row("4.3", "index zero", wire.headers(1, raw=b"\x80"), connection(wire.COMPRESSION_ERROR)),
    row("4.3", "a string cut short", wire.headers(1, raw=b"\x00\x05ab"), connection(wire.COMPRESSION_ERROR)),
    row(
        "4.3",
        "an integer without end",
        wire.headers(1, raw=b"\x00\x7f" + b"\xff" * 30 + b"\x01a"),
        connection(wire.COMPRESSION_ERROR),
    ),
    row(
        "4.3",
        "an integer that does not end with its block",
        wire.headers(1, raw=b"\x00\x7f\xff\xff"),
        connection(wire.COMPRESSION_ERROR),
    ),
    row(
        "4.3",
        "Huffman padding longer than seven bits",
        wire.headers(1, raw=b"\x00\x01a\x82\x1f\xff"),
        connection(wire.COMPRESSION_ERROR),
    ),
    row(
        "4.3",
        "Huffman padding with zeros",
        wire.headers(1, raw=b"\x00\x01a\x81\x18"),
        connection(wire.COMPRESSION_ERROR),
    ),
    row(
        "4.3",
        "the end-of-string symbol inside a string",
        wire.headers(1, raw=b"\x00\x01a\x84\xff\xff\xff\xff"),
        connection(wire.COMPRESSION_ERROR),
    ),
    row(
        "4.3",
        "a table size beyond the setting",
        wire.headers(1, raw=wire.integer(1 << 20, 5, 0x20) + wire.block()),
        connection(wire.COMPRESSION_ERROR),
    ),
    row(
        "4.3",
        "a table size after the first field",
        wire.headers(1, raw=wire.block() + b"\x20"),
        connection(wire.COMPRESSION_ERROR),
    ),
    row(
        "4.3",
        "table sizes down and up again before the first field",
        wire.headers(1, flags=BOTH, raw=b"\x20" + wire.integer(4096, 5, 0x20) + wire.block()),
        ALLOWED,
    ),
]

STATES = [
    row("5.1", "DATA on an idle stream", wire.data(1), connection(wire.PROTOCOL_ERROR)),
    row("5.1", "DATA beyond the newest stream", wire.data(3), connection(wire.PROTOCOL_ERROR), opened),
    row("5.1", "RST_STREAM on an idle stream", wire.rst_stream(1), connection(wire.PROTOCOL_ERROR)),
    row("5.1", "WINDOW_UPDATE on an idle stream", wire.window_update(1, 1), connection(wire.PROTOCOL_ERROR)),
    row(
        "5.1",
        "CONTINUATION on an idle stream",
        wire.frame(wire.CONTINUATION, wire.END_HEADERS, 1),
        connection(wire.PROTOCOL_ERROR),
    ),
    row("5.1", "PRIORITY on an idle stream", wire.frame(wire.PRIORITY, 0, 1, bytes(5)), ALLOWED),
    row("5.1", "DATA after END_STREAM", wire.data(1, b"x"), stream(wire.STREAM_CLOSED), asked),
    row("5.1", "empty DATA after END_STREAM", wire.data(1), stream(wire.STREAM_CLOSED), asked),
    row("5.1", "HEADERS after END_STREAM", wire.headers(1, flags=BOTH), stream(wire.STREAM_CLOSED), asked),
    row("5.1", "WINDOW_UPDATE after END_STREAM", wire.window_update(1, 1), ALLOWED, asked),
    row("5.1", "PRIORITY after END_STREAM", wire.frame(wire.PRIORITY, 0, 1, bytes(5)), ALLOWED, asked),
    row(
        "5.1",
        "DATA on a stream that both sides ended",
        wire.data(1, b"x"),
        (OneStream(wire.STREAM_CLOSED), Connection(wire.STREAM_CLOSED)),
        answered,
    ),
    row(
        "5.1",
        "HEADERS on a stream that both sides ended",
        wire.headers(1, flags=BOTH),
        connection(wire.STREAM_CLOSED, wire.PROTOCOL_ERROR),
        answered,
    ),
    row("5.1", "WINDOW_UPDATE on a stream just ended", wire.window_update(1, 1), ALLOWED, answered),
    row("5.1", "RST_STREAM on a stream just ended", wire.rst_stream(1), ALLOWED, answered),
    row(
        "5.1",
        "PRIORITY on a closed stream",
        wire.frame(wire.PRIORITY, 0, 1, bytes(5)),
        ALLOWED,
        answered,
    ),
    row(
        "5.1",
        "DATA after the client's own RST_STREAM",
        wire.data(1, b"x"),
        (OneStream(wire.STREAM_CLOSED), Connection(wire.STREAM_CLOSED)),
        cancelled,
    ),
    row(
        "5.1",
        "HEADERS after the client's own RST_STREAM",
        wire.headers(1, flags=BOTH),
        (OneStream(wire.STREAM_CLOSED), *connection(wire.STREAM_CLOSED, wire.PROTOCOL_ERROR)),
        cancelled,
    ),
    row("5.1", "DATA that crosses our RST_STREAM", wire.data(1, b"x", wire.END_STREAM), ALLOWED, refused),
    row(
        "5.1",
        "trailers that cross our RST_STREAM",
        wire.headers(1, [(b"x", b"y")], flags=BOTH),
        ALLOWED,
        refused,
    ),
    row("5.1", "WINDOW_UPDATE that crosses our RST_STREAM", wire.window_update(1, 5), ALLOWED, refused),
    row("5.1", "RST_STREAM that crosses our RST_STREAM", wire.rst_stream(1), ALLOWED, refused),
    row(
        "5.1",
        "DATA that crosses our early answer",
        wire.data(1, b"x", wire.END_STREAM),
        ALLOWED,
        answered_early,
    ),
    row("5.1.1", "a stream with an even number", wire.headers(2), connection(wire.PROTOCOL_ERROR)),
    row(
        "5.1.1",
        "a stream below the newest one",
        wire.headers(3),
        connection(wire.PROTOCOL_ERROR, wire.STREAM_CLOSED),
        skipped,
    ),
    row(
        "5.1.1",
        "DATA on a stream that was skipped",
        wire.data(3, b"x"),
        (OneStream(wire.STREAM_CLOSED, 3), *connection(wire.STREAM_CLOSED, wire.PROTOCOL_ERROR)),
        skipped,
    ),
    row("5.1.1", "DATA on an even stream", wire.data(2, b"x"), connection(wire.PROTOCOL_ERROR), opened),
    row(
        "5.1.1", "RST_STREAM on an even stream", wire.rst_stream(2), connection(wire.PROTOCOL_ERROR), skipped
    ),
    row(
        "5.1.2",
        "a stream too many",
        wire.headers(1) + wire.headers(3),
        (OneStream(wire.REFUSED_STREAM, 3), OneStream(wire.PROTOCOL_ERROR, 3)),
        limits=Http2Limits(max_streams=1),
    ),
    row(
        "5.5",
        "an unknown frame inside a header block",
        wire.headers(1, flags=0) + wire.frame(0xFA, 0, 1),
        connection(wire.PROTOCOL_ERROR),
    ),
]

DEFINITIONS = [
    row("6.1", "DATA on stream 0", wire.data(0, b"x"), connection(wire.PROTOCOL_ERROR)),
    row(
        "6.1",
        "padding as long as the payload",
        padded(wire.DATA, 1, 0, 4, b"abc"),
        connection(wire.PROTOCOL_ERROR),
        opened,
    ),
    row("6.1", "nothing but padding", padded(wire.DATA, 1, 0, 3, bytes(3)), ALLOWED, opened),
    row(
        "6.1",
        "padded DATA without a pad length",
        wire.frame(wire.DATA, wire.PADDED, 1),
        (
            OneStream(wire.FRAME_SIZE_ERROR),
            *connection(wire.FRAME_SIZE_ERROR, wire.PROTOCOL_ERROR),
        ),
        opened,
    ),
    row("6.2", "HEADERS on stream 0", wire.headers(0), connection(wire.PROTOCOL_ERROR)),
    row(
        "6.2",
        "HEADERS padding longer than the rest",
        padded(wire.HEADERS, 1, wire.END_HEADERS, 200, wire.block()[:199]),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.2",
        "padded HEADERS without a pad length",
        wire.frame(wire.HEADERS, wire.PADDED | wire.END_HEADERS, 1),
        connection(wire.FRAME_SIZE_ERROR),
    ),
    row(
        "6.2",
        "HEADERS too short for its priority",
        wire.frame(wire.HEADERS, wire.HAS_PRIORITY | wire.END_HEADERS, 1, bytes(4)),
        connection(wire.FRAME_SIZE_ERROR),
    ),
    row(
        "6.2",
        "HEADERS whose padding reaches into its priority",
        padded(wire.HEADERS, 1, wire.HAS_PRIORITY | wire.END_HEADERS, 3, bytes(7)),
        connection(wire.PROTOCOL_ERROR, wire.FRAME_SIZE_ERROR),
    ),
    row(
        "6.2",
        "padded HEADERS with a priority",
        padded(wire.HEADERS, 1, wire.HAS_PRIORITY | BOTH, 9, bytes(5) + wire.block() + bytes(9)),
        ALLOWED,
    ),
    row(
        "6.2",
        "a header block interrupted by a PING",
        wire.headers(1, flags=0) + wire.frame(wire.PING, 0, 0, bytes(8)),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.2",
        "a header block interrupted by DATA on its own stream",
        wire.headers(1, flags=0) + wire.data(1, b"x"),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.2",
        "a header block interrupted by HEADERS",
        wire.headers(1, flags=0) + wire.headers(3),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.3",
        "PRIORITY on stream 0",
        wire.frame(wire.PRIORITY, 0, 0, bytes(5)),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.3",
        "PRIORITY of four bytes",
        wire.frame(wire.PRIORITY, 0, 1, bytes(4)),
        stream(wire.FRAME_SIZE_ERROR),
        opened,
    ),
    row(
        "6.3",
        "PRIORITY of six bytes on an idle stream, which can't be reset",
        wire.frame(wire.PRIORITY, 0, 99, bytes(6)),
        connection(wire.FRAME_SIZE_ERROR),
    ),
    row("6.4", "RST_STREAM on stream 0", wire.rst_stream(0), connection(wire.PROTOCOL_ERROR)),
    row(
        "6.4",
        "RST_STREAM of three bytes",
        wire.frame(wire.RST_STREAM, 0, 1, bytes(3)),
        connection(wire.FRAME_SIZE_ERROR),
        opened,
    ),
    row(
        "6.4",
        "RST_STREAM of five bytes",
        wire.frame(wire.RST_STREAM, 0, 1, bytes(5)),
        connection(wire.FRAME_SIZE_ERROR),
        opened,
    ),
    row(
        "6.5",
        "a SETTINGS acknowledgement with a payload",
        wire.frame(wire.SETTINGS, wire.ACK, 0, bytes(6)),
        connection(wire.FRAME_SIZE_ERROR),
    ),
    row(
        "6.5",
        "SETTINGS on a stream",
        wire.frame(wire.SETTINGS, 0, 1),
        connection(wire.PROTOCOL_ERROR),
        opened,
    ),
    row(
        "6.5",
        "SETTINGS of five bytes",
        wire.frame(wire.SETTINGS, 0, 0, bytes(5)),
        connection(wire.FRAME_SIZE_ERROR),
    ),
    row("6.5.2", "an unknown setting", wire.settings([(0xFE03, 1 << 31)]), ALLOWED),
    row("6.5.2", "ENABLE_PUSH of 2", wire.settings([(wire.ENABLE_PUSH, 2)]), connection(wire.PROTOCOL_ERROR)),
    row("6.5.2", "ENABLE_PUSH of 1", wire.settings([(wire.ENABLE_PUSH, 1)]), ALLOWED),
    row(
        "6.5.2",
        "an initial window of 2^31",
        wire.settings([(wire.INITIAL_WINDOW_SIZE, 1 << 31)]),
        connection(wire.FLOW_CONTROL_ERROR),
    ),
    row(
        "6.5.2",
        "an initial window of 2^31-1",
        wire.settings([(wire.INITIAL_WINDOW_SIZE, (1 << 31) - 1)]),
        ALLOWED,
    ),
    row(
        "6.5.2",
        "a frame size of 16,383",
        wire.settings([(wire.MAX_FRAME_SIZE, 16_383)]),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.5.2",
        "a frame size of 2^24",
        wire.settings([(wire.MAX_FRAME_SIZE, 1 << 24)]),
        connection(wire.PROTOCOL_ERROR),
    ),
    row("6.5.2", "a frame size of 2^24-1", wire.settings([(wire.MAX_FRAME_SIZE, (1 << 24) - 1)]), ALLOWED),
    row(
        "6.5.2",
        "a bad value after a good one of the same setting",
        wire.settings([(wire.MAX_FRAME_SIZE, 16_384), (wire.MAX_FRAME_SIZE, 1)]),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.6",
        "PUSH_PROMISE from a client",
        wire.frame(wire.PUSH_PROMISE, wire.END_HEADERS, 1, bytes((0, 0, 0, 2)) + wire.block()),
        connection(wire.PROTOCOL_ERROR),
        opened,
    ),
    row(
        "6.7",
        "PING on a stream",
        wire.frame(wire.PING, 0, 1, bytes(8)),
        connection(wire.PROTOCOL_ERROR),
        opened,
    ),
    row(
        "6.7", "PING of seven bytes", wire.frame(wire.PING, 0, 0, bytes(7)), connection(wire.FRAME_SIZE_ERROR)
    ),
    row(
        "6.7",
        "a PING acknowledgement of nine bytes",
        wire.frame(wire.PING, wire.ACK, 0, bytes(9)),
        connection(wire.FRAME_SIZE_ERROR),
    ),
    row(
        "6.7", "an acknowledgement nobody waits for", wire.frame(wire.PING, wire.ACK, 0, b"surprise"), ALLOWED
    ),
    row(
        "6.8",
        "GOAWAY on a stream",
        wire.frame(wire.GOAWAY, 0, 1, bytes(8)),
        connection(wire.PROTOCOL_ERROR),
        opened,
    ),
    row(
        "6.8",
        "GOAWAY of seven bytes",
        wire.frame(wire.GOAWAY, 0, 0, bytes(7)),
        connection(wire.FRAME_SIZE_ERROR),
    ),
    row("6.8", "GOAWAY with debug data", wire.frame(wire.GOAWAY, 0, 0, bytes(8) + b"bye"), ALLOWED, opened),
    row("6.8", "a stream opened across our GOAWAY", wire.headers(3, flags=BOTH), ALLOWED, going_away),
    row(
        "6.8",
        "DATA on a stream opened across our GOAWAY",
        wire.headers(3) + wire.data(3, b"x"),
        ALLOWED,
        going_away,
    ),
    row(
        "6.9",
        "WINDOW_UPDATE of nothing on a stream",
        wire.window_update(1, 0),
        stream(wire.PROTOCOL_ERROR),
        opened,
    ),
    row(
        "6.9",
        "WINDOW_UPDATE of nothing on the connection",
        wire.window_update(0, 0),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.9",
        "WINDOW_UPDATE of only the reserved bit",
        wire.window_update(0, 1 << 31),
        connection(wire.PROTOCOL_ERROR),
    ),
    row("6.9", "the reserved bit beside an increment", wire.window_update(1, 1 << 31 | 1), ALLOWED, opened),
    row(
        "6.9",
        "WINDOW_UPDATE of three bytes",
        wire.frame(wire.WINDOW_UPDATE, 0, 0, bytes(3)),
        connection(wire.FRAME_SIZE_ERROR),
    ),
    row(
        "6.9",
        "WINDOW_UPDATE of five bytes on a stream",
        wire.frame(wire.WINDOW_UPDATE, 0, 1, bytes(5)),
        connection(wire.FRAME_SIZE_ERROR),
        opened,
    ),
    row(
        "6.9.1",
        "a stream window over 2^31-1",
        wire.window_update(1, (1 << 31) - 1),
        stream(wire.FLOW_CONTROL_ERROR),
        opened,
    ),
    row(
        "6.9.1",
        "the connection window over 2^31-1",
        wire.window_update(0, (1 << 31) - 1),
        connection(wire.FLOW_CONTROL_ERROR),
    ),
    row(
        "6.9.1",
        "the connection window of exactly 2^31-1",
        wire.window_update(0, (1 << 31) - 1 - 65_535),
        ALLOWED,
    ),
    row(
        "6.9.1",
        "DATA beyond the stream's window",
        wire.data(1, bytes(16_384)) * 4,
        (OneStream(wire.FLOW_CONTROL_ERROR), Connection(wire.FLOW_CONTROL_ERROR)),
        opened,
    ),
    row("6.9.1", "DATA to the last byte of the window", wire.data(1, bytes(65_535)), ALLOWED, opened),
    row(
        "6.9.1",
        "padding that overflows the stream's window",
        wire.data(1, bytes(65_535 - 4)) + padded(wire.DATA, 1, 0, 4, bytes(4)),
        (OneStream(wire.FLOW_CONTROL_ERROR), Connection(wire.FLOW_CONTROL_ERROR)),
        opened,
    ),
    row(
        "6.9.1",
        "DATA beyond the connection's window",
        wire.headers(1) + wire.headers(3) + wire.data(1, bytes(60_000)) + wire.data(3, bytes(5_536)),
        connection(wire.FLOW_CONTROL_ERROR),
        limits=Http2Limits(connection_window=65_535),
    ),
    row(
        "6.9.2",
        "an initial window that overflows an open stream's",
        wire.window_update(1, 1) + wire.settings([(wire.INITIAL_WINDOW_SIZE, (1 << 31) - 1)]),
        connection(wire.FLOW_CONTROL_ERROR),
        opened,
    ),
    row(
        "6.9.2",
        "an initial window that makes an open stream's negative",
        wire.settings([(wire.INITIAL_WINDOW_SIZE, 0)]) + wire.window_update(1, 5),
        ALLOWED,
        opened,
    ),
    row(
        "6.10",
        "CONTINUATION after END_HEADERS",
        wire.frame(wire.CONTINUATION, wire.END_HEADERS, 1),
        connection(wire.PROTOCOL_ERROR),
        opened,
    ),
    row(
        "6.10",
        "CONTINUATION on stream 0",
        wire.headers(1, flags=0) + wire.frame(wire.CONTINUATION, wire.END_HEADERS, 0),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.10",
        "CONTINUATION on another stream",
        wire.headers(1, flags=0) + wire.frame(wire.CONTINUATION, wire.END_HEADERS, 3),
        connection(wire.PROTOCOL_ERROR),
    ),
    row(
        "6.10",
        "a block cut into many frames",
        wire.headers(1, flags=wire.END_STREAM, raw=wire.block()[:1])
        + wire.frame(wire.CONTINUATION, 0, 1, wire.block()[1:9])
        + wire.frame(wire.CONTINUATION, 0, 1)
        + wire.frame(wire.CONTINUATION, wire.END_HEADERS, 1, wire.block()[9:]),
        ALLOWED,
    ),
]


def changed(**replaced: bytes | None) -> list[Field]:
    """The usual request with pseudo-header fields replaced, or dropped where None."""
    fields = []
    for name, value in wire.REQUEST:
        new = replaced.get(name.decode().removeprefix(":"), value)
        if new is not None:
            fields.append((name, new))
    return fields


def request(*more: Field) -> bytes:
    return wire.headers(1, [*wire.REQUEST, *more], flags=BOTH)


def plain(**replaced: bytes | None) -> bytes:
    return wire.headers(1, changed(**replaced), flags=BOTH)


def trailers(*fields: Field) -> bytes:
    return wire.headers(1, fields, flags=BOTH)


MESSAGES = [
    row("8.1", "a second block without END_STREAM", wire.headers(1, [(b"x", b"y")]), MALFORMED, opened),
    row(
        "8.1",
        "DATA after the trailers",
        trailers((b"x", b"y")) + wire.data(1, b"x"),
        stream(wire.STREAM_CLOSED),
        opened,
    ),
    row("8.1", "trailers", trailers((b"x", b"y")), ALLOWED, opened),
    row("8.1", "empty trailers", wire.headers(1, raw=b"", flags=BOTH), ALLOWED, opened),
    row("8.1", "a pseudo-header field in the trailers", trailers((b":path", b"/")), MALFORMED, opened),
    row("8.1", "an empty header block", wire.headers(1, raw=b"", flags=BOTH), MALFORMED),
    row("8.1.1", "less content than content-length says", request((b"content-length", b"1")), MALFORMED),
    row(
        "8.1.1",
        "less content than content-length says before END_STREAM",
        wire.headers(1, [*wire.REQUEST, (b"content-length", b"3")]) + wire.data(1, b"ab", wire.END_STREAM),
        MALFORMED,
    ),
    row(
        "8.1.1",
        "more content than content-length says",
        wire.headers(1, [*wire.REQUEST, (b"content-length", b"1")]) + wire.data(1, b"ab"),
        MALFORMED,
    ),
    row(
        "8.1.1",
        "the content that content-length says",
        wire.headers(1, [*wire.REQUEST, (b"content-length", b"2")])
        + padded(wire.DATA, 1, wire.END_STREAM, 3, b"ab\0\0\0"),
        ALLOWED,
    ),
    row(
        "8.1.1",
        "less content than content-length says before the trailers",
        wire.headers(1, [*wire.REQUEST, (b"content-length", b"2")])
        + wire.data(1, b"a")
        + trailers((b"x", b"y")),
        MALFORMED,
    ),
    row("8.1.1", "a content-length that is no number", request((b"content-length", b"1x")), MALFORMED),
    row("8.1.1", "a negative content-length", request((b"content-length", b"-0")), MALFORMED),
    row(
        "8.1.1",
        "two content-lengths that differ",
        wire.headers(1, [*wire.REQUEST, (b"content-length", b"1"), (b"content-length", b"2")])
        + wire.data(1, b"a", wire.END_STREAM),
        MALFORMED,
    ),
    row("8.2.1", "an upper-case name", request((b"X-A", b"b")), MALFORMED),
    row("8.2.1", "an upper-case name in the trailers", trailers((b"X", b"b")), MALFORMED, opened),
    row("8.2.1", "an empty name", request((b"", b"b")), MALFORMED),
    row("8.2.1", "a space in a name", request((b"x a", b"b")), MALFORMED),
    row("8.2.1", "a control character in a name", request((b"x\x01", b"b")), MALFORMED),
    row("8.2.1", "DEL in a name", request((b"x\x7f", b"b")), MALFORMED),
    row("8.2.1", "a byte over 127 in a name", request((b"x\xe9", b"b")), MALFORMED),
    row("8.2.1", "a colon within a name", request((b"x:y", b"b")), MALFORMED),
    row("8.2.1", "NUL in a value", request((b"x", b"a\0b")), MALFORMED),
    row("8.2.1", "LF in a value", request((b"x", b"a\nb")), MALFORMED),
    row("8.2.1", "CR in a value", request((b"x", b"a\rb")), MALFORMED),
    row("8.2.1", "LF in a value of the trailers", trailers((b"x", b"a\nb")), MALFORMED, opened),
    row("8.2.1", "a tab within a value", request((b"x", b"a\tb")), ALLOWED),
    row("8.2.1", "an empty value", request((b"x", b"")), ALLOWED),
    row("8.2.1", "bytes over 127 in a value", request((b"x", b"\xe9\xff")), ALLOWED),
    row("8.2.1", "NUL in the path", plain(path=b"/a\0"), MALFORMED),
    row("8.2.1", "a path that ends with a space", plain(path=b"/a "), MALFORMED),
    row("8.2.1", "an authority that starts with a tab", plain(authority=b"\ta"), MALFORMED),
    *(
        row("8.2.2", f"the connection-specific field {name.decode()}", request((name, value)), MALFORMED)
        for name, value in (
            (b"connection", b"close"),
            (b"proxy-connection", b"keep-alive"),
            (b"keep-alive", b"timeout=5"),
            (b"transfer-encoding", b"chunked"),
            (b"upgrade", b"h2c"),
        )
    ),
    row("8.2.2", "te other than trailers", request((b"te", b"gzip")), MALFORMED),
    row(
        "8.3",
        "a pseudo-header field after a regular one",
        wire.headers(1, [*wire.REQUEST[1:], wire.REQUEST[0]]),
        MALFORMED,
    ),
    row("8.3", "an unknown pseudo-header field", wire.headers(1, [(b":x", b"y"), *wire.REQUEST]), MALFORMED),
    row(
        "8.3",
        "a response's pseudo-header field",
        wire.headers(1, [(b":status", b"200"), *wire.REQUEST]),
        MALFORMED,
    ),
    row("8.3", "a name of only a colon", wire.headers(1, [(b":", b"y"), *wire.REQUEST]), MALFORMED),
    *(
        row("8.3.1", f"two fields {field[0].decode()}", wire.headers(1, [field, *wire.REQUEST]), MALFORMED)
        for field in wire.REQUEST[:4]
    ),
    row("8.3.1", "no method", plain(method=None), MALFORMED),
    row("8.3.1", "no scheme", plain(scheme=None), MALFORMED),
    row("8.3.1", "no path", plain(path=None), MALFORMED),
    row("8.3.1", "an empty path", plain(path=b""), MALFORMED),
    row("8.3.1", "no authority", plain(authority=None), ALLOWED),
    row("8.5", "CONNECT with a scheme and a path", plain(method=b"CONNECT"), MALFORMED),
    row("8.5", "CONNECT without an authority", wire.headers(1, [(b":method", b"CONNECT")]), MALFORMED),
]

ROWS = FRAMES + STATES + DEFINITIONS + MESSAGES


def handshake(limits: Http2Limits | None = None) -> Rig:
    rig = Rig(limits)
    rig.send(wire.PREFACE + wire.settings() + wire.frame(wire.SETTINGS, wire.ACK))
    rig.drain()
    return rig


def judge(rig: Rig, octets: bytes, cuts: list[int]) -> Answer:
    """Send `octets`, and read from the connection's own bytes what it made of them."""
    before = len(rig.frames)
    try:
        rig.send(octets, cuts=cuts)
    except ConnectionViolation:
        rig.drain()
        last = rig.frames[-1]
        assert last.kind == wire.GOAWAY, "a connection error ends with GOAWAY"
        return Connection(last.number(4))
    rig.drain()
    new = rig.frames[before:]
    assert not [one for one in new if one.kind == wire.GOAWAY]
    resets = [OneStream(one.number(), one.stream) for one in new if one.kind == wire.RST_STREAM]
    return resets[0] if resets else Tolerated()


def works(rig: Rig) -> None:
    """The connection still serves, and its header table is the peer's."""
    field = literal_field(rig)
    rig.send(wire.headers(101, raw=wire.block() + wire.literal(*field, indexed=True), flags=BOTH))
    assert rig.recorder.streams[101].head == (*wire.REQUEST, field)
    _answer(rig, 101)
    rig.send(wire.headers(103, raw=wire.block() + b"\xbe", flags=BOTH))
    assert rig.recorder.streams[103].head == (*wire.REQUEST, field)
    assert rig.recorder.streams[103].ended


def literal_field(rig: Rig) -> Field:
    return (b"x-probe", b"%d" % len(rig.frames))


def cuttings(octets: bytes) -> list[list[int]]:
    chance = random.Random(len(octets))
    return [
        [],
        list(range(min(len(octets), 400))),
        *(sorted(chance.choices(range(len(octets) + 1), k=3)) for _ in range(3)),
    ]


@pytest.mark.parametrize("one", ROWS, ids=[f"{one.section} {one.name}" for one in ROWS])
def test_a_row_of_rfc_9113_is_answered_as_it_says(one):
    answers = set()
    for cuts in cuttings(one.sent):
        rig = handshake(one.limits)
        one.given(rig)
        answer = judge(rig, one.sent, cuts)
        answers.add(answer)
        assert answer in one.permitted
        _check_aftermath(rig, answer)
    assert len(answers) == 1, "how the bytes are cut changes nothing"


def _check_aftermath(rig: Rig, answer: Answer) -> None:
    match answer:
        case Connection():
            assert rig.connection.outward.output is False
        case OneStream(stream=number, code=code):
            _check_gone(rig, number, code)
    if not isinstance(answer, Connection) and not _said_goodbye(rig):
        for open_stream in list(rig.recorder.open.values()):
            rig.connection.answers.reset(open_stream, ErrorCode.CANCEL)
        works(rig)


def _check_gone(rig: Rig, number: int, code: int) -> None:
    assert number not in rig.connection.streams
    assert number not in rig.recorder.open, "the handler keeps a stream it was not told is gone"
    heard = rig.recorder.streams.get(number)
    if heard is not None and heard.code is not None:
        assert heard.code in (code, wire.CANCEL)


def _said_goodbye(rig: Rig) -> bool:
    return any(one.kind == wire.GOAWAY for one in rig.frames)


@pytest.mark.parametrize(
    "octets",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r!" + wire.settings(),
        b"\x16\x03\x01\x02\x00" + bytes(40),
        b"X",
    ],
)
def test_a_preface_that_is_none_ends_the_connection(octets):
    for cuts in cuttings(octets):
        rig = Rig()
        assert judge(rig, octets, cuts) == Connection(wire.PROTOCOL_ERROR), "section 3.4"


@pytest.mark.parametrize(
    "first",
    [wire.frame(wire.PING, 0, 0, bytes(8)), wire.headers(1), wire.window_update(0, 1), wire.frame(0xFA)],
    ids=["PING", "HEADERS", "WINDOW_UPDATE", "unknown"],
)
def test_the_first_frame_is_settings(first):
    rig = Rig()
    assert judge(rig, wire.PREFACE + first, []) == Connection(wire.PROTOCOL_ERROR), "section 3.4"


def test_our_first_frame_is_settings_and_theirs_is_acknowledged():
    rig = handshake()
    kinds = [(one.kind, one.flags) for one in rig.frames]
    assert kinds[0] == (wire.SETTINGS, 0)
    assert kinds.count((wire.SETTINGS, wire.ACK)) == 1


def test_every_ping_is_returned_with_its_payload_and_no_acknowledgement_is():
    rig = handshake()
    rig.send(wire.frame(wire.PING, 0, 0, b"one-more"))
    rig.send(wire.frame(wire.PING, wire.ACK, 0, b"not-this"))
    before = len(rig.frames)
    rig.drain()
    pings = [(one.flags, one.payload) for one in rig.frames[before:] if one.kind == wire.PING]
    assert pings == [(wire.ACK, b"one-more")]


def test_a_connection_error_names_the_newest_stream_it_worked_on():
    rig = handshake()
    rig.send(wire.headers(1) + wire.headers(5))
    assert judge(rig, wire.data(0, b"x"), []) == Connection(wire.PROTOCOL_ERROR)
    assert rig.frames[-1].number(0) == 5, "section 6.8"


def test_nothing_is_heard_after_a_connection_error():
    rig = handshake()
    rig.send(wire.headers(1))
    with pytest.raises(ConnectionViolation):
        rig.send(wire.data(0, b"x") + wire.data(1, b"late") + wire.headers(3))
    assert not rig.recorder.streams[1].data
    assert 3 not in rig.recorder.streams


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param([*wire.REQUEST, (b"X", b"y")], id="malformed"),
        pytest.param([(b"x", b"y")], id="without pseudo-header fields"),
    ],
)
def test_a_refused_block_still_counts_for_the_header_table(spoilt):
    rig = handshake()
    raw = wire.literal(b"x-kept", b"1", indexed=True) + wire.block(spoilt)
    assert judge(rig, wire.headers(1, raw=raw), []) == OneStream(wire.PROTOCOL_ERROR)
    rig.send(wire.headers(3, raw=wire.block() + b"\xbe", flags=BOTH))
    assert rig.recorder.streams[3].head == (*wire.REQUEST, (b"x-kept", b"1")), "section 4.3"


def test_trailers_that_cross_our_reset_still_count_for_the_header_table():
    rig = handshake()
    refused(rig)
    rig.send(wire.headers(1, raw=wire.literal(b"x-kept", b"1", indexed=True), flags=BOTH))
    rig.send(wire.headers(3, raw=wire.block() + b"\xbe", flags=BOTH))
    assert rig.recorder.streams[3].head[-1] == (b"x-kept", b"1"), "sections 4.3 and 5.1"


def test_blocks_of_streams_opened_across_our_goaway_still_count_for_the_header_table():
    rig = handshake()
    going_away(rig)
    rig.send(wire.headers(3, raw=wire.block() + wire.literal(b"x-kept", b"1", indexed=True), flags=BOTH))
    rig.send(wire.headers(1, raw=b"\xbe", flags=BOTH))
    assert 3 not in rig.recorder.streams
    assert rig.recorder.streams[1].ended, "section 6.8"


def test_data_that_nobody_wants_gives_its_credit_back():
    rig = handshake(replace(Http2Limits(), connection_window=65_535))
    rounds = 40
    for number in range(1, 2 * rounds, 2):
        rig.send(wire.headers(number))
        rig.connection.answers.reset(rig.recorder.open.pop(number), ErrorCode.CANCEL)
        rig.send(wire.data(number, bytes(16_000)))
        rig.drain()
    granted = sum(one.number() for one in rig.frames if one.kind == wire.WINDOW_UPDATE and one.stream == 0)
    assert granted >= (rounds - 4) * 16_000, "section 6.9: the connection's window outlives its streams"


def test_whitespace_around_a_value_is_dropped_and_costs_nothing():
    """Section 8.2.1 calls such a request malformed; gRPC's protocol permits stripping the whitespace."""
    rig = handshake()
    assert judge(rig, request((b"x", b" a\t"), (b"y", b"\t")), []) == Tolerated()
    assert rig.recorder.streams[1].head == (*wire.REQUEST, (b"x", b"a"), (b"y", b""))


def test_settings_apply_in_the_order_they_are_listed():
    rig = handshake()
    opened(rig)
    rig.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 1), (wire.INITIAL_WINDOW_SIZE, 3)]))
    rig.connection.answers.head(rig.recorder.open[1], encode_headers([(b":status", b"200")]))
    rig.connection.answers.message(rig.recorder.open[1], [b"abcdef"], 6)
    rig.drain()
    sent = b"".join(one.payload for one in rig.frames if one.kind == wire.DATA)
    assert sent == b"abc", "section 6.5.3"


_OK = encode_headers([(b":status", b"200")])
_END = encode_headers([(b"grpc-status", b"0")])


def taken_piecewise(rig: Rig) -> list[wire.Frame]:
    """Everything the connection writes, taken in the smallest turns."""
    written = []
    while rig.connection.outward.output:
        written += wire.split(b"".join(rig.connection.outward.take(1)))
    return written


def acknowledged_at(written: list[wire.Frame]) -> int:
    [at] = [at for at, one in enumerate(written) if (one.kind, one.flags) == (wire.SETTINGS, wire.ACK)]
    return at


def test_data_written_before_a_window_shrank_goes_before_the_acknowledgement():
    rig = handshake()
    rig.send(wire.headers(1) + wire.headers(3))
    for number in (1, 3):
        rig.connection.answers.head(rig.recorder.open[number], _OK)
        rig.connection.answers.message(rig.recorder.open[number], [b"abcdef"], 6)
    rig.connection.answers.trailers(rig.recorder.open[3], _END)
    rig.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 0)]))
    written = taken_piecewise(rig)
    sent = [at for at, one in enumerate(written) if one.kind == wire.DATA]
    assert not sent or max(sent) < acknowledged_at(written), "sections 6.5.3 and 6.9.2"


def test_frames_written_before_their_size_shrank_go_before_the_acknowledgement():
    rig = handshake()
    rig.send(wire.settings([(wire.MAX_FRAME_SIZE, 1 << 20)]) + wire.headers(1))
    rig.drain()
    long_block = encode_headers([(b":status", b"200"), (b"x", bytes(20_000))])
    rig.connection.answers.head(rig.recorder.open[1], long_block)
    rig.send(wire.settings([(wire.MAX_FRAME_SIZE, 16_384)]))
    written = taken_piecewise(rig)
    late = written[acknowledged_at(written) :]
    assert all(len(one.payload) <= 16_384 for one in late), "section 6.5.3"


def test_frames_of_a_raised_size_go_after_the_acknowledgement():
    rig = handshake()
    rig.send(wire.headers(1) + wire.headers(3))
    rig.connection.answers.head(rig.recorder.open[1], _OK)
    rig.connection.answers.message(rig.recorder.open[1], [bytes(60_000)], 60_000)
    rig.drain(1)
    for _ in range(4):
        rig.connection.answers.message(rig.recorder.open[3], [b"abc"], 3)
    rig.send(
        wire.settings([(wire.MAX_FRAME_SIZE, 1 << 20)])
        + wire.window_update(1, 100_000)
        + wire.window_update(0, 100_000)
    )
    rig.connection.answers.message(rig.recorder.open[1], [bytes(60_000)], 60_000)
    written = taken_piecewise(rig)
    early = written[: acknowledged_at(written)]
    assert all(len(one.payload) <= 16_384 for one in early), "section 6.5.3"
    assert sum(len(one.payload) for one in written if one.kind == wire.DATA) >= 60_000


@pytest.mark.parametrize("started", [False, True])
def test_a_lowered_table_size_finds_an_encoder_that_has_given_up_its_table(started):
    """RFC 7541 section 4.2: the first block after the acknowledgement says the new size.

    It does not if the size was as low before.
    """
    rig = handshake()
    rig.send(wire.headers(1) + wire.headers(3))
    if started:
        rig.connection.answers.head(rig.recorder.open[1], _OK)
        rig.connection.answers.message(rig.recorder.open[1], [bytes(20_000)], 20_000)
        rig.drain(1)
    rig.send(wire.settings([(wire.HEADER_TABLE_SIZE, 0)]))
    rig.connection.answers.head(rig.recorder.open[3], _OK)
    for number in (3, 1):
        rig.connection.answers.trailers(rig.recorder.open[number], _END)
    rig.frames += taken_piecewise(rig)
    blocks = [one.payload for one in rig.frames if one.kind == wire.HEADERS]
    assert len(blocks) >= 3
    assert blocks[0][0] == 0x20
