"""What frames of the peer mean that carry no data (requests, settings, pings, resets), and its windows."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, Generic, TypeVar

from protocols.http2 import frames
from protocols.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    ConnectionViolation,
    ErrorCode,
    StreamViolation,
    window_update_frame,
)
from protocols.http2.header_blocks import BlockAssembler, HeaderDecoder
from protocols.http2.sending import OutwardFrames, StreamSender
from protocols.http2.streams import Floods, Handler, Http2Limits, PingHandler, Stream, StreamTable

T = TypeVar("T")


class RequestReader(Generic[T]):
    """Makes requests of header blocks, and ends them."""

    def __init__(
        self,
        handler: Handler[T],
        limits: Http2Limits,
        streams: StreamTable,
        floods: Floods,
        outward: OutwardFrames,
        control: ControlFrames,
    ) -> None:
        self.decoder: HeaderDecoder[T] = HeaderDecoder(
            handler.read_head,
            handler.read_more,
            max_header_list=limits.max_header_list,
            cached_heads=limits.cached_heads,
        )
        self.block = BlockAssembler(
            max_size=limits.max_header_block, max_continuations=limits.max_continuations
        )
        self._handler = handler
        self._limits = limits
        self._streams = streams
        self._floods = floods
        self._outward = outward
        self._control = control

    def on_headers(self, payload: memoryview, flags: int, stream_id: int) -> None:
        """Take HEADERS."""
        if not stream_id & 1:
            raise protocol_error(f"HEADERS on stream {stream_id}: a client's streams have odd numbers")
        self._take(self.block.begin(payload, flags, stream_id))

    def on_continuation(self, payload: memoryview, flags: int, stream_id: int) -> None:
        """Take CONTINUATION."""
        if not self.block.under_way:
            raise protocol_error(f"CONTINUATION on stream {stream_id} continues nothing")
        self._take(self.block.go_on(payload, flags))

    def _take(self, block: bytes | None) -> None:
        """Take a header block, once it is complete.

        It must be decoded whatever it is for, because the next block depends on the table.
        """
        if block is None:
            return
        stream_id, ends = self.block.stream_id, self.block.ends
        streams = self._streams
        stream = streams.open.get(stream_id)
        if stream is not None:
            self._take_trailers(stream, block, ends=ends)
        elif stream_id > streams.last_id:
            self._take_request(stream_id, block, ends=ends)
        else:
            streams.closed.check_late(stream_id, "HEADERS")
            self._floods.chatter()
            self.decoder.skip(block)
            if ends:
                streams.closed.ended(stream_id)

    def _take_trailers(self, stream: Stream, block: bytes, *, ends: bool) -> None:
        if not stream.remote_open:
            self.decoder.skip(block)
            self._control.fail(stream, ErrorCode.STREAM_CLOSED)
            return
        try:
            self.decoder.trailers(block)
        except StreamViolation as violation:
            self._control.fail(stream, violation.code)
            return
        if ends:
            self.end(stream)
        else:
            self._control.fail(stream, ErrorCode.PROTOCOL_ERROR)  # section 8.1: trailers are the end

    def _take_request(self, stream_id: int, block: bytes, *, ends: bool) -> None:
        streams = self._streams
        streams.advance(stream_id)
        if stream_id > streams.accepted:
            self._floods.chatter()
            self.decoder.skip(block)
            if not ends:
                streams.closed.cut_short(stream_id)
        elif len(streams.open) >= self._limits.max_streams:
            self.decoder.skip(block)
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM, ends=ends)
        else:
            self.begin(stream_id, block, ends=ends)

    def begin(self, stream_id: int, block: bytes, *, ends: bool) -> None:
        """Open the stream of a request that there is room for."""
        try:
            head, length = self.decoder.request(block)
        except StreamViolation as violation:
            self._refuse(stream_id, violation.code, ends=ends)
        else:
            self._open(stream_id, head, length, ends=ends)

    def _open(self, stream_id: int, head: T, length: int, *, ends: bool) -> None:
        streams = self._streams
        stream = Stream(stream_id, streams.inward, streams.outward, length)
        streams.open[stream_id] = stream
        self._handler.opened(stream, head)
        if ends and stream.remote_open:
            self.end(stream)

    def _refuse(self, stream_id: int, code: ErrorCode, *, ends: bool) -> None:
        """RST_STREAM for a request that the handler is never told of."""
        self._floods.reset()
        self._floods.reply()
        self._outward.write(frames.reset_frame(stream_id, code))
        if not ends:
            self._streams.closed.cut_short(stream_id)

    def end(self, stream: Stream) -> None:
        """Note that the peer has ended its side of a stream."""
        if stream.announced > 0:
            # Section 8.1.1: less than its content-length.
            self._control.fail(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.remote_open = False
        self._handler.ended(stream)


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


class InwardWindow:
    """The connection's window for DATA of the peer: `open` bytes may come as of now.

    The handler's owner gives back, by `consumed`, what each stream has `received`. It does so once for every
    stream it was told of, however that ends. Bytes of streams it was never told of are given back by the
    reader.
    """

    __slots__ = ("_credit", "_outward", "_size", "_step", "open")

    def __init__(self, limits: Http2Limits, outward: OutwardFrames) -> None:
        self.open = limits.connection_window
        self._size = limits.connection_window
        self._step = limits.connection_window // 2
        self._credit = 0  # bytes that the peer may have back, but has not been told of
        self._outward = outward

    @property
    def held(self) -> int:
        """Bytes that came and were not given back; those of granted messages count until then as less than 0."""
        return self._size - self.open - self._credit

    def begin(self) -> None:
        """Announce a window that is larger than the one that every connection begins with."""
        if self._size > DEFAULT_WINDOW:
            self._outward.control(window_update_frame(0, self._size - DEFAULT_WINDOW))

    def consumed(self, nbytes: int) -> None:
        """Give `nbytes` of the connection's window back to the peer.

        They are announced when half the window has gathered: one WINDOW_UPDATE for very many calls.
        """
        self._credit += nbytes
        if self._credit >= self._step:
            self._announce(self._step)

    def announce(self) -> None:
        """Announce credit that could not be announced before, because the window was open too far."""
        if self._credit >= self._step:
            self._announce(self._step)

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
        self._outward.control(window_update_frame(stream.id, min(nbytes, room)))
        self._credit += nbytes
        self._announce(1)

    def _announce(self, least: int) -> None:
        """Open the connection's window by its credit, as far as a window may be open.

        Does nothing where that is below `least`.
        """
        increment = min(self._credit, LARGEST_WINDOW - self.open)
        if increment >= least:
            self.open += increment
            self._credit -= increment
            self._outward.control(window_update_frame(0, increment))
