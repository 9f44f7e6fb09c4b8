"""What a connection sends: the frames that wait to be written, in their order, and answers made of frames.

Frames to be written wait in three places of `OutwardFrames`, and `take` hands them out in this order:

- `_control`: frames about the connection. They overtake answers, except for the acknowledgement of settings
  (`hurry`).
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
from typing import Final

from actors.values.tensors import Buffer
from protocols.http2 import frames
from protocols.http2.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADERS,
    LARGEST_WINDOW,
    SMALLEST_FRAME_LIMIT,
    ErrorCode,
)
from protocols.http2.streams import Backlog, Floods, Stream, StreamTable
from protocols.transport.buffers import copying

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


class OutwardFrames:
    """The frames that wait to be written, and the peer's windows. Nothing here does I/O.

    `output` says that there is something, `take` hands it out.
    """

    __slots__ = (
        "_control",
        "_floods",
        "_hurried",
        "_markers",
        "_ready",
        "_strays",
        "_streams",
        "_turns",
        "joined",
        "max_frame_size",
        "pending",
        "ready_size",
        "window",
    )

    def __init__(self, streams: StreamTable, floods: Floods) -> None:
        self.pending = 0  # the sum of the streams' `pending`
        self.max_frame_size = SMALLEST_FRAME_LIMIT  # of the peer
        self.window = DEFAULT_WINDOW  # the connection's: bytes that we may send as of now
        self.ready_size = 0  # bytes of the frames that are ready
        # The largest answer to join: none before the first header block.
        self.joined = 0
        self._streams = streams
        self._floods = floods
        self._control: list[Buffer] = []
        self._ready: deque[bytes | Stream] = deque()
        self._hurried = 0  # bytes of answers among the control frames
        self._markers = 0
        self._strays = 0  # markers of streams that are gone
        self._turns: deque[Stream] = deque()

    @property
    def output(self) -> bool:
        """Whether `take` has anything to hand out."""
        return bool(self._control or self._ready or (self._turns and self.window > 0))

    @property
    def waiting(self) -> int:
        """Bytes of answers that `take` has not handed out: those pending, and the frames that are ready."""
        return self.pending + self.ready_size + self._hurried

    @property
    def unread(self) -> int:
        """About how many bytes wait for the socket alone, whatever the windows."""
        return self.ready_size + self._hurried + _FRAME * len(self._control)

    # Put in

    def control(self, frame: bytes) -> None:
        """Have a frame about the connection written, before all answers."""
        self._control.append(frame)

    def write(self, written: bytes) -> None:
        """Have whole frames of an answer written, for which the windows were open."""
        self._ready.append(written)
        self.ready_size += len(written)

    def headers(self, stream: Stream, block: bytes, *, end: bool) -> bytes:
        """Return HEADERS with `block` for a stream: the next header block that the peer gets."""
        if not self.joined:
            self.joined = _JOINED
            block = _NO_TABLE + block
        return frames.headers_frames(stream.id, block, end=end, max_frame_size=self.max_frame_size)

    def line_up(self, stream: Stream, buffers: Sequence[memoryview], size: int) -> None:
        """Have `size` bytes of DATA written as the windows allow, behind what the stream has sent so far."""
        backlog = stream.backlog
        if backlog is None:
            backlog = stream.backlog = Backlog()
            self._ready.append(stream)
            self._markers += 1
        backlog.buffers.extend(buffers)
        backlog.lent += len(buffers)
        stream.pending += size
        self.pending += size

    def ended(self, stream: Stream) -> None:
        """Note that the end of an answer has been written. Tells a peer that still sends to send no more."""
        reset = self._end(stream)
        if reset is not None:
            self.write(reset)

    def hurry(self) -> None:
        """Put the frames that are ready among the control frames, in order.

        These frames keep to the settings that the peer had, so they go before the acknowledgement of new
        ones. The peer may hold everything behind that to the new settings (RFC 9113, section 6.5.3).
        """
        self._control += [item for item in self._ready if not isinstance(item, Stream)]
        self._hurried += self.ready_size
        self.ready_size = 0
        self._ready = deque(item for item in self._ready if isinstance(item, Stream))
        self._clear_away()

    def drop(self) -> None:
        """The peer is gone: forget all streams, and all frames that wait to be written.

        A connection refers to itself in many ways, and may wait long for the garbage collector. The memory
        that is held here must not wait with it.
        """
        for stream in list(self._streams.open.values()):
            self.forget(stream)
        self._control.clear()
        self._ready.clear()
        self.ready_size = self._hurried = self._markers = self._strays = 0

    def forget(self, stream: Stream) -> None:
        """Drop the stream without a word."""
        del self._streams.open[stream.id]
        stream.open = stream.remote_open = False
        self.pending -= stream.pending
        stream.pending = 0
        backlog, stream.backlog = stream.backlog, None
        if backlog is not None and not backlog.parked:
            self._leave_line(stream)

    # The peer's windows

    def credit(self, increment: int) -> bool:
        """Take an opening of the connection's window by the peer. Returns False where it is open too far."""
        self.window += increment
        return self.window <= LARGEST_WINDOW

    def credit_stream(self, stream: Stream, increment: int) -> bool:
        """Take a change of a stream's window: the peer opened it, or shut it with a negative increment.

        Returns False where the window is open too far.
        """
        stream.window += increment
        backlog = stream.backlog
        if backlog is not None and backlog.parked and stream.window > 0:
            backlog.parked = False
            self._turns.append(stream)
        return stream.window <= LARGEST_WINDOW

    # Handed out

    def take(self, limit: int) -> list[Buffer]:
        """Hand out what to write now, in order: all control frames, then about `limit` bytes of answers.

        Buffers of a large answer are slices of those it was given in, and count as handed out in `pending`.
        """
        self._floods.replies_taken()
        taken = self._control
        self._control = []
        self._hurried = 0
        if not self._markers and self.ready_size <= limit:
            taken += self._ready  # type: ignore[arg-type]  # without markers there are only bytes
            room = limit - self.ready_size
            self._ready.clear()
            self.ready_size = 0
        else:
            room = self._take_ready(taken, limit)
        if self._turns:
            self._take_turns(taken, room)
        return taken

    def _take_ready(self, taken: list[Buffer], room: int) -> int:
        """Hand out at least one of the frames that are ready. Returns how much room is left."""
        ready = self._ready
        while ready and room > 0:
            item = ready.popleft()
            if isinstance(item, Stream):
                self._markers -= 1
                if item.backlog is None:
                    self._strays -= 1
                else:
                    self._take_place(item, item.backlog)
            else:
                taken.append(item)
                room -= len(item)
                self.ready_size -= len(item)
        return room

    def _take_place(self, stream: Stream, backlog: Backlog) -> None:
        backlog.parked = stream.window <= 0
        if not backlog.parked:
            self._turns.append(stream)

    def _take_turns(self, taken: list[Buffer], room: int) -> None:
        """Hand out DATA, a frame a turn, and at least one frame. A stream that is alone needs no turns.

        Otherwise an endless row of small answers would let no large one through.
        """
        turns = self._turns
        while turns and self.window > 0:
            stream = turns.popleft()
            backlog = stream.backlog
            assert backlog is not None
            if stream.window > 0:  # the peer may have lowered it since
                room -= self._take_frames(stream, backlog, taken, 0 if turns else room)
            if backlog.buffers:
                self._take_place(stream, backlog)
            if room <= 0:
                return

    def _take_frames(self, stream: Stream, backlog: Backlog, taken: list[Buffer], room: int) -> int:
        """Hand out the next frame of a stream in line, or as many as fill `room`.

        The stream's end follows its last frame. Returns the size of the frames in bytes.
        """
        largest = min(self.max_frame_size, _TURN)
        size = left = min(stream.pending, stream.window, self.window, max(room, largest))
        stream.window -= size
        stream.pending -= size
        self.pending -= size
        self.window -= size
        while left:
            length = min(left, largest)
            left -= length
            if length >= _WORTH_A_REPLY:
                self._floods.sent += 1
            taken.append(_pack(length << 8 | DATA, 0, stream.id))
            _move(backlog.buffers, length, taken)
        if not backlog.buffers:
            stream.backlog = None
            if backlog.trailers is not None:
                taken.append(self.headers(stream, backlog.trailers, end=True))
                reset = self._end(stream)
                if reset is not None:
                    taken.append(reset)
        return size

    def _end(self, stream: Stream) -> bytes | None:
        """Close a stream whose answer is complete. Returns the frame that ends the peer's side, if it has not."""
        del self._streams.open[stream.id]
        if not stream.remote_open:
            return None
        stream.remote_open = False
        self._streams.closed.cut_short(stream.id)
        return frames.reset_frame(stream.id, ErrorCode.NO_ERROR)

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
        self._ready = deque(item for item in self._ready if not isinstance(item, Stream) or item.backlog)
        self._markers -= self._strays
        self._strays = 0


class StreamSender:
    """Makes frames of answers. What it sends on a stream that is gone is dropped."""

    __slots__ = ("_floods", "_outward", "_streams")

    def __init__(self, streams: StreamTable, floods: Floods, outward: OutwardFrames) -> None:
        self._streams = streams
        self._floods = floods
        self._outward = outward

    def answer(
        self, stream: Stream, head: bytes, message: Sequence[Buffer], size: int, trailers: bytes
    ) -> None:
        """Answer a unary call: HEADERS with `head`, DATA with the buffers of `message`, trailers.

        `size` is the number of bytes in `message`. A small answer is copied at once; otherwise the buffers
        must stay as they are until `stream.pending` is 0 or `own` has been called.
        """
        outward = self._outward
        if (
            0 < size <= outward.window
            and size <= stream.window
            and len(head) + size + len(trailers) <= outward.joined
            and stream.open
            and stream.backlog is None
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
            outward.window -= size
            stream.open = False
            outward.write(joined)
            if stream.remote_open:
                outward.ended(stream)
            else:
                del self._streams.open[stream_id]
        else:
            message = _views(message)  # raises for memory that can't be sent, before any byte is sent
            self.head(stream, head)
            self.message(stream, message, size)
            self.trailers(stream, trailers)

    def head(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Send the HEADERS that begin an answer; with `end`, they are all of it."""
        if end:
            self.trailers(stream, block)
        elif stream.open:
            self._outward.write(self._outward.headers(stream, block, end=False))

    def message(self, stream: Stream, buffers: Sequence[Buffer], size: int) -> None:
        """Send `size` bytes of DATA, as the windows allow.

        Buffers beyond a few kilobytes must stay as they are until
        `stream.pending` is 0 or `own` has been called.
        """
        if not stream.open or size == 0:
            return
        outward = self._outward
        self._floods.sent += 1
        if (
            size <= _JOINED
            and size <= outward.window
            and size <= stream.window
            and stream.backlog is None
            and outward.ready_size <= _MOST_READY
        ):
            outward.window -= size
            stream.window -= size
            outward.write(b"".join((_pack(size << 8, 0, stream.id), *buffers)))
        else:
            outward.line_up(stream, _views(buffers), size)

    def trailers(self, stream: Stream, block: bytes) -> None:
        """End the stream with HEADERS, after what is pending.

        If the peer has not ended its side, it is told to send no
        more: RST_STREAM with NO_ERROR (RFC 9113, section 8.1).
        """
        if not stream.open:
            return
        stream.open = False
        if stream.backlog is not None:
            stream.backlog.trailers = block
        else:
            self._outward.write(self._outward.headers(stream, block, end=True))
            self._outward.ended(stream)

    def reset(self, stream: Stream, code: int) -> None:
        """RST_STREAM, and forget the stream with all that it had pending."""
        if self._streams.open.get(stream.id) is not stream:
            return
        self._outward.write(frames.reset_frame(stream.id, code))
        remote_open = stream.remote_open
        self._outward.forget(stream)
        if remote_open:
            self._streams.closed.cut_short(stream.id)

    def own(self, stream: Stream) -> None:
        """Copy what is pending, because the lender of the buffers wants them back."""
        backlog = stream.backlog
        if backlog is not None:
            buffers = backlog.buffers
            for index in range(-min(backlog.lent, len(buffers)), 0):
                buffers[index] = memoryview(bytes(buffers[index]))
            backlog.lent = 0

    def owning(self, stream: Stream) -> Generator[None, None, None]:
        """Do as `own` does, in slices. Nothing may be taken meanwhile; more may be sent, and stays lent."""
        backlog = stream.backlog
        if backlog is None:
            return
        lent = list(backlog.buffers)[-backlog.lent :] if backlog.lent else []
        end = len(backlog.buffers)
        copies = yield from copying(lent)
        if stream.backlog is not backlog:  # the peer has reset the stream
            return
        later = [backlog.buffers.pop() for _ in range(len(backlog.buffers) - end)]
        for _ in lent:
            backlog.buffers.pop()
        backlog.buffers += copies
        backlog.buffers += reversed(later)
        backlog.lent = len(later)


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
