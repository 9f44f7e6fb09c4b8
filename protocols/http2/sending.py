"""The half of an HTTP/2 connection that sends: answers, the peer's windows, and the turns of streams.

Frames to be written wait in three places, and `take` hands them out in this order:

- `_control`: frames about the connection. They overtake answers, except for the acknowledgement of settings
  (`_hurry`).
- `_ready`: whole frames of answers whose flow control is settled, and *markers*. Where a stream stands in
  here, it takes its place in the line for the windows. So what it sent before stays before what it sends
  next.
- `_turns`: streams with DATA left and a window of their own. Each gives one frame a turn while the
  connection's window lasts. A stream whose own window is shut leaves the line until the peer opens it.

Small answers are joined into one object: copying a few kilobytes is cheaper than handing four buffers to the
kernel. Larger ones stay views of the memory they were given in: they are sliced, and copied only by `own`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from protocols.http2 import frames
from protocols.http2.closed import ClosedStreams
from protocols.http2.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADERS,
    LARGEST_WINDOW,
    SMALLEST_FRAME_LIMIT,
    ConnectionViolation,
    ErrorCode,
)
from protocols.transport.buffers import copying

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

# The largest answer, in bytes, that is copied into one piece. It fits a frame, whatever the peer's settings.
_JOINED: Final = SMALLEST_FRAME_LIMIT
# Bytes that are ready, beyond which messages wait in their streams, and count there.
_MOST_READY: Final = 1024 * 1024
# Bytes of DATA that a stream sends before another stream's turn.
_TURN: Final = 64 * 1024
# Bytes of a DATA frame that excuse window updates. A peer that opens its windows by crumbs gets smaller
# frames, and those excuse nothing (CVE-2019-9511).
_WORTH_A_REPLY: Final = 1024
_FRAME: Final = 64  # bytes that a frame about the connection takes here
# Markers of streams that are gone; more than that are cleared away.
_STRAYS: Final = 64
# RFC 7541, section 6.3, and RFC 9113, section 4.3.1: an encoder has to say so when a setting of its peer
# shrinks the table. Ours never uses the table, and says that once, in the first block. After that no setting
# is ever news, and blocks may be made beforehand.
_NO_TABLE: Final = b"\x20"
_ENDS: Final = END_HEADERS | END_STREAM

_pack = HEADER.pack


class _Queue:
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
        "call",
        "id",
        "open",
        "pending",
        "queue",
        "received",
        "remote_open",
        "window",
    )

    def __init__(self, stream_id: int, allowed: int, window: int, announced: int) -> None:
        self.id = stream_id
        self.call: Any = None  # an object that the connection keeps for it
        self.open = True  # we may still send; later messages are dropped
        self.remote_open = True  # the peer may still send DATA
        self.pending = 0  # bytes of DATA that `take` has not handed out yet
        self.received = 0  # flow-controlled bytes
        self.allowed = allowed  # ... and how many of them the peer may send as of now
        # Bytes of a content-length that are to come; -1 where there is none.
        self.announced = announced
        # Bytes that we may send as of now; negative after the peer lowered it.
        self.window = window
        self.queue: _Queue | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.id}>"


class SendingSide:
    """Frames outward. Nothing here does I/O: `output` says that there is something, `take` hands it out."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.pending = 0  # the sum of the streams' `pending`
        self.max_frame_size = SMALLEST_FRAME_LIMIT  # of the peer
        self._closed = ClosedStreams()
        self._peer_window = DEFAULT_WINDOW  # for a new stream
        self._outward = DEFAULT_WINDOW  # the connection's window
        self._control: list[Buffer] = []
        self._ready: deque[bytes | Stream] = deque()
        self._ready_size = 0
        self._hurried = 0  # bytes of answers among the control frames
        self._markers = 0
        self._strays = 0  # markers of streams that are gone
        self._turns: deque[Stream] = deque()
        # The largest answer to join: none before the first header block.
        self._joined = 0
        # What a healthy peer answers: messages, and DATA frames that are not too small.
        self._answerable = 0

    @property
    def output(self) -> bool:
        """Whether `take` has anything to hand out."""
        return bool(self._control or self._ready or (self._turns and self._outward > 0))

    @property
    def waiting(self) -> int:
        """Bytes of answers that `take` has not handed out: those pending, and the frames that are ready."""
        return self.pending + self._ready_size + self._hurried

    @property
    def unread(self) -> int:
        """About how many bytes wait for the socket alone, whatever the windows."""
        return self._ready_size + self._hurried + _FRAME * len(self._control)

    def send_answer(
        self, stream: Stream, head: bytes, message: Sequence[Buffer], size: int, trailers: bytes
    ) -> None:
        """Answer a unary call: HEADERS with `head`, DATA with the buffers of `message`, trailers.

        `size` is the number of bytes in `message`. The answer is dropped if the stream is gone. A small
        answer is copied at once; otherwise the buffers must stay as they are until `stream.pending` is 0 or
        `own` has been called.
        """
        if (
            0 < size <= self._outward
            and size <= stream.window
            and len(head) + size + len(trailers) <= self._joined
            and stream.open
            and stream.queue is None
        ):
            stream_id = stream.id
            joined = b"".join(
                (
                    _pack(len(head) << 8 | HEADERS, END_HEADERS, stream_id),
                    head,
                    _pack(size << 8, 0, stream_id),
                    *message,
                    _pack(len(trailers) << 8 | HEADERS, _ENDS, stream_id),
                    trailers,
                )
            )
            self._outward -= size
            stream.open = False
            del self.streams[stream_id]
            self._ready.append(joined)
            self._ready_size += len(joined)
            if stream.remote_open:
                self._cut_short(stream)
        else:
            message = _views(message)  # raises for memory that can't be sent, before any byte is sent
            self.send_head(stream, head)
            self.send_message(stream, message, size)
            self.send_trailers(stream, trailers)

    def send_head(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Send the HEADERS that begin an answer; with `end`, they are all of it.

        Dropped if the stream is gone.
        """
        if end:
            self.send_trailers(stream, block)
        elif stream.open:
            self._write(self._headers(stream, block, end=False))

    def send_message(self, stream: Stream, buffers: Sequence[Buffer], size: int) -> None:
        """Send `size` bytes of DATA, as the windows allow. Dropped if the stream is gone.

        Buffers beyond a few kilobytes must stay as they are until
        `stream.pending` is 0 or `own` has been called.
        """
        if not stream.open or size == 0:
            return
        self._answerable += 1
        if (
            size <= _JOINED
            and size <= self._outward
            and size <= stream.window
            and stream.queue is None
            and self._ready_size <= _MOST_READY
        ):
            self._outward -= size
            stream.window -= size
            self._write(b"".join((_pack(size << 8, 0, stream.id), *buffers)))
            return
        views = _views(buffers)
        queue = stream.queue
        if queue is None:
            queue = stream.queue = _Queue()
            self._ready.append(stream)
            self._markers += 1
        queue.buffers.extend(views)
        queue.lent += len(views)
        stream.pending += size
        self.pending += size

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """End the stream with HEADERS, after what is pending. Dropped if the stream is gone.

        If the peer has not ended its side, it is told to send no
        more: RST_STREAM with NO_ERROR (RFC 9113, section 8.1).
        """
        if not stream.open:
            return
        stream.open = False
        if stream.queue is not None:
            stream.queue.trailers = block
        else:
            self._write(self._headers(stream, block, end=True))
            self._finish(stream)

    def reset(self, stream: Stream, code: int) -> None:
        """RST_STREAM, and forget the stream with all that it had pending. Nothing if it is gone."""
        if self.streams.get(stream.id) is not stream:
            return
        self._write(frames.reset_frame(stream.id, code))
        remote_open = stream.remote_open
        self._forget(stream)
        if remote_open:
            self._closed.cut_short(stream.id)

    def drop(self) -> None:
        """The peer is gone: forget all streams, and all frames that wait to be written.

        A connection refers to itself in many ways, and may wait long for the garbage collector. The memory
        that is held here must not wait with it.
        """
        for stream in list(self.streams.values()):
            self._forget(stream)
        self._control.clear()
        self._ready.clear()
        self._ready_size = self._hurried = self._markers = self._strays = 0

    def own(self, stream: Stream) -> None:
        """Copy what is pending, because the lender of the buffers wants them back."""
        queue = stream.queue
        if queue is not None:
            buffers = queue.buffers
            for index in range(-min(queue.lent, len(buffers)), 0):
                buffers[index] = memoryview(bytes(buffers[index]))
            queue.lent = 0

    def owning(self, stream: Stream) -> Generator[None, None, None]:
        """Do as `own` does, in slices. Nothing may be taken meanwhile; more may be sent, and stays lent."""
        queue = stream.queue
        if queue is None:
            return
        lent = list(queue.buffers)[-queue.lent :] if queue.lent else []
        end = len(queue.buffers)
        copies = yield from copying(lent)
        if stream.queue is not queue:  # the peer has reset the stream
            return
        later = [queue.buffers.pop() for _ in range(len(queue.buffers) - end)]
        for _ in lent:
            queue.buffers.pop()
        queue.buffers += copies
        queue.buffers += reversed(later)
        queue.lent = len(later)

    def take(self, limit: int) -> list[Buffer]:
        """Hand out what to write now, in order: all control frames, then about `limit` bytes of answers.

        Buffers of a large answer are slices of those it was given in, and count as handed out in `pending`.
        """
        taken = self._control
        self._control = []
        self._hurried = 0
        if not self._markers and self._ready_size <= limit:
            taken += self._ready  # type: ignore[arg-type]  # without markers there are only bytes
            room = limit - self._ready_size
            self._ready.clear()
            self._ready_size = 0
        else:
            room = self._take_ready(taken, limit)
        if self._turns:
            self._take_turns(taken, room)
        return taken

    def _hurry(self) -> None:
        """Put the frames that are ready among the control frames, in order.

        These frames keep to the settings that the peer had, so they go before the acknowledgement of new
        ones. The peer may hold everything behind that to the new settings (RFC 9113, section 6.5.3).
        """
        self._control += [item for item in self._ready if not isinstance(item, Stream)]
        self._hurried += self._ready_size
        self._ready_size = 0
        self._ready = deque(item for item in self._ready if isinstance(item, Stream))
        self._clear_away()

    def _take_ready(self, taken: list[Buffer], room: int) -> int:
        """Hand out at least one of the frames that are ready. Returns how much room is left."""
        ready = self._ready
        while ready and room > 0:
            item = ready.popleft()
            if isinstance(item, Stream):
                self._markers -= 1
                if item.queue is None:
                    self._strays -= 1
                else:
                    self._line_up(item, item.queue)
            else:
                taken.append(item)
                room -= len(item)
                self._ready_size -= len(item)
        return room

    def _line_up(self, stream: Stream, queue: _Queue) -> None:
        queue.parked = stream.window <= 0
        if not queue.parked:
            self._turns.append(stream)

    def _take_turns(self, taken: list[Buffer], room: int) -> None:
        """Hand out DATA, a frame a turn, and at least one frame.

        Otherwise an endless row of small answers would let no large one through.
        """
        turns = self._turns
        while turns and self._outward > 0:
            stream = turns.popleft()
            queue = stream.queue
            assert queue is not None
            if stream.window > 0:  # the peer may have lowered it since
                room -= self._take_frame(stream, queue, taken)
            if queue.buffers:
                self._line_up(stream, queue)
            if room <= 0:
                return

    def _take_frame(self, stream: Stream, queue: _Queue, taken: list[Buffer]) -> int:
        """Hand out the next frame of a stream in line, and the stream's end if that was the last frame.

        Returns the frame's size in bytes.
        """
        size = min(stream.pending, stream.window, self._outward, self.max_frame_size, _TURN)
        stream.window -= size
        stream.pending -= size
        self.pending -= size
        self._outward -= size
        if size >= _WORTH_A_REPLY:
            self._answerable += 1
        taken.append(_pack(size << 8 | DATA, 0, stream.id))
        _move(queue.buffers, size, taken)
        if not queue.buffers:
            stream.queue = None
            if queue.trailers is not None:
                taken.append(self._headers(stream, queue.trailers, end=True))
                self._finish(stream, taken)
        return size

    def _headers(self, stream: Stream, block: bytes, *, end: bool) -> bytes:
        if not self._joined:
            self._joined = _JOINED
            block = _NO_TABLE + block
        return frames.headers_frames(stream.id, block, end=end, max_frame_size=self.max_frame_size)

    def _write(self, written: bytes) -> None:
        self._ready.append(written)
        self._ready_size += len(written)

    def _finish(self, stream: Stream, taken: list[Buffer] | None = None) -> None:
        """Note that the end of the answer is on its way."""
        del self.streams[stream.id]
        if stream.remote_open:
            self._cut_short(stream, taken)

    def _cut_short(self, stream: Stream, taken: list[Buffer] | None = None) -> None:
        stream.remote_open = False
        reset = frames.reset_frame(stream.id, ErrorCode.NO_ERROR)
        if taken is None:
            self._write(reset)
        else:
            taken.append(reset)
        self._closed.cut_short(stream.id)

    def _forget(self, stream: Stream) -> None:
        """Drop the stream without a word."""
        del self.streams[stream.id]
        stream.open = stream.remote_open = False
        self.pending -= stream.pending
        stream.pending = 0
        queue, stream.queue = stream.queue, None
        if queue is not None and not queue.parked:
            self._leave_line(stream)

    def _leave_line(self, stream: Stream) -> None:
        """Take a stream that is gone out of the line, or count the marker that it leaves behind.

        The line may not move for a long time. So it must not grow by
        streams that left it, nor be searched each time.
        """
        if stream in self._turns:
            self._turns.remove(stream)
            return
        self._strays += 1
        if self._strays > _STRAYS and 2 * self._strays > len(self._ready):
            self._clear_away()

    def _clear_away(self) -> None:
        """Remove the markers of streams that are gone from the frames that are ready."""
        self._ready = deque(item for item in self._ready if not isinstance(item, Stream) or item.queue)
        self._markers -= self._strays
        self._strays = 0

    def _apply_setting(self, identifier: int, value: int) -> None:
        """Take over a setting of the peer.

        The settings not named here don't concern a server that neither pushes nor indexes.
        """
        if identifier == frames.ENABLE_PUSH:
            if value > 1:
                raise ConnectionViolation(
                    ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}, but must be 0 or 1"
                )
        elif identifier == frames.MAX_FRAME_SIZE:
            if not frames.SMALLEST_FRAME_LIMIT <= value <= frames.LARGEST_FRAME_LIMIT:
                raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
            self.max_frame_size = value
        elif identifier == frames.INITIAL_WINDOW_SIZE:
            if value > LARGEST_WINDOW:
                raise ConnectionViolation(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
            change, self._peer_window = value - self._peer_window, value
            for stream in self.streams.values():
                if not self._credit_stream(stream, change):
                    raise ConnectionViolation(
                        ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE overflows a window"
                    )

    def _credit_outward(self, increment: int) -> bool:
        """Take an opening of the connection's window by the peer. Returns False where it is open too far."""
        self._outward += increment
        return self._outward <= LARGEST_WINDOW

    def _credit_stream(self, stream: Stream, increment: int) -> bool:
        """Take a change of a stream's window: the peer opened it, or shut it with a negative increment.

        Returns False where the window is open too far.
        """
        stream.window += increment
        queue = stream.queue
        if queue is not None and queue.parked and stream.window > 0:
            queue.parked = False
            self._turns.append(stream)
        return stream.window <= LARGEST_WINDOW


def _views(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Return the `buffers` that are not empty, as bytes.

    Raises TypeError for memory that is not contiguous.
    """
    views = [memoryview(buffer) for buffer in buffers]
    return [view.cast("B") for view in views if view.nbytes]


def _move(buffers: deque[Buffer], size: int, taken: list[Buffer]) -> None:
    """Move `size` bytes from the front of `buffers` to the end of `taken`, splitting the last buffer."""
    while size:
        buffer = buffers.popleft()
        length = len(buffer)
        if length > size:
            taken.append(buffer[:size])
            buffers.appendleft(buffer[size:])
            return
        taken.append(buffer)
        size -= length
