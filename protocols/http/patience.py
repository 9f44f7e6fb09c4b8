"""What an HTTP connection is doing, and how long it may take: decisions, told the time.

Each phase but `ANSWERING` has a deadline, which the listener's sweep enforces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Final

from protocols.http.parser import RequestLimits
from protocols.transport.room import LAST_CALL, PATIENCE


def status_lines(*fields: tuple[bytes, bytes]) -> Mapping[int, bytes]:
    """Return how answers begin, by their status: with its line, and with `fields` that all of them have."""
    also = b"".join(b"%b: %b\r\n" % field for field in fields)
    return {
        status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() + also for status in HTTPStatus
    }


STATUS_LINES: Final = status_lines()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How patient a connection is, and what its answers begin with. Times are seconds.

    A body or an answer may take `grace`, and one second more for each `minimum_rate` bytes that moved. A
    connection ends with the first answer after `max_age`, which differs by up to a tenth.
    """

    request: RequestLimits = field(default_factory=RequestLimits)
    idle_timeout: float = 600.0  # clients keep pools of connections, and Triton lets them
    head_timeout: float = 30.0
    grace: float = 60.0
    minimum_rate: float = 1024.0
    max_age: float = math.inf
    status_lines: Mapping[int, bytes] = field(default_factory=lambda: STATUS_LINES)


class Phase(Enum):
    """What a connection is doing."""

    SHAKING = "shaking hands"  # TLS begins
    IDLE = "idle"  # between requests
    READING = "reading"  # a request is here in part
    WAITING = "waiting"  # the rest of its body waits for room here
    ANSWERING = "answering"  # the application has it
    WRITING = "writing"  # the client is slow to take the answer
    CLOSED = "closed"


class Patience:
    """The phase of one connection and its `deadline`. Times are seconds on the caller's clock."""

    __slots__ = (
        "_began",
        "_hurried",
        "_idle_since",
        "_in_body",
        "_limits",
        "came_at",
        "deadline",
        "draining",
        "phase",
        "withdrawn",
        "yielding",
    )

    def __init__(self, limits: ConnectionLimits, *, now: float) -> None:
        self.phase = Phase.IDLE
        self.deadline = math.inf
        # When the first bytes came of a request that comes in several pieces; negative while none does.
        self.came_at = -1.0
        self.withdrawn = False  # the server is about to drain
        self.draining = False  # the server ends
        self.yielding = False  # the connection was told to give way to another
        self._limits = limits
        self._idle_since = now
        self._began = now  # when the phase began
        self._in_body = False
        # While the server ends: when the body would be due if no part of it had come.
        self._hurried: float | None = None

    @property
    def ending(self) -> bool:
        """Whether the connection ends once the requests that are here are answered."""
        return self.draining or self.withdrawn or self.yielding

    @property
    def yields_at(self) -> float:
        """The time from which on the connection may be ended for another (`protocols.transport.room.Occupant`)."""
        if self.yielding:
            return math.inf
        limits = self._limits
        if self.phase is Phase.IDLE:
            return self._idle_since
        if self.phase is Phase.SHAKING:
            return self._idle_since + PATIENCE
        if self.phase is Phase.READING:
            usual = limits.grace if self._in_body else limits.head_timeout
        elif self.phase is Phase.WRITING:
            usual = limits.grace
        else:
            return math.inf
        return self.deadline - usual + PATIENCE

    def shake_hands(self, now: float) -> None:
        """Wait for the end of the TLS handshake."""
        self.phase = Phase.SHAKING
        self.deadline = now + self._limits.head_timeout

    def expect(self, now: float) -> None:
        """Wait for the first request of a client that shook hands while the server began to end."""
        self.phase = Phase.READING
        self.deadline = now + LAST_CALL

    def rest(self, now: float) -> None:
        """Wait for a request."""
        self.phase = Phase.IDLE
        self._idle_since = now
        self._hurried = None
        self._in_body = False
        self.came_at = -1.0
        self.deadline = now + self._limits.idle_timeout

    def read(self, now: float, received: int | None) -> None:
        """Wait for the rest of a request: of its head, or of a body of which `received` bytes came."""
        limits = self._limits
        if self.phase is Phase.IDLE:
            self.phase = Phase.READING
            self._began = self.came_at = now
            self.deadline = now + (PATIENCE if self.yielding else limits.head_timeout)
        if received is not None:
            self._in_body = True
            grace = PATIENCE if self.yielding else limits.grace
            self.deadline = self._began + grace + received / limits.minimum_rate
        if self.draining:
            self.hurry(now, received)

    def wait(self) -> None:
        """Wait until the server has room for a body."""
        self.phase = Phase.WAITING
        self.deadline = math.inf

    def go_on(self, now: float, waited_since: float) -> None:
        """Wait for the rest of a body once more, which the server held up meanwhile."""
        self.phase = Phase.READING
        self._began += now - waited_since
        self._hurried = None

    def hurry(self, now: float, received: int | None) -> None:
        """Shorten the deadline of a partly received request, because the server is to end.

        A head has `LAST_CALL` seconds to be complete. A body that
        keeps the pace has as long for its next bytes.
        """
        self.deadline = min(self.deadline, now + LAST_CALL)
        if received is not None:
            paid = received / self._limits.minimum_rate
            if self._hurried is None:
                self._hurried = now + LAST_CALL - paid
            self.deadline = min(self.deadline, self._hurried + paid)

    def discard(self, until: float) -> None:
        """Wait for bytes that are dropped."""
        self.phase = Phase.READING
        self.deadline = until

    def write(self, began: float, sent: int) -> None:
        """Wait for a client that is slow to take an answer, of which it took `sent` bytes."""
        self.phase = Phase.WRITING
        self.deadline = began + self._limits.grace + sent / self._limits.minimum_rate

    def work(self, phase: Phase = Phase.ANSWERING) -> None:
        """Wait for nothing that the client does."""
        self.phase = phase
        self.deadline = math.inf
