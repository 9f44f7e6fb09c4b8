"""HTTP/2 by hand: frames as bytes, without any library's opinion of what may be sent.

It follows RFC 9113 sections 4 and 6 and RFC 7541, not the server's modules, which are under test.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
INTERNAL_ERROR = 0x2
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
MAX_HEADER_LIST_SIZE = 6

_HEAD_SIZE = 9

Field = tuple[bytes, bytes]

PATH = b"/inference.GRPCInferenceService/ModelInfer"
REQUEST: tuple[Field, ...] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", PATH),
    (b":authority", b"localhost:8001"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, as it lies on the wire."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    def number(self, at: int = 0) -> int:
        """The four bytes at `at`, big-endian: an error code, an increment, a last stream."""
        return int.from_bytes(self.payload[at : at + 4], "big")


def frame(
    kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", *, size: int | None = None
) -> bytes:
    """Return a frame; `size` makes its length field lie."""
    length = len(payload) if size is None else size
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def split(output: bytes) -> list[Frame]:
    """Cut a server's output into frames. Raises ValueError if it does not end with a whole one."""
    frames = list(_frames(output))
    if sum(len(one.payload) + _HEAD_SIZE for one in frames) != len(output):
        raise ValueError(f"the output ends within a frame, after {len(frames)} whole ones")
    return frames


def _frames(output: bytes) -> Iterator[Frame]:
    at = 0
    while at + _HEAD_SIZE <= len(output):
        end = at + _HEAD_SIZE + int.from_bytes(output[at : at + 3], "big")
        if end > len(output):
            return
        stream = int.from_bytes(output[at + 5 : at + 9], "big")
        yield Frame(output[at + 3], output[at + 4], stream, output[at + _HEAD_SIZE : end])
        at = end


def settings(values: Iterable[tuple[int, int]] = ()) -> bytes:
    """Return a SETTINGS frame."""
    body = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values)
    return frame(SETTINGS, payload=body)


def window_update(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def rst_stream(stream: int, code: int = CANCEL) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def literal(name: bytes, value: bytes, *, indexed: bool = False) -> bytes:
    """Return a header field spelled out without Huffman coding (RFC 7541 section 6.2)."""
    return (b"\x40" if indexed else b"\x00") + _string(name) + _string(value)


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """Return an HPACK integer with a prefix of `bits` bits (RFC 7541 section 5.1)."""
    full = (1 << bits) - 1
    if value < full:
        return bytes((first | value,))
    encoded = bytearray((first | full,))
    value -= full
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _string(text: bytes) -> bytes:
    return integer(len(text), 7) + text


def block(fields: Sequence[Field] = REQUEST) -> bytes:
    """Return a header block of literals that leave the table alone."""
    return b"".join(literal(name, value) for name, value in fields)


def headers(
    stream: int, fields: Sequence[Field] = REQUEST, *, flags: int = END_HEADERS, raw: bytes | None = None
) -> bytes:
    """Return a HEADERS frame, with `raw` in place of an encoded block if given."""
    return frame(HEADERS, flags, stream, block(fields) if raw is None else raw)


def data(stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Return a DATA frame."""
    return frame(DATA, flags, stream, payload)
