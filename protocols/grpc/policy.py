"""What a gRPC connection may take and how long it may last: options, and decisions that never act.

- `GrpcOptions`: limits, patience and settings (contract, grpc.md sections 1 and 3).
- Accounts of bytes: large requests in line, and answers yet to come. The limit is
  `GrpcOptions.connection_bytes` for each. Neither ever refuses a request or answer that is alone, so that the
  largest message still passes.
- `DeadlineWheel`: when calls must be over. A deadline is added when a call begins and discarded when it is
  answered, nearly always long before. So both are a look-up; only ticks that hold deadlines are ordered, and
  deadlines that were discarded leave nothing behind.
- `Keepalive`: pings, strikes and the age of a connection. The listener's sweep carries them out. The rules
  are gRPC's: its documents on keepalive (`doc/keepalive.md`) and on the server's enforcement of it (proposals
  A8 and A9).
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final, Generic, Literal, TypeVar

from actors.values.auditing import Auditor
from actors.values.callers import Action, HeadGate
from actors.values.requests import Endings
from actors.values.tracing.spans import NO_TRACER, Tracer
from protocols.kserve.apart import Elsewhere
from protocols.transport.proxies import TrustedProxies
from protocols.transport.room import AGE_JITTER, LAST_CALL, AddressLimit

CompressionLevel = Literal["none", "low", "medium", "high"]

MAX_MESSAGE = 2**31 - 1
"""The contract's limit for a message, in bytes, in either direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """What the flags of the gRPC frontend say. Durations are seconds, sizes bytes.

    `connection_bytes` bounds what one connection may make the server hold, for its requests and again for its
    answers. `compression` is of infer RPCs' answers, in a coding that the client accepts. The keepalive
    fields are gRPC's channel arguments of the same names. `restricted` maps a category to the metadata key
    and value that open it. `header_forward_pattern` picks metadata, by a match anywhere in its key, that
    becomes parameters of an inference. `auditor` is told of changes and denials. `elsewhere`: management is
    refused here, and is served there. `replica` is the server's name among several. `endings` are told every
    inference. `proxies` are believed when they say whose call it is; if `introduced`, their connections begin
    with a header of the PROXY protocol.
    `tracer` says which inferences are traced.

    A connection without calls for `idle_timeout` is ended by GOAWAY, whether or not its client pings: its
    next call opens another. `handshake_timeout` is the time that a client has for TLS and its first frames. A
    socket that takes nothing for `stall_timeout` is cut: HTTP/2 clients read always, whatever their windows
    say. While the server ends, a client may pause for `last_call` before its request is whole.
    """

    connection_bytes: int = 64 * 1024 * 1024
    max_connections: int = 8192
    per_address: AddressLimit | None = None
    proxies: TrustedProxies | None = None
    introduced: bool = False
    max_receive_message: int = MAX_MESSAGE
    max_send_message: int = MAX_MESSAGE
    compression: CompressionLevel = "none"
    keepalive_time: float = 7200.0
    keepalive_timeout: float = 20.0
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval_without_data: float = 300.0
    max_ping_strikes: int = 2
    max_connection_age: float = math.inf
    max_connection_age_grace: float = math.inf
    idle_timeout: float = 600.0  # as HTTP's
    handshake_timeout: float = 30.0
    stall_timeout: float = 60.0
    last_call: float = LAST_CALL
    restricted: Mapping[Action, tuple[str, str]] = field(default_factory=dict)
    gate: HeadGate | None = None
    auditor: Auditor | None = None
    header_forward_pattern: re.Pattern[str] | None = None
    elsewhere: Elsewhere | None = None
    replica: str = ""
    endings: Endings = field(default_factory=Endings)
    tracer: Tracer = NO_TRACER

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that no connection could keep."""
        for name in ("connection_bytes", "max_connections", "max_receive_message", "max_send_message"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in (
            "keepalive_time",
            "keepalive_timeout",
            "idle_timeout",
            "handshake_timeout",
            "stall_timeout",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be more than 0 seconds")
        if self.max_connection_age <= 0 or self.max_connection_age_grace < 0:
            raise ValueError("max_connection_age must be more than 0 seconds, and its grace at least 0")


T = TypeVar("T")

_GENERATION: Final = 256


class Grants(Generic[T]):
    """Lets messages beyond the first window come one after the other, in the order in which they asked.

    A message is granted whole or not at all: one that has half come could neither be answered nor given up. A
    grant is given where it fits into the limit together with the grants outstanding. While none is
    outstanding, any size is granted.
    """

    __slots__ = ("_granted", "_limit", "_waiting", "outstanding")

    def __init__(self, limit: int) -> None:
        self.outstanding = 0
        self._limit = limit
        self._granted: dict[T, int] = {}
        self._waiting: OrderedDict[T, int] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait in line."""
        return len(self._waiting)

    def ask(self, holder: T, size: int) -> bool:
        """Ask for `size` bytes; True where they are granted at once, False where `holder` waits in line.

        Raises ValueError where it holds or waits already.
        """
        if holder in self._granted or holder in self._waiting:
            raise ValueError(f"{holder!r} has asked already; it must release first")
        if self._waiting or not self._fits(size):
            self._waiting[holder] = size
            return False
        self._grant(holder, size)
        return True

    def holds(self, holder: T) -> bool:
        """Whether `holder` has been granted what it asked for."""
        return holder in self._granted

    def resize(self, holder: T, size: int) -> list[T]:
        """Note that a grant turned out to need `size` bytes.

        Returns the holders to which this made room for a grant.
        """
        self.outstanding += size - self._granted[holder]
        self._granted[holder] = size
        return self._admitted()

    def release(self, holder: T) -> list[T]:
        """Note that `holder` holds or wants nothing any more.

        Returns the holders that are granted now, in order.
        """
        if self._waiting.pop(holder, None) is None:
            self.outstanding -= self._granted.pop(holder, 0)
        return self._admitted()

    def _fits(self, size: int) -> bool:
        return not self._granted or self.outstanding + size <= self._limit

    def _grant(self, holder: T, size: int) -> None:
        self._granted[holder] = size
        self.outstanding += size

    def _admitted(self) -> list[T]:
        admitted = []
        while self._waiting:
            holder, size = next(iter(self._waiting.items()))
            if not self._fits(size):
                break
            del self._waiting[holder]
            self._grant(holder, size)
            admitted.append(holder)
        return admitted


class LargestLately:
    """The size of the largest answer lately seen, remembered for 256 answers at least, and 512 at most.

    `expected` is that size in bytes, and `first` as long as there was no answer.
    """

    __slots__ = ("_count", "_largest", "_older", "expected")

    def __init__(self, first: int = 0) -> None:
        self.expected = first
        self._largest = -1
        self._older = 0
        self._count = 0

    def saw(self, size: int) -> None:
        """Learn of an answer of `size` bytes."""
        self._count += 1
        if size > self._largest:
            self._largest = size
            self.expected = max(size, self._older)
        if self._count == _GENERATION:
            self._older, self._largest, self._count = self._largest, -1, 0
            self.expected = self._older


class AnswerRoom:
    """Begins no request whose answer might find no room.

    The size of an answer is unknown until it is there. So each in flight is expected to be as large as the
    largest lately seen. A request that is alone may begin whatever its answer may be, unless the waiting
    answers are more than the limit already.
    """

    __slots__ = ("_limit", "_sizes", "in_flight", "pending")

    def __init__(self, limit: int) -> None:
        self.in_flight = 0
        # Bytes of answers that wait for the client; the connection keeps it.
        self.pending = 0
        self._limit = limit
        self._sizes = LargestLately()

    @property
    def expected(self) -> int:
        """How many bytes an answer in flight is expected to have."""
        return self._sizes.expected

    @property
    def open(self) -> bool:
        """Whether one more request may begin."""
        in_flight = self.in_flight
        expected = (in_flight + 1) * self._sizes.expected if in_flight else 0
        return self.pending + expected <= self._limit

    def answered(self, size: int) -> None:
        """Learn that a request in flight got an answer of `size` bytes, or 0 for none."""
        self.in_flight -= 1
        self._sizes.saw(size)


K = TypeVar("K", bound=Hashable)

TICK: Final = 0.01
"""Seconds by which a deadline may have passed before it is reported."""

# Ticks that may pile up before those without deadlines are cleared away.
_SLACK: Final = 64


class DeadlineWheel(Generic[K]):
    """Deadlines by key. Times are absolute, in seconds on the caller's clock."""

    def __init__(self) -> None:
        self._ticks: dict[K, int] = {}
        self._keys: dict[int, dict[K, None]] = {}
        # A heap of all ticks in `_keys`, and of some that were removed.
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._ticks)

    def add(self, key: K, deadline: float) -> None:
        """Have `expire` tell `key` once `deadline` has passed, by a tick at most.

        An earlier deadline of the key is replaced. An infinite deadline counts as none.
        """
        self.discard(key)
        if deadline == math.inf:
            return
        tick = math.ceil(deadline / TICK)
        keys = self._keys.get(tick)
        if keys is None:
            keys = self._keys[tick] = {}
            heappush(self._order, tick)
        keys[key] = None
        self._ticks[key] = tick

    def discard(self, key: K) -> None:
        """Forget the deadline of `key`, if it has one."""
        tick = self._ticks.pop(key, None)
        if tick is None:
            return
        keys = self._keys[tick]
        del keys[key]
        if not keys:
            del self._keys[tick]
            if len(self._order) > 2 * len(self._keys) + _SLACK:
                self._order = list(self._keys)
                heapify(self._order)

    def expire(self, now: float) -> list[K]:
        """Return the keys whose deadlines have passed, the earliest tick first, and forget them."""
        passed: list[K] = []
        while self._order and self._order[0] * TICK <= now:
            for key in self._keys.pop(heappop(self._order), ()):
                del self._ticks[key]
                passed.append(key)
        return passed

    def next_expiry(self) -> float:
        """Return when `expire` will next have something to tell, inf for never."""
        while self._order and self._order[0] not in self._keys:
            heappop(self._order)
        return self._order[0] * TICK if self._order else math.inf


IDLE_PING_INTERVAL: Final = 7200.0
"""How far apart a client's pings must be while it has no calls, unless pings without calls are permitted."""


class KeepaliveAction(Enum):
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
        "_idle_since",
        "_last_ping",
        "_options",
        "_pings_sent",
        "_rests",
        "_retires_at",
        "_strikes",
        "heard_at",
    )

    def __init__(self, options: GrpcOptions, *, now: float, jitter: float) -> None:
        self._options = options
        self.heard_at = now  # when bytes last came
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
        self.heard_at = now
        self._awaited_since = math.inf

    def sent_data(self) -> None:
        """Note that a call's headers or data went out, which excuses pings of either side again."""
        self._pings_sent = 0
        self._strikes = 0
        self._last_ping = -math.inf
        self._called = True

    def idle_since(self, *, calls: int) -> float:
        """Return since when there has been no call; inf while there are `calls`.

        If there was one since the last check, the last bytes of the client tell about when it ended.
        """
        if calls:
            return math.inf
        return self.heard_at if self._called else self._idle_since

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

    def check(self, now: float, *, calls: int) -> KeepaliveAction:
        """Return the action that is due while `calls` are open. PING, RETIRE and REST are returned once."""
        options = self._options
        if calls or self._called:
            self._called = False
            self._idle_since = now
        if now >= self._grace_ends:
            return KeepaliveAction.EXPIRE
        if now >= self._awaited_since + options.keepalive_timeout:
            return KeepaliveAction.DROP
        if now >= self._retires_at:
            self._retires_at = math.inf
            self._grace_ends = now + options.max_connection_age_grace
            return KeepaliveAction.RETIRE
        if now >= self._idle_since + options.idle_timeout and not self._rests:
            self._rests = True
            return KeepaliveAction.REST
        if self._may_ping(calls) and now >= self.heard_at + options.keepalive_time:
            self._awaited_since = now
            self._pings_sent += 1
            return KeepaliveAction.PING
        return KeepaliveAction.NONE

    def _may_ping(self, calls: int) -> bool:
        options = self._options
        if self._awaited_since < math.inf or not (calls or options.keepalive_permit_without_calls):
            return False
        return not options.max_pings_without_data or self._pings_sent < options.max_pings_without_data
