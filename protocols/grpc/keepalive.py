"""Pings, strikes and the age of one connection: decisions, told the time.

The listener's sweep carries them out. The rules are gRPC's: its documents on keepalive (`doc/keepalive.md`),
on the server's enforcement of it (proposals A8 and A9), and the contract, grpc.md section 1.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from protocols.grpc.options import GrpcOptions

IDLE_PING_INTERVAL: Final = 7200.0
"""How far apart a client's pings must be while it has no calls, unless pings without calls are permitted."""

AGE_JITTER: Final = 0.1
"""The share by which ages differ, so that connections opened together are not closed together."""


class Action(Enum):
    """What is to be done about a connection now."""

    NONE = "none"
    PING = "ping"  # send a ping
    DROP = "drop"  # the peer does not answer pings
    RETIRE = "retire"  # the connection is old: say so, and take no new streams
    REST = "rest"  # the connection has had no calls for long: do the same
    EXPIRE = "expire"  # the connection is old, and the grace is over


class Keepalive:
    """The state of one connection. Times are seconds on one clock; `jitter` is a number in [-1, 1]."""

    __slots__ = (
        "_awaited_since",
        "_called",
        "_grace_ends",
        "_heard_at",
        "_idle_since",
        "_last_ping",
        "_options",
        "_pings_sent",
        "_rests",
        "_retires_at",
        "_strikes",
    )

    def __init__(self, options: GrpcOptions, *, now: float, jitter: float) -> None:
        self._options = options
        self._heard_at = now
        self._awaited_since = math.inf  # when the ping was sent whose answer is missing
        self._pings_sent = 0  # since there was a call's data to send
        self._last_ping = -math.inf  # when the peer's last ping came
        self._idle_since = now  # when there was last a call
        self._called = False  # whether there was one since the last check
        self._strikes = 0
        self._retires_at = now + options.max_connection_age * (1 + AGE_JITTER * jitter)
        self._grace_ends = math.inf
        self._rests = False  # the peer was told that it is idle

    def heard(self, now: float) -> None:
        """Note that bytes came. Whatever they are, the peer lives."""
        self._heard_at = now
        self._awaited_since = math.inf

    def sent_data(self) -> None:
        """Note that a call's headers or data went out, which excuses pings of either side again."""
        self._pings_sent = 0
        self._strikes = 0
        self._last_ping = -math.inf
        self._called = True

    def idle_since(self, *, calls: int) -> float:
        """Return since when there has been no call, as of the last check; inf while there are `calls`."""
        return math.inf if calls or self._called else self._idle_since

    def struck_out(self, now: float, *, calls: int) -> bool:
        """Count a ping that came while `calls` were open; return whether it was one too many.

        A ping sooner after the last than is allowed is a strike, and more than `max_ping_strikes` are too
        many. With `max_ping_strikes` 0, everything is forgiven.
        """
        options = self._options
        idle = not calls and not options.keepalive_permit_without_calls
        interval = IDLE_PING_INTERVAL if idle else options.min_ping_interval_without_data
        allowed_at, self._last_ping = self._last_ping + interval, now
        if now >= allowed_at:
            return False
        self._strikes += 1
        return self._strikes > options.max_ping_strikes > 0

    def check(self, now: float, *, calls: int) -> Action:
        """Return the action that is due while `calls` are open. PING, RETIRE and REST are returned once."""
        options = self._options
        if calls or self._called:
            self._called = False
            self._idle_since = now
        if now >= self._grace_ends:
            return Action.EXPIRE
        if now >= self._awaited_since + options.keepalive_timeout:
            return Action.DROP
        if now >= self._retires_at:
            self._retires_at = math.inf
            self._grace_ends = now + options.max_connection_age_grace
            return Action.RETIRE
        if now >= self._idle_since + options.idle_timeout and not self._rests:
            self._rests = True
            return Action.REST
        if self._may_ping(calls) and now >= self._heard_at + options.keepalive_time:
            self._awaited_since = now
            self._pings_sent += 1
            return Action.PING
        return Action.NONE

    def _may_ping(self, calls: int) -> bool:
        options = self._options
        if self._awaited_since < math.inf or not (calls or options.keepalive_permit_without_calls):
            return False
        return not options.max_pings_without_data or self._pings_sent < options.max_pings_without_data
