"""How a connection takes leave of its client: goodbyes, the last call, and the last bytes.

    STAYING ─► WARNED ─► LEAVING ─► CLOSING

A connection goes through these stages in their order, and may leave some out.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import trio

from protocols.http2.frames import LARGEST_STREAM, ErrorCode

if TYPE_CHECKING:
    from protocols.grpc.calls import Calls
    from protocols.http2.connection import Http2Connection

# Seconds that a client has to answer the ping behind the first GOAWAY.
_GOODBYE: Final = 1.0
_RETIRING: Final = b"goodbye?"  # the payload of that ping


class FarewellStage(IntEnum):
    """How far a connection has come on its way to its end."""

    STAYING = 0
    WARNED = 1  # the first GOAWAY is out, and calls on their way are taken
    LEAVING = 2  # the last GOAWAY is out: the connection ends with its last call
    CLOSING = 3  # the rest is written


class Farewell:
    """Ends one connection without losing a call that is on its way (RFC 9113, section 6.8)."""

    def __init__(self, h2: Http2Connection[Any], calls: Calls) -> None:
        self.stage = FarewellStage.STAYING
        self._h2 = h2
        self._calls = calls
        self._by = math.inf  # when the last GOAWAY is due

    def retire(self, debug: bytes) -> None:
        """Say that the connection ends soon, and ask whether the client has heard it."""
        if self.stage is not FarewellStage.STAYING:
            return
        self.stage = FarewellStage.WARNED
        self._by = trio.current_time() + _GOODBYE
        self._h2.control.go_away(ErrorCode.NO_ERROR, debug, last=LARGEST_STREAM)
        self._h2.control.ping(_RETIRING)
        self._calls.writer.wake()

    def ponged(self, payload: bytes) -> None:
        """The client has answered a ping; where that was ours, it knows."""
        if payload == _RETIRING and self.stage is FarewellStage.WARNED:
            self.leave()

    def sweep(self, now: float) -> None:
        """Say the last goodbye to a client that does not answer."""
        if self.stage is FarewellStage.WARNED and now >= self._by:
            self.leave()

    def leave(self) -> None:
        """Take no new streams from now on."""
        if self.stage >= FarewellStage.LEAVING:
            return
        self.stage = FarewellStage.LEAVING
        self._h2.control.go_away(ErrorCode.NO_ERROR)
        self._calls.writer.wake()
        self._calls.on_over = self.close_if_done
        self.close_if_done()

    def close_if_done(self) -> None:
        """Close where the connection leaves and no call is left."""
        if self.stage is FarewellStage.LEAVING and not self._h2.streams and not self._calls:
            self.close()

    def close(self) -> None:
        """Write what is left. After that the client or the sweep closes the connection."""
        self.stage = FarewellStage.CLOSING
        self._calls.writer.end()
