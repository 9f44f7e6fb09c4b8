"""HPACK: our decoder says of every block what the `hpack` library says of it, and keeps the same table.

An input is a series of blocks, each behind one byte that means nothing and two that tell its length.
"""

from random import Random

from hpack import Decoder, Encoder, HPACKError

from protocols.http2.hpack import FIELD_OVERHEAD, TABLE_SIZE, BlockDecoder, ListTooLarge, NotHpack
from tests.fuzz import h2wire as wire
from tests.fuzz.h2wire import Field
from tests.fuzz.mutation import damaged
from tests.fuzz.series import parts_of, series

_ROOM = 1500
_MOST_SIZE_UPDATES = 16
_NAMES = (
    b":path",
    b":authority",
    b"user-agent",
    b"te",
    b"via",
    b"traceparent",
    b"grpc-timeout",
    b"k-bin",
    b"",
)
_SIZES = (0, 1, 33, 64, 100, 300, 1000, TABLE_SIZE)
_TELLING_INTEGERS = (0, 14, 15, 30, 31, 61, 62, 63, 126, 127, 128, 200, 4096, 4097, 2**21, 2**32, 2**35)


class HpackBlocks:
    """Feeds the same blocks to both decoders."""

    name = "hpack"
    prefix = "headers"  # whose inputs are series of blocks, too

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """What an encoder might write, a series of telling pieces, either of them damaged, or noise."""
        drawn = chance.random()
        if drawn < 0.05:
            return series([(0, chance.randbytes(chance.randrange(64))) for _ in range(3)])
        if drawn < 0.1:
            octets = chance.choice(corpus)
        else:
            octets = _honest(chance) if drawn < 0.6 else _pieced_together(chance)
        return octets if chance.random() < 0.4 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Compare both, block by block."""
        ours, theirs = BlockDecoder(), Decoder(max_header_list_size=_ROOM)
        outcome = "nothing"
        for _, block in parts_of(octets):
            expected = _theirs(theirs, block)
            outcome = _ours(ours, block, expected)
            if outcome in {"not HPACK", "too large", "too many updates"}:
                return outcome
            assert ours.entries[::-1] == list(theirs.header_table.dynamic_entries)
            assert ours.size == sum(map(_size, ours.entries)) <= theirs.header_table.maxsize <= TABLE_SIZE
        return outcome


def _size(field: Field) -> int:
    return len(field[0]) + len(field[1]) + FIELD_OVERHEAD


def _theirs(decoder: Decoder, block: bytes) -> list[Field] | None:
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except (HPACKError, IndexError):  # IndexError is what it says of some blocks that are cut short
        return None


def _ours(decoder: BlockDecoder, block: bytes, expected: list[Field] | None) -> str:
    changes, table = decoder.changes, list(decoder.entries)
    why = ""
    try:
        fields, room = decoder.decode(block, _ROOM)
    except ListTooLarge:
        assert expected is None
        return "too large"
    except NotHpack as error:
        why = str(error)
    if "table size updates" in why:
        assert _begins_with_updates(block)
        return "too many updates"
    if why:
        assert expected is None, f"{why}: {block.hex()}"
        return "not HPACK"
    assert fields == expected
    assert room == _ROOM - sum(map(_size, fields))
    assert changes != decoder.changes or table == decoder.entries, "a change that was not counted"
    return "changed" if changes != decoder.changes else "decoded"


def _begins_with_updates(block: bytes) -> bool:
    at = count = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        many = block[at] & 0x1F == 0x1F
        at += 1
        while many and at < len(block):
            many = block[at] >= 0x80
            at += 1
        count += 1
    return count > _MOST_SIZE_UPDATES


def _honest(chance: Random) -> bytes:
    """What one encoder might send: some names again and again, many values, and a table that is resized."""
    encoder = Encoder()
    blocks: list[tuple[int, bytes]] = []
    for _ in range(chance.randrange(1, 7)):
        if chance.random() < 0.2:
            encoder.header_table_size = chance.choice(_SIZES)
        fields = [
            (chance.choice(_NAMES), _value(chance), chance.random() < 0.2) for _ in range(chance.randrange(8))
        ]
        blocks.append((0, encoder.encode(fields, huffman=chance.random() < 0.7)))
    return series(blocks)


def _value(chance: Random) -> bytes:
    drawn = chance.random()
    if drawn < 0.4:
        return chance.choice((b"", b"1S", b"trailers", b"POST", b"00-4bf92f3577b34da6a3ce929d0e0e4736-01"))
    if drawn < 0.7:
        return bytes(chance.choices(b"abcdefgh0123456789-/%", k=chance.randrange(60)))
    return chance.randbytes(int(chance.random() ** 4 * 300))


def _pieced_together(chance: Random) -> bytes:
    """Representations that no sound encoder writes: any kind, any index, any length, any padding."""
    blocks = [b"".join(_piece(chance) for _ in range(chance.randrange(1, 9))) for _ in range(4)]
    if chance.random() < 0.05:
        blocks[0] = wire.integer(chance.choice(_SIZES), 5, 0x20) * chance.randrange(14, 19) + blocks[0]
    return series([(0, block) for block in blocks])


def _piece(chance: Random) -> bytes:
    index = chance.choice(_TELLING_INTEGERS) if chance.random() < 0.3 else chance.randrange(70)
    match chance.randrange(8):
        case 0 | 1:
            return wire.integer(index, 7, 0x80)
        case 2:
            return wire.integer(chance.choice((*_SIZES, *_TELLING_INTEGERS)), 5, 0x20)
        case 3 | 4:
            return wire.integer(index, 6, 0x40) + _text(chance)
        case 5:
            return chance.choice((b"\x00", b"\x10", b"\x40")) + _text(chance) + _text(chance)
        case _:
            return wire.integer(index, 4, chance.choice((0x00, 0x10))) + _text(chance)


def _text(chance: Random) -> bytes:
    """Return a string, coded or not; what is called Huffman code here ends in any bits."""
    if chance.random() < 0.5:
        text = bytes(chance.choices(b"abc-\xff", k=chance.choice((0, 1, 5, 126, 127, 128))))
        return wire.integer(len(text), 7) + text
    coded = bytes(chance.choices((chance.randrange(256), 0xFF, 0xF8, 0x1F, 0x07), k=chance.randrange(9)))
    return wire.integer(len(coded), 7, 0x80) + coded
