"""Which connection goes when there is room for no more, and how many one address may have. Decisions, told the time.

Connections are ended only for others that stand before the door, and never one that has something under way and keeps the pace.
Those that never sent a request go before those that did, and of either the one that has been quiet for longest.
"""

from __future__ import annotations

import heapq
import ipaddress
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

PATIENCE: Final = 2.0
"""Seconds that a head, a body or a reader gets where others wait for room; a body and a reader one more for each KiB that moved."""

_LINE: Final = 256  # of those that may go are noted at once: looking at all connections takes a millisecond for a thousand
_FEW: Final = 16
_LOOK_AGAIN: Final = 0.1  # seconds after a look that found none
_NETWORK_BITS: Final = 64  # of an IPv6 address: the rest is its owner's to choose (RFC 4291, section 2.5.4)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Occupant(Protocol):
    """What is asked of a connection."""

    @property
    def served(self) -> bool:
        """Whether it ever brought a request."""

    @property
    def yields_at(self) -> float:
        """From when on it may be ended for another: since when it has been idle, or behind the pace; inf while it is busy."""


C = TypeVar("C", bound=Occupant)


def reserve(most: int) -> int:
    """Return how many connections are let in beyond `most`, for health checks and for clients that send at once."""
    return min(most, max(8, most // 64))


def order(occupant: Occupant) -> tuple[bool, float]:
    """Return the key by which connections go: the lowest first."""
    return occupant.served, occupant.yields_at


class GoingLine(Generic[C]):
    """The connections that go next. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._line: deque[tuple[C, float]] = deque()
        self._look_at = -math.inf

    def next(self, occupants: Collection[C], now: float) -> C | None:
        """Return who of `occupants` is to go for somebody else; None where all are busy. Tell it to before asking again."""
        while True:
            while self._line:
                occupant, yields_at = self._line.popleft()
                if occupant in occupants and occupant.yields_at == yields_at:
                    return occupant
            if now < self._look_at:
                return None
            quiet = [(occupant, at) for occupant in occupants if (at := occupant.yields_at) <= now]
            if not quiet:
                self._look_at = now + _LOOK_AGAIN
                return None
            silent = [pair for pair in quiet if not pair[0].served]
            if silent:
                self._line.extend(heapq.nsmallest(_LINE, silent, key=_quiet_since))
            else:  # a few at a time: among those that come meanwhile some may never send anything
                self._line.extend(heapq.nsmallest(_FEW, quiet, key=_quiet_since))


def first_to_go(occupants: Collection[C], now: float) -> C | None:
    """Return who of a few `occupants` is to go; None where all are busy."""
    return min((each for each in occupants if each.yields_at <= now), key=order, default=None)


def _quiet_since(noted: tuple[C, float]) -> float:
    return noted[1]


@dataclass(frozen=True, slots=True)
class AddressLimit:
    """How many connections an address may have at once. An IPv6 client has 64 bits of addresses, which count as one.

    Whoever is in one of the `trusted` networks may have any number: a balancer that brings everybody's.
    """

    most: int
    trusted: Sequence[Network] = ()

    def origin(self, host: str) -> str | None:
        """Return what the connections of the client at `host` have in common; None where they are not counted."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return None
        mapped = getattr(address, "ipv4_mapped", None)
        if mapped is not None:
            address = mapped
        if any(address in network for network in self.trusted):
            return None
        if address.version == 4:
            return str(address)
        return str(ipaddress.IPv6Network((int(address), _NETWORK_BITS), strict=False))
