"""Content codings of the infer endpoint: gzip and deflate (contract, http.md section 6.7).

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


def decompress(body: Buffer, limit: int) -> bytes:
    """Return the content of a gzip or zlib stream, whichever it is.

    Raises InvalidArgument where it is empty, broken, cut short, or unfolds to more than `limit` bytes (of which no more
    than one is ever made).
    """
    if not body:
        raise InvalidArgument("nothing to be decompressed")
    stream = zlib.decompressobj(_EITHER)
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidArgument(f"failed to decompress the request body: {error}") from error
    if len(content) > limit:
        raise InvalidArgument(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    if not stream.eof:
        raise InvalidArgument("failed to decompress the request body: it is cut short")
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


def compress(buffers: Iterable[Buffer], coding: bytes) -> bytes:
    """Return `buffers`, one after the other, in the content coding `gzip` or `deflate` (the zlib format)."""
    stream = zlib.compressobj(wbits=_WINDOW[coding])
    parts = [stream.compress(buffer) for buffer in buffers]
    parts.append(stream.flush())
    return b"".join(parts)
