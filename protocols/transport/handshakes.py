"""Turns of TLS handshakes: one step of one handshake between two turns of the loop's other tasks.

A step takes 0.2 ms of processor time with an elliptic curve, and several with a long RSA key. Without turns,
a thousand clients that connect at once would hold the loop for seconds, and established clients with it.
"""

from __future__ import annotations

from typing import Final

import trio

_turn: Final[trio.lowlevel.RunVar[trio.Lock]] = trio.lowlevel.RunVar("handshakes_turn")


def turn() -> trio.Lock:
    """Return the lock that all handshakes of this run share; held for one step, which never waits."""
    try:
        return _turn.get()
    except LookupError:
        lock = trio.Lock()
        _turn.set(lock)
        return lock
