"""What the parts of one HTTP/2 connection share: limits, streams, budgets, and the interfaces it reports to.

Frames that the peer sent before it learned that we had ended a stream are legal and have to be ignored. The
same frames on a stream that the peer ended itself cost the connection. Telling them apart takes memory, so
the memory is bounded: once something had to be forgotten, everything as old as that gets the benefit of the
doubt.

Some kinds of frame make us work, or answer, without carrying a call. Each of them has a budget of tokens. It
starts full and refills with time. Where a healthy peer's frames follow from the frames it is sent, those
refill it too. `Http2Limits` says why the budgets are what they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from actors.values.native import mypyc_attr
from actors.values.tensors import Buffer
from protocols.http2.frames import (
    DEFAULT_WINDOW,
    LARGEST_FRAME_LIMIT,
    LARGEST_STREAM,
    LARGEST_WINDOW,
    SMALLEST_FRAME_LIMIT,
    ConnectionViolation,
    ErrorCode,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds of one connection. Sizes are bytes, rates are per second.

    Raises ValueError for values that RFC 9113 (section 6.5.2) does not allow to be announced.
    """

    # Announced. nghttp2 and nginx allow 100 and 128 streams, gRPC's C++ server any number. A thousand
    # inferences in flight fill the largest batches; `protocols.grpc.policy` lowers it where windows could
    # exceed the memory.
    max_streams: int = 1024
    # A call that fits needs no WINDOW_UPDATE; larger ones are granted one by one.
    stream_window: int = DEFAULT_WINDOW
    connection_window: int = 64 * 1024 * 1024
    # DATA is passed on as it arrives, so a large frame costs no memory.
    max_frame_size: int = 1024 * 1024
    max_header_list: int = 16 * 1024  # gRPC's C++ server refuses metadata over 16 KiB

    # A block is in memory until it is complete. The header list of an honest block is longer than the block,
    # up to Huffman codes for odd bytes. So the limit is twice that of the list. nghttp2 allows 64 KiB.
    max_header_block: int = 32 * 1024
    # CONTINUATION frames to one block (CVE-2024-27316 and its kin). nghttp2 chose 8, and a block fits three.
    max_continuations: int = 8
    # Different calls that a connection repeats. gRPC's clients have a table of 4 KiB for them.
    cached_heads: int = 256

    # Streams that the peer resets, or makes us reset (CVE-2023-44487, CVE-2025-8671). nghttp2 allows 1,000
    # and 33 a second, Netty 200 in 30 seconds. gRPC's clients reset each call whose deadline passes, so here
    # all calls that may be open can time out every second.
    reset_burst: int = 1024
    reset_rate: float = 1024.0

    # PING, WINDOW_UPDATE, PRIORITY, frames of unknown types, empty DATA, frames for closed streams. A peer
    # may send ten for each stream it opened, and for each message, PING and longer DATA frame it was sent.
    # That is Envoy's ratio for WINDOW_UPDATE. The burst comes on top: it is as many as nghttp2 queues
    # acknowledgements. gRPC's own clients answer each message, however small, by an update of each of the two
    # windows, and often by a PING that measures the way. Together with a message of their own they send as
    # much before its answer is there, because they open the stream's window when they begin to wait. A DATA
    # frame of one byte, which is never refused, costs us what three of these do.
    chatter_burst: int = 1000
    chatter_rate: float = 100.0
    chatter_per_frame: int = 10
    chatter_per_received: int = 3

    # SETTINGS walks through all open streams. gRPC's clients adjust their windows at most every 100 ms.
    settings_burst: int = 50
    settings_rate: float = 20.0

    # Frames that wait for a peer that reads nothing while it makes us answer: as many as Go's server has.
    max_queued: int = 10_000

    def __post_init__(self) -> None:
        """Refuse values that could not be announced."""
        _check("max_streams", self.max_streams, 1, 2**31 - 1)
        _check("stream_window", self.stream_window, 0, LARGEST_WINDOW)
        _check("connection_window", self.connection_window, DEFAULT_WINDOW, LARGEST_WINDOW)
        _check("max_frame_size", self.max_frame_size, SMALLEST_FRAME_LIMIT, LARGEST_FRAME_LIMIT)


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, but must be from {least} to {most}")


T = TypeVar("T")

# A few round trips' worth of cancelled calls: four times the streams that may be open at once by default.
_MOST_CUT_SHORT: Final = 4096
_MOST_SKIPPED: Final = 64  # clients number their streams without gaps


class Backlog:
    """What a stream could not send yet."""

    __slots__ = ("buffers", "lent", "parked", "trailers")

    def __init__(self) -> None:
        self.buffers: deque[Buffer] = deque()
        # How many of the buffers, counted from the end, may view memory that its owner wants back.
        self.lent = 0
        self.trailers: bytes | None = None
        self.parked = False  # not in line: its own window is shut


class Stream:
    """One stream, from its HEADERS until both sides have ended it or either has reset it."""

    __slots__ = (
        "allowed",
        "announced",
        "backlog",
        "call",
        "id",
        "open",
        "pending",
        "received",
        "remote_open",
        "window",
    )

    def __init__(self, stream_id: int, allowed: int, window: int, announced: int) -> None:
        self.id = stream_id
        self.call: Any = None  # an object that the handler keeps for it
        self.open = True  # we may still send; later messages are dropped
        self.remote_open = True  # the peer may still send DATA
        self.pending = 0  # bytes of DATA that `OutwardFrames.take` has not handed out yet
        self.received = 0  # flow-controlled bytes
        self.allowed = allowed  # ... and how many of them the peer may send as of now
        # Bytes of a content-length that are to come; -1 where there is none.
        self.announced = announced
        # Bytes that we may send as of now; negative after the peer lowered it.
        self.window = window
        self.backlog: Backlog | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.id}>"


@mypyc_attr(allow_interpreted_subclasses=True)
class Handler(ABC, Generic[T]):
    """The receiver of what a connection received. Called from `Http2Connection.receive`.

    May raise ConnectionViolation, which ends the connection as if HTTP/2 had been violated; must not raise
    otherwise.
    """

    __slots__ = ()

    @abstractmethod
    def read_head(self, headers: Sequence[tuple[bytes, bytes]]) -> T:
        """Say what a well-formed request's header list means.

        The result is kept, and serves the requests that repeat it.
        """

    @abstractmethod
    def read_more(self, head: T, more: Sequence[tuple[bytes, bytes]]) -> T | None:
        """Say what a header list means that is the one of `head`, and `more` behind it.

        None where that can't be told, and `read_head` should be asked about the whole list.
        """

    @abstractmethod
    def opened(self, stream: Stream, head: T) -> None:
        """A request began."""

    @abstractmethod
    def received(self, stream: Stream, data: memoryview) -> None:
        """DATA without its padding, in part or whole; valid during the call only."""

    def received_last(self, stream: Stream, data: memoryview) -> None:
        """DATA that ends the peer's side, as `received`; `stream.remote_open` is to be set.

        Most requests are one such frame. So a handler may do for it what `received` and `ended` would.
        """
        self.received(stream, data)
        if stream.remote_open:
            stream.remote_open = False
            self.ended(stream)

    @abstractmethod
    def ended(self, stream: Stream) -> None:
        """The peer has ended its side. Its trailers, if any, are dropped."""

    @abstractmethod
    def reset(self, stream: Stream, code: int) -> None:
        """The stream is gone: the peer reset it, or broke a rule on it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PingHandler(ABC):
    """The receiver of a connection's pings. As `Handler`, it may raise ConnectionViolation."""

    __slots__ = ()

    @abstractmethod
    def pinged(self, now: float) -> None:
        """The peer sent a PING, which has been answered."""

    @abstractmethod
    def pong(self, payload: bytes) -> None:
        """The peer answered a PING."""


class StreamTable:
    """The streams of one connection, and what the next one begins with."""

    __slots__ = ("_skipped", "accepted", "closed", "inward", "last_id", "open", "outward", "room")

    def __init__(self, limits: Http2Limits) -> None:
        self.open: dict[int, Stream] = {}
        self.closed = ClosedStreams()
        self.last_id = -1  # the greatest that the peer used
        self.accepted = LARGEST_STREAM  # the greatest that the peer may use, as our GOAWAY has it
        self.room = limits.max_streams  # 0 once we go away
        # The windows of a new stream. The first is as the peer has it from our SETTINGS, once those are there.
        self.inward = max(limits.stream_window, DEFAULT_WINDOW)
        self.outward = DEFAULT_WINDOW
        self._skipped = 0  # how many identifiers the peer left out

    @property
    def opened(self) -> int:
        """How many streams the peer has opened so far."""
        return (self.last_id + 1) // 2 - self._skipped

    def advance(self, stream_id: int) -> None:
        """Note that the peer used the identifier, which is greater than all before it."""
        skipped = (stream_id - self.last_id) // 2 - 1
        if skipped:
            self.closed.skipped(self.last_id + 2, stream_id - 2)
            self._skipped += skipped
        self.last_id = stream_id

    def accept_to(self, last: int | None) -> int:
        """Ignore streams that the peer opens from now on above `last`, by default all; return the greatest.

        It never rises.
        """
        self.accepted = min(max(self.last_id, 0) if last is None else last, self.accepted)
        if self.accepted < LARGEST_STREAM:
            # Each new stream then takes the slow way, which compares its identifier.
            self.room = 0
        return self.accepted

    def check_not_idle(self, stream_id: int, what: str) -> None:
        """Raise ConnectionViolation for a frame on a stream that was never opened."""
        if stream_id > self.last_id or not stream_id & 1:
            message = f"{what} on stream {stream_id}, which was never opened"
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)


class ClosedStreams:
    """Tells how to treat a late frame."""

    __slots__ = ("_cut_short", "_forgotten", "_skipped")

    def __init__(self) -> None:
        self._cut_short: dict[int, None] = {}
        self._forgotten = 0
        self._skipped: deque[range] = deque(maxlen=_MOST_SKIPPED)

    def cut_short(self, stream_id: int) -> None:
        """Note that we ended a stream, by RST_STREAM or refusal, while the peer may go on sending."""
        self._cut_short[stream_id] = None
        if len(self._cut_short) > _MOST_CUT_SHORT:
            oldest = next(iter(self._cut_short))
            del self._cut_short[oldest]
            self._forgotten = max(self._forgotten, oldest)

    def ended(self, stream_id: int) -> None:
        """Note that the peer has ended the stream too: nothing may follow."""
        self._cut_short.pop(stream_id, None)

    def skipped(self, first: int, last: int) -> None:
        """Note that the peer used none of these identifiers, and may not use them any more."""
        self._skipped.append(range(first, last + 1))

    def check_late(self, stream_id: int, what: str) -> None:
        """Check a DATA or HEADERS frame that came for a closed stream.

        Raises ConnectionViolation unless it may be ignored.
        """
        if stream_id in self._cut_short or stream_id <= self._forgotten:
            return
        if any(stream_id in unused for unused in self._skipped):
            message = f"{what} on stream {stream_id}, after a stream with a greater number was opened"
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
        raise ConnectionViolation(
            ErrorCode.STREAM_CLOSED, f"{what} on stream {stream_id}, which the peer ended"
        )


class Budget:
    """A token bucket that is told the time (seconds on the caller's clock, never going back).

    Holds `burst` tokens at the most and gains `rate` a second.
    """

    __slots__ = ("_burst", "_rate", "_since", "_tokens")

    def __init__(self, burst: int, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._tokens = float(burst)
        self._since: float | None = None

    def spend(self, now: float, *, earned: float = 0.0) -> bool:
        """Take one token, after adding those `earned` otherwise.

        False: none is left, and the peer floods us.
        """
        if self._since is not None:
            earned += (now - self._since) * self._rate
        self._since = now
        self._tokens = min(self._burst, self._tokens + earned) - 1
        return self._tokens >= 0


class Floods:
    """The budgets of one connection, and the traffic that refills them. `now` is the time of the last read.

    Each method raises ConnectionViolation (ENHANCE_YOUR_CALM) once its budget is spent.
    """

    __slots__ = (
        "_chatter",
        "_excused",
        "_limits",
        "_queued",
        "_resets",
        "_settings",
        "_streams",
        "now",
        "received",
        "sent",
    )

    def __init__(self, limits: Http2Limits, streams: StreamTable) -> None:
        self.now = 0.0
        # What a healthy peer answers: messages, PINGs, and DATA frames that are not too small.
        self.sent = 0
        self.received = 0  # DATA frames that were not empty
        self._limits = limits
        self._streams = streams
        self._chatter = Budget(limits.chatter_burst, limits.chatter_rate)
        self._resets = Budget(limits.reset_burst, limits.reset_rate)
        self._settings = Budget(limits.settings_burst, limits.settings_rate)
        self._queued = 0
        self._excused = 0

    def chatter(self) -> None:
        """Count a frame that carries nothing. The connection's traffic so far excuses a number of them."""
        limits = self._limits
        excused = (self._streams.opened + self.sent) * limits.chatter_per_frame
        excused += self.received * limits.chatter_per_received
        earned = excused - self._excused
        self._excused = excused
        if not self._chatter.spend(self.now, earned=earned):
            raise _calm("too many frames that carry nothing")

    def reset(self) -> None:
        """Count a stream that was reset, by the peer or for its violation."""
        if not self._resets.spend(self.now):
            raise _calm("too many streams were reset")

    def settings(self) -> None:
        """Count a SETTINGS frame."""
        if not self._settings.spend(self.now):
            raise _calm("too many SETTINGS frames")

    def reply(self) -> None:
        """Count a frame that is queued as an answer, because the peer must read those, too."""
        self._queued += 1
        if self._queued > self._limits.max_queued:
            raise _calm("too many frames to answer while no answer is read")

    def replies_taken(self) -> None:
        """Note that the queued frames were handed out."""
        self._queued = 0


def _calm(message: str) -> ConnectionViolation:
    return ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, message)
