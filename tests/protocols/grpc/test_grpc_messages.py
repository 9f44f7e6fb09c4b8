import gzip
import tracemalloc
import zlib

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from actors.values.errors import Internal
from protocols.grpc.codec.messages import LEVELS, Message, MessageReader, prefix, unfold, whole
from protocols.kserve.compression import UNSUSPICIOUS, compress

LIMIT = 1 << 20


def framed(*messages, compressed=False):
    return b"".join(prefix(len(message), compressed=compressed) + message for message in messages)


def feed(reader, data):
    """Feed `data` through memory that is gone afterwards, as a connection's is."""
    memory = bytearray(data)
    messages = reader.feed(memoryview(memory))
    memory[:] = b"\xee" * len(memory)
    return [(bytes(message.data), message.compressed) for message in messages]


def test_a_message_in_one_piece_is_copied_out():
    memory = bytearray(framed(b"hello"))
    message = whole(memoryview(memory), LIMIT)
    memory[:] = bytes(len(memory))
    assert message == b"hello"


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\0", framed(b"a")[:-1], framed(b"a") + b"x", framed(b"a", compressed=True)]
)
def test_what_is_no_whole_plain_message_is_left_to_the_reader(data):
    assert whole(memoryview(data), LIMIT) is None


def test_a_message_over_the_limit_is_left_to_the_reader():
    assert whole(memoryview(framed(b"abc")), 3) == b"abc"
    assert whole(memoryview(framed(b"abc")), 2) is None


def test_an_empty_message_is_a_message():
    assert whole(memoryview(framed(b"")), LIMIT) == b""
    assert feed(MessageReader(LIMIT), framed(b"", b"", b"a")) == [(b"", False), (b"", False), (b"a", False)]


def test_the_length_of_a_message_is_known_before_it_has_come():
    reader = MessageReader(LIMIT)
    stream = framed(b"x" * 1000)
    feed(reader, stream[:3])
    assert (reader.under_way, reader.declared, reader.missing) == (True, None, 0)
    feed(reader, stream[3:105])
    assert (reader.under_way, reader.declared, reader.missing) == (True, 1000, 900)
    assert feed(reader, stream[105:]) == [(b"x" * 1000, False)]
    assert (reader.under_way, reader.declared, reader.missing) == (False, None, 0)


def test_messages_know_their_size_on_the_wire():
    assert Message(b"abc", compressed=False).wire_size == 8


def test_a_claim_costs_no_memory():
    reader = MessageReader(2**31 - 1)
    tracemalloc.start()
    try:
        feed(reader, prefix(2**31 - 1) + bytes(1000))
        for _ in range(100):
            feed(reader, bytes(10_000))
        assert tracemalloc.get_traced_memory()[1] < 2_500_000
    finally:
        tracemalloc.stop()
    assert reader.missing == 2**31 - 1 - 1_001_000


def test_a_message_over_the_limit_is_refused_once_its_length_is_known():
    reader = MessageReader(100)
    assert feed(reader, framed(b"x" * 100)) == [(b"x" * 100, False)]
    with pytest.raises(GRPCError) as caught:
        feed(reader, prefix(101))
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    assert caught.value.message == "Received message larger than max (101 vs. 100)"


def test_a_compressed_message_needs_a_declared_coding():
    with pytest.raises(Internal, match="declared no grpc-encoding"):
        feed(MessageReader(LIMIT), framed(b"x", compressed=True))
    found = feed(MessageReader(LIMIT, encoded=True), framed(b"x", compressed=True) + framed(b"y"))
    assert found == [(b"x", True), (b"y", False)]


def test_a_first_byte_that_means_nothing_is_refused():
    with pytest.raises(Internal, match="first byte is 0x02"):
        feed(MessageReader(LIMIT, encoded=True), b"\2\0\0\0\0")


CONTENT = b"some text " * 1000


@pytest.mark.parametrize(
    ("coding", "folded"), [(b"gzip", gzip.compress(CONTENT, mtime=0)), (b"deflate", zlib.compress(CONTENT))]
)
def test_compressed_messages_are_unfolded(coding, folded):
    assert unfold(folded, coding, LIMIT) == CONTENT
    assert unfold(memoryview(folded), coding, len(CONTENT)) == CONTENT
    for level in LEVELS.values():
        assert (
            unfold(compress([CONTENT[:7], memoryview(CONTENT)[7:]], coding, level), coding, LIMIT) == CONTENT
        )


@pytest.mark.parametrize("size", [0, 1, 65536, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_contents_of_any_size_come_out_whole(size):
    content = bytes(size)
    assert unfold(compress([content], b"gzip", 1), b"gzip", size) == content


@pytest.mark.parametrize(
    "folded",
    [
        b"",
        b"garbage",
        gzip.compress(CONTENT, mtime=0)[:-1],
        zlib.compress(CONTENT),
        gzip.compress(CONTENT, mtime=0) + b"x",
    ],
)
def test_messages_that_are_not_in_their_coding_are_refused(folded):
    with pytest.raises(Internal):
        unfold(folded, b"gzip", LIMIT)


@pytest.mark.slow
def test_a_message_that_unfolds_to_too_much_is_stopped_early():
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(GRPCError) as caught:
            unfold(bomb, b"gzip", LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    assert "Received message larger than max" in (caught.value.message or "")


def test_a_message_that_unfolds_to_more_than_the_limit_is_refused():
    folded = compress([CONTENT], b"gzip", 1)
    assert unfold(folded, b"gzip", len(CONTENT)) == CONTENT
    with pytest.raises(GRPCError) as caught:
        unfold(folded, b"gzip", len(CONTENT) - 1)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    assert caught.value.message == (
        "Received message larger than max (more than 9999 bytes after decompression vs. 9999)"
    )


def test_a_message_that_unfolds_to_suspiciously_much_is_refused():
    with pytest.raises(GRPCError, match="100 times the") as caught:
        unfold(gzip.compress(bytes(UNSUSPICIOUS + 1), compresslevel=1), b"gzip", 1 << 31)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


def test_what_is_random_comes_out_as_it_went_in():
    content = bytes(range(256)) * 300
    assert unfold(compress([content], b"deflate", 9), b"deflate", len(content)) == content
