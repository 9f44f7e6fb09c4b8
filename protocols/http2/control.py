"""The frames of a connection that carry no request and no data: settings, pings, windows, resets, goodbyes."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from protocols.http2 import frames
from protocols.http2.floods import Floods
from protocols.http2.frames import ACK, LARGEST_WINDOW, ConnectionViolation, ErrorCode
from protocols.http2.limits import Http2Limits
from protocols.http2.sending import OutwardFrames, StreamSender
from protocols.http2.streams import Handler, PingHandler, Stream, StreamTable

_SETTING: Final = Struct("!HL")


class ControlFrames:
    """What a connection and its peer agree on, and what a peer pays for breaking a rule on a stream."""

    def __init__(
        self,
        handler: Handler[Any],
        pings: PingHandler,
        limits: Http2Limits,
        streams: StreamTable,
        floods: Floods,
        outward: OutwardFrames,
        answers: StreamSender,
    ) -> None:
        self._handler = handler
        self._pings = pings
        self._limits = limits
        self._streams = streams
        self._floods = floods
        self._outward = outward
        self._answers = answers

    # Ours

    def begin(self) -> None:
        """Send our SETTINGS."""
        limits = self._limits
        announced = [
            (frames.MAX_CONCURRENT_STREAMS, limits.max_streams),
            (frames.INITIAL_WINDOW_SIZE, limits.stream_window),
            (frames.MAX_FRAME_SIZE, limits.max_frame_size),
            (frames.MAX_HEADER_LIST_SIZE, limits.max_header_list),
        ]
        self._outward.control(frames.settings_frame(announced))

    def ping(self, payload: bytes) -> None:
        """Send a PING with eight bytes; `PingHandler.pong` gets them back."""
        self._floods.sent += 1
        self._outward.control(frames.ping_frame(payload))

    def go_away(self, code: int, debug: bytes = b"", *, last: int | None = None) -> None:
        """Send GOAWAY. Streams that the peer opens from now on above `last` are ignored; open ones go on.

        `last` is by default the last stream opened. A drain that loses no call says LARGEST_STREAM first, and
        again without `last` a round trip later (RFC 9113, section 6.8). It never rises.
        """
        self._outward.control(frames.go_away_frame(self._streams.accept_to(last), code, debug))

    def fail(self, stream: Stream, code: ErrorCode) -> None:
        """RST_STREAM for a request that the handler knows."""
        self._floods.reset()
        self._floods.reply()
        self._answers.reset(stream, code)
        self._handler.reset(stream, code)

    # The peer's

    def on_reset(self, payload: memoryview, _flags: int, stream_id: int) -> None:
        """Take RST_STREAM."""
        streams = self._streams
        streams.check_not_idle(stream_id, "RST_STREAM")
        stream = streams.open.get(stream_id)
        streams.closed.ended(stream_id)
        if stream is None:
            self._floods.chatter()
            return
        self._floods.reset()
        self._outward.forget(stream)
        self._handler.reset(stream, int.from_bytes(payload, "big"))

    def on_settings(self, payload: memoryview, flags: int, stream_id: int) -> None:
        """Take over the peer's settings, and acknowledge them; or learn that it has ours."""
        if stream_id:
            raise protocol_error("SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionViolation(
                    ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS is empty"
                )
            self._floods.chatter()
            self._streams.inward = self._limits.stream_window
            return
        if len(payload) % 6:
            raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS come in 6 bytes each")
        self._floods.settings()
        self._floods.reply()
        for identifier, value in _SETTING.iter_unpack(payload):
            self._apply(identifier, value)
        self._outward.hurry()
        self._outward.control(frames.settings_ack())

    def _apply(self, identifier: int, value: int) -> None:
        """Take over a setting of the peer.

        The settings not named here don't concern a server that neither pushes nor indexes.
        """
        if identifier == frames.ENABLE_PUSH:
            if value > 1:
                raise protocol_error(f"ENABLE_PUSH is {value}, but must be 0 or 1")
        elif identifier == frames.MAX_FRAME_SIZE:
            if not frames.SMALLEST_FRAME_LIMIT <= value <= frames.LARGEST_FRAME_LIMIT:
                raise protocol_error(f"MAX_FRAME_SIZE is {value}")
            self._outward.max_frame_size = value
        elif identifier == frames.INITIAL_WINDOW_SIZE:
            if value > LARGEST_WINDOW:
                raise ConnectionViolation(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
            streams = self._streams
            change, streams.outward = value - streams.outward, value
            for stream in streams.open.values():
                if not self._outward.credit_stream(stream, change):
                    raise ConnectionViolation(
                        ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE overflows a window"
                    )

    def on_ping(self, payload: memoryview, flags: int, stream_id: int) -> None:
        """Answer PING, or take the answer to ours."""
        if stream_id:
            raise protocol_error("PING on a stream")
        self._floods.chatter()
        if flags & ACK:
            self._pings.pong(bytes(payload))
            return
        self._floods.reply()
        self._outward.control(frames.ping_frame(bytes(payload), ack=True))
        self._pings.pinged(self._floods.now)

    def on_go_away(self, payload: memoryview, _flags: int, stream_id: int) -> None:
        """Take GOAWAY. It changes nothing: the peer opens no more streams, and open ones go on."""
        if stream_id:
            raise protocol_error("GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has 8 bytes at least")
        self._floods.chatter()

    def on_window_update(self, payload: memoryview, _flags: int, stream_id: int) -> None:
        """Send what a window that was opened lets go."""
        increment = int.from_bytes(payload, "big") & LARGEST_WINDOW
        self._floods.chatter()
        if stream_id == 0:
            if not increment:
                raise protocol_error("WINDOW_UPDATE by 0")
            if not self._outward.credit(increment):
                raise ConnectionViolation(
                    ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is open too far"
                )
            return
        self._streams.check_not_idle(stream_id, "WINDOW_UPDATE")
        stream = self._streams.open.get(stream_id)
        if stream is None:
            return  # it may have been on its way: section 5.1
        if not increment:
            self.fail(stream, ErrorCode.PROTOCOL_ERROR)
        elif not self._outward.credit_stream(stream, increment):
            self.fail(stream, ErrorCode.FLOW_CONTROL_ERROR)


def protocol_error(message: str) -> ConnectionViolation:
    """Return the commonest reason to end a connection."""
    return ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
