"""A bounded memory of closed streams (RFC 9113, sections 5.1 and 5.1.1).

Frames that the peer sent before it learned that we had ended a stream are legal and have to be ignored. The
same frames on a stream that the peer ended itself cost the connection. Telling them apart takes memory, so
the memory is bounded: once something had to be forgotten, everything as old as that gets the benefit of the
doubt.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from protocols.http2.frames import ConnectionViolation, ErrorCode

# A few round trips' worth of cancelled calls: four times the streams that may be open at once by default.
_MOST_CUT_SHORT: Final = 4096
_MOST_SKIPPED: Final = 64  # clients number their streams without gaps


class ClosedStreams:
    """Tells how to treat a late frame."""

    __slots__ = ("_cut_short", "_forgotten", "_skipped")

    def __init__(self) -> None:
        self._cut_short: dict[int, None] = {}
        self._forgotten = 0
        self._skipped: deque[range] = deque(maxlen=_MOST_SKIPPED)

    def cut_short(self, stream_id: int) -> None:
        """Note that we ended a stream, by RST_STREAM or refusal, while the peer may go on sending."""
        self._cut_short[stream_id] = None
        if len(self._cut_short) > _MOST_CUT_SHORT:
            oldest = next(iter(self._cut_short))
            del self._cut_short[oldest]
            self._forgotten = max(self._forgotten, oldest)

    def ended(self, stream_id: int) -> None:
        """Note that the peer has ended the stream too: nothing may follow."""
        self._cut_short.pop(stream_id, None)

    def skipped(self, first: int, last: int) -> None:
        """Note that the peer used none of these identifiers, and may not use them any more."""
        self._skipped.append(range(first, last + 1))

    def check_late(self, stream_id: int, what: str) -> None:
        """Check a DATA or HEADERS frame that came for a closed stream.

        Raises ConnectionViolation unless it may be ignored.
        """
        if stream_id in self._cut_short or stream_id <= self._forgotten:
            return
        if any(stream_id in unused for unused in self._skipped):
            message = f"{what} on stream {stream_id}, after a stream with a greater number was opened"
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
        raise ConnectionViolation(
            ErrorCode.STREAM_CLOSED, f"{what} on stream {stream_id}, which the peer ended"
        )
