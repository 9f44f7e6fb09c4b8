"""The frames of a connection that carry no request and no data, and the state that only they change.

They are settings, pings, both directions' windows, resets and goodbyes. The module also says what a peer pays
for sending too many of them.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from protocols.http2 import frames
from protocols.http2.floods import Floods
from protocols.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    LARGEST_STREAM,
    LARGEST_WINDOW,
    ConnectionViolation,
    ErrorCode,
)
from protocols.http2.handler import Handler
from protocols.http2.limits import Http2Limits
from protocols.http2.sending import SendingSide, Stream

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

_SETTING: Final = Struct("!HL")


class ControlSide(SendingSide):
    """What a connection and its peer have agreed on. `streams` holds the open ones by their identifiers.

    The handler's owner gives back, by `consumed`, what each stream has `received`. It does so once for every
    stream it was told of, however that ends. Bytes of streams it was never told of are given back here.
    """

    def __init__(self, handler: Handler[Any], limits: Http2Limits) -> None:
        super().__init__()
        self.limits = limits
        self.peer_leaving = False  # it sent GOAWAY: it opens no more streams
        self._handler = handler
        self._floods = Floods(limits)
        self._now = 0.0
        self._due: int | None = frames.SETTINGS  # the type that the next frame must have
        # Streams.
        self._last_id = -1  # the greatest that the peer used
        self._skipped = 0  # how many identifiers it left out
        self._data_received = 0  # DATA frames that were not empty
        self._last_accepted = LARGEST_STREAM  # as our GOAWAY has it
        self._room = limits.max_streams  # 0 once we go away
        self._allowed = max(limits.stream_window, DEFAULT_WINDOW)  # until the peer has our SETTINGS
        # The connection's window inward.
        self._inward = limits.connection_window
        self._credit_step = limits.connection_window // 2
        # Bytes that the peer may have back, but has not been told of.
        self._credit = 0

    def begin(self) -> None:
        """Put our SETTINGS in the output, and the WINDOW_UPDATE that sets the connection's window."""
        limits = self.limits
        announced = [
            (frames.MAX_CONCURRENT_STREAMS, limits.max_streams),
            (frames.INITIAL_WINDOW_SIZE, limits.stream_window),
            (frames.MAX_FRAME_SIZE, limits.max_frame_size),
            (frames.MAX_HEADER_LIST_SIZE, limits.max_header_list),
        ]
        self._control.append(frames.settings_frame(announced))
        if limits.connection_window > DEFAULT_WINDOW:
            increment = limits.connection_window - DEFAULT_WINDOW
            self._control.append(frames.window_update_frame(0, increment))

    def consumed(self, nbytes: int) -> None:
        """Give `nbytes` of the connection's window back to the peer.

        They are announced when half the window has gathered: one WINDOW_UPDATE for very many calls.
        """
        self._credit += nbytes
        if self._credit >= self._credit_step:
            self._announce_credit(self._credit_step)

    def grant(self, stream: Stream, nbytes: int) -> None:
        """Let the peer send `nbytes` more, on the stream and on the connection, and announce it at once.

        This is for a message that is larger than the windows, which would never be whole otherwise. What was
        granted is given back: `consumed` must not be told of it again. Does nothing if the peer has ended the
        stream.
        """
        if not stream.remote_open:
            return
        room = LARGEST_WINDOW - (stream.allowed - stream.received)
        stream.allowed += min(nbytes, room)
        self._control.append(frames.window_update_frame(stream.id, min(nbytes, room)))
        self._credit += nbytes
        self._announce_credit(1)

    def ping(self, payload: bytes) -> None:
        """Send a PING with eight bytes; the handler's `pong` gets them back."""
        self._answerable += 1
        self._control.append(frames.ping_frame(payload))

    def go_away(self, code: int, debug: bytes = b"", *, last: int | None = None) -> None:
        """Send GOAWAY. Streams that the peer opens from now on above `last` are ignored; open ones go on.

        `last` is by default the last stream opened. A drain that loses no call says LARGEST_STREAM first, and
        again without `last` a round trip later (RFC 9113, section 6.8). It never rises.
        """
        latest = max(self._last_id, 0) if last is None else last
        self._last_accepted = min(latest, self._last_accepted)
        if self._last_accepted < LARGEST_STREAM:
            # Each new stream then takes the slow way, which compares its identifier.
            self._room = 0
        self._control.append(frames.go_away_frame(self._last_accepted, code, debug))

    def take(self, limit: int) -> list[Buffer]:
        """Hand out what to write now, in order: all control frames, then about `limit` bytes of answers.

        Buffers of a large answer are slices of those it was given in, and count as handed out in `pending`.
        """
        self._floods.replies_taken()
        return super().take(limit)

    def _fail(self, stream: Stream, code: ErrorCode) -> None:
        """RST_STREAM for a request that the handler knows."""
        self._floods.reset(self._now)
        self._floods.reply()
        self.reset(stream, code)
        self._handler.reset(stream, code)

    def _announce_credit(self, least: int) -> None:
        """Open the connection's window by its credit, as far as a window may be open.

        Does nothing where that is below `least`.
        """
        increment = min(self._credit, LARGEST_WINDOW - self._inward)
        if increment >= least:
            self._inward += increment
            self._credit -= increment
            self._control.append(frames.window_update_frame(0, increment))

    def _charge_chatter(self) -> None:
        limits = self.limits
        streams = (self._last_id + 1) // 2 - self._skipped
        excused = (streams + self._answerable) * limits.chatter_per_frame
        self._floods.chatter(self._now, excused + self._data_received * limits.chatter_per_received)

    def _on_reset(self, payload: memoryview, _flags: int, stream_id: int) -> None:
        self._check_not_idle(stream_id, "RST_STREAM")
        stream = self.streams.get(stream_id)
        self._closed.ended(stream_id)
        if stream is None:
            self._charge_chatter()
            return
        self._floods.reset(self._now)
        self._forget(stream)
        self._handler.reset(stream, int.from_bytes(payload, "big"))

    def _on_settings(self, payload: memoryview, flags: int, stream_id: int) -> None:
        if stream_id:
            raise protocol_error("SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionViolation(
                    ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS is empty"
                )
            self._charge_chatter()
            self._allowed = self.limits.stream_window
            return
        if len(payload) % 6:
            raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS come in 6 bytes each")
        self._floods.settings(self._now)
        self._floods.reply()
        for identifier, value in _SETTING.iter_unpack(payload):
            self._apply_setting(identifier, value)
        self._hurry()
        self._control.append(frames.settings_ack())
        self._due = None

    def _on_ping(self, payload: memoryview, flags: int, stream_id: int) -> None:
        if stream_id:
            raise protocol_error("PING on a stream")
        self._charge_chatter()
        if flags & ACK:
            self._handler.pong(bytes(payload))
            return
        self._floods.reply()
        self._control.append(frames.ping_frame(bytes(payload), ack=True))
        self._handler.pinged(self._now)

    def _on_go_away(self, payload: memoryview, _flags: int, stream_id: int) -> None:
        if stream_id:
            raise protocol_error("GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has 8 bytes at least")
        self._charge_chatter()
        self.peer_leaving = True

    def _on_window_update(self, payload: memoryview, _flags: int, stream_id: int) -> None:
        increment = int.from_bytes(payload, "big") & LARGEST_WINDOW
        self._charge_chatter()
        if stream_id == 0:
            if not increment:
                raise protocol_error("WINDOW_UPDATE by 0")
            if not self._credit_outward(increment):
                raise ConnectionViolation(
                    ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is open too far"
                )
            return
        self._check_not_idle(stream_id, "WINDOW_UPDATE")
        stream = self.streams.get(stream_id)
        if stream is None:
            return  # it may have been on its way: section 5.1
        if not increment:
            self._fail(stream, ErrorCode.PROTOCOL_ERROR)
        elif not self._credit_stream(stream, increment):
            self._fail(stream, ErrorCode.FLOW_CONTROL_ERROR)

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        if stream_id > self._last_id or not stream_id & 1:
            raise protocol_error(f"{what} on stream {stream_id}, which was never opened")


def protocol_error(message: str) -> ConnectionViolation:
    """Return the commonest reason to end a connection."""
    return ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
