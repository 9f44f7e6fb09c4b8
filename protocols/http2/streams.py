"""The streams of one HTTP/2 connection: those open, what is still known of closed ones, and the interface of
the object that is told of them.

Frames that the peer sent before it learned that we had ended a stream are legal and have to be ignored. The
same frames on a stream that the peer ended itself cost the connection. Telling them apart takes memory, so
the memory is bounded: once something had to be forgotten, everything as old as that gets the benefit of the
doubt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from protocols.http2.frames import DEFAULT_WINDOW, LARGEST_STREAM, ConnectionViolation, ErrorCode
from protocols.http2.limits import Http2Limits

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

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
    def opened(self, stream: Stream, head: T) -> None:
        """A request began."""

    @abstractmethod
    def received(self, stream: Stream, data: memoryview) -> None:
        """DATA without its padding, in part or whole; valid during the call only."""

    @abstractmethod
    def ended(self, stream: Stream) -> None:
        """The peer has ended its side. Its trailers, if any, are dropped."""

    @abstractmethod
    def reset(self, stream: Stream, code: int) -> None:
        """The stream is gone: the peer reset it, or broke a rule on it."""


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
