"""The codings gzip and deflate (the zlib format), of HTTP bodies (contract, http.md section 6.7) and gRPC messages.

The functions work on whole bodies and may take long; callers decide where they run. zlib lets go of the GIL.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from actors.messages.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from actors.messages.tensors import Buffer

OFFERED: Final = b"gzip, deflate"

_NOTHING: Final = frozenset((b"", b"identity"))
_COMPRESSED: Final = frozenset((b"gzip", b"deflate"))
_CODINGS: Final = frozenset((b"identity", b"deflate", b"gzip"))
_BITE: Final = 64 * 1024  # bytes given to zlib at once,
_MADE_AT_ONCE: Final = 1024 * 1024  # and bytes it may make of them
_EITHER: Final = 32 + zlib.MAX_WBITS  # zlib or gzip, by the stream's own header
_WINDOW: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


class UnsupportedCompression(Unsupported):
    """The body came in a coding that the server does not know; the answer names those it does."""


def is_compressed(content_encoding: bytes) -> bool:
    """Return whether a body with this Content-Encoding must be decompressed. Raises UnsupportedCompression."""
    if content_encoding in _NOTHING:
        return False
    if content_encoding in _COMPRESSED:
        return True
    raise UnsupportedCompression("Unsupported compression type")


class BrokenStream(ValueError):
    """The bytes are no complete stream of their coding."""


class OverLimit(ValueError):
    """The content is longer than it may be."""


def inflate(body: Buffer, limit: int, coding: bytes = b"") -> tuple[bytearray, int]:
    """Return the content of a stream in `coding` (gzip or zlib, whichever it is, if empty), and how many bytes follow it.

    Memory grows with what is made, not with what is claimed. Raises BrokenStream where the stream is broken or cut
    short, and OverLimit as soon as more than `limit` bytes were made.
    """
    stream = zlib.decompressobj(_WINDOW.get(coding, _EITHER))
    content = bytearray()
    view = memoryview(body)
    at = 0
    bite: Buffer = b""
    full = False  # the last part was as long as it may be: there may be more where it came from
    while not stream.eof:
        if not bite and not full:
            bite = view[at : at + _BITE]
            at += len(bite)
            if not bite:
                raise BrokenStream("it is cut short")
        try:
            part = stream.decompress(bite, _MADE_AT_ONCE)
        except zlib.error as error:
            raise BrokenStream(str(error)) from error
        content += part
        if len(content) > limit:
            raise OverLimit(f"it unfolds to more than {limit} bytes")
        bite = stream.unconsumed_tail
        full = len(part) == _MADE_AT_ONCE
    return content, len(stream.unused_data) + len(view) - at


def decompress(body: Buffer, limit: int) -> bytearray:
    """Return the content of an HTTP body that is a gzip or zlib stream, whichever it is.

    Raises InvalidArgument where it is empty, broken, cut short, or unfolds to more than `limit` bytes.
    """
    if not body:
        raise InvalidArgument("nothing to be decompressed")
    try:
        content, _ = inflate(body, limit)
    except BrokenStream as error:
        raise InvalidArgument(f"failed to decompress the request body: {error}") from error
    except OverLimit as error:
        raise InvalidArgument(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        ) from error
    return content


def choose_coding(accept_encoding: bytes) -> bytes:
    """Return `gzip` or `deflate`, whichever the client likes best, or `b""` for none.

    The greatest weight wins, and the first among equals.
    """
    best, best_weight = b"", 0.0
    for offer in accept_encoding.split(b","):
        coding, _, parameter = offer.partition(b";")
        coding = coding.strip()
        if coding not in _CODINGS:
            continue
        weight = _weight(parameter)
        if weight > best_weight:
            best, best_weight = coding, weight
    return b"" if best == b"identity" else best


def _weight(parameter: bytes) -> float:
    name, _, value = parameter.strip().partition(b"=")
    if name.strip() != b"q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def compress(buffers: Iterable[Buffer], coding: bytes, level: int = zlib.Z_DEFAULT_COMPRESSION) -> bytes:
    """Return `buffers`, one after the other, in the coding `gzip` or `deflate`; `level` is zlib's, 1 to 9."""
    stream = zlib.compressobj(level, wbits=_WINDOW[coding])
    parts = [stream.compress(buffer) for buffer in buffers]
    parts.append(stream.flush())
    return b"".join(parts)
