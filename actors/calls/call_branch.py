"""How a process that a worker has forked gets a connection of its own.

It inherits its worker's connection and can't use it, except for one frame, `BRANCH`, which may come between
any two frames of the worker. That frame carries the descriptor of another connection, over which the server
answers once. The answer is the descriptor of the new connection, or the reason why there is none. The server
makes the new connection itself: one that another process made could still be set to block.
"""

from __future__ import annotations

import contextlib
import socket
from array import array

from actors.calls.call_pipe import CallPipe
from actors.wire import frames


def open_branch(asked_by: int) -> CallPipe | None:
    """Make a connection and send its other end to the process that asked.

    Returns None if that fails: the process is told so, or has gone.
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
    """Tell the process that asked why it gets no connection."""
    _answer(asked_by, why.encode(), None)


def _answer(asked_by: int, text: bytes, descriptor: int | None) -> bool:
    """Send an answer over a descriptor of any kind, without waiting. True if it was sent."""
    rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", (descriptor,)))]
    with contextlib.suppress(OSError):
        sock = socket.socket(fileno=asked_by)
        try:
            sock.sendmsg((bytes((frames.BRANCH,)) + text,), rights, socket.MSG_DONTWAIT)
        finally:
            sock.detach()
        return True
    return False
