"""Frames over a SOCK_SEQPACKET socket, under trio: sends never block the loop, receives come as packets."""

from __future__ import annotations

import contextlib
import os
import socket
from array import array
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Final

import trio

from actors.seams.bell import Bell
from actors.wire.frames import MAX_FRAME, FrameError

# Flags of a packet that was cut off. A plain integer: operators of flags run Python code.
CUT_OFF: Final = int(socket.MSG_TRUNC) | int(socket.MSG_CTRUNC)
_BACKLOG_LIMIT: Final = 4096  # packets; slots bound what can be outstanding far below this


class Pipe:
    """The server's end of one worker's connection. One task receives; any task may send, without waiting."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._backlog: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._flush_wanted = Bell()
        self.closed = False

    def send_nowait(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a packet now, or as soon as the worker has read enough; packets keep their order.

        Errors are left to the receiving side, which sees the same broken connection: a dying worker's packets
        are lost. If the system refused only this packet, the connection is broken off, or the worker would
        wait for the packet. The descriptors must stay open until the packet has left; `flush` takes copies
        where it had to wait.
        """
        if self.closed:
            return
        if not self._backlog:
            try:
                self._send(packet, descriptors)
            except BlockingIOError:
                pass
            except OSError:
                self._break_off()
                return
            else:
                return
        if len(self._backlog) >= _BACKLOG_LIMIT:
            raise RuntimeError(f"a worker let {_BACKLOG_LIMIT} frames pile up unread")
        self._backlog.append((packet, tuple(map(os.dup, descriptors))))
        self._flush_wanted.ring()

    def tell_nowait(self, packet: bytes) -> None:
        """Send a packet as `send_nowait` does, from code that can't fail.

        If many have piled up, the connection is broken off: the worker does not read.
        """
        if self.closed or len(self._backlog) < _BACKLOG_LIMIT // 2:
            self.send_nowait(packet)
        else:
            self._break_off()

    def _send(self, packet: bytes, descriptors: Sequence[int]) -> None:
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
            self._sock.sendmsg([packet], [rights])
        else:
            self._sock.send(packet)

    async def flush(self) -> None:
        """Run for ever: send what the socket could not take at once. A task of the pipe's owner."""
        heard = 0
        while True:
            heard = await self._flush_wanted.wait(heard)
            while self._backlog:
                packet, descriptors = self._backlog[0]
                try:
                    self._send(packet, descriptors)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._sock)
                    continue
                except OSError:
                    self._break_off()
                    break
                self._backlog.popleft()
                _close_all(descriptors)

    @property
    def backlog(self) -> int:
        """How many packets the worker must still read before there is room for another."""
        return len(self._backlog)

    def _break_off(self) -> None:
        self._drop_backlog()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _drop_backlog(self) -> None:
        while self._backlog:
            _close_all(self._backlog.popleft()[1])

    def wait_readable(self) -> Awaitable[None]:
        """Wait until `receive_nowait` has a packet, or the end of the connection, to return."""
        # Not a coroutine of its own, which would cost each wait a frame more.
        return trio.lowlevel.wait_readable(self._sock)  # noqa: ASYNC105  # the caller awaits it

    def receive_nowait(self) -> bytes | None:
        """Return the next packet, `b""` at the end of the connection, or None where there is none yet.

        Results that lie behind a reset are still returned first. Raises FrameError for a truncated packet,
        and for descriptors, which a worker must not send here.
        """
        try:
            packet, ancillary, flags, _ = self._sock.recvmsg(MAX_FRAME)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The error comes once, when the worker died with unread packets. The worker's own packets lie
            # behind it.
            return self.receive_nowait()
        except OSError:
            return b""
        if ancillary or flags & CUT_OFF:
            raise FrameError("a worker sent an oversized packet or a descriptor")
        return packet

    def close(self) -> None:
        """Close the connection; idempotent."""
        if not self.closed:
            self.closed = True
            self._drop_backlog()
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
