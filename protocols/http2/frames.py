"""Frames of HTTP/2 (RFC 9113, sections 4, 6 and 7): names, how they are written, what a broken rule costs.

A frame is nine bytes (length 24, type 8, flags 8, reserved 1 and stream 31) and its payload. Both ends treat
the first four bytes as one number, `length << 8 | type`: one `struct` call then reads or writes a whole frame
header.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # section 3.4
HEADER: Final = Struct("!LBL")  # length << 8 | type, flags, stream
HEADER_SIZE: Final = 9

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_WINDOW: Final = 65_535  # section 6.9.2
LARGEST_WINDOW: Final = 2**31 - 1  # section 6.9.1
SMALLEST_FRAME_LIMIT: Final = 16_384  # section 6.5.2, also the default
LARGEST_FRAME_LIMIT: Final = 2**24 - 1
LARGEST_STREAM: Final = 2**31 - 1

_LONG: Final = Struct("!L")
_SETTING: Final = Struct("!HL")


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionViolation(Exception):
    """The peer broke a rule, and loses its connection: GOAWAY with `code`, then close (section 5.4.1)."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class StreamViolation(Exception):
    """The peer broke a rule, and loses one stream: RST_STREAM with `code` (section 5.4.2)."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One whole frame of any type."""
    return HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def headers_frames(stream_id: int, block: bytes, *, end: bool, max_frame_size: int) -> bytes:
    """HEADERS with `block`, and as many CONTINUATION frames as the peer's SETTINGS_MAX_FRAME_SIZE takes."""
    flags = END_STREAM if end else 0
    if len(block) <= max_frame_size:
        return HEADER.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream_id) + block
    written = frame(HEADERS, flags, stream_id, block[:max_frame_size])
    for start in range(max_frame_size, len(block), max_frame_size):
        part = block[start : start + max_frame_size]
        last = start + max_frame_size >= len(block)
        written += frame(CONTINUATION, END_HEADERS if last else 0, stream_id, part)
    return written


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    """SETTINGS with (identifier, value) pairs, in their order."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values))


def settings_ack() -> bytes:
    """The acknowledgement of the peer's SETTINGS."""
    return frame(SETTINGS, ACK, 0)


def ping_frame(payload: bytes, *, ack: bool = False) -> bytes:
    """PING, or the answer to one. Raises ValueError unless `payload` has eight bytes."""
    if len(payload) != 8:
        raise ValueError(f"a PING carries 8 bytes, not {len(payload)}")
    return frame(PING, ACK if ack else 0, 0, payload)


def window_update_frame(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE of a stream, or of the connection (`stream_id` 0)."""
    return frame(WINDOW_UPDATE, 0, stream_id, _LONG.pack(increment))


def reset_frame(stream_id: int, code: int) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, _LONG.pack(code))


def go_away_frame(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """GOAWAY: streams above `last_stream_id` have not been acted on."""
    return frame(GOAWAY, 0, 0, _LONG.pack(last_stream_id) + _LONG.pack(code) + debug)
