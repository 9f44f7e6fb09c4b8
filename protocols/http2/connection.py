"""The server side of one HTTP/2 connection, without I/O, clock or loop (RFC 9113, as far as gRPC needs it).

`Http2Connection` puts together what a connection consists of, and is fed the bytes that the socket read:

    bytes ──► FrameReader ──┬─► Handler (requests, their data, ends and resets)
                            └─► receiving ──► PingHandler, and outward ──► bytes
                  answers (of requests) ──────▲
                  window (what the peer may send) ──▲

Its parts share the table of streams and the budgets of `streams`, and know nothing else of each other.

Reading is one loop over the buffer, with two fast branches. One takes HEADERS that open the next stream with
a block that the connection has seen before. The other takes DATA that is whole in the buffer. Everything else
goes through a table of methods by frame type. A frame is not an object. The branches take no short cut around
a rule: a frame that they do not recognise falls through to the method that knows all rules.

Where the buffer holds only part of a frame, the frame's type decides. DATA and frames of unknown types are
consumed as they arrive (`left` says how much is to come). Others are short, and are kept in `_kept` until
they are whole (`_missing` says how much is needed before another look).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from protocols.http2 import frames
from protocols.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADER_SIZE,
    HEADERS,
    LARGEST_STREAM,
    PADDED,
    PREFACE,
    WITH_PRIORITY,
    ConnectionViolation,
    ErrorCode,
)
from protocols.http2.header_blocks import too_large
from protocols.http2.receiving import ControlFrames, InwardWindow, RequestReader, protocol_error
from protocols.http2.sending import OutwardFrames, StreamSender
from protocols.http2.streams import Floods, Handler, Http2Limits, PingHandler, Stream, StreamTable

T = TypeVar("T")

_LONGEST_SETTINGS: Final = 6 * 100  # RFC 9113 defines six; extensions have a few more
_LONGEST_DEBUG: Final = 4096  # a GOAWAY's text
_METADATA: Final = (frames.HEADERS, frames.CONTINUATION)
_LONGEST_PADDING: Final = 1 + 5 + 255  # pad length, priority, padding
_FIXED_LENGTHS: Final = {frames.PING: 8, frames.RST_STREAM: 4, frames.WINDOW_UPDATE: 4}

_unpack = HEADER.unpack_from


class FrameReader(Generic[T]):
    """Takes the peer's bytes, in any chunks."""

    def __init__(
        self,
        handler: Handler[T],
        limits: Http2Limits,
        streams: StreamTable,
        floods: Floods,
        window: InwardWindow,
        control: ControlFrames,
        requests: RequestReader[T],
    ) -> None:
        # Bytes still to come of a frame that is consumed as it comes. With them, how many are padding, and
        # the frame's stream.
        self.left = 0
        self._padding = 0
        self._into: Stream | None = None
        self._ends = False
        self._handler = handler
        self._limits = limits
        self._streams = streams
        self._floods = floods
        self._window = window
        self._control = control
        self._requests = requests
        self._block = requests.block
        self._awaits_preface = True
        self._awaits_settings = True  # which the first frame must be
        # The received part of a frame that has to be whole, and how
        # many bytes are needed before another look.
        self._kept = bytearray()
        self._missing = 0
        self._longest = {
            frames.HEADERS: limits.max_header_block + _LONGEST_PADDING,
            frames.CONTINUATION: limits.max_header_block,
            frames.SETTINGS: _LONGEST_SETTINGS,
            frames.GOAWAY: 8 + _LONGEST_DEBUG,
        }
        self._methods: dict[int, Callable[[memoryview, int, int], None]] = {
            frames.HEADERS: requests.on_headers,
            frames.CONTINUATION: requests.on_continuation,
            frames.RST_STREAM: control.on_reset,
            frames.SETTINGS: control.on_settings,
            frames.PING: control.on_ping,
            frames.GOAWAY: control.on_go_away,
            frames.WINDOW_UPDATE: control.on_window_update,
        }

    def feed(self, data: memoryview) -> None:
        """Take the next bytes, which may be overwritten once this returns. Raises ConnectionViolation."""
        position = self._resume(data) if self._kept or self.left or self._awaits_preface else 0
        if position < len(data):
            position = self._parse(data, position)
            self._kept += data[position:]

    def arriving(self, stream: Stream) -> int:
        """Bytes of a DATA frame that already count as `received` by the stream, but have not come yet."""
        return self.left if self._into is stream else 0

    # -- the loop --------------------------------------------------------------------------------------------

    def _parse(self, data: memoryview, position: int) -> int:
        """Deal with the frames from `position` on, as far as they have come.

        Returns where the last of them ends.
        """
        end = len(data)
        special = self._awaits_settings or self._block.under_way
        handler, table, window, floods = self._handler, self._streams, self._window, self._floods
        received, received_last, opened = handler.received, handler.received_last, handler.opened
        requests = self._requests
        streams, heads = table.open, requests.decoder.heads
        max_frame_size, max_block = self._limits.max_frame_size, self._limits.max_header_block
        while end - position >= HEADER_SIZE:
            word, flags, stream_id = _unpack(data, position)
            length = word >> 8
            start = position + HEADER_SIZE
            stop = start + length
            if stop <= end and not special and length <= max_frame_size:
                kind = word & 0xFF
                if kind == DATA:
                    stream = streams.get(stream_id)
                    if (
                        stream is not None
                        and stream.remote_open
                        and not flags & PADDED
                        and 0 < length <= window.open
                        and stream.received + length <= stream.allowed
                        and (stream.announced < 0 or (stream.announced == length and flags & END_STREAM))
                    ):
                        stream.received += length
                        window.open -= length
                        floods.received += 1
                        position = stop
                        if flags & END_STREAM:
                            received_last(stream, data[start:stop])
                        else:
                            received(stream, data[start:stop])
                        continue
                elif (
                    kind == HEADERS
                    and stream_id == table.last_id + 2
                    and flags & (END_HEADERS | PADDED | WITH_PRIORITY) == END_HEADERS
                    and len(streams) < table.room
                    and length <= max_block
                ):
                    block = bytes(data[start:stop])
                    known = heads.get(block)
                    table.last_id = stream_id
                    position = stop
                    if known is not None and not flags & END_STREAM:
                        head, announced = known
                        streams[stream_id] = stream = Stream(
                            stream_id, table.inward, table.outward, announced
                        )
                        opened(stream, head)
                    else:
                        requests.begin(stream_id, block, ends=bool(flags & END_STREAM))
                    continue
            after = self._rare(data, position)
            if after == position:
                return position
            position = after
            special = self._awaits_settings or self._block.under_way
        self._missing = HEADER_SIZE - (end - position)
        return position

    def _rare(self, data: memoryview, position: int) -> int:
        """Deal with any frame at `position`; return its end, or `position` if more of it is needed first."""
        word: int
        word, flags, stream_id = _unpack(data, position)
        kind, length = word & 0xFF, word >> 8
        stream_id &= LARGEST_STREAM  # the reserved bit says nothing
        start = position + HEADER_SIZE
        self._check_order(kind, flags, stream_id)
        if length > self._limits.max_frame_size:
            raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if kind == DATA:
            return self._on_data(data, start, length, flags, stream_id)
        method = self._methods.get(kind)
        if method is None:
            self._check_skipped(kind, length, stream_id)
            self.left, self._padding, self._into, self._ends = length, 0, None, False
            return self._pass_on(data, start)
        self._check_length(kind, length)
        stop = start + length
        if stop > len(data):
            self._missing = stop - len(data)
            return position
        self._awaits_settings = False
        method(data[start:stop], flags, stream_id)
        return stop

    def _resume(self, data: memoryview) -> int:
        """Finish what was begun before `data`: the preface, or a frame.

        Returns where the next frame begins.
        """
        position = 0
        if self._awaits_preface:
            position = self._take_preface(data)
            if self._awaits_preface:
                return position
        kept = self._kept
        while kept and position < len(data):
            part = data[position : position + self._missing]
            kept += part
            position += len(part)
            self._missing -= len(part)
            if self._missing:
                return position
            whole = bytes(kept)
            kept.clear()
            done = self._parse(memoryview(whole), 0)
            kept += whole[done:]
        if self.left:
            position = self._pass_on(data, position)
        return position

    def _take_preface(self, data: memoryview) -> int:
        part = data[: len(PREFACE) - len(self._kept)]
        self._kept += part
        if not PREFACE.startswith(self._kept):
            raise protocol_error("this is not HTTP/2's connection preface")
        if len(self._kept) == len(PREFACE):
            self._awaits_preface = False
            self._kept.clear()
        return len(part)

    def _pass_on(self, data: memoryview, position: int) -> int:
        """Consume the part that `data` has of a frame with `left` bytes to come.

        Returns where the part ends.
        """
        size = min(len(data) - position, self.left)
        body = min(size, self.left - self._padding)
        self.left -= size
        stream = self._into
        if stream is not None:
            if body > 0 and stream.remote_open:
                self._handler.received(stream, data[position : position + body])
            if not self.left and self._ends:
                if stream.remote_open:
                    self._requests.end(stream)
                else:  # we ended it while the frame came in
                    self._streams.closed.ended(stream.id)
            if not self.left:
                self._into = None
        return position + size

    # -- rules about any frame -------------------------------------------------------------------------------

    def _check_order(self, kind: int, flags: int, stream_id: int) -> None:
        if self._awaits_settings:
            if kind != frames.SETTINGS or flags & ACK:
                raise protocol_error("the first frame must be SETTINGS")  # section 3.4
        elif self._block.under_way and (kind != frames.CONTINUATION or stream_id != self._block.stream_id):
            raise protocol_error("a header block was interrupted")  # section 6.10

    def _check_length(self, kind: int, length: int) -> None:
        """Check a frame's length before its payload is here: a payload to be refused is never kept."""
        fixed = _FIXED_LENGTHS.get(kind)
        if fixed is not None:
            if length != fixed:
                raise ConnectionViolation(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} has {fixed} bytes"
                )
        elif length > self._longest[kind]:
            if kind in _METADATA:
                raise too_large(length, self._limits.max_header_block)
            raise ConnectionViolation(
                ErrorCode.ENHANCE_YOUR_CALM, f"{length} bytes for a frame of type {kind}"
            )

    def _check_skipped(self, kind: int, length: int, stream_id: int) -> None:
        """Apply the rules for a frame whose payload says nothing to us.

        That is PRIORITY (section 5.3.2) or a frame of an unknown type (5.5).
        """
        self._floods.chatter()
        if kind == frames.PUSH_PROMISE:
            raise protocol_error("a client can't push")  # section 8.4
        if kind != frames.PRIORITY:
            return
        if stream_id == 0:
            raise protocol_error("PRIORITY on stream 0")
        if length != 5:
            stream = self._streams.open.get(stream_id)
            if stream is None:  # an idle stream can't be reset
                raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY frame has 5 bytes")
            self._control.fail(stream, ErrorCode.FRAME_SIZE_ERROR)

    # -- DATA ------------------------------------------------------------------------------------------------

    def _on_data(self, data: memoryview, start: int, length: int, flags: int, stream_id: int) -> int:
        if stream_id == 0:
            raise protocol_error("DATA on stream 0")
        padding, body = 0, length
        if flags & PADDED:
            if not length:
                raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, "padded DATA without its pad length")
            if start == len(data):
                self._missing = 1
                return start - HEADER_SIZE
            padding = int(data[start])
            body = length - 1 - padding
            if body < 0:
                raise protocol_error("as much padding as there is payload")  # section 6.1
            start += 1
        if length > self._window.open:
            raise ConnectionViolation(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        self._window.open -= length
        ends = bool(flags & END_STREAM)
        if body:
            self._floods.received += 1
        elif not ends:
            self._floods.chatter()
        self._into = self._receiver(stream_id, length, body, ends=ends)
        self.left, self._padding, self._ends = body + padding, padding, ends
        return self._pass_on(data, start)

    def _receiver(self, stream_id: int, length: int, body: int, *, ends: bool) -> Stream | None:
        """Account for a DATA frame and return its stream; None where no stream takes it.

        In that case the peer gets its credit back.
        """
        streams = self._streams
        stream = streams.open.get(stream_id)
        if stream is None:
            streams.check_not_idle(stream_id, "DATA")
            streams.closed.check_late(stream_id, "DATA")
            if ends:
                streams.closed.ended(stream_id)
        elif not stream.remote_open:
            self._control.fail(stream, ErrorCode.STREAM_CLOSED)  # section 5.1, half-closed (remote)
        elif stream.received + length > stream.allowed:
            self._control.fail(stream, ErrorCode.FLOW_CONTROL_ERROR)
        elif 0 <= stream.announced < body:
            self._control.fail(stream, ErrorCode.PROTOCOL_ERROR)  # section 8.1.1
        else:
            stream.received += length
            if stream.announced > 0:
                stream.announced -= body
            return stream
        self._window.consumed(length)
        return None


class Http2Connection(Generic[T]):
    """One connection. Tells `handler` and `pings` what it `receive`s, and collects the frames to be written in `outward`.

    `streams` holds the open ones by their identifiers.
    """

    def __init__(self, handler: Handler[T], pings: PingHandler, limits: Http2Limits) -> None:
        table = StreamTable(limits)
        floods = Floods(limits, table)
        self.streams: dict[int, Stream] = table.open
        self.outward = OutwardFrames(table, floods)
        self.answers = StreamSender(table, floods, self.outward)
        self.window = InwardWindow(limits, self.outward)
        self.control = ControlFrames(handler, pings, limits, table, floods, self.outward, self.answers)
        requests = RequestReader(handler, limits, table, floods, self.outward, self.control)
        self.reading = FrameReader(handler, limits, table, floods, self.window, self.control, requests)
        self._floods = floods
        self._over = False  # a ConnectionViolation was raised

    def begin(self) -> None:
        """Put our SETTINGS in the output, and the WINDOW_UPDATE that sets the connection's window."""
        self.control.begin()
        self.window.begin()

    def receive(self, data: memoryview, now: float) -> None:
        """Take the bytes that the socket read, in any chunks.

        `data` is bytes, and may be overwritten once this returns. Raises ConnectionViolation once, with the
        GOAWAY already in the output: write that, then close. Later bytes are ignored.
        """
        if self._over:
            return
        self._floods.now = now
        try:
            self.reading.feed(data)
            self.window.announce()
        except ConnectionViolation as violation:
            self._over = True
            self.control.go_away(violation.code, violation.message.encode())
            raise

    @property
    def frame_left(self) -> int:
        """Bytes still to come of a DATA frame, or of one that is skipped."""
        return self.reading.left
