"""What the frame encoders write, read back by an independent parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.http2 import frames
from protocols.http2.frames import ErrorCode
from tests.fuzz import h2wire as wire


def test_settings_are_written_in_their_order():
    written = frames.settings_frame([(frames.MAX_FRAME_SIZE, 16_384), (frames.INITIAL_WINDOW_SIZE, 0)])
    assert written == wire.settings([(wire.MAX_FRAME_SIZE, 16_384), (wire.INITIAL_WINDOW_SIZE, 0)])


def test_an_acknowledgement_of_settings_is_empty():
    assert wire.split(frames.settings_ack()) == [wire.Frame(wire.SETTINGS, wire.ACK, 0, b"")]


def test_a_window_update_names_its_stream_and_increment():
    assert frames.window_update_frame(7, 65_535) == wire.window_update(7, 65_535)


def test_a_reset_names_its_stream_and_code():
    assert frames.reset_frame(9, ErrorCode.CANCEL) == wire.rst_stream(9, wire.CANCEL)


def test_a_goaway_names_the_last_stream_the_code_and_the_reason():
    [one] = wire.split(frames.go_away_frame(5, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings"))
    assert (one.kind, one.stream, one.number(0), one.number(4)) == (wire.GOAWAY, 0, 5, 0xB)
    assert one.payload[8:] == b"too_many_pings"


def test_a_ping_and_its_answer_differ_by_a_flag():
    [ping] = wire.split(frames.ping_frame(b"12345678"))
    [pong] = wire.split(frames.ping_frame(b"12345678", ack=True))
    assert (ping.flags, pong.flags, ping.payload) == (0, wire.ACK, pong.payload)


@pytest.mark.parametrize("payload", [b"", b"1234567", b"123456789"])
def test_a_ping_has_eight_bytes(payload):
    with pytest.raises(ValueError, match="8 bytes"):
        frames.ping_frame(payload)


@given(
    block=st.binary(max_size=200),
    limit=st.integers(1, 64),
    end=st.booleans(),
)
def test_a_block_is_cut_where_the_peer_s_frames_end(block, limit, end):
    written = wire.split(frames.headers_frames(3, block, end=end, max_frame_size=limit))
    assert b"".join(one.payload for one in written) == block
    assert all(len(one.payload) <= limit for one in written)
    assert [one.kind for one in written] == [wire.HEADERS] + [wire.CONTINUATION] * (len(written) - 1)
    assert [bool(one.flags & wire.END_HEADERS) for one in written] == [False] * (len(written) - 1) + [True]
    assert [bool(one.flags & wire.END_STREAM) for one in written] == [end] + [False] * (len(written) - 1)
    assert {one.stream for one in written} == {3}


@pytest.mark.parametrize("violation", [frames.ConnectionViolation, frames.StreamViolation])
def test_a_violation_says_its_code_and_what_was_wrong(violation):
    raised = violation(ErrorCode.FRAME_SIZE_ERROR, "a frame of 1 byte")
    assert (raised.code, raised.message) == (6, "a frame of 1 byte")
    assert str(raised) == "FRAME_SIZE_ERROR: a frame of 1 byte"
