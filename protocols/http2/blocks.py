"""One header block out of HEADERS and its CONTINUATION frames (RFC 9113, sections 4.3, 6.2 and 6.10)."""

from __future__ import annotations

from protocols.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    WITH_PRIORITY,
    ConnectionViolation,
    ErrorCode,
)


class BlockAssembler:
    """Collects the block that is under way. There is one at the most, as nothing may come between its frames.

    `stream_id` and `ends` (END_STREAM) are those of the HEADERS it began with.
    """

    __slots__ = ("_block", "_continuations", "_max_continuations", "_max_size", "ends", "stream_id")

    def __init__(self, *, max_size: int, max_continuations: int) -> None:
        self.stream_id = 0
        self.ends = False
        self._block = bytearray()
        self._continuations = 0
        self._max_size = max_size
        self._max_continuations = max_continuations

    def begin(self, payload: memoryview, flags: int, stream_id: int) -> bytes | None:
        """Take the payload of HEADERS, less padding and priority. Returns the block if that is all of it."""
        self.stream_id = stream_id
        self.ends = bool(flags & END_STREAM)
        self._continuations = 0
        self._block += _fragment(payload, flags)
        return self._finish(flags)

    def go_on(self, payload: memoryview, flags: int) -> bytes | None:
        """Take the payload of CONTINUATION. Returns the block if that was the rest of it."""
        self._continuations += 1
        if self._continuations > self._max_continuations:
            raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, "too many CONTINUATION frames")
        self._block += payload
        return self._finish(flags)

    def _finish(self, flags: int) -> bytes | None:
        if len(self._block) > self._max_size:
            raise too_large(len(self._block), self._max_size)
        if not flags & END_HEADERS:
            return None
        block = bytes(self._block)
        self._block.clear()
        return block


def too_large(size: int, limit: int) -> ConnectionViolation:
    """Return the violation for `size` bytes of a header block, where `limit` are accepted."""
    message = f"{size} bytes of metadata, more than the {limit} taken"
    return ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, message)


def _fragment(payload: memoryview, flags: int) -> memoryview:
    start, stop = 0, len(payload)
    if flags & PADDED:
        start = 1
        stop -= payload[0] if payload else 0
    if flags & WITH_PRIORITY:
        start += 5
    if start > len(payload):
        message = "HEADERS without the fields that its flags announce"
        raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, message)
    if start > stop:
        raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, "more padding than there is payload")
    return payload[start:stop]
