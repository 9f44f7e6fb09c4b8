"""The server's end of a worker's connection for calls: packets come as from any worker, answers go out whole.

An answer is any number of frames, which are made when the worker has read the frames before. Only the
answer's bytes are kept until then. No method waits but `flush`.
"""

from __future__ import annotations

import os
import socket
from array import array
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence

import trio

from actors.seams.bell import Bell
from actors.serving.instances.pipe import CUT_OFF, Pipe
from actors.wire.frames import MAX_FRAME, FrameError

_ONE_DESCRIPTOR = socket.CMSG_LEN(array("i").itemsize)
_CLOSED_BY_EXEC = int(socket.MSG_CMSG_CLOEXEC)

Packet = tuple[bytes, tuple[int, ...]]
"""A frame, and the descriptors that go with it. The pipe closes them."""


class CallPipe(Pipe):
    """One worker's connection for calls. One task receives, one runs `flush`, and any task may send."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._answers: deque[tuple[Iterator[Packet], int, bool]] = deque()
        self._next: Packet | None = None  # the first answer's packet that did not fit
        self._descriptor = -1
        self._stuck = Bell()
        self.unsent = 0  # bytes of answers that the worker has yet to read
        self.unsent_ends = 0  # how many of those answers are final

    def send_answer(self, packets: Iterator[Packet], nbytes: int, *, final: bool) -> None:
        """Send an answer of `nbytes` now, or when the worker has read enough; answers keep their order."""
        if self.closed:
            _close_those_of(packets)
            return
        self._answers.append((packets, nbytes, final))
        self.unsent += nbytes
        self.unsent_ends += final
        if len(self._answers) == 1 and not self._send_what_fits():
            self._stuck.ring()

    def send_whole(self, packet: bytes, nbytes: int, *, final: bool) -> None:
        """Send an answer of one packet, with `nbytes` of tensors. Otherwise as `send_answer`."""
        if not self._answers and not self.closed:
            try:
                self._sock.send(packet)
            except BlockingIOError:
                pass
            except OSError:
                self._break_off()
                return
            else:
                return
        self.send_answer(iter(((packet, ()),)), nbytes, final=final)

    def _send_what_fits(self) -> bool:
        """Send until the socket takes no more. True if everything has been sent."""
        while self._answers:
            packets, nbytes, final = self._answers[0]
            try:
                if self._next is None:
                    self._next = next(packets)
                while True:
                    self._send(*self._next)
                    _close_all(self._next[1])
                    self._next = next(packets)
            except StopIteration:
                self._next = None
                self.unsent -= nbytes
                self.unsent_ends -= final
                self._answers.popleft()
            except BlockingIOError:
                return False
            except OSError:
                self._break_off()
                return True
        return True

    async def flush(self) -> None:
        """Run for ever: send what the socket could not take at once. A task of the pipe's owner."""
        heard = 0
        while True:
            heard = await self._stuck.wait(heard)
            while not self._send_what_fits():
                await trio.lowlevel.wait_writable(self._sock)

    def _drop_backlog(self) -> None:
        super()._drop_backlog()
        if self._next is not None:
            _close_all(self._next[1])
        self._next = None
        while self._answers:
            _close_those_of(self._answers.popleft()[0])
        self.unsent = self.unsent_ends = 0

    def wait_readable(self) -> Awaitable[None]:
        """Wait as `Pipe.wait_readable` does. Raises FrameError for a descriptor that was not taken."""
        if self._descriptor >= 0:
            self._refuse_descriptor()
        return super().wait_readable()

    def receive_nowait(self) -> bytes | None:
        """Return the next packet as `Pipe.receive_nowait` does.

        `take_descriptor` returns the descriptor that came with it.

        Raises FrameError for a truncated packet, for two descriptors, and for one that was not taken.
        """
        if self._descriptor >= 0:
            self._refuse_descriptor()
        try:
            packet, ancillary, flags, _ = self._sock.recvmsg(MAX_FRAME, _ONE_DESCRIPTOR, _CLOSED_BY_EXEC)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        for _, _, data in ancillary:
            self._descriptor = array("i", data)[0]
        if flags & CUT_OFF:
            raise FrameError("a worker sent an oversized packet or too many descriptors")
        return packet

    def take_descriptor(self) -> int:
        """Return the descriptor of the last packet, which the caller must close.

        Raises FrameError without one.
        """
        if self._descriptor < 0:
            raise FrameError("a frame that announces a descriptor came without one")
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def _refuse_descriptor(self) -> None:
        os.close(self.take_descriptor())
        raise FrameError("a worker sent a descriptor with a frame that has none")

    def close(self) -> None:
        """Close the connection; idempotent."""
        super().close()
        if self._descriptor >= 0:
            os.close(self.take_descriptor())


def _close_those_of(packets: Iterator[Packet]) -> None:
    for _, descriptors in packets:
        _close_all(descriptors)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
