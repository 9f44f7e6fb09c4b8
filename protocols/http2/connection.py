"""The server side of one HTTP/2 connection, without I/O, clock or loop (RFC 9113, as far as gRPC needs it).

`Http2Connection` puts together what a connection consists of, and is fed the bytes that the socket read:

    bytes ──► reading ──┬─► Handler (requests, their data, ends and resets)
                        └─► control ──► PingHandler, and outward ──► bytes
              answers (of requests) ──────▲
              window (what the peer may send) ──▲

Its parts share the table of streams and the budgets of `floods`, and know nothing else of each other.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from protocols.http2.control import ControlFrames
from protocols.http2.floods import Floods
from protocols.http2.frames import ConnectionViolation
from protocols.http2.limits import Http2Limits
from protocols.http2.reading import FrameReader, RequestReader
from protocols.http2.sending import OutwardFrames, StreamSender
from protocols.http2.streams import Handler, PingHandler, Stream, StreamTable
from protocols.http2.windows import InwardWindow

T = TypeVar("T")


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
        self._reading = FrameReader(handler, limits, table, floods, self.window, self.control, requests)
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
            self._reading.feed(data)
            self.window.announce()
        except ConnectionViolation as violation:
            self._over = True
            self.control.go_away(violation.code, violation.message.encode())
            raise

    @property
    def frame_left(self) -> int:
        """Bytes still to come of a DATA frame, or of one that is skipped."""
        return self._reading.left

    def arriving(self, stream: Stream) -> int:
        """Bytes of a DATA frame that already count as `received` by the stream, but have not come yet."""
        return self._reading.arriving(stream)
