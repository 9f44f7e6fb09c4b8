"""HPACK (RFC 7541): a decoder of one connection's blocks, and blocks that leave a peer's table alone.

The dynamic table has at most the 4,096 bytes that every connection begins with, because our SETTINGS never
offer more. That is 128 entries. Each field takes at least a byte of the block, and the decoder is told how
large the header list may become. So a block's cost is bounded by its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocols.http2.huffman import huffman_decoded

Field = tuple[bytes, bytes]

FIELD_OVERHEAD: Final = 32
"""Bytes that a field counts beyond its name and value (RFC 7541, section 4.1; RFC 9113, section 6.5.2)."""

TABLE_SIZE: Final = 4096
"""Bytes that a dynamic table has at the most, and at first (RFC 9113, section 6.5.2)."""

# Two would do (RFC 7541, section 4.2), but some encoders write down each change.
_MOST_SIZE_UPDATES: Final = 16
# Bytes of an integer behind its prefix: 35 bits, of which no use has more than 32.
_LONGEST_INTEGER: Final = 5

# Appendix A. The place of an entry is its index; nothing has index 0.
_STATIC: Final[tuple[Field, ...]] = (
    (b"", b""),
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)
_STATIC_END: Final = len(_STATIC)
_INDICES: Final = {field: index for index, field in reversed(list(enumerate(_STATIC))) if index}
_NAME_INDICES: Final = {field[0]: index for index, field in reversed(list(enumerate(_STATIC))) if index}


class NotHpack(Exception):
    """A header block can't be decoded. The text says why, in words for its sender."""


class ListTooLarge(Exception):
    """A block's fields come to more than its reader takes."""


class BlockDecoder:
    """Decodes the header blocks of one connection, in the order they came in.

    Once it has raised, the table is not what the peer takes it for, and no later block can be decoded.
    `changes` counts what may have changed the table: insertions and updates of the size. It does not compare
    contents. So it also tells of an insertion that evicted an equal entry, and of a size that went down and
    up again within a block. `leading` is how many fields of the last block came before its first literal.
    """

    __slots__ = ("_most", "changes", "entries", "leading", "size")

    def __init__(self) -> None:
        self.changes = 0
        self.leading = 0
        self.entries: list[Field] = []  # of the table, the newest last
        self.size = 0  # of the entries, in bytes as section 4.1 counts them
        self._most = TABLE_SIZE

    def decode(self, block: bytes, room: int) -> tuple[list[Field], int]:  # noqa: C901  the path of a block
        """Return the fields of `block`, and how much of `room` they leave: bytes of a header list.

        Raises NotHpack, and ListTooLarge for a list that needs more than `room`.
        """
        fields: list[Field] = []
        entries = self.entries
        at, end = 0, len(block)
        leading = -1
        try:
            if end and 0x20 <= block[0] < 0x40:
                at = self._resized(block)
            while at < end:
                octet = block[at]
                at += 1
                if octet >= 0x80:  # an indexed field: section 6.1
                    index = octet & 0x7F
                    if index == 0x7F:
                        index, at = _long_integer(block, at, index)
                    field = _STATIC[index] if index < _STATIC_END else entries[_STATIC_END - 1 - index]
                    name, value = field
                    if not index:
                        raise NotHpack("there is no entry 0")
                else:  # a literal: section 6.2
                    if leading < 0:
                        leading = len(fields)
                    if octet >= 0x40:
                        mask = 0x3F
                    elif octet < 0x20:
                        mask = 0x0F
                    else:  # section 4.2
                        raise NotHpack("the table's size is updated behind a field")
                    index = octet & mask
                    if index == mask:
                        index, at = _long_integer(block, at, index)
                    if not index:
                        size = block[at]
                        at += 1
                        if size < 0x7F:
                            name = block[at : at + size]
                            at += size
                        else:
                            name, at = _string(block, at, size)
                    elif index < _STATIC_END:
                        name = _STATIC[index][0]
                    else:
                        name = entries[_STATIC_END - 1 - index][0]
                    size = block[at]
                    at += 1
                    if size < 0x7F:
                        value = block[at : at + size]
                        at += size
                    else:
                        value, at = _string(block, at, size)
                    field = (name, value)
                    if octet >= 0x40:
                        self._add(field)
                room -= len(name) + len(value) + FIELD_OVERHEAD
                if room < 0:
                    raise ListTooLarge
                fields.append(field)
        except IndexError:
            why = "it is cut short, or refers to an entry that the table does not have"
            raise NotHpack(why) from None
        if at > end:
            raise NotHpack("its last string is cut short")
        self.leading = len(fields) if leading < 0 else leading
        return fields, room

    def _add(self, field: Field) -> None:
        """Insert an entry; the oldest make room for it (section 4.4)."""
        self.changes += 1
        entries = self.entries
        entries.append(field)
        self.size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        if self.size > self._most:
            self._evict()

    def _evict(self) -> None:
        """Remove the oldest entries until the rest fits."""
        entries = self.entries
        size, most, gone = self.size, self._most, 0
        while size > most:
            name, value = entries[gone]
            size -= len(name) + len(value) + FIELD_OVERHEAD
            gone += 1
        del entries[:gone]
        self.size = size

    def _resized(self, block: bytes) -> int:
        """Take the size updates that a block begins with (section 6.3); return where the fields begin.

        Each costs as much to decode as a field, but adds nothing to the list's size. So they are limited.
        """
        at = count = 0
        end = len(block)
        while at < end and block[at] & 0xE0 == 0x20:
            count += 1
            if count > _MOST_SIZE_UPDATES:
                raise NotHpack(f"it has more than {_MOST_SIZE_UPDATES} table size updates")
            size = block[at] & 0x1F
            at += 1
            if size == 0x1F:
                size, at = _long_integer(block, at, size)
            if size > TABLE_SIZE:
                raise NotHpack(f"it sets a table of {size} bytes, where {TABLE_SIZE} are offered")
            self.changes += 1
            self._most = size
            self._evict()
        return at


def _long_integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Return the integer that goes on at `at` behind a full prefix, and where it ends (section 5.1)."""
    for shift in range(0, 7 * _LONGEST_INTEGER, 7):
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
    raise NotHpack(f"it has an integer of more than {_LONGEST_INTEGER} bytes behind the first")


def _string(block: bytes, at: int, first: int) -> tuple[bytes, int]:
    """Return the long or Huffman-coded string whose length begins with `first`, and where it ends.

    Section 5.2. The length goes on at `at`.
    """
    size = first & 0x7F
    if size == 0x7F:
        size, at = _long_integer(block, at, size)
    end = at + size
    if end > len(block):
        raise NotHpack("a string is cut short")
    text = block[at:end]
    if first < 0x80:
        return text, end
    try:
        return huffman_decoded(text), end
    except ValueError as error:
        raise NotHpack(str(error)) from None


def encode_headers(fields: Iterable[Field]) -> bytes:
    """A block that leaves the peer's table alone, so it can be made once and sent on every connection.

    Fields that HPACK's static table holds are one byte. All others are literals without indexing, not
    Huffman-coded. Names must be in lower case.
    """
    return b"".join([_encode_field(name, value) for name, value in fields])


def _encode_field(name: bytes, value: bytes) -> bytes:
    whole = _INDICES.get((name, value))
    if whole is not None:
        return bytes((0x80 | whole,))  # section 6.1; static indices end at 61
    index = _NAME_INDICES.get(name)
    if index is not None:
        return _integer(index, 4) + _integer(len(value), 7) + value
    return b"\x00" + _integer(len(name), 7) + name + _integer(len(value), 7) + value


def _integer(value: int, prefix: int) -> bytes:
    """Section 5.1, with the bits before the prefix zero."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes((value,))
    written = bytearray((most,))
    value -= most
    while value >= 128:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)
