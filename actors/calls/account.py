"""How much one worker has under way by all its connections, and how much of it is allowed. Passive."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from actors.calls.call_pipe import CallPipe
from actors.values.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """What one worker may have under way, its forked processes included. Sizes are bytes."""

    calls: int = 1024
    asks: int = 64
    # Inputs of calls and questions; and as much of answers that were not read yet, or have no credit.
    nbytes: int = 2**31
    # Calls and questions whose last answer, or refusal, was not read. A worker with more does not read at all.
    unread: int = 8 * 1024
    # Forked processes that call at the same time. Each connection takes one of the server's descriptors.
    branches: int = 256
    # Segments each way. Each takes one of the server's descriptors; data beyond that is copied into frames.
    segments: int = 64
    packets_in_a_row: int = 64  # before other tasks get their turn


@dataclass(slots=True, eq=False)
class Account:
    """What one worker has under way, by its own connection and by those of processes that it has forked."""

    limits: CallLimits
    calls: int = 0
    asks: int = 0
    nbytes: int = 0  # of inputs and questions
    kept: int = 0  # bytes of answers for which there is no credit
    handed: int = 0  # segments that it has not taken
    untaken: int = 0  # bytes in them
    pipes: list[CallPipe] = field(default_factory=list)
    mapped: weakref.WeakSet[object] = field(default_factory=weakref.WeakSet)  # segments of letters in use

    def check_call(self, nbytes: int) -> None:
        """Raise Unavailable where a call with inputs of `nbytes` would be too much."""
        if self.calls >= self.limits.calls:
            raise Unavailable(f"{self.limits.calls} calls of this worker are under way already")
        if self.nbytes + nbytes > self.limits.nbytes:
            raise Unavailable(f"what this worker has under way takes {self.nbytes} bytes already")

    def check_ask(self, nbytes: int) -> None:
        """Raise Unavailable where a question of `nbytes` would be too much."""
        if self.asks >= self.limits.asks or self.nbytes + nbytes > self.limits.nbytes:
            raise Unavailable(f"{self.asks} questions of this worker wait already, with {self.nbytes} bytes")

    def keep(self, cost: int) -> bool:
        """Count bytes of an answer for which there is no credit.

        If there is no room for them, they are not counted, and the result is False.
        """
        if self.kept + cost > self.limits.nbytes:
            return False
        self.kept += cost
        return True

    @property
    def unsent(self) -> int:
        """The bytes of answers that the worker has yet to read."""
        return sum([pipe.unsent for pipe in self.pipes]) + self.untaken

    @property
    def reads(self) -> bool:
        """Whether the worker reads at all: few enough last answers wait for it."""
        return sum([pipe.unsent_ends for pipe in self.pipes]) <= self.limits.unread
