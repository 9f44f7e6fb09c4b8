"""How many frames that cost the peer nothing a connection puts up with.

Some kinds of frame make us work, or answer, without carrying a call. Each of them has a budget of tokens. It
starts full and refills with time. Where a healthy peer's frames follow from the frames it is sent, those
refill it too. `Http2Limits` says why the budgets are what they are.
"""

from __future__ import annotations

from protocols.http2.frames import ConnectionViolation, ErrorCode
from protocols.http2.limits import Http2Limits
from protocols.http2.streams import StreamTable


class Budget:
    """A token bucket that is told the time (seconds on the caller's clock, never going back).

    Holds `burst` tokens at the most and gains `rate` a second.
    """

    __slots__ = ("_burst", "_rate", "_since", "_tokens")

    def __init__(self, burst: int, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._tokens = float(burst)
        self._since: float | None = None

    def spend(self, now: float, *, earned: float = 0.0) -> bool:
        """Take one token, after adding those `earned` otherwise.

        False: none is left, and the peer floods us.
        """
        if self._since is not None:
            earned += (now - self._since) * self._rate
        self._since = now
        self._tokens = min(self._burst, self._tokens + earned) - 1
        return self._tokens >= 0


class Floods:
    """The budgets of one connection, and the traffic that refills them. `now` is the time of the last read.

    Each method raises ConnectionViolation (ENHANCE_YOUR_CALM) once its budget is spent.
    """

    __slots__ = (
        "_chatter",
        "_excused",
        "_limits",
        "_queued",
        "_resets",
        "_settings",
        "_streams",
        "now",
        "received",
        "sent",
    )

    def __init__(self, limits: Http2Limits, streams: StreamTable) -> None:
        self.now = 0.0
        # What a healthy peer answers: messages, PINGs, and DATA frames that are not too small.
        self.sent = 0
        self.received = 0  # DATA frames that were not empty
        self._limits = limits
        self._streams = streams
        self._chatter = Budget(limits.chatter_burst, limits.chatter_rate)
        self._resets = Budget(limits.reset_burst, limits.reset_rate)
        self._settings = Budget(limits.settings_burst, limits.settings_rate)
        self._queued = 0
        self._excused = 0.0

    def chatter(self) -> None:
        """Count a frame that carries nothing. The connection's traffic so far excuses a number of them."""
        limits = self._limits
        excused = (self._streams.opened + self.sent) * limits.chatter_per_frame
        excused += self.received * limits.chatter_per_received
        earned = excused - self._excused
        self._excused = excused
        if not self._chatter.spend(self.now, earned=earned):
            raise _calm("too many frames that carry nothing")

    def reset(self) -> None:
        """Count a stream that was reset, by the peer or for its violation."""
        if not self._resets.spend(self.now):
            raise _calm("too many streams were reset")

    def settings(self) -> None:
        """Count a SETTINGS frame."""
        if not self._settings.spend(self.now):
            raise _calm("too many SETTINGS frames")

    def reply(self) -> None:
        """Count a frame that is queued as an answer, because the peer must read those, too."""
        self._queued += 1
        if self._queued > self._limits.max_queued:
            raise _calm("too many frames to answer while no answer is read")

    def replies_taken(self) -> None:
        """Note that the queued frames were handed out."""
        self._queued = 0


def _calm(message: str) -> ConnectionViolation:
    return ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, message)
