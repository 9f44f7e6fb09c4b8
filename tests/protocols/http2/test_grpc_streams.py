"""One HTTP/2 connection from the server's side: windows both ways, whose turn it is, going away, and floods.

Which error each violation costs is in `test_grpc_violations`; agreement with another implementation in
`test_grpc_h2_peer`.
"""

import tracemalloc
from dataclasses import replace

import pytest

from protocols.http2 import frames
from protocols.http2.frames import ConnectionViolation, ErrorCode
from protocols.http2.hpack import encode_headers
from protocols.http2.streams import ClosedStreams, Http2Limits, Stream
from tests.fuzz import h2wire as wire
from tests.fuzz.h2wire import Frame
from tests.fuzz.recorder import Rig

BOTH = wire.END_HEADERS | wire.END_STREAM
HEAD = encode_headers([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = encode_headers([(b"grpc-status", b"0")])
KIB = 1024


def connected(
    limits: Http2Limits | None = None, *settings: tuple[int, int], acknowledged: bool = True
) -> Rig:
    rig = Rig(limits)
    rig.send(wire.PREFACE + wire.settings(settings))
    if acknowledged:
        rig.send(wire.frame(wire.SETTINGS, wire.ACK))
    rig.drain()
    return rig


def connecting(*args, **kwargs):
    """Have the `rig` of a test made with these arguments of `connected`."""
    return pytest.mark.parametrize("rig", [(args, kwargs)], indirect=True, ids=[""])


@pytest.fixture
def rig(request) -> Rig:
    args, kwargs = getattr(request, "param", ((), {}))
    return connected(*args, **kwargs)


def asked(rig: Rig, number: int = 1) -> Stream:
    """A stream whose client waits for its answer."""
    rig.send(wire.headers(number, flags=BOTH))
    return rig.recorder.known[number]


def speaking(rig: Rig, number: int = 1) -> Stream:
    """A stream whose client has not ended its side."""
    rig.send(wire.headers(number))
    return rig.recorder.known[number]


def written(rig: Rig, limit: int = 1 << 30) -> list[Frame]:
    """What one `take` hands out."""
    return wire.split(b"".join(rig.connection.outward.take(limit)))


def kinds(out: list[Frame]) -> list[tuple[int, int]]:
    return [(one.kind, one.stream) for one in out]


def body(out: list[Frame], number: int) -> bytes:
    return b"".join(one.payload for one in out if one.kind == wire.DATA and one.stream == number)


def updates(out: list[Frame]) -> list[tuple[int, int]]:
    return [(one.stream, one.number()) for one in out if one.kind == wire.WINDOW_UPDATE]


def answer(rig: Rig, stream: Stream, message: bytes | bytearray = b"\0\0\0\0\2ok") -> None:
    rig.connection.answers.answer(stream, HEAD, [message], len(message), TRAILERS)


# Greeting


def test_the_greeting_announces_the_limits_and_opens_the_connection_s_window():
    rig = Rig(Http2Limits(max_streams=7, stream_window=100, connection_window=100_000, max_frame_size=20_000))
    first, second = written(rig)
    assert (
        first
        == wire.split(
            wire.settings(
                [
                    (wire.MAX_CONCURRENT_STREAMS, 7),
                    (wire.INITIAL_WINDOW_SIZE, 100),
                    (wire.MAX_FRAME_SIZE, 20_000),
                    (wire.MAX_HEADER_LIST_SIZE, 16_384),
                ]
            )
        )[0]
    )
    assert updates([second]) == [(0, 100_000 - 65_535)]


def test_a_connection_window_of_the_default_needs_no_update():
    rig = Rig(Http2Limits(connection_window=65_535))
    assert kinds(written(rig)) == [(wire.SETTINGS, 0)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_streams": 0},
        {"stream_window": 2**31},
        {"connection_window": 65_534},
        {"max_frame_size": 16_383},
        {"max_frame_size": 2**24},
    ],
)
def test_limits_that_can_t_be_announced_are_refused(wrong):
    [name] = wrong
    with pytest.raises(ValueError, match=f"{name} is {wrong[name]}, but must be from"):
        Http2Limits(**wrong)


# Data inward


@connecting(Http2Limits(stream_window=2**20))
def test_a_large_frame_is_passed_on_as_it_arrives(rig: Rig):
    speaking(rig)
    sent = wire.data(1, bytes(range(256)) * 4096, wire.END_STREAM)
    heard = rig.recorder.streams[1]
    for start in range(0, len(sent), 64 * KIB):
        rig.send(sent[start : start + 64 * KIB])
        assert len(heard.data) == min(start + 64 * KIB, len(sent)) - 9
        assert heard.ended == (start + 64 * KIB >= len(sent))
    assert heard.data == sent[9:]


def test_what_is_still_arriving_of_a_frame_is_known(rig: Rig):
    stream = speaking(rig)
    sent = wire.data(1, bytes(100))
    rig.send(sent[:39])
    assert (stream.received, rig.connection.reading.arriving(stream)) == (100, 70)
    assert rig.connection.frame_left == 70
    rig.send(sent[39:])
    assert (stream.received, rig.connection.reading.arriving(stream)) == (100, 0)
    assert rig.connection.frame_left == 0


def test_the_rest_of_a_frame_is_dropped_once_its_stream_was_reset(rig: Rig):
    stream = speaking(rig)
    sent = wire.data(1, b"a" * 100, wire.END_STREAM)
    rig.send(sent[:50])
    rig.connection.answers.reset(stream, ErrorCode.CANCEL)
    rig.send(sent[50:] + wire.headers(3, flags=BOTH))
    assert len(rig.recorder.streams[1].data) == 41
    assert not rig.recorder.streams[1].ended
    assert rig.recorder.streams[3].ended
    with pytest.raises(ConnectionViolation, match="STREAM_CLOSED"):
        rig.send(wire.data(1, b"more"))


def test_a_large_frame_of_an_unknown_type_is_skipped_as_it_arrives(rig: Rig):
    sent = wire.frame(0xF0, 0, 0, bytes(2**20)) + wire.headers(1, flags=BOTH)
    rig.send(sent, cuts=range(0, len(sent), 64 * KIB))
    assert rig.recorder.streams[1].ended


# Windows inward


@connecting(Http2Limits(connection_window=100_000))
def test_credit_is_announced_when_half_the_window_has_gathered(rig: Rig):
    rig.connection.window.consumed(49_999)
    assert not rig.connection.outward.output
    rig.connection.window.consumed(1)
    assert updates(written(rig)) == [(0, 50_000)]


@connecting(Http2Limits(connection_window=65_535, stream_window=100_000))
def test_credit_opens_the_connection_s_window_again(rig: Rig):
    stream = speaking(rig)
    rig.send(wire.data(1, bytes(65_535)))
    rig.connection.window.consumed(stream.received)
    rig.send(wire.data(1, bytes(1000)))
    assert stream.received == 66_535


@connecting(Http2Limits(stream_window=10), acknowledged=False)
def test_a_client_that_has_not_seen_our_settings_may_use_the_default_window(rig: Rig):
    speaking(rig)
    rig.send(wire.data(1, bytes(65_535)))
    rig.send(wire.frame(wire.SETTINGS, wire.ACK))
    speaking(rig, 3)
    rig.send(wire.data(3, bytes(11)))
    assert rig.recorder.streams[1].code is None
    assert rig.recorder.streams[3].code == ErrorCode.FLOW_CONTROL_ERROR


def test_what_came_is_held_until_it_is_given_back_and_a_grant_is_not(rig: Rig):
    stream = speaking(rig)
    rig.send(wire.data(1, bytes(1000)))
    assert rig.connection.window.held == 1000
    rig.connection.window.grant(stream, 500)
    assert rig.connection.window.held == 500
    rig.send(wire.data(1, bytes(500)))
    rig.connection.window.consumed(1000)
    assert rig.connection.window.held == 0


@connecting(Http2Limits(connection_window=65_535))
def test_a_grant_opens_both_windows_for_a_message_larger_than_either(rig: Rig):
    stream = speaking(rig)
    rig.send(wire.data(1, bytes(65_535)))
    rig.connection.window.grant(stream, 200_000)
    assert updates(written(rig)) == [(1, 200_000), (0, 200_000)]
    rig.send(wire.data(1, bytes(200_000), wire.END_STREAM))
    assert rig.recorder.streams[1].ended
    assert stream.received == 265_535


@connecting(Http2Limits(connection_window=200_000))
def test_a_grant_never_opens_a_window_too_far(rig: Rig):
    """RFC 9113, section 6.9.1: what does not fit now is announced as the window drains."""
    stream = speaking(rig)
    rig.connection.window.grant(stream, 2**31 - 1)
    assert updates(written(rig)) == [(1, 2**31 - 1 - 65_535), (0, 2**31 - 1 - 200_000)]
    rig.send(wire.data(1, bytes(99_999)))
    assert not rig.connection.outward.output
    rig.send(wire.data(1, b"x"))
    assert updates(written(rig)) == [(0, 100_000)]


def test_a_grant_for_a_stream_that_has_ended_is_nothing(rig: Rig):
    rig.connection.window.grant(asked(rig), 1000)
    assert not rig.connection.outward.output


@connecting(Http2Limits(max_streams=1, connection_window=65_535))
def test_data_for_a_stream_that_nobody_was_told_of_is_credited(rig: Rig):
    speaking(rig)
    rig.send(wire.headers(3) + wire.data(3, bytes(40_000)))
    out = written(rig)
    assert updates(out) == [(0, 40_000)]
    assert [(one.stream, one.number()) for one in out if one.kind == wire.RST_STREAM] == [
        (3, ErrorCode.REFUSED_STREAM)
    ]


@pytest.mark.parametrize(
    ("length", "bodies", "code"),
    [
        (b"5", [b"123", b"45"], None),
        (b"0", [b""], None),
        (b"5", [b"123", b"456"], ErrorCode.PROTOCOL_ERROR),
        (b"5", [b"123", b"4"], ErrorCode.PROTOCOL_ERROR),
        (b"0", [b"1"], ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_content_length_is_kept_by_the_first_request_and_by_those_that_repeat_it(
    length, bodies, code, rig: Rig
):
    for number in (1, 3, 5):
        rig.send(wire.headers(number, raw=wire.block() + wire.literal(b"content-length", length)))
        for part in bodies[:-1]:
            rig.send(wire.data(number, part))
        rig.send(wire.data(number, bodies[-1], wire.END_STREAM))
        heard = rig.recorder.streams[number]
        assert (heard.code, heard.ended) == (code, code is None)


# Answers


def test_a_small_answer_is_one_buffer(rig: Rig):
    answer(rig, asked(rig))
    rig.drain()
    answer(rig, asked(rig, 3), b"\0\0\0\0\4four")
    [buffer] = rig.connection.outward.take(KIB)
    assert wire.split(bytes(buffer)) == [
        Frame(wire.HEADERS, wire.END_HEADERS, 3, HEAD),
        Frame(wire.DATA, 0, 3, b"\0\0\0\0\4four"),
        Frame(wire.HEADERS, BOTH, 3, TRAILERS),
    ]
    assert not rig.connection.streams


def test_only_the_first_block_says_that_the_table_is_not_used(rig: Rig):
    answer(rig, asked(rig))
    rig.connection.answers.head(asked(rig, 3), TRAILERS, end=True)
    blocks = [one.payload for one in written(rig) if one.kind == wire.HEADERS]
    assert blocks == [b"\x20" + HEAD, TRAILERS, TRAILERS]


def test_an_answer_without_a_message_is_one_frame(rig: Rig):
    rig.connection.answers.head(asked(rig), HEAD, end=True)
    [one] = written(rig)
    assert (one.kind, one.flags) == (wire.HEADERS, BOTH)


def test_an_empty_message_is_no_frame(rig: Rig):
    rig.connection.answers.answer(asked(rig), HEAD, [], 0, TRAILERS)
    assert kinds(written(rig)) == [(wire.HEADERS, 1)] * 2


def test_a_client_that_is_answered_early_is_told_to_send_no_more(rig: Rig):
    answer(rig, speaking(rig))
    answer(rig, speaking(rig, 3))
    out = written(rig)
    assert kinds(out)[-2:] == [(wire.HEADERS, 3), (wire.RST_STREAM, 3)]
    assert [one.number() for one in out if one.kind == wire.RST_STREAM] == [ErrorCode.NO_ERROR] * 2
    rig.send(wire.data(1, bytes(1000)) + wire.headers(1, [(b"x-a", b"1")], flags=BOTH))
    with pytest.raises(ConnectionViolation, match="STREAM_CLOSED"):
        rig.send(wire.data(1, b"x"))


def test_a_client_that_is_answered_early_at_length_is_told_so_at_the_end(rig: Rig):
    answer(rig, speaking(rig), bytes(40_000))
    assert kinds(written(rig))[-2:] == [(wire.HEADERS, 1), (wire.RST_STREAM, 1)]
    rig.send(wire.headers(1, [(b"x-a", b"1")]) + wire.data(1, b"late", wire.END_STREAM))
    assert not rig.connection.outward.output


def test_what_waits_is_what_was_not_handed_out(rig: Rig):
    answer(rig, asked(rig))
    rig.connection.answers.message(asked(rig, 3), [bytes(70_000)], 70_000)
    assert rig.connection.outward.pending == 70_000
    waiting = rig.connection.outward.waiting
    assert waiting > 70_000
    rig.drain()
    assert rig.connection.outward.waiting == rig.connection.outward.pending == 70_000 - (65_535 - 7)


def test_what_new_settings_hurry_along_still_waits(rig: Rig):
    for number in range(1, 200, 2):
        answer(rig, asked(rig, number), bytes(500))
    waiting = rig.connection.outward.waiting
    rig.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 1000)]))
    assert rig.connection.outward.waiting == waiting > 100 * 500
    assert rig.connection.outward.unread >= waiting
    rig.drain()
    assert rig.connection.outward.waiting == rig.connection.outward.unread == 0


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 1 << 30))
def test_small_messages_count_as_pending_once_many_are_ready(rig: Rig):
    rig.send(wire.window_update(0, 1 << 30))
    stream = asked(rig)
    rig.connection.answers.head(stream, HEAD)
    for number in range(300):
        rig.connection.answers.message(stream, [bytes([number % 256]) * 10_000], 10_000)
    assert stream.pending > 1_900_000
    rig.connection.answers.trailers(stream, TRAILERS)
    rig.drain()
    assert body(rig.frames, 1) == b"".join(bytes([number % 256]) * 10_000 for number in range(300))
    assert rig.frames[-1].flags & wire.END_STREAM


@pytest.mark.parametrize("size", [100, 50_000])
@pytest.mark.parametrize("first", [True, False])
def test_an_answer_in_pieces_of_memory_is_refused_before_any_of_it_is_sent(size, first, rig: Rig):
    if not first:
        answer(rig, asked(rig))
        rig.drain()
    stream = asked(rig, 3)
    with pytest.raises((TypeError, BufferError)):
        rig.connection.answers.answer(
            stream, HEAD, [b"ok", memoryview(bytes(2 * size))[::2]], size + 2, TRAILERS
        )
    rig.connection.answers.head(stream, TRAILERS, end=True)
    assert kinds(written(rig)) == [(wire.HEADERS, 3)]
    assert not rig.connection.outward.output


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 10))
def test_an_answer_waits_for_its_stream_s_window_and_goes_on(rig: Rig):
    stream = asked(rig)
    answer(rig, stream, bytes(25))
    out = written(rig)
    assert kinds(out) == [(wire.HEADERS, 1), (wire.DATA, 1)]
    assert (len(body(out, 1)), stream.pending, rig.connection.outward.pending) == (10, 15, 15)
    assert not rig.connection.outward.output
    rig.send(wire.window_update(1, 5))
    assert [len(one.payload) for one in written(rig)] == [5]
    rig.send(wire.window_update(1, 1000))
    out = written(rig)
    assert kinds(out) == [(wire.DATA, 1), (wire.HEADERS, 1)]
    assert (len(body(out, 1)), stream.pending, rig.connection.outward.pending) == (10, 0, 0)
    assert not rig.connection.streams


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 10))
def test_small_messages_use_the_window_up(rig: Rig):
    stream = asked(rig)
    for part in (b"1234", b"5678", b"90ab"):
        rig.connection.answers.message(stream, [part], 4)
    assert body(written(rig), 1) == b"1234567890"
    assert stream.pending == 2


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20))
def test_an_answer_waits_for_the_connection_s_window_and_goes_on(rig: Rig):
    stream = asked(rig)
    answer(rig, stream, bytes(70_000))
    assert len(body(written(rig), 1)) == 65_535
    assert not rig.connection.outward.output
    answer(rig, asked(rig, 3))
    assert kinds(written(rig)) == [(wire.HEADERS, 3)]
    rig.send(wire.window_update(0, 4465))
    assert len(body(written(rig), 1)) == 4465
    rig.send(wire.window_update(0, 100))
    assert kinds(written(rig)) == [(wire.DATA, 3), (wire.HEADERS, 3)]


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 100))
def test_a_window_may_become_negative(rig: Rig):
    stream = asked(rig)
    answer(rig, stream, bytes(150))
    assert len(body(written(rig), 1)) == 100
    rig.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 30)]))
    rig.drain()
    rig.send(wire.window_update(1, 70))
    assert not rig.connection.outward.output
    rig.send(wire.window_update(1, 1))
    assert len(body(written(rig), 1)) == 1
    rig.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 1000)]))
    assert len(body(written(rig), 1)) == 49


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20))
def test_a_window_may_become_negative_while_its_stream_stands_in_line(rig: Rig):
    stream, other = asked(rig), asked(rig, 3)
    answer(rig, stream, bytes(60_000))
    answer(rig, other, bytes(60_000))
    while other.pending == 60_000:
        written(rig, 1)
    rig.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 16_384)]))
    assert not [one for one in written(rig) if one.kind == wire.DATA]
    rig.send(wire.window_update(3, 2))
    assert len(body(written(rig), 3)) == 2


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 0))
def test_a_window_that_opens_before_the_stream_s_turn_is_no_second_turn(rig: Rig):
    answer(rig, asked(rig), bytes(10))
    rig.send(wire.window_update(1, 4) + wire.window_update(1, 4))
    assert body(written(rig), 1) == bytes(8)
    assert not rig.connection.outward.output


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20), (wire.MAX_FRAME_SIZE, 20_000))
def test_data_fits_the_frames_that_the_peer_takes(rig: Rig):
    answer(rig, asked(rig), bytes(50_000))
    assert [len(one.payload) for one in written(rig) if one.kind == wire.DATA] == [20_000, 20_000, 10_000]


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20), (wire.MAX_FRAME_SIZE, 2**24 - 1))
def test_frames_stay_short_however_long_the_peer_takes_them(rig: Rig):
    rig.send(wire.window_update(0, 2**20))
    answer(rig, asked(rig), bytes(200_000))
    assert max(len(one.payload) for one in written(rig)) == 64 * KIB


def test_long_trailers_are_continued(rig: Rig):
    rig.connection.answers.head(asked(rig), encode_headers([(b"grpc-message", b"m" * 40_000)]), end=True)
    out = written(rig)
    assert [one.kind for one in out] == [wire.HEADERS, wire.CONTINUATION, wire.CONTINUATION]
    assert [one.flags for one in out] == [wire.END_STREAM, 0, wire.END_HEADERS]


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20))
def test_large_messages_are_handed_out_as_views_of_their_own_memory(rig: Rig):
    first, second = bytearray(b"a" * 20_000), bytearray(b"b" * 30_000)
    rig.connection.answers.answer(
        asked(rig), HEAD, [b"\0\0\0\0\0", first, memoryview(second)], 50_005, TRAILERS
    )
    views = [part for part in rig.connection.outward.take(2**20) if isinstance(part, memoryview)]
    assert sum(len(view) for view in views) == 50_005
    assert [view.obj for view in views if len(view) > 5 and view.obj not in (first, second)] == []


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20))
def test_messages_of_numbers_are_sent_as_bytes(rig: Rig):
    numbers = memoryview(bytearray(range(200)) * 100).cast("I", (50, 100))
    rig.connection.answers.message(asked(rig), [numbers, b""], 20_000)
    assert body(written(rig), 1) == numbers.tobytes()


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 10_000))
def test_memory_that_is_wanted_back_is_copied(rig: Rig):
    lent = bytearray(b"a" * 30_000)
    stream = asked(rig)
    answer(rig, stream, lent)
    seen = body(written(rig), 1)
    rig.connection.answers.own(stream)
    lent[:] = bytes(30_000)
    rig.send(wire.window_update(1, 30_000))
    assert seen + body(written(rig), 1) == b"a" * 30_000
    rig.connection.answers.own(stream)


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 0))
def test_what_was_copied_is_not_copied_again(rig: Rig):
    stream = asked(rig)
    lent = []
    for number in range(4):
        lent.append(bytearray(bytes([number]) * 1_000_000))
        rig.connection.answers.message(stream, [b"x", lent[-1]], 1_000_001)
        tracemalloc.start()
        rig.connection.answers.own(stream)
        copied = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 1_000_000 <= copied < 1_500_000
        lent[-1][:] = bytes(1_000_000)
    for opened in (1_500_000, 1 << 23):  # in the middle of a buffer, and to the end
        rig.send(wire.window_update(1, opened) + wire.window_update(0, opened))
        rig.drain()
        rig.connection.answers.own(stream)
    assert body(rig.frames, 1) == b"".join(b"x" + bytes([number]) * 1_000_000 for number in range(4))


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 100_000))
def test_a_long_answer_is_copied_in_slices_while_more_is_sent(rig: Rig):
    stream = asked(rig)
    lent, later = bytearray(b"a" * 3_000_000), bytearray(b"b" * 100_000)
    rig.connection.answers.message(stream, [b"x", lent], 3_000_001)
    seen = body(written(rig), 1)
    steps = rig.connection.answers.owning(stream)
    next(steps)
    rig.connection.answers.message(stream, [b"y", later], 100_001)
    assert sum(1 for _ in steps) >= 10
    lent[:] = bytes(3_000_000)
    rig.connection.answers.own(stream)
    later[:] = bytes(100_000)
    rig.send(wire.window_update(1, 1 << 23) + wire.window_update(0, 1 << 23))
    rig.drain()
    assert seen + body(rig.frames, 1) == b"x" + b"a" * 3_000_000 + b"y" + b"b" * 100_000


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 0))
def test_a_stream_that_is_reset_while_it_is_copied_stays_gone(rig: Rig):
    stream = asked(rig)
    rig.connection.answers.message(stream, [bytearray(3_000_000)], 3_000_000)
    written(rig)
    steps = rig.connection.answers.owning(stream)
    next(steps)
    rig.send(wire.frame(wire.RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
    assert list(steps) != []
    assert rig.connection.outward.pending == 0
    assert list(rig.connection.answers.owning(stream)) == []


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 40_000))
def test_messages_and_trailers_keep_their_order_whatever_they_wait_for(rig: Rig):
    stream = asked(rig)
    connection = rig.connection
    connection.answers.head(stream, HEAD)
    connection.answers.message(stream, [b"a" * 10], 10)
    connection.answers.message(stream, [b"b" * 30_000], 30_000)
    connection.answers.message(stream, [b"c" * 10], 10)
    connection.answers.message(stream, [b"d" * 30_000], 30_000)
    connection.answers.trailers(stream, TRAILERS)
    connection.answers.message(stream, [b"dropped"], 7)
    connection.answers.trailers(stream, TRAILERS)
    out: list[Frame] = []
    while connection.outward.output:
        out += written(rig, 1)
    rig.send(wire.window_update(1, 10**6))
    while connection.outward.output:
        out += written(rig, 1)
    assert body(out, 1) == b"a" * 10 + b"b" * 30_000 + b"c" * 10 + b"d" * 30_000
    assert [one.kind for one in out if one.kind != wire.DATA] == [wire.HEADERS, wire.HEADERS]
    assert out[-1].flags == BOTH


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20))
def test_a_small_message_overtakes_a_large_one_of_another_stream(rig: Rig):
    answer(rig, asked(rig), bytes(2**20))
    out = written(rig, 30_000)
    answer(rig, asked(rig, 3))
    assert kinds(written(rig, 1))[:3] == [(wire.HEADERS, 3), (wire.DATA, 3), (wire.HEADERS, 3)]
    assert len(body(out, 1)) < 65_535


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20))
def test_large_answers_take_turns(rig: Rig):
    for number in (1, 3, 5):
        answer(rig, asked(rig, number), bytes(40_000))
    turns = [one.stream for one in written(rig) if one.kind == wire.DATA]
    assert turns[:4] == [1, 3, 5, 1]


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 2**20))
def test_small_answers_without_end_do_not_stop_a_large_one(rig: Rig):
    rig.send(wire.window_update(0, 2**20))
    answer(rig, asked(rig), bytes(100_000))
    seen = b""
    number = 3
    while len(seen) < 100_000:
        assert number < 100
        for _ in range(2):
            answer(rig, asked(rig, number), bytes(10_000))
            number += 2
        seen += body(written(rig, 10_000), 1)


def test_frames_about_the_connection_overtake_answers(rig: Rig):
    answer(rig, asked(rig))
    rig.send(wire.frame(wire.PING, 0, 0, b"12345678"))
    rig.connection.control.ping(b"abcdefgh")
    assert kinds(written(rig))[:3] == [(wire.PING, 0), (wire.PING, 0), (wire.HEADERS, 1)]


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 100))
def test_settings_are_acknowledged_behind_what_kept_to_the_old_ones(rig: Rig):
    """RFC 9113, section 6.5.3: once it has the acknowledgement, the peer may hold us to the new ones."""
    answer(rig, asked(rig), bytes(100))
    answer(rig, asked(rig, 3), bytes(200))
    rig.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 0)]))
    assert [one.kind for one in written(rig)][-2:] == [wire.HEADERS, wire.SETTINGS]
    assert not rig.connection.outward.output


def test_about_as_much_is_handed_out_as_was_asked_for(rig: Rig):
    for number in range(1, 101, 2):
        answer(rig, asked(rig, number), bytes(1000))
    sizes = []
    while rig.connection.outward.output:
        sizes.append(sum(len(part) for part in rig.connection.outward.take(5000)))
    assert all(5000 <= size < 6200 for size in sizes[:-1])


def test_a_reset_overtakes_nothing_that_its_stream_sent(rig: Rig):
    stream = asked(rig)
    rig.connection.answers.head(stream, HEAD)
    rig.connection.answers.reset(stream, ErrorCode.CANCEL)
    assert kinds(written(rig)) == [(wire.HEADERS, 1), (wire.RST_STREAM, 1)]


@pytest.mark.parametrize("when", ["before its turn", "in line", "with its window shut"])
def test_a_stream_that_is_reset_leaves_the_line(when):
    window = 10 if when == "with its window shut" else 2**20
    rig = connected(None, (wire.INITIAL_WINDOW_SIZE, window))
    stream, other = asked(rig), asked(rig, 3)
    answer(rig, stream, bytes(40_000))
    answer(rig, other, bytes(20))
    if when != "before its turn":
        written(rig, 20_000)
    rig.connection.answers.reset(stream, ErrorCode.CANCEL)
    assert (stream.pending, stream.open, stream.remote_open) == (0, False, False)
    rig.send(wire.window_update(3, 1000))
    while rig.connection.outward.output:
        out = rig.connection.outward.take(20_000)
        assert out
    assert not rig.connection.streams
    assert rig.connection.outward.pending == 0


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 40_000))
def test_however_many_streams_are_reset_those_that_stay_are_answered_in_their_order(rig: Rig):
    rig.send(wire.window_update(0, 1 << 30))
    numbers = range(1, 1000, 2)
    for number in numbers:
        answer(rig, asked(rig, number), bytes(20_000))
    kept = [number for number in numbers if number % 5 == 0]
    gone = [number for number in numbers if number % 5]
    rig.send(b"".join(wire.frame(wire.RST_STREAM, 0, number, bytes(4)) for number in gone))
    assert rig.connection.outward.pending == len(kept) * 20_000
    rig.drain()
    assert rig.connection.outward.pending == rig.connection.outward.waiting == 0
    ends = [one.stream for one in rig.frames if one.kind == wire.HEADERS and one.flags & wire.END_STREAM]
    assert ends == kept
    assert not rig.connection.outward.output


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 40_000))
def test_streams_that_are_reset_before_their_turn_leave_nothing_in_the_line(rig: Rig):
    rig.send(wire.window_update(0, 1 << 30))
    numbers = range(1, 1000, 2)
    for number in numbers:
        rig.connection.answers.head(asked(rig, number), HEAD)
    rig.drain()
    for number in numbers:
        rig.connection.answers.message(rig.recorder.known[number], [bytes(20_000)], 20_000)
    rig.send(b"".join(wire.frame(wire.RST_STREAM, 0, number, bytes(4)) for number in numbers[:-1]))
    out = written(rig, 1)
    assert kinds(out) == [(wire.DATA, numbers[-1])]
    rig.send(wire.frame(wire.RST_STREAM, 0, numbers[-1], bytes(4)))
    assert not rig.connection.outward.output
    assert rig.connection.outward.pending == rig.connection.outward.waiting == 0


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 10))
def test_a_connection_that_is_gone_keeps_nothing_that_waited(rig: Rig):
    answer(rig, asked(rig), bytes(1000))
    answer(rig, asked(rig, 3), bytes(1000))
    written(rig, 1)
    rig.send(wire.frame(wire.PING, 0, 0, bytes(8)))
    outward = rig.connection.outward
    assert outward.output
    assert outward.waiting
    outward.drop()
    assert not outward.output
    assert outward.pending == outward.waiting == outward.unread == 0
    assert not rig.connection.streams
    assert not rig.recorder.known[1].open


@connecting(None, (wire.INITIAL_WINDOW_SIZE, 10))
def test_a_client_s_reset_drops_what_was_pending(rig: Rig):
    stream = asked(rig)
    answer(rig, stream, bytes(1000))
    written(rig)
    rig.send(wire.rst_stream(1))
    assert rig.recorder.streams[1].code == ErrorCode.CANCEL
    assert (stream.pending, rig.connection.outward.pending) == (0, 0)
    assert not rig.connection.outward.output


def test_what_is_sent_on_a_stream_that_is_gone_is_dropped(rig: Rig):
    stream = asked(rig)
    rig.send(wire.rst_stream(1))
    answer(rig, stream)
    rig.connection.answers.head(stream, HEAD)
    rig.connection.answers.head(stream, HEAD, end=True)
    rig.connection.answers.reset(stream, ErrorCode.CANCEL)
    rig.connection.answers.own(stream)
    assert not rig.connection.outward.output
    assert repr(stream) == "<Stream 1>"


# Streams that open and close


@connecting(Http2Limits(max_streams=2))
def test_one_stream_too_many_is_refused_and_the_next_served_once_there_is_room(rig: Rig):
    asked(rig)
    second = asked(rig, 3)
    rig.send(wire.headers(5, flags=BOTH))
    assert 5 not in rig.recorder.streams
    assert [(one.stream, one.number()) for one in written(rig)] == [(5, ErrorCode.REFUSED_STREAM)]
    answer(rig, second)
    asked(rig, 7)


def test_a_repeated_block_is_read_once_for_all_its_calls(rig: Rig):
    for number in range(1, 21, 2):
        rig.send(wire.headers(number) + wire.data(number, b"hi", wire.END_STREAM))
    heads = [one.head for one in rig.recorder.streams.values()]
    assert all(head is heads[0] for head in heads)


def test_padding_and_priority_are_no_part_of_the_block(rig: Rig):
    plain = wire.block()
    rig.send(wire.headers(1, flags=BOTH))
    rig.send(wire.frame(wire.HEADERS, BOTH | wire.PADDED, 3, b"\x07" + plain + bytes(7)))
    rig.send(wire.frame(wire.HEADERS, BOTH | wire.HAS_PRIORITY, 5, bytes(5) + plain))
    rig.send(
        wire.frame(
            wire.HEADERS, BOTH | wire.PADDED | wire.HAS_PRIORITY, 7, b"\x02" + bytes(5) + plain + bytes(2)
        )
    )
    rig.send(wire.frame(wire.HEADERS, wire.END_STREAM, 9, plain[:30]))
    rig.send(wire.frame(wire.CONTINUATION, wire.END_HEADERS, 9, plain[30:]))
    heads = [one.head for one in rig.recorder.streams.values()]
    assert len(heads) == 5
    assert all(head is heads[0] for head in heads)


def test_late_frames_are_ignored_on_streams_that_are_forgotten_but_not_on_those_that_ended():
    closed = ClosedStreams()
    for number in range(1, 20_001, 4):
        closed.cut_short(number)
    closed.ended(19_997)
    for number in (1, 3, 5, 19_993):
        closed.check_late(number, "DATA")
    for number in (19_995, 19_997):
        with pytest.raises(ConnectionViolation, match=f"DATA on stream {number}, which the peer ended"):
            closed.check_late(number, "DATA")


@pytest.mark.slow
def test_late_frames_are_ignored_however_many_streams_were_cut_short(rig: Rig):
    for number in range(1, 10_001, 2):
        rig.connection.answers.reset(speaking(rig, number), ErrorCode.CANCEL)
        rig.drain()
    rig.send(wire.data(1, b"late") + wire.data(9_999, b"late", wire.END_STREAM))
    rig.send(wire.headers(3, [(b"x-a", b"1")], flags=BOTH))
    with pytest.raises(ConnectionViolation, match="STREAM_CLOSED"):
        rig.send(wire.data(9_999, b"x"))


def test_an_answer_given_as_its_request_opens_is_the_end_of_it(rig: Rig):
    opened = rig.recorder.opened

    def refuse(stream: Stream, head: tuple[wire.Field, ...]) -> None:
        opened(stream, head)
        rig.connection.answers.head(stream, TRAILERS, end=True)

    rig.recorder.opened = refuse  # type: ignore[method-assign]
    for number in (1, 3, 5):
        rig.send(wire.headers(number, flags=BOTH))
    assert not rig.connection.streams
    assert not any(one.ended for one in rig.recorder.streams.values())


def test_a_stream_that_is_reset_over_its_data_does_not_end(rig: Rig):
    heard = rig.recorder.received

    def refuse(stream: Stream, data: memoryview) -> None:
        heard(stream, data)
        rig.connection.answers.reset(stream, ErrorCode.CANCEL)

    rig.recorder.received = refuse  # type: ignore[method-assign]
    for number, flags in ((1, wire.END_STREAM), (3, wire.END_STREAM | wire.PADDED)):
        speaking(rig, number)
        rig.send(wire.data(number, b"\0abc", flags))
        assert rig.recorder.streams[number].data
        assert not rig.recorder.streams[number].ended


# Going away


def test_a_graceful_goodbye_loses_no_call(rig: Rig):
    asked(rig)
    rig.connection.control.go_away(ErrorCode.NO_ERROR, last=frames.LARGEST_STREAM)
    asked(rig, 3)
    rig.connection.control.go_away(ErrorCode.NO_ERROR)
    rig.send(wire.headers(5) + wire.data(5, b"ignored", wire.END_STREAM))
    assert 5 not in rig.recorder.streams
    out = written(rig)
    assert [(one.kind, one.number(0), one.number(4)) for one in out] == [
        (wire.GOAWAY, 2**31 - 1, 0),
        (wire.GOAWAY, 3, 0),
    ]
    for number in (1, 3):
        answer(rig, rig.connection.streams[number])
    assert kinds(written(rig)).count((wire.DATA, 3)) == 1


def test_the_last_stream_of_a_goodbye_never_rises(rig: Rig):
    asked(rig)
    rig.connection.control.go_away(ErrorCode.NO_ERROR)
    rig.connection.control.go_away(ErrorCode.INTERNAL_ERROR, last=99)
    assert [one.number(0) for one in written(rig)] == [1, 1]


def test_streams_up_to_the_last_of_a_goodbye_are_served(rig: Rig):
    asked(rig)
    rig.connection.control.go_away(ErrorCode.NO_ERROR, last=3)
    asked(rig, 3)
    rig.send(wire.headers(5, flags=BOTH))
    assert 5 not in rig.recorder.streams


def test_a_violation_ends_the_connection_with_one_goaway_that_says_why(rig: Rig):
    asked(rig)
    with pytest.raises(ConnectionViolation):
        rig.send(wire.data(0, b"x"))
    rig.send(wire.headers(3, flags=BOTH))
    [one] = written(rig)
    assert (one.kind, one.number(0), one.number(4)) == (wire.GOAWAY, 1, ErrorCode.PROTOCOL_ERROR)
    assert one.payload[8:] == b"DATA on stream 0"


@pytest.mark.parametrize(
    "octets",
    [
        wire.headers(1, raw=bytes(1500)),
        wire.headers(1, raw=bytes(1010), flags=0) + wire.frame(wire.CONTINUATION, 0, 1, bytes(490)),
        wire.headers(1, flags=0) + wire.frame(wire.CONTINUATION, 0, 1, bytes(1500))[:9],
    ],
    ids=["HEADERS", "together", "CONTINUATION, its head alone"],
)
@connecting(Http2Limits(max_header_block=1024))
def test_too_much_metadata_is_called_that_with_how_much_is_taken(octets, rig: Rig):
    with pytest.raises(ConnectionViolation) as raised:
        rig.send(octets)
    assert raised.value.message == "1500 bytes of metadata, more than the 1024 taken"


# Floods


def calm(rig: Rig, octets: bytes) -> None:
    with pytest.raises(ConnectionViolation) as raised:
        rig.send(octets)
    assert raised.value.code == ErrorCode.ENHANCE_YOUR_CALM
    assert (wire.GOAWAY, 0) in kinds(written(rig))


FEW = Http2Limits(
    chatter_burst=100, chatter_rate=10.0, chatter_per_frame=10, settings_burst=5, settings_rate=1.0
)

CHATTER = [
    ("PING", wire.frame(wire.PING, 0, 0, bytes(8))),
    ("PING acknowledged", wire.frame(wire.PING, wire.ACK, 0, bytes(8))),
    ("SETTINGS acknowledged", wire.frame(wire.SETTINGS, wire.ACK)),
    ("WINDOW_UPDATE", wire.window_update(0, 1)),
    ("WINDOW_UPDATE of a stream", wire.window_update(1, 1)),
    ("WINDOW_UPDATE of a closed stream", wire.window_update(3, 1)),
    ("PRIORITY", wire.frame(wire.PRIORITY, 0, 1, bytes(5))),
    ("an unknown type", wire.frame(0x77)),
    ("empty DATA", wire.data(1)),
    ("empty DATA, padded", wire.frame(wire.DATA, wire.PADDED, 1, b"\x02\0\0")),
    ("RST_STREAM of a closed stream", wire.rst_stream(3)),
    ("GOAWAY", wire.frame(wire.GOAWAY, 0, 0, bytes(8))),
]


@pytest.mark.parametrize("one", [one for _, one in CHATTER], ids=[name for name, _ in CHATTER])
@connecting(FEW)
def test_frames_that_carry_nothing_are_bounded(one, rig: Rig):
    speaking(rig)
    asked(rig, 3)
    rig.send(wire.rst_stream(3))
    rig.send(one * 90)
    calm(rig, one * 40)


@connecting(FEW)
def test_frames_that_carry_nothing_are_excused_by_time(rig: Rig):
    for _ in range(50):
        rig.now += 1
        rig.send(wire.window_update(0, 1) * 10)


@connecting(FEW)
def test_window_updates_are_excused_by_the_calls_they_follow(rig: Rig):
    for number in range(1, 401, 2):
        answer(rig, asked(rig, number))
        rig.drain()
        rig.send(wire.window_update(0, 1) * 9)


@connecting(FEW)
def test_window_updates_are_excused_by_the_data_they_follow(rig: Rig):
    answer(rig, asked(rig), bytes(10**6))
    for _ in range(900):
        if not rig.connection.streams:
            break
        rig.drain()
        rig.send(wire.window_update(0, 4000) + wire.window_update(1, 4000))
        rig.now -= 0.01
    assert not rig.connection.streams


ANSWERED = wire.window_update(0, 100) + wire.window_update(1, 100) + wire.frame(wire.PING, 0, 0, bytes(8))
"""What gRPC's own clients send when a message has come."""


@pytest.mark.parametrize("size", [1, 100, 3000, 40_000])
@connecting(FEW)
def test_windows_and_pings_are_excused_by_the_messages_they_follow(size, rig: Rig):
    stream = speaking(rig)
    for _ in range(300):
        rig.connection.answers.message(stream, [bytes(size)], size)
        rig.drain()
        rig.now -= 0.01
        rig.send(wire.window_update(0, size) + wire.window_update(1, size) + ANSWERED)


@connecting(FEW)
def test_windows_and_pings_are_excused_by_the_messages_they_go_with(rig: Rig):
    """An example: the messages of a stream of requests that has no answer yet."""
    speaking(rig)
    for _ in range(300):
        rig.now -= 0.01
        rig.send(wire.data(1, b"x") + ANSWERED)


@connecting(FEW)
def test_a_message_of_the_peer_excuses_no_more_than_goes_with_one(rig: Rig):
    speaking(rig)
    rig.now -= 0.01
    calm(rig, (wire.data(1, b"x") + ANSWERED * 2) * 100)


@connecting(FEW)
def test_answers_to_pings_are_excused_by_the_pings(rig: Rig):
    for _ in range(300):
        rig.connection.control.ping(bytes(8))
        rig.drain()
        rig.now -= 0.01
        rig.send(wire.frame(wire.PING, wire.ACK, 0, bytes(8)))


@connecting(FEW, (wire.INITIAL_WINDOW_SIZE, 0))
def test_windows_that_are_opened_by_crumbs_excuse_nothing(rig: Rig):
    """CVE-2019-9511: each update would have us send a frame of one byte."""
    answer(rig, asked(rig), bytes(10_000))
    for _ in range(90):
        rig.drain()
        rig.send(wire.window_update(1, 1))
        rig.now -= 0.01
    calm(rig, wire.window_update(1, 1) * 40)


@connecting(FEW)
def test_stream_numbers_that_were_left_out_excuse_nothing(rig: Rig):
    asked(rig, 100_001)
    rig.send(wire.window_update(0, 1) * 90)
    calm(rig, wire.window_update(0, 1) * 40)


@connecting(FEW)
def test_settings_are_excused_by_time(rig: Rig):
    for _ in range(20):
        rig.now += 1
        rig.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 1)]))


PIECE = wire.literal(b"x", bytes(100)) * 150
OPENED = [wire.headers(number) for number in range(1, 201, 2)]


@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(wire.settings([(wire.INITIAL_WINDOW_SIZE, 1)]) * 6, id="settings"),
        pytest.param(
            b"".join(one + wire.rst_stream(1 + 2 * at) for at, one in enumerate(OPENED)),
            id="rapid resets, CVE-2023-44487",
        ),
        # The client breaks a rule on each stream instead of resetting it.
        pytest.param(
            b"".join(one + wire.window_update(1 + 2 * at, 0) for at, one in enumerate(OPENED)),
            id="resets that it has us send, CVE-2025-8671",
        ),
        pytest.param(b"".join(OPENED), id="requests that are refused"),
        pytest.param(
            b"".join(wire.headers(number, [], flags=BOTH) for number in range(1, 201, 2)),
            id="malformed requests",
        ),
        pytest.param(
            wire.frame(wire.HEADERS, 0, 1, wire.block()) + wire.frame(wire.CONTINUATION, 0, 1) * 9,
            id="a block in too many pieces, CVE-2024-27316",
        ),
        pytest.param(
            wire.frame(wire.HEADERS, 0, 1, PIECE) + wire.frame(wire.CONTINUATION, 0, 1, PIECE) * 3,
            id="a block that grows too large",
        ),
    ],
)
@connecting(replace(FEW, max_streams=20, reset_burst=50, reset_rate=10.0))
def test_what_costs_us_work_is_bounded(octets, rig: Rig):
    calm(rig, octets)


@connecting(Http2Limits(max_streams=100, reset_burst=200, reset_rate=100.0))
def test_all_calls_may_time_out_every_second(rig: Rig):
    number = 1
    for _ in range(10):
        numbers = range(number, number + 200, 2)
        rig.send(b"".join(wire.headers(one, flags=BOTH) for one in numbers))
        rig.now += 1
        rig.send(b"".join(wire.rst_stream(one) for one in numbers))
        number += 200


@pytest.mark.parametrize(
    ("kind", "size"),
    [(wire.HEADERS, 40_000), (wire.CONTINUATION, 40_000), (wire.SETTINGS, 6000), (wire.GOAWAY, 9000)],
)
def test_a_frame_that_would_be_kept_is_refused_before_it_is_here(kind, size, rig: Rig):
    if kind == wire.CONTINUATION:
        rig.send(wire.frame(wire.HEADERS, 0, 1, wire.block()))
    calm(rig, wire.frame(kind, 0, 0 if kind in (wire.SETTINGS, wire.GOAWAY) else 1, size=size))


@connecting(Http2Limits(max_queued=100))
def test_a_peer_that_reads_nothing_can_t_have_answers_pile_up(rig: Rig):
    ping = wire.frame(wire.PING, 0, 0, bytes(8))
    for _ in range(5):
        rig.send(ping * 100)
        rig.drain()
    calm(rig, ping * 101)


def test_a_handler_may_end_the_connection_over_a_ping(rig: Rig):

    def strike(now: float) -> None:
        raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    rig.recorder.pings.on_ping = strike
    with pytest.raises(ConnectionViolation, match="too_many_pings"):
        rig.send(wire.frame(wire.PING, 0, 0, bytes(8)))
    assert [one.payload[8:] for one in written(rig) if one.kind == wire.GOAWAY] == [b"too_many_pings"]
