from __future__ import annotations

import pytest
from grpclib.const import Status
from grpclib.metadata import decode_grpc_message
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from protocols.grpc.codec.heads import (
    MAX_MESSAGE,
    Refusal,
    initial,
    initial_with,
    percent_encoded,
    refused,
    trailers,
    trailers_only,
    trailers_with,
    try_again,
)


def fields(block):
    return [(name.decode(), value.decode()) for name, value in Decoder().decode(block, raw=True)]


def test_an_answer_begins_with_its_coding_and_those_that_requests_may_have():
    common = [(":status", "200"), ("content-type", "application/grpc")]
    accepted = ("grpc-accept-encoding", "identity,deflate,gzip")
    assert fields(initial()) == [*common, accepted]
    assert fields(initial(b"gzip")) == [*common, ("grpc-encoding", "gzip"), accepted]
    assert fields(initial_with({"x": "1", "y-bin": b"\0"}))[-2:] == [("x", "1"), ("y-bin", "AA")]


def test_trailers_tell_the_status():
    assert fields(trailers()) == [("grpc-status", "0")]
    assert fields(trailers(3, "100% wrong: ü\n")) == [
        ("grpc-status", "3"),
        ("grpc-message", "100%25 wrong: %C3%BC%0A"),
    ]
    assert fields(trailers_with({"x": "1"}, 5)) == [("grpc-status", "5"), ("x", "1")]


def test_an_answer_without_messages_is_one_block():
    assert fields(trailers_only(12, "no")) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "12"),
        ("grpc-message", "no"),
    ]
    assert fields(trailers_only(0, metadata={"x": "1"}))[-1] == ("x", "1")


@pytest.mark.parametrize(
    ("seconds", "known", "told"),
    [
        (3, True, {"retry-after": "3", "grpc-retry-pushback-ms": "3000"}),
        (1, False, {"retry-after": "1"}),  # a policy's own back-off is the better guess
        (0, True, {"grpc-retry-pushback-ms": "-1"}),  # never: policies give up
    ],
)
def test_a_client_is_told_when_to_try_again(seconds, known, told):
    metadata = try_again(seconds, known=known)
    assert metadata == told
    for _ in range(2):  # the second one is remembered
        assert dict(fields(trailers_only(14, "full", metadata))).items() >= told.items()
    assert "retry-after" not in dict(fields(trailers_only(14, "full")))


def test_refusals_tell_what_http_and_grpc_clients_understand():
    refusal = Refusal(Status.INTERNAL, "POST only", 405, ((b"allow", b"POST"),))
    assert fields(refused(refusal)) == [
        (":status", "405"),
        ("content-type", "application/grpc"),
        ("grpc-status", "13"),
        ("grpc-message", "POST only"),
        ("allow", "POST"),
    ]


@pytest.mark.parametrize("metadata", [{"grpc-status": "0"}, {"Upper": "x"}, {"x": "new\nline"}])
def test_metadata_that_cannot_be_sent_is_refused(metadata):
    with pytest.raises(ValueError, match="Invalid metadata"):
        initial_with(metadata)


def test_blocks_leave_the_clients_table_alone():
    decoder = Decoder()
    for block in (initial(), trailers(3, "text"), trailers_only(3, "text")):
        decoder.decode(block)
    assert len(decoder.header_table.dynamic_entries) == 0


@pytest.mark.parametrize("character", ["a", "%", "ü", "€", "🦀"])
def test_long_messages_are_cut_between_characters(character):
    block = trailers(3, character * 100_000)
    assert len(block) < 8192
    (_, (_, value)) = fields(block)
    text = decode_grpc_message(value)
    assert text.endswith("...")
    assert set(text.removesuffix("...")) == {character}
    assert len(value) > MAX_MESSAGE - 40


@pytest.mark.slow
@given(st.text(st.characters(), max_size=200))
def test_any_message_arrives(message):
    assert (
        decode_grpc_message(percent_encoded(message).decode()) == message.encode("utf-8", "replace").decode()
    )
