"""Which connection ends when there is no room for more, and how many one address may have.

The functions here decide, and are told the time. A connection is ended only to make room for another that
waits to be accepted. It is never ended while it has something under way and keeps the pace. Connections that
never sent a request go before those that did, and those whose clients would lose an open stream go last.
Within each group the one that has been quiet for longest goes first.

A newcomer has `PATIENCE` to bring its first request, as its first bytes may come later than it is accepted.
But a flood of newcomers must not push out all connections that are in use. So once more than a quarter of all
are newcomers, they make room for each other, the oldest first.
"""

from __future__ import annotations

import heapq
import ipaddress
import math
from collections import deque
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

PATIENCE: Final = 2.0
"""Seconds that a head, a body or a reader gets while other connections wait for room.

A body and a reader get one second more for each KiB that moved.
"""

LAST_CALL: Final = 5.0
"""Seconds, while the server ends, for which a client may pause before its request is whole."""

AGE_JITTER: Final = 0.1
"""The share by which ages differ, so that connections opened together are not closed together."""

# Connections that may go are noted so many at once: looking at all
# connections takes a millisecond for a thousand.
_LINE: Final = 256
_FEW: Final = 16
_PART: Final = 64  # or one in so many of all connections, where that is more
_NEWCOMERS: Final = 4  # the part of all connections, one in so many, that may be newcomers
_LOOK_AGAIN: Final = 0.1  # seconds to wait after a look that found no connection
# Bits of an IPv6 address that count. Its owner may choose the rest (RFC 4291, section 2.5.4).
_NETWORK_BITS: Final = 64

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Occupant(Protocol):
    """The interface of a connection that may have to give way."""

    @property
    def served(self) -> bool:
        """Whether it ever brought a request."""

    @property
    def holding(self) -> bool:
        """Whether its client would lose an open stream."""

    @property
    def yields_at(self) -> float:
        """The time from which on it may be ended for another connection.

        That is since when it has been idle, or behind the pace, and for a newcomer `PATIENCE` later; inf
        while it is busy.
        """


C = TypeVar("C", bound=Occupant)


def reserve(most: int) -> int:
    """Return how many more than `most` connections are let in, for health checks and prompt clients."""
    return min(most, max(8, most // 64))


def order(occupant: Occupant) -> tuple[bool, bool, float]:
    """Return the key by which connections go: the lowest first."""
    return occupant.served, occupant.holding, occupant.yields_at


class GoingLine(Generic[C]):
    """The connections that go next. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._line: deque[tuple[C, float]] = deque()
        self._look_at = -math.inf

    def next(self, occupants: Collection[C], now: float) -> C | None:
        """Return the occupant that is to go for another connection; None where all are busy.

        Tell the occupant to go before asking again.
        """
        while True:
            while self._line:
                occupant, yields_at = self._line.popleft()
                if occupant in occupants and occupant.yields_at == yields_at:
                    return occupant
            if now < self._look_at:
                return None
            self._line.extend(_next_to_go(occupants, now))
            if not self._line:
                self._look_at = now + _LOOK_AGAIN
                return None


def _next_to_go(occupants: Collection[C], now: float) -> Sequence[tuple[C, float]]:
    """Return some that go next, and since when each is quiet."""
    silent: list[tuple[C, float]] = []
    used: list[tuple[C, float]] = []
    holding: list[tuple[C, float]] = []
    fresh: list[tuple[C, float]] = []
    soon = now + PATIENCE
    for occupant in occupants:
        at = occupant.yields_at
        if at <= now:
            (silent if not occupant.served else holding if occupant.holding else used).append((occupant, at))
        elif at <= soon and not occupant.served:
            fresh.append((occupant, at))
    if silent:
        return heapq.nsmallest(_LINE, silent, key=_quiet_since)
    if len(fresh) > max(1, len(occupants) // _NEWCOMERS):
        return heapq.nsmallest(min(_LINE, len(fresh) // 2), fresh, key=_quiet_since)
    # A few at a time, because connections that come meanwhile may never send a request.
    few = max(_FEW, len(occupants) // _PART)
    return heapq.nsmallest(few, used or holding, key=_quiet_since)


def first_to_go(occupants: Collection[C], now: float) -> C | None:
    """Return the one of a few `occupants` that is to go; None where all are busy."""
    return min((each for each in occupants if each.yields_at <= now), key=order, default=None)


def _quiet_since(noted: tuple[C, float]) -> float:
    return noted[1]


@dataclass(frozen=True, slots=True)
class AddressLimit:
    """How many connections an address may have at once.

    An IPv6 client has 64 bits of addresses, which count as one. A `trusted` address may have any number of
    connections: it is a balancer's, which brings the connections of all clients.
    """

    most: int
    trusted: Container[Address] = ()

    def origin(self, host: str) -> str | None:
        """Return what connections of the client at `host` have in common; None where they are not counted."""
        address = address_of(host)
        if address is None or address in self.trusted:
            return None
        return origin_of(address)


def address_of(host: str) -> Address | None:
    """Return the address `host`, an IPv4 one where IPv6 stands for that; None where it is no address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def origin_of(address: Address) -> str:
    """Return what the addresses of one client have in common."""
    if address.version == 4:
        return str(address)
    return str(ipaddress.IPv6Network((int(address), _NETWORK_BITS), strict=False))
