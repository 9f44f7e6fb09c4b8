"""Header blocks: the cache changes only the time, requests are checked, and our output needs no table."""

from collections.abc import Sequence

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from protocols.http2.frames import ConnectionViolation, ErrorCode, StreamViolation
from protocols.http2.header_blocks import HeaderDecoder, checked_request
from protocols.http2.hpack import encode_headers
from tests.fuzz import h2wire as wire
from tests.fuzz.h2wire import Field

REQUEST = list(wire.REQUEST)


class Reader:
    """Reads heads, and counts how often it is asked.

    Of what comes behind a head that it read, it reads all but `x-anew`.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.continued = 0

    def __call__(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        self.asked += 1
        return tuple((bytes(name), bytes(value)) for name, value in fields)

    def more(self, head: tuple[Field, ...], more: Sequence[Field]) -> tuple[Field, ...] | None:
        if any(name == b"x-anew" for name, _ in more):
            return None
        self.continued += 1
        return head + tuple(more)


def decoder(reader: Reader, *, cached: int = 8, largest: int = 16_384) -> HeaderDecoder[tuple[Field, ...]]:
    return HeaderDecoder(reader, reader.more, max_header_list=largest, cached_heads=cached)


def test_a_repeated_block_is_read_once():
    reader, encoder = Reader(), Encoder()
    ours = decoder(reader)
    for _ in range(5):
        ours.request(encoder.encode(REQUEST))
    assert reader.asked == 2, "the first block filled the table, the second was kept"


def test_a_block_that_changes_the_table_is_not_kept():
    ours = decoder(Reader())
    ours.request(wire.block() + wire.literal(b"x-a", b"1", indexed=True))
    assert not ours.heads


def test_an_insertion_forgets_every_block_that_was_kept():
    ours = decoder(Reader())
    ours.request(wire.block() + wire.literal(b"x-a", b"1", indexed=True))
    same = wire.block() + b"\xbe"
    assert ours.request(same)[0][-1] == (b"x-a", b"1")
    assert list(ours.heads) == [same]
    ours.request(wire.block() + wire.literal(b"x-b", b"2", indexed=True))
    assert not ours.heads
    assert ours.request(same)[0][-1] == (b"x-b", b"2")


def test_an_insertion_that_evicts_an_equal_entry_counts():
    """Contents, size and maximum are equal before and after, so a comparison would miss it."""
    ours = decoder(Reader())
    size = 32 + len(b"x-a") + len(b"1")
    ours.request(wire.integer(size, 5, 0x20) + wire.block() + wire.literal(b"x-a", b"1", indexed=True))
    ours.request(wire.block() + b"\xbe")
    assert ours.heads
    ours.request(wire.block() + wire.literal(b"x-a", b"1", indexed=True))
    assert not ours.heads


def test_a_table_that_shrank_and_grew_again_within_a_block_counts():
    ours = decoder(Reader())
    ours.request(wire.block() + wire.literal(b"x-a", b"1", indexed=True))
    ours.request(wire.block() + b"\xbe")
    ours.request(b"\x20" + wire.integer(4096, 5, 0x20) + wire.block())
    assert not ours.heads
    with pytest.raises(ConnectionViolation, match="does not have"):
        ours.request(wire.block() + b"\xbe")


@pytest.mark.parametrize("read", ["trailers", "skip"])
def test_blocks_that_open_no_stream_count_too(read):
    ours = decoder(Reader())
    ours.request(wire.block())
    assert ours.heads
    getattr(ours, read)(wire.literal(b"x-a", b"1", indexed=True))
    assert not ours.heads


def test_blocks_that_do_not_repeat_push_out_the_oldest():
    ours = decoder(Reader(), cached=2)
    blocks = [wire.block() + wire.literal(b"x-id", b"%d" % number) for number in range(5)]
    for block in blocks:
        ours.request(block)
        assert len(ours.heads) <= 2
    assert list(ours.heads) == blocks[-2:]


@pytest.mark.parametrize(("cached", "length"), [(8, 2048), (0, 1)], ids=["a long list", "a cache of nothing"])
def test_what_there_is_no_room_for_is_served_but_not_kept(cached, length):
    ours = decoder(Reader(), cached=cached)
    for _ in range(2):
        assert ours.request(wire.block() + wire.literal(b"x-long", b"v" * length))
    assert not ours.heads


def test_a_block_with_a_content_length_is_kept_with_it():
    ours = decoder(Reader())
    block = wire.block() + wire.literal(b"content-length", b"12")
    assert [ours.request(block)[1] for _ in range(2)] == [12, 12]
    assert list(ours.heads) == [block]


def test_a_list_over_the_limit_costs_its_stream_and_keeps_the_table():
    ours = decoder(Reader(), largest=1000)
    with pytest.raises(StreamViolation, match="1000 announced") as raised:
        ours.request(wire.block() + wire.literal(b"x-a", b"1" * 700, indexed=True))
    assert raised.value.code == ErrorCode.ENHANCE_YOUR_CALM
    assert ours.request(wire.block([*REQUEST[:4]]) + b"\xbe")[0][-1] == (b"x-a", b"1" * 700)


def test_a_list_of_twice_the_limit_costs_the_connection():
    """A few bytes name a large entry again and again."""
    ours = decoder(Reader(), largest=5000)
    with pytest.raises(ConnectionViolation) as raised:
        ours.request(wire.block() + wire.literal(b"x-a", b"1" * 3000, indexed=True) + b"\xbe" * 1000)
    assert raised.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_block_of_nothing_but_large_entries_costs_the_connection():
    ours = decoder(Reader(), largest=5000)
    with pytest.raises(StreamViolation):
        ours.request(wire.literal(b"x-a", b"1" * 3000, indexed=True))
    with pytest.raises(ConnectionViolation) as raised:
        ours.request(b"\xbe" * 1000)
    assert raised.value.code == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("field", [b"\x83", wire.literal(b"x-a", b"1")], ids=["indexed", "literal"])
def test_a_table_size_is_updated_before_the_first_field_or_not_at_all(field):
    with pytest.raises(ConnectionViolation) as raised:
        decoder(Reader()).request(field + b"\x20" + wire.block())
    assert raised.value.code == ErrorCode.COMPRESSION_ERROR


def test_table_sizes_can_t_be_updated_without_end():
    ours = decoder(Reader())
    few = wire.integer(100, 5, 0x20) * 8
    assert ours.request(few + wire.block())[0] == wire.REQUEST
    with pytest.raises(ConnectionViolation, match="size updates") as raised:
        ours.request(b"\x20" * 100 + wire.block())
    assert raised.value.code == ErrorCode.COMPRESSION_ERROR


def test_a_size_update_that_is_cut_short_costs_the_connection():
    with pytest.raises(ConnectionViolation) as raised:
        decoder(Reader()).request(b"\x3f\xff")
    assert raised.value.code == ErrorCode.COMPRESSION_ERROR


def in_table(*fields: Field) -> tuple[HeaderDecoder[tuple[Field, ...]], Reader, bytes]:
    """A decoder whose table has `fields`, its reader, and the block that refers to them."""
    reader, encoder = Reader(), Encoder()
    ours = decoder(reader)
    ours.request(encoder.encode(REQUEST))
    ours.skip(encoder.encode(fields))
    reader.asked = 0
    return ours, reader, encoder.encode(fields)


def test_of_requests_that_begin_alike_only_the_rest_is_read():
    ours, reader, front = in_table(*REQUEST, (b"user-agent", b"x"))
    for number in range(5):
        field = (b"traceparent", b"%d" % number)
        assert ours.request(front + wire.literal(*field)) == ((*REQUEST, (b"user-agent", b"x"), field), -1)
    assert (reader.asked, reader.continued) == (1, 5)


def test_a_beginning_is_the_same_wherever_the_table_has_it():
    reader, encoder = Reader(), Encoder()
    ours = decoder(reader)
    for number in range(5):
        ours.request(encoder.encode([*REQUEST, (b"traceparent", b"%d" % number)]))
    assert (reader.asked, reader.continued) == (2, 4), "the first block had no beginning"


def test_the_content_length_of_a_beginning_holds():
    ours, _, front = in_table(*REQUEST, (b"content-length", b"7"))
    assert [ours.request(front + wire.literal(b"x-a", b"%d" % number))[1] for number in range(2)] == [7, 7]


def test_whitespace_behind_a_beginning_is_dropped():
    ours, _, front = in_table(*REQUEST)
    for _ in range(2):
        head, _ = ours.request(front + wire.literal(b"x-a", b" \t1 2\t "))
        assert head == (*REQUEST, (b"x-a", b"1 2"))


def test_a_list_that_has_to_be_read_as_a_whole_is():
    ours, reader, front = in_table(*REQUEST)
    for number in range(2):
        field = (b"x-anew", b"%d" % number)
        assert ours.request(front + wire.literal(*field))[0] == (*REQUEST, field)
    assert (reader.asked, reader.continued) == (3, 0)


@pytest.mark.parametrize(
    "behind",
    [
        [(b":path", b"/b")],
        [(b":status", b"200")],
        [(b"host", b"elsewhere")],
        [(b"content-length", b"x")],
        [(b"content-length", b"8")],
        [(b"connection", b"close")],
        [(b"te", b"gzip")],
        [(b"X-Up", b"1")],
        [(b"x-a", b"1"), (b"x-b", b"\n")],
    ],
    ids=lambda behind: " ".join(name.decode() for name, _ in behind),
)
def test_what_is_malformed_is_so_behind_a_beginning_too(behind):
    ours, _, front = in_table(*REQUEST, (b"content-length", b"7"))
    for _ in range(2):
        ours.request(front + wire.literal(b"x-a", b"1"))
        with pytest.raises(StreamViolation) as raised:
            ours.request(front + wire.block(behind))
        assert raised.value.code == ErrorCode.PROTOCOL_ERROR


def test_a_beginning_that_is_no_request_helps_nothing_and_harms_nothing():
    ours, reader, front = in_table(*REQUEST[:2])
    for _ in range(2):
        assert ours.request(front + wire.block(REQUEST[2:]))[0] == wire.REQUEST
        with pytest.raises(StreamViolation):
            ours.request(front + wire.literal(b"x-a", b"1"))
    assert reader.continued == 0


def test_pseudo_headers_may_be_in_both_parts():
    ours, _, front = in_table(*REQUEST[:3])
    for number in range(2):
        field = (b":authority", b"a%d" % number)
        assert ours.request(front + wire.literal(*field))[0] == (*REQUEST[:3], field)


def test_many_beginnings_push_out_the_oldest():
    reader, encoder = Reader(), Encoder()
    ours = decoder(reader)
    for _ in range(2):
        for number in range(9):
            fields = [*REQUEST, (b"x-a", b"%d" % number)]
            ours.skip(encoder.encode(fields))
            front = encoder.encode(fields)
            assert ours.request(front + wire.literal(b"x-b", b"1"))[0] == (*fields, (b"x-b", b"1"))
    assert (reader.asked, reader.continued) == (18, 18)


def with_field(name: bytes, value: bytes) -> list[Field]:
    return [*REQUEST, (name, value)]


MALFORMED = [
    ("an empty name", with_field(b"", b"x")),
    ("an upper-case name", with_field(b"X-A", b"1")),
    ("a name with a colon", with_field(b"x:a", b"1")),
    ("a name with a space", with_field(b"x a", b"1")),
    ("a name that is not ASCII", with_field(b"x-\xe9", b"1")),
    ("a value with NUL", with_field(b"x-a", b"1\x00")),
    ("a value with CR", with_field(b"x-a", b"1\r2")),
    ("a value with LF", with_field(b"x-a", b"1\n2")),
    ("a path with LF", [*REQUEST[:2], (b":path", b"/a\n"), *REQUEST[3:]]),
    ("connection", with_field(b"connection", b"close")),
    ("proxy-connection", with_field(b"proxy-connection", b"close")),
    ("keep-alive", with_field(b"keep-alive", b"5")),
    ("transfer-encoding", with_field(b"transfer-encoding", b"chunked")),
    ("upgrade", with_field(b"upgrade", b"h2c")),
    ("te other than trailers", with_field(b"te", b"gzip")),
    ("an unknown pseudo-header", [(b":protocol", b"x"), *REQUEST]),
    ("a pseudo-header of answers", [(b":status", b"200"), *REQUEST]),
    ("a repeated pseudo-header", [REQUEST[0], *REQUEST]),
    ("a late pseudo-header", [*REQUEST[:3], (b"x-a", b"1"), REQUEST[3]]),
    ("no method", REQUEST[1:]),
    ("an empty method", [(b":method", b""), *REQUEST[1:]]),
    ("no scheme", [REQUEST[0], *REQUEST[2:]]),
    ("no path", [*REQUEST[:2], *REQUEST[3:]]),
    ("an empty path", [*REQUEST[:2], (b":path", b""), *REQUEST[3:]]),
    ("a path without its slash", [*REQUEST[:2], (b":path", b"a"), *REQUEST[3:]]),
    ("an asterisk as the path of POST", [*REQUEST[:2], (b":path", b"*"), *REQUEST[3:]]),
    ("CONNECT with a path", [(b":method", b"CONNECT"), *REQUEST[1:]]),
    ("CONNECT without an authority", [(b":method", b"CONNECT")]),
    ("another host", with_field(b"host", b"elsewhere")),
    ("a content-length that is no number", with_field(b"content-length", b"+1")),
    ("a content-length beyond all bounds", with_field(b"content-length", b"1" * 20)),
    ("two content-lengths", [*REQUEST, (b"content-length", b"1"), (b"content-length", b"2")]),
    ("no field at all", []),
]


@pytest.mark.parametrize("fields", [fields for _, fields in MALFORMED], ids=[name for name, _ in MALFORMED])
def test_a_malformed_request_is_a_stream_s_protocol_error(fields):
    ours = decoder(Reader())
    for _ in range(2):
        with pytest.raises(StreamViolation) as raised:
            ours.request(wire.block(fields))
        assert raised.value.code == ErrorCode.PROTOCOL_ERROR


WELL_FORMED = [
    ("a host that is the authority", with_field(b"host", REQUEST[3][1]), -1),
    ("a host in the authority's place", [*REQUEST[:3], (b"host", b"a")], -1),
    ("OPTIONS *", [(b":method", b"OPTIONS"), REQUEST[1], (b":path", b"*")], -1),
    ("CONNECT", [(b":method", b"CONNECT"), (b":authority", b"a")], -1),
    ("the same content-length twice", [*REQUEST, (b"content-length", b"7"), (b"content-length", b"7")], 7),
    ("a value outside ASCII", with_field(b"x-a", b"\xc3\xa9"), -1),
    ("an empty value", with_field(b"x-a", b""), -1),
    ("punctuation in a name", with_field(b"!#$%&'*+-.^_`|~0a", b"1"), -1),
]


@pytest.mark.parametrize(
    ("fields", "length"), [row[1:] for row in WELL_FORMED], ids=[row[0] for row in WELL_FORMED]
)
def test_a_well_formed_request_is_read_as_it_is(fields, length):
    assert checked_request(fields) == (fields, length)


def test_whitespace_around_values_is_dropped():
    fields = with_field(b"x-a", b" \t1 2\t ")
    assert checked_request(fields)[0][-1] == (b"x-a", b"1 2")


def test_trailers_may_hold_no_pseudo_header():
    ours = decoder(Reader())
    ours.trailers(wire.literal(b"x-checksum", b"1"))
    with pytest.raises(StreamViolation) as raised:
        ours.trailers(wire.literal(b":path", b"/"))
    assert raised.value.code == ErrorCode.PROTOCOL_ERROR


tokens = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=200).map(str.encode)
static = st.sampled_from(
    [(b":status", b"200"), (b":status", b"503"), (b"content-type", b"application/grpc"), (b"via", b"")]
)


@given(fields=st.lists(static | st.tuples(tokens, st.binary(max_size=400)), max_size=8))
def test_what_we_encode_is_read_back_and_leaves_the_table_alone(fields):
    block = encode_headers(fields)
    for table_size in (4096, 0):
        theirs = Decoder(2**20)
        theirs.header_table_size = table_size
        assert list(theirs.decode(block, raw=True)) == fields
        assert not theirs.header_table.dynamic_entries


def test_fields_of_the_static_table_are_one_byte():
    assert encode_headers([(b":status", b"200"), (b":status", b"404")]) == b"\x88\x8d"
