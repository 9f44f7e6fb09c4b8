"""How much a peer may send: the connection's window, and what single streams are granted beyond their own."""

from __future__ import annotations

from protocols.http2.frames import DEFAULT_WINDOW, LARGEST_WINDOW, window_update_frame
from protocols.http2.limits import Http2Limits
from protocols.http2.sending import OutwardFrames
from protocols.http2.streams import Stream


class InwardWindow:
    """The connection's window for DATA of the peer: `open` bytes may come as of now.

    The handler's owner gives back, by `consumed`, what each stream has `received`. It does so once for every
    stream it was told of, however that ends. Bytes of streams it was never told of are given back by the
    reader.
    """

    __slots__ = ("_credit", "_outward", "_size", "_step", "open")

    def __init__(self, limits: Http2Limits, outward: OutwardFrames) -> None:
        self.open = limits.connection_window
        self._size = limits.connection_window
        self._step = limits.connection_window // 2
        self._credit = 0  # bytes that the peer may have back, but has not been told of
        self._outward = outward

    def begin(self) -> None:
        """Announce a window that is larger than the one that every connection begins with."""
        if self._size > DEFAULT_WINDOW:
            self._outward.control(window_update_frame(0, self._size - DEFAULT_WINDOW))

    def consumed(self, nbytes: int) -> None:
        """Give `nbytes` of the connection's window back to the peer.

        They are announced when half the window has gathered: one WINDOW_UPDATE for very many calls.
        """
        self._credit += nbytes
        if self._credit >= self._step:
            self._announce(self._step)

    def announce(self) -> None:
        """Announce credit that could not be announced before, because the window was open too far."""
        if self._credit >= self._step:
            self._announce(self._step)

    def grant(self, stream: Stream, nbytes: int) -> None:
        """Let the peer send `nbytes` more, on the stream and on the connection, and announce it at once.

        This is for a message that is larger than the windows, which would never be whole otherwise. What was
        granted is given back: `consumed` must not be told of it again. Does nothing if the peer has ended the
        stream.
        """
        if not stream.remote_open:
            return
        room = LARGEST_WINDOW - (stream.allowed - stream.received)
        stream.allowed += min(nbytes, room)
        self._outward.control(window_update_frame(stream.id, min(nbytes, room)))
        self._credit += nbytes
        self._announce(1)

    def _announce(self, least: int) -> None:
        """Open the connection's window by its credit, as far as a window may be open.

        Does nothing where that is below `least`.
        """
        increment = min(self._credit, LARGEST_WINDOW - self.open)
        if increment >= least:
            self.open += increment
            self._credit -= increment
            self._outward.control(window_update_frame(0, increment))
