"""One connection of a process for the calls it makes.

Letters go out in their order; answers come in to the threads that wait for them. Any thread may send and
wait. There is no thread that only reads. Of the threads that wait, one reads the connection and hands the
others what is theirs, which saves a thread switch for each answer.

A process that a worker forks inherits the worker's line, and must not use it: what both send would be
numbered twice, and each would read the other's answers. So it leaves that alone (`sever`), and asks the
server for a line of its own when it first has something to say (`branch`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from array import array
from collections import deque
from typing import TYPE_CHECKING

from actors.wire import frames
from actors.wire.batch_frames import Part
from actors.wire.call_frames import Letter
from actors.wire.call_segments import WORTH_A_SEGMENT, map_segment, write_segment
from engine.worker.feeds import receive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GONE = "the server closed the connection"


class Exchange:
    """The outcome of one call, and the thread that waits for it. Guarded by the lock of its `Line`."""

    __slots__ = ("_assembled", "_part", "changed", "number", "parts", "unwanted")

    def __init__(self) -> None:
        # What a thread that waits for it is told by. The thread that reads for all needs none.
        self.changed: threading.Condition | None = None
        self.number = 0
        self.parts: deque[Part] = deque()
        # It will not be read.
        self.unwanted = False
        self._part: Part | None = None  # whose bytes are still coming
        self._assembled = bytearray()

    def receive(self, part: Part, segment: memoryview | None) -> bool:
        """Take a part's first frame, and the segment with its bytes if there is one.

        Returns whether that was all of it.
        """
        if segment is not None:
            part.data = segment
            return self._deliver(part)
        self._assembled = bytearray(part.data)  # the caller's own, to write to if it likes
        part.data = self._assembled
        return self._complete(part)

    def receive_more(self, data: frames.Buffer) -> bool:
        """Take a part's next frame; whether that was the last."""
        assert self._part is not None, "the server sends a part's frames in a row"
        self._assembled += data
        return self._complete(self._part)

    def _complete(self, part: Part) -> bool:
        if len(self._assembled) < part.nbytes:
            self._part = part
            return False
        self._part = None
        return self._deliver(part)

    def _deliver(self, part: Part) -> bool:
        if not self.unwanted:
            self.parts.append(part)
        self.tell()
        return True

    def tell(self) -> None:
        """Wake the thread that waits for it, if there is one. Call it with the line's lock held."""
        if self.changed is not None:
            self.changed.notify_all()


class Line:
    """A connection for calls. Every method may be called from any thread.

    A thread that waits becomes the reader if there is none. When a reader has got what it waited for, another
    thread takes over. Each thread that leaves `wait` sees to that, because the one that was chosen before may
    have been served meanwhile.
    """

    def __init__(self, sock: socket.socket, *, why_lost: str = "") -> None:
        """`sock` is this process's end of a SOCK_SEQPACKET connection, blocking.

        With `why_lost` nothing is sent or received over it.
        """
        self.why_lost = why_lost or GONE
        self._sock = sock
        self._number = 0  # of the last letter that is answered
        self._exchanges: dict[int, Exchange] = {}
        self._incomplete: Exchange | None = None
        self._segment: memoryview | None = None  # with the bytes of the next part
        self._severed = False
        self._begin_anew(lost=bool(why_lost))

    def _begin_anew(self, *, lost: bool) -> None:
        # A thread that holds it may collect, and so cancel, a stream.
        self._lock = threading.RLock()
        # For the frames of one letter: numbering and sending it is one step.
        self._order = threading.Lock()
        self._waiting: list[Exchange] = []
        self._reading = False
        self._lost = lost

    @property
    def lost(self) -> bool:
        """Whether nothing comes any more."""
        return self._lost

    def begin(self, letter: Letter, pieces: Sequence[frames.Buffer]) -> Exchange:
        """Send a letter that is answered, under the next number."""
        exchange = Exchange()

        def register() -> None:
            exchange.number = self._number = letter.number
            with self._lock:
                self._exchanges[letter.number] = exchange

        self.post(letter, pieces, register)
        return exchange

    def post(
        self, letter: Letter, pieces: Sequence[frames.Buffer], register: Callable[[], None] | None = None
    ) -> None:
        """Send a letter, in a segment if that is worth it. Raises ValueError if it is too large."""
        descriptor = _prepared(letter, pieces)
        try:
            with self._order:
                if self._lost:
                    return
                if register is not None:
                    letter.number = self._number + 1
                packets = letter.packets()
                if register is not None:
                    register()
                self._send_all(letter, packets, descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _send_all(
        self, letter: Letter, packets: Iterator[tuple[bytes, frames.Buffer]], descriptor: int
    ) -> None:
        try:
            if descriptor < 0:
                for pieces in packets:
                    self._sock.sendmsg(pieces)
                return
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", (descriptor,)))
            self._sock.sendmsg((frames.encode_segment(0, 0, letter.nbytes),), (rights,))
            self._sock.sendmsg(next(packets))
        except OSError:
            self._lose()

    def _lose(self) -> None:
        with self._lock:
            self._lose_locked()

    def _lose_locked(self) -> None:
        self._lost = True
        for exchange in self._waiting:
            exchange.tell()

    def close(self) -> None:
        """Close the connection: the threads that wait are told that the server went away."""
        if self._severed:
            return  # it is another process's
        self._lose()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def sever(self) -> None:
        """This process has been forked from the one whose line it is.

        Leave the line alone, whatever its threads were about to do with it.
        """
        self._severed = True
        self._begin_anew(lost=True)

    def leave(self) -> None:
        """Let go of a severed line."""
        self._sock.close()

    def send(self, packet: bytes) -> None:
        """Send a frame that is complete in itself. If the server has gone, the thread that waits is told."""
        if self._severed:
            return
        try:
            self._sock.send(packet)
        except OSError:
            self._lose()

    def wait(self, exchange: Exchange) -> Part | None:
        """Return the next part of an exchange, waiting for it; None if the server went away."""
        with self._lock:
            try:
                while not exchange.parts and not self._lost:
                    if self._reading:
                        if exchange.changed is None:
                            exchange.changed = threading.Condition(self._lock)
                        self._waiting.append(exchange)
                        exchange.changed.wait()
                        self._waiting.remove(exchange)
                    else:
                        self._read_until(exchange)
                return exchange.parts.popleft() if exchange.parts else None
            finally:
                if not self._reading and self._waiting:
                    self._waiting[0].tell()

    def _read_until(self, exchange: Exchange) -> None:
        """Read for all threads until `exchange` has a part.

        Call it with the lock held; the lock is given up meanwhile.
        """
        self._reading = True
        try:
            while not exchange.parts and not self._lost:
                self._lock.release()
                try:
                    packet, descriptors = receive(self._sock)
                finally:
                    self._lock.acquire()
                if packet:
                    self._hand_out(packet, descriptors)
                else:
                    self._lose_locked()
        finally:
            self._reading = False

    def _hand_out(self, packet: bytes, descriptors: Sequence[int]) -> None:
        if packet[0] == frames.SEGMENT:
            self._segment = map_segment(descriptors[0], frames.decode_segment(packet)[2], writable=True)
            self.send(bytes((frames.TAKEN,)))
            return
        if packet[0] == frames.MORE:
            exchange, final = self._incomplete, False
            assert exchange is not None, "the server sends a part's frames in a row"
            whole = exchange.receive_more(frames.decode_more(packet)[2])
        else:
            part = Part.decode(packet)
            exchange = self._exchanges.get(part.batch_id)
            if exchange is None:
                raise frames.FrameError(
                    f"the server answers call {part.batch_id}, which has had its last answer"
                )
            whole, final = exchange.receive(part, self._segment), part.final
            self._segment = None
        self._incomplete = None if whole else exchange
        if final:
            del self._exchanges[exchange.number]


def branch(root: socket.socket) -> Line:
    """Return a line of this process's own, which the server is asked for over the inherited one.

    Waits for the server's answer. That comes over a connection that goes along with the question, because
    other processes may read what comes over `root`. If there is no answer, or a refusal, the line is lost.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        try:
            with theirs:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", (theirs.fileno(),)))
                root.sendmsg((bytes((frames.BRANCH,)),), (rights,))
            packet, descriptors = receive(ours)
        except OSError:
            packet, descriptors = b"", []
        if descriptors:
            return Line(socket.socket(fileno=descriptors[0]))
        return Line(ours, why_lost=packet[1:].decode() or GONE)


def _prepared(letter: Letter, pieces: Sequence[frames.Buffer]) -> int:
    """Put a letter's bytes where they will be read: a descriptor's segment, or the letter itself (-1)."""
    if letter.nbytes >= WORTH_A_SEGMENT:
        with contextlib.suppress(OSError):  # no descriptor or memory is left: frames need neither
            return write_segment(pieces)
    letter.data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return -1
