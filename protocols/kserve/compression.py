"""The codings gzip and deflate (zlib) of HTTP bodies (contract, http.md section 6.7) and gRPC messages.

Both ways come in slices of some milliseconds at the most. A caller that runs one on the loop gives other
tasks a turn where it yields, and one in a thread may be given up there. zlib lets go of the GIL.

A stream of 60 KiB can unfold to 62 MiB. So a content longer than 16 MiB is refused once it is more than a
hundred times its stream. Shorter ones cost little, and tensors full of zeros are honest.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable
from typing import Final

from actors.seams.steps import at_once
from actors.values.errors import InvalidArgument, Unsupported
from actors.values.tensors import Buffer

OFFERED: Final = b"gzip, deflate"

UNSUSPICIOUS: Final = 16 * 1024 * 1024
"""Bytes of content that are accepted whatever the size of their stream."""

RATIO: Final = 100
"""How many times the size of its stream a longer content may be."""

Slices = Generator[None, None, tuple[bytearray, int]]

_NOTHING: Final = frozenset((b"", b"identity"))
_COMPRESSED: Final = frozenset((b"gzip", b"deflate"))
_CODINGS: Final = frozenset((b"identity", b"deflate", b"gzip"))
_BITE: Final = 64 * 1024  # bytes given to zlib at once
# Bytes that zlib may make of a bite, which takes less than a millisecond.
_MADE_AT_ONCE: Final = 256 * 1024
# Bytes that a bite counts beside those it makes, because it may hold empty blocks, which take long.
_READING: Final = _MADE_AT_ONCE // 2
_EITHER: Final = 32 + zlib.MAX_WBITS  # zlib or gzip, by the stream's own header
_WINDOW: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


class UnsupportedCompression(Unsupported):
    """The body came in a coding that the server does not know. The answer names those that it does."""


def is_compressed(content_encoding: bytes) -> bool:
    """Return whether a body with this Content-Encoding must be decompressed.

    Raises UnsupportedCompression.
    """
    if content_encoding in _NOTHING:
        return False
    if content_encoding in _COMPRESSED:
        return True
    raise UnsupportedCompression("Unsupported compression type")


class BrokenStream(ValueError):
    """The bytes are no complete stream of their coding."""


class OverLimit(ValueError):
    """The content is longer than it may be."""


class Suspicious(OverLimit):
    """The content is longer than `RATIO` times its stream, and longer than `UNSUSPICIOUS`."""


def most_of(size: int, limit: int) -> int:
    """Return how many bytes a stream of `size` bytes may unfold to; never more than `limit`."""
    return min(limit, max(UNSUSPICIOUS, RATIO * size))


def unfolding(body: Buffer, limit: int, coding: bytes = b"") -> Slices:
    """Unfold a stream in `coding`, a millisecond's worth between two `yield`s.

    `coding` is gzip or deflate; empty stands for either of them. Returns the content, and how many bytes
    follow the stream. Memory grows with what is made, not with what is claimed. Raises BrokenStream where the
    stream is broken or cut short, and OverLimit as soon as more was made than `most_of` it.
    """
    stream = zlib.decompressobj(_WINDOW.get(coding, _EITHER))
    content = bytearray()
    view = memoryview(body)
    most = most_of(len(view), limit)
    at = 0
    bite: Buffer = b""
    work = 0
    # Whether the last part was as long as it may be, so that there may be more.
    full = False
    while not stream.eof:
        if not bite and not full:
            bite = view[at : at + _BITE]
            at += len(bite)
            if not bite:
                raise BrokenStream("it is cut short")
        part = _part(stream, bite)
        content += part
        if len(content) > most:
            if most < limit:
                raise Suspicious(
                    f"it unfolds to more than {most} bytes, {RATIO} times the {len(view)} that came"
                )
            raise OverLimit(f"it unfolds to more than {limit} bytes")
        bite = stream.unconsumed_tail
        full = len(part) == _MADE_AT_ONCE
        work += len(part) + _READING
        if work >= _MADE_AT_ONCE:
            work = 0
            yield
    return content, len(stream.unused_data) + len(view) - at


def _part(stream: zlib._Decompress, bite: Buffer) -> bytes:
    try:
        return stream.decompress(bite, _MADE_AT_ONCE)
    except zlib.error as error:
        raise BrokenStream(str(error)) from error


def decompressing(body: Buffer, limit: int) -> Generator[None, None, bytearray]:
    """Unfold an HTTP body that is a gzip or zlib stream, whichever it is, in slices; return its content.

    Raises InvalidArgument where it is empty, broken, cut short, or
    unfolds to more than it may (see `unfolding`).
    """
    if not body:
        raise InvalidArgument("nothing to be decompressed")
    try:
        content, _ = yield from unfolding(body, limit)
    except (BrokenStream, Suspicious) as error:
        raise InvalidArgument(f"failed to decompress the request body: {error}") from error
    except OverLimit as error:
        raise InvalidArgument(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        ) from error
    return content


def decompress(body: Buffer, limit: int) -> bytearray:
    """Do as `decompressing` does, in one go."""
    return at_once(decompressing(body, limit))


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


def compressing(
    buffers: Iterable[Buffer], coding: bytes, level: int = zlib.Z_DEFAULT_COMPRESSION
) -> Generator[None, None, bytes]:
    """Fold `buffers`, one after the other, in slices; return them in the coding `gzip` or `deflate`.

    `level` is zlib's, 1 to 9.
    """
    stream = zlib.compressobj(level, wbits=_WINDOW[coding])
    parts = []
    for buffer in buffers:
        view = memoryview(buffer)
        for at in range(0, len(view), _BITE):
            parts.append(stream.compress(view[at : at + _BITE]))
            yield
    parts.append(stream.flush())
    return b"".join(parts)


def compress(buffers: Iterable[Buffer], coding: bytes, level: int = zlib.Z_DEFAULT_COMPRESSION) -> bytes:
    """Do as `compressing` does, in one go."""
    return at_once(compressing(buffers, coding, level))
