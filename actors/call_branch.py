"""How a process that a worker has forked comes by a connection of its own.

It inherits that of its worker and can't use it, but for one frame, `BRANCH`, which may come between any two
of the worker's. With that goes the descriptor of a connection over which it is answered, once: by the
descriptor of the new one, or by why there is none. The server makes the new connection itself: what another
process made, it could still set to block.
"""

from __future__ import annotations

import contextlib
import socket
from array import array

from actors import frames
from actors.call_pipe import CallPipe


def open_branch(asked_by: int) -> CallPipe | None:
    """Make a connection and send its other end to who has asked.

    None where that can't be: it is told so, or has gone.
    """
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        refuse_branch(asked_by, f"the server has no descriptor for another connection: {error.strerror}")
        return None
    with theirs:
        if _answer(asked_by, b"", theirs.fileno()):
            return CallPipe(ours)
    ours.close()
    return None


def refuse_branch(asked_by: int, why: str) -> None:
    """Tell who has asked why it gets no connection."""
    _answer(asked_by, why.encode(), None)


def _answer(asked_by: int, text: bytes, descriptor: int | None) -> bool:
    """Send an answer over a descriptor that may be anything, without waiting; whether it has gone."""
    rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", (descriptor,)))]
    with contextlib.suppress(OSError):
        sock = socket.socket(fileno=asked_by)
        try:
            sock.sendmsg((bytes((frames.BRANCH,)) + text,), rights, socket.MSG_DONTWAIT)
        finally:
            sock.detach()
        return True
    return False
