"""HPACK: the examples of RFC 7541, appendix C, what the `hpack` library encodes, and what no block may do."""

import pytest
from hpack import Decoder, Encoder
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from protocols.http2.hpack import TABLE_SIZE, BlockDecoder, Field, ListTooLarge, NotHpack
from protocols.http2.huffman import huffman_decoded
from tests.fuzz import h2wire as wire

ROOM = 1 << 20


def decoded(decoder: BlockDecoder, block: bytes, *, room: int = ROOM) -> list[Field]:
    return decoder.decode(block, room)[0]


# Requests of C.3 (plain) and C.4 (Huffman-coded), and what the table then holds, the newest first.
REQUESTS = [
    [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")],
    [
        *((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")),
        (b"cache-control", b"no-cache"),
    ],
    [
        *((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html")),
        *((b":authority", b"www.example.com"), (b"custom-key", b"custom-value")),
    ],
]
TABLE = [
    (b"custom-key", b"custom-value"),
    (b"cache-control", b"no-cache"),
    (b":authority", b"www.example.com"),
]


@pytest.mark.parametrize(
    "blocks",
    [
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
    ids=["plain", "Huffman-coded"],
)
def test_the_standard_s_requests_are_read_as_it_says(blocks):
    decoder = BlockDecoder()
    for block, fields in zip(blocks, REQUESTS, strict=True):
        assert decoded(decoder, bytes.fromhex(block)) == fields
    assert decoder.entries[::-1] == TABLE
    assert decoder.size == 164


def test_the_standard_s_answers_evict_as_it_says():
    """C.6, with a table of 256 bytes."""
    decoder = BlockDecoder()
    decoded(decoder, wire.integer(256, 5, 0x20))
    blocks = (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff"
        "6e919d29ad171863c78f0b97c8e9ae82ae43d3",
        "4883640effc1c0bf",
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960"
        "d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
    )
    for block in blocks:
        fields = decoded(decoder, bytes.fromhex(block))
    assert fields == [
        (b":status", b"200"),
        (b"cache-control", b"private"),
        (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
        (b"location", b"https://www.example.com"),
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ]
    assert [name for name, _ in decoder.entries] == [b"date", b"content-encoding", b"set-cookie"]
    assert decoder.size == 215


@pytest.mark.parametrize("first", [b"\x00", b"\x10"], ids=["without indexing", "never indexed"])
def test_a_field_that_stays_out_of_the_table_is_not_kept(first):
    decoder = BlockDecoder()
    assert decoded(decoder, first + b"\x03x-a\x011") == [(b"x-a", b"1")]
    assert decoder.entries == []
    assert decoder.changes == 0


names = st.sampled_from([b":path", b"te", b"via", b"traceparent", b"k-bin", b""]) | st.binary(max_size=40)
fields_of = st.lists(st.tuples(names, st.binary(max_size=200), st.booleans()), max_size=8)
sizes = st.none() | st.integers(0, TABLE_SIZE)


@given(st.lists(st.tuples(sizes, st.booleans(), fields_of), max_size=6))
def test_what_hpack_encodes_is_read_back_and_both_tables_agree(blocks):
    encoder, decoder = Encoder(), BlockDecoder()
    for size, huffman, fields in blocks:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(fields, huffman=huffman)
        assert decoded(decoder, block) == [field[:2] for field in fields]
        assert decoder.entries[::-1] == list(encoder.header_table.dynamic_entries)


@given(st.binary(max_size=300))
def test_any_string_survives_huffman_s_code(text):
    assert huffman_decoded(HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)) == text


@pytest.mark.parametrize(
    "coded",
    [b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x00", b"\xff", b"\x1c", b"\x00"],
    ids=["EOS", "more behind EOS", "padding of a byte", "a symbol cut short", "padding of zeros"],
)
def test_what_is_no_huffman_code_costs_the_connection(coded):
    with pytest.raises(ValueError, match="Huffman"):
        huffman_decoded(coded)
    with pytest.raises(NotHpack, match="Huffman"):
        decoded(BlockDecoder(), b"\x04" + wire.integer(len(coded), 7, 0x80) + coded)


BROKEN = [
    ("entry 0", b"\x80", "entry 0"),
    ("an entry beyond the static table", b"\xbe", "does not have"),
    ("an entry far beyond", wire.integer(2**30, 7, 0x80), "does not have"),
    ("a name beyond the table", wire.integer(62, 6, 0x40) + b"\x011", "does not have"),
    ("an index cut short", b"\xff\x80", "cut short"),
    ("an index without end", b"\xff" + b"\x80" * 6, "integer"),
    ("a literal without its name", b"\x00", "cut short"),
    ("a name cut short", b"\x00\x05ab", "cut short"),
    ("a literal without its value", b"\x00\x01a", "cut short"),
    ("a value cut short", b"\x00\x01a\x02b", "cut short"),
    ("a long value cut short", b"\x04" + wire.integer(200, 7) + b"v" * 199, "cut short"),
    ("a coded value cut short", b"\x04\x82\x1f", "cut short"),
    ("a length without end", b"\x04\x7f" + b"\xff" * 8, "integer"),
    ("a table larger than offered", wire.integer(TABLE_SIZE + 1, 5, 0x20), "4096 are offered"),
    ("a size behind a field", b"\x82\x20", "behind a field"),
    ("a long size behind a field", b"\x82" + wire.integer(4096, 5, 0x20), "behind a field"),
    ("seventeen sizes", b"\x20" * 17, "size updates"),
]


@pytest.mark.parametrize(("block", "why"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_what_is_not_hpack_is_refused_with_the_reason(block, why):
    with pytest.raises(NotHpack, match=why):
        decoded(BlockDecoder(), block)


def test_long_indices_and_lengths_are_read():
    decoder = BlockDecoder()
    for number in range(80):
        decoded(decoder, wire.literal(b"n", b"%d" % number, indexed=True))
    block = wire.integer(62 + 79, 7, 0x80) + wire.integer(62 + 70, 6, 0x40) + b"\x00"
    block += wire.integer(62 + 20, 4) + wire.integer(1000, 7) + b"v" * 1000
    assert decoded(decoder, block) == [(b"n", b"0"), (b"n", b""), (b"n", b"v" * 1000)]


def test_an_entry_larger_than_the_table_empties_it():
    decoder = BlockDecoder()
    decoded(decoder, wire.literal(b"x-a", b"1", indexed=True))
    decoded(decoder, wire.literal(b"x-b", b"v" * TABLE_SIZE, indexed=True))
    assert decoder.entries == []
    assert decoder.size == 0


def test_an_insertion_may_refer_to_the_entry_that_it_evicts():
    decoder = BlockDecoder()
    decoded(decoder, wire.integer(40, 5, 0x20) + wire.literal(b"x-a", b"1", indexed=True))
    assert decoded(decoder, b"\x7e\x012") == [(b"x-a", b"2")]
    assert decoder.entries == [(b"x-a", b"2")]


def test_a_shrunken_table_forgets_the_oldest():
    decoder = BlockDecoder()
    for name in (b"x-a", b"x-b", b"x-c"):
        decoded(decoder, wire.literal(name, b"1", indexed=True))
    decoded(decoder, wire.integer(80, 5, 0x20))
    assert [name for name, _ in decoder.entries] == [b"x-b", b"x-c"]


def test_fields_take_room_and_no_more_than_there_is():
    block = wire.block([(b"a", b"1"), (b"b", b"22")])
    assert BlockDecoder().decode(block, 69) == ([(b"a", b"1"), (b"b", b"22")], 69 - 34 - 35)
    with pytest.raises(ListTooLarge):
        BlockDecoder().decode(block, 68)


def test_a_few_bytes_that_name_a_large_entry_again_and_again_stop_at_the_limit():
    decoder = BlockDecoder()
    decoded(decoder, wire.literal(b"x-a", b"v" * 3000, indexed=True))
    with pytest.raises(ListTooLarge):
        decoded(decoder, b"\xbe" * 60_000, room=32_768)


def test_any_static_entry_is_the_library_s():
    for index in range(1, 62):
        block = bytes((0x80 | index,))
        assert decoded(BlockDecoder(), block) == [tuple(field) for field in Decoder().decode(block, raw=True)]
