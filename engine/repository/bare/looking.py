"""Looks at files: reads as little of them as their recognition needs, whatever they are."""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from pathlib import Path
from typing import Final

from engine.config.inspection.torch_pickles import Archive, opened_archive
from engine.config.inspection.wire import Kind, Reader, Unreadable, opened
from engine.repository.bare.policy.protobuf import skeleton
from engine.repository.bare.policy.recognition import HEAD, PICKLE, TAIL, ZIP, Glimpse, Recognised, recognise

_PICKLE_BYTES: Final = 256 * 1024
_UNPACKED: Final = 64 * 1024
_PACKED: Final = 64 * 1024
_MOST_PLACES: Final = 1000  # files of an ONNX model's weights

# onnx.proto: ModelProto, GraphProto, TensorProto, StringStringEntryProto
_GRAPH, _INITIALIZER, _EXTERNAL, _KEY, _VALUE = 7, 5, 13, 1, 2


def look(path: Path) -> Glimpse | None:
    """Return a glimpse of a regular file that has something in it, or None. Raises OSError."""
    try:
        with opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            head = os.pread(descriptor, HEAD, 0)
            tail = os.pread(descriptor, TAIL, max(size - TAIL, HEAD)) if size > HEAD else b""
            message = skeleton(lambda offset, count: os.pread(descriptor, count, offset), size)
    except Unreadable:
        # It is no regular file, or empty. Of a pointer, the head is enough.
        return _pointer(path)
    if head.startswith(ZIP):
        members, pickle = _members(path)
        return Glimpse(head=head, size=size, tail=tail, members=members, pickle=pickle)
    pickle = head if PICKLE.match(head) else _unpacked(head[:_PACKED])
    return Glimpse(head=head, size=size, tail=tail, pickle=pickle, message=message)


def _pointer(path: Path) -> Glimpse | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(1024)
    return Glimpse(head=head, size=len(head)) if head else None


def recognised(path: Path) -> Recognised | None:
    """Return what a file is; None for what is no model, or can't be read."""
    try:
        glimpse = look(path)
    except OSError:
        return None
    return None if glimpse is None else recognise(glimpse)


def _members(path: Path) -> tuple[tuple[str, ...] | None, bytes]:
    """Return the names in an archive, and how the pickle begins that PyTorch has in it."""
    try:
        with opened_archive(path) as archive:
            return archive.names, _pickle(archive)
    except Unreadable:
        return None, b""


def _pickle(archive: Archive) -> bytes:
    name = next((each for each in archive.names if each.count("/") == 1 and each.endswith("/data.pkl")), "")
    try:
        return archive.head(name, _PICKLE_BYTES) if name else b""
    except Unreadable:
        return b""


def _unpacked(packed: bytes) -> bytes:
    """Return how compressed data begins, as joblib writes it; nothing if it is none."""
    try:
        if packed[:2] in (b"x\x01", b"x^", b"x\x9c", b"x\xda"):
            return zlib.decompressobj().decompress(packed, _UNPACKED)
        if packed[:2] == b"\x1f\x8b":
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed, _UNPACKED)
        if packed[:3] == b"BZh":
            return bz2.BZ2Decompressor().decompress(packed, _UNPACKED)
        if packed[:6] == b"\xfd7zXZ\0" or packed[:3] == b"]\0\0":
            return lzma.LZMADecompressor(memlimit=1 << 28).decompress(packed, _UNPACKED)
    except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError):
        pass
    return b""


def external_files(path: Path) -> tuple[str, ...]:
    """Return the files beside an ONNX model that hold its weights, as it names them. Raises Unreadable."""
    places: dict[str, None] = {}
    with opened(path) as descriptor:
        reader = Reader(descriptor)
        for number, kind, end in reader.fields(reader.size):
            if number == _GRAPH and kind is Kind.LENGTH:
                for inner, inner_kind, tensor in reader.fields(end):
                    if inner == _INITIALIZER and inner_kind is Kind.LENGTH:
                        place = _location(reader, tensor)
                        if place:
                            places[place] = None
                        if len(places) > _MOST_PLACES:
                            raise Unreadable(f"its weights are in more than {_MOST_PLACES} files")
    return tuple(places)


def _location(reader: Reader, end: int) -> str:
    place = ""
    for number, kind, entry in reader.fields(end):
        if number == _EXTERNAL and kind is Kind.LENGTH:
            key = value = ""
            for part, part_kind, text in reader.fields(entry):
                if part == _KEY and part_kind is Kind.LENGTH:
                    key = reader.text(text)
                elif part == _VALUE and part_kind is Kind.LENGTH:
                    value = reader.text(text)
            place = value if key == "location" else place
    return place
