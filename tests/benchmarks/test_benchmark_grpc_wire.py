"""Our own load client for gRPC, without sockets: header blocks, windows, and its reading of answers."""

from itertools import islice

import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.grpc import blocks, wire
from benchmarks.grpc.bare import Responder
from benchmarks.grpc.payloads import PREFIX_SIZE, framed, packed, unpacked
from benchmarks.grpc.scenarios import Way
from benchmarks.grpc.wire import ScriptConnection, StreamConnection, Surprise, UnaryConnection, frame
from tests.support.examples import examples

UNARY = blocks.request_headers("host:1", "/unary/190")
STREAM = blocks.request_headers("host:1", "/stream/190")
MESSAGE = framed(b"m" * 100)


def _decoded(way, count):
    decoder = Decoder()
    return [decoder.decode(block) for block in islice(blocks.of(way, UNARY), count)]


def _traceparents(calls):
    return [dict(headers).get("traceparent") for headers in calls]


def test_plain_calls_all_carry_the_same_headers_in_ever_the_same_few_bytes():
    first, *others = islice(blocks.of(Way.UNARY, UNARY), 50)
    assert len(set(others)) == 1
    assert len(others[0]) < len(first)
    assert _decoded(Way.UNARY, 3) == [list(UNARY)] * 3


@pytest.mark.parametrize("way", [Way.METADATA, Way.METADATA_INDEXED])
def test_with_metadata_no_header_block_and_no_trace_comes_again_for_thousands_of_calls(way):
    made = list(islice(blocks.of(way, UNARY), blocks.CYCLE))
    assert len(set(made[1:])) == blocks.CYCLE - 1
    assert len(set(_traceparents(_decoded(way, blocks.CYCLE)))) == blocks.CYCLE


@pytest.mark.parametrize("way", [Way.METADATA, Way.METADATA_INDEXED])
def test_blocks_stay_readable_when_they_come_again(way):
    calls = _decoded(way, blocks.CYCLE + 200)
    assert all(headers[: len(UNARY)] == list(UNARY) for headers in calls)
    assert _traceparents(calls[-200:]) == _traceparents(calls[:200])


def _exchange(connection, responder, turns, cut=None):
    """Let a connection and the bare responder talk; `cut` says in what pieces the answers arrive."""
    sent = _taken(connection)
    answers = responder.begin()
    for now in range(turns):
        answers += responder.receive(sent)
        pieces, answers = cut(answers) if cut else [answers], b""
        for piece in pieces:
            connection.receive(piece, float(now + 1))
        connection.fill(float(now + 1))
        sent = _taken(connection)
    return sent


def _taken(connection):
    sent = b"".join(bytes(each) for each in connection.output)
    connection.output.clear()
    return sent


@pytest.mark.parametrize("way", [Way.UNARY, Way.METADATA, Way.METADATA_INDEXED])
def test_unary_calls_are_answered_and_replaced(way):
    connection = UnaryConnection(blocks.of(way, UNARY), MESSAGE, 3)
    connection.fill(0.0)
    _exchange(connection, Responder(), turns=4)
    assert len(connection.latencies) == 12
    assert set(connection.latencies) == {1.0}
    assert connection.outstanding == 3
    assert connection.answer_bytes == 12 * (5 + 190)
    assert not connection.failures


def test_each_call_of_a_script_goes_through_its_own_messages_in_order_again_and_again():
    scripts = [[framed(f"{slot}-{step}".encode()) for step in range(3)] for slot in range(2)]
    connection = ScriptConnection(blocks.of(Way.SCRIPT, UNARY), scripts)
    connection.fill(0.0)
    responder = Responder()
    told: dict[str, list[int]] = {"0": [], "1": []}
    answers = responder.begin()
    for now in range(1, 6):
        sent = _taken(connection)
        for what, _, _, payload in _frames(sent.removeprefix(wire.PREFACE)):
            if what == wire.DATA:
                slot, _, step = payload[PREFIX_SIZE:].decode().partition("-")
                told[slot].append(int(step))
        connection.receive(answers + responder.receive(sent), float(now))
        answers = b""
        connection.fill(float(now))
    assert told == {"0": [0, 1, 2, 0, 1], "1": [0, 1, 2, 0, 1]}
    assert len(connection.latencies) == 10
    assert not connection.failures


@given(st.lists(st.lists(st.binary(max_size=20)), max_size=5))
def test_a_file_of_messages_says_what_was_written(scripts):
    assert unpacked(packed(scripts)) == scripts


def test_a_stream_keeps_its_requests_under_way_and_ends_with_trailers():
    responder = Responder()
    connection = StreamConnection(blocks.of(Way.STREAM, STREAM), MESSAGE, 4)
    connection.fill(0.0)
    sent = _exchange(connection, responder, turns=3)
    assert len(connection.latencies) == 12
    connection.end()
    connection.receive(responder.receive(sent + _taken(connection)), 9.0)
    assert connection.finished
    assert len(connection.latencies) == 16
    assert not connection.failures


@settings(max_examples=examples(30))
@given(st.data())
def test_answers_read_the_same_in_whatever_pieces_they_come(data):
    def cut(answers):
        places = sorted(data.draw(st.sets(st.integers(0, len(answers)), max_size=6)))
        return [answers[a:b] for a, b in zip([0, *places], [*places, len(answers)], strict=True)]

    kind, headers = data.draw(st.sampled_from([(UnaryConnection, UNARY), (StreamConnection, STREAM)]))
    connection = kind(blocks.of(Way.UNARY, headers), MESSAGE, 2)
    connection.fill(0.0)
    _exchange(connection, Responder(), 3, cut)
    assert len(connection.latencies) == 6
    assert not connection.failures


def _frames(sent):
    while sent:
        size = int.from_bytes(sent[:3], "big")
        yield sent[3], sent[4], int.from_bytes(sent[5:9], "big"), sent[9 : 9 + size]
        sent = sent[9 + size :]


def _data(connection):
    return [
        (stream, payload) for what, _, stream, payload in _frames(_taken(connection)) if what == wire.DATA
    ]


def _opened(message, limit=1):
    connection = UnaryConnection(blocks.of(Way.UNARY, UNARY), message, limit)
    _taken(connection)
    connection.fill(0.0)
    return connection


def _update(stream, increment):
    return frame(wire.WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def test_a_large_message_keeps_to_the_peers_windows_and_frames():
    message = framed(bytes(range(256)) * 400)
    connection = _opened(message)
    first = _data(connection)
    assert sum(len(payload) for _, payload in first) == 65_535
    assert max(len(payload) for _, payload in first) == 16_384
    connection.receive(_update(0, 10_000), 1.0)
    assert _data(connection) == []  # the stream's window is still closed
    connection.receive(_update(1, 1_000_000), 1.0)
    second = _data(connection)
    assert sum(len(payload) for _, payload in second) == 10_000
    connection.receive(_update(0, 1_000_000), 1.0)
    rest = _data(connection)
    assert b"".join(payload for _, payload in [*first, *second, *rest]) == message


def test_a_setting_of_the_peer_widens_streams_that_wait():
    connection = _opened(framed(b"x" * 70_000))
    _taken(connection)
    settings = (wire.INITIAL_WINDOW).to_bytes(2, "big") + (100_000).to_bytes(4, "big")
    connection.receive(_update(0, 100_000) + frame(wire.SETTINGS, 0, 0, settings), 1.0)
    frames = list(_frames(_taken(connection)))
    assert (wire.SETTINGS, wire.ACK, 0, b"") in frames
    assert sum(len(payload) for what, _, _, payload in frames if what == wire.DATA) == 70_005 - 65_535


def test_pings_are_answered():
    connection = _opened(MESSAGE)
    _taken(connection)
    connection.receive(frame(wire.PING, 0, 0, b"12345678"), 1.0)
    assert _taken(connection) == frame(wire.PING, wire.ACK, 0, b"12345678")


def _headers(encoder, stream, headers, *, end=True):
    flags = wire.END_HEADERS | (wire.END_STREAM if end else 0)
    return frame(wire.HEADERS, flags, stream, encoder.encode(headers))


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([(":status", "200"), ("grpc-status", "5"), ("grpc-message", "no such model")], "no such model"),
        ([(":status", "503")], ":status 503"),
        ([(":status", "200"), ("content-type", "application/grpc")], "grpc-status none"),
    ],
)
def test_an_answer_without_status_zero_is_a_failure_with_its_reason(headers, reason):
    connection = _opened(MESSAGE, limit=2)
    encoder = Encoder()
    connection.receive(_headers(encoder, 1, headers) + _headers(encoder, 3, headers), 1.0)
    ((found, times),) = connection.failures.items()
    assert (reason in found, times) == (True, 2)
    assert len(connection.latencies) == 2


def test_the_same_bytes_are_read_anew_where_the_table_has_changed():
    connection = _opened(MESSAGE, limit=3)
    encoder = Encoder()
    good, bad = [("grpc-status", "0")], [("grpc-status", "13")]
    first = _headers(encoder, 1, good)
    second = _headers(encoder, 3, bad)  # now the newest entry of the table, where the good one was
    third = frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 5, b"\xbe")
    connection.receive(first + second + third, 1.0)
    assert connection.failures == {"grpc-status 13": 2}


def test_a_reset_call_is_a_failure():
    connection = _opened(MESSAGE)
    connection.receive(frame(wire.RST_STREAM, 0, 1, (8).to_bytes(4, "big")), 1.0)
    assert connection.failures == {"RST_STREAM 8": 1}


def test_an_error_on_a_stream_is_a_failure_of_its_request():
    connection = StreamConnection(blocks.of(Way.STREAM, STREAM), MESSAGE, 2)
    connection.fill(0.0)
    answer = framed(b"\x0a\x02no") + framed(b"\x12\x00")
    connection.receive(frame(wire.DATA, 0, 1, answer), 1.0)
    assert len(connection.latencies) == 2
    assert sum(connection.failures.values()) == 1


def test_a_stream_takes_small_requests_only():
    with pytest.raises(ValueError, match="20005 bytes"):
        StreamConnection(blocks.of(Way.STREAM, STREAM), framed(bytes(20_000)), 2)


def test_a_stream_that_the_server_ends_is_no_measurement():
    connection = StreamConnection(blocks.of(Way.STREAM, STREAM), MESSAGE, 2)
    connection.fill(0.0)
    with pytest.raises(Surprise, match="grpc-status 14"):
        connection.receive(_headers(Encoder(), 1, [(":status", "200"), ("grpc-status", "14")]), 1.0)


def _setting(identifier, value):
    return frame(wire.SETTINGS, 0, 0, identifier.to_bytes(2, "big") + value.to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (frame(wire.GOAWAY, 0, 0, bytes(7) + b"\x0btoo_many_pings"), "GOAWAY 11 too_many_pings"),
        (_setting(wire.MAX_STREAMS, 1), "1 concurrent streams: 2"),
        (_setting(wire.HEADER_TABLE_SIZE, 0), "header table of 0 bytes"),
        (frame(wire.HEADERS, 0, 1, b""), "continued"),
    ],
)
def test_what_the_client_can_not_do_it_says(frames, reason):
    with pytest.raises(Surprise, match=reason):
        _opened(MESSAGE, limit=2).receive(frames, 1.0)
