"""The interface through which an HTTP/2 connection tells what it received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from protocols.http2.sending import Stream

T = TypeVar("T")


class Handler(Protocol[T]):
    """The receiver of what a connection received. Called from `receive`.

    May raise ConnectionViolation, which ends the connection as if
    HTTP/2 had been violated; must not raise otherwise.
    """

    def read_head(self, headers: Sequence[tuple[bytes, bytes]]) -> T:
        """Say what a well-formed request's header list means.

        The result is kept, and serves the requests that repeat it.
        """

    def opened(self, stream: Stream, head: T) -> None:
        """A request began."""

    def received(self, stream: Stream, data: memoryview) -> None:
        """DATA without its padding, in part or whole; valid during the call only."""

    def ended(self, stream: Stream) -> None:
        """The peer has ended its side. Its trailers, if any, are dropped."""

    def reset(self, stream: Stream, code: int) -> None:
        """The stream is gone: the peer reset it, or broke a rule on it."""

    def pinged(self, now: float) -> None:
        """The peer sent a PING, which has been answered."""

    def pong(self, payload: bytes) -> None:
        """The peer answered a PING."""
