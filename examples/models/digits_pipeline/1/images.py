"""Read small greyscale images: PGM, and PNG with 8 bits a pixel. numpy and the standard library only."""

import re
import struct
import zlib

import numpy as np

MAX_SIDE = 4096  # pixels; a small file may promise a large image


def read(data):
    """Return the pixels of an image file, or of 64 raw bytes, as `uint8` [height, width].

    Raises ValueError.
    """
    if data[:2] == b"P5":
        return _read_pgm(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _read_png(data)
    if len(data) == 64:
        return np.frombuffer(data, np.uint8).reshape(8, 8)
    raise ValueError(f"{len(data)} bytes that are neither a PGM nor a PNG file nor 64 pixels")


def _read_pgm(data):
    head = re.match(rb"P5\s+(\d{1,5})\s+(\d{1,5})\s+255\s", data)
    if not head:
        raise ValueError("a PGM file that is not 8-bit (P5, 255)")
    return _pixels(data[head.end() :], width=int(head[1]), height=int(head[2]))


def _read_png(data):
    chunks = dict.fromkeys((b"IHDR", b"IDAT"), b"")
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        chunks[kind] = chunks.get(kind, b"") + data[at + 8 : at + 8 + length]
        at += 12 + length
    if len(chunks[b"IHDR"]) != 13:
        raise ValueError("a PNG file without a header")
    width, height, bits, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if (bits, colour, interlace) != (8, 0, 0):
        raise ValueError("a PNG file that is not plain 8-bit greyscale")
    _check_size(width, height)
    stride = width + 1
    try:
        raw = zlib.decompressobj().decompress(chunks[b"IDAT"], stride * height)
    except zlib.error as error:
        raise ValueError(f"a broken PNG file: {error}") from error
    if len(raw) < stride * height:
        raise ValueError("a PNG file that is cut short")
    rows = []
    above = bytes(width)
    for start in range(0, stride * height, stride):
        above = _unfilter(raw[start], raw[start + 1 : start + stride], above)
        rows.append(above)
    return _pixels(b"".join(rows), width=width, height=height)


def _unfilter(kind, row, above):
    """Undo one row's PNG filter, one byte a pixel (PNG specification, section 9)."""
    out = bytearray(len(row))
    left = upper_left = 0
    for i, value in enumerate(row):
        up = above[i]
        predicted = (0, left, up, (left + up) // 2, _paeth(left, up, upper_left))[kind]
        out[i] = left = (value + predicted) & 255
        upper_left = up
    return bytes(out)


def _paeth(left, up, upper_left):
    estimate = left + up - upper_left
    return min((left, up, upper_left), key=lambda value: abs(estimate - value))


def _check_size(width, height):
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise ValueError(f"an image of {width} x {height} pixels; each side may have 1 to {MAX_SIDE}")


def _pixels(data, *, width, height):
    _check_size(width, height)
    if len(data) < width * height:
        raise ValueError("an image that is cut short")
    return np.frombuffer(data, np.uint8, width * height).reshape(height, width)
