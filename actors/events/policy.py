"""What is kept of the stream of events, and from where a follower goes on. Pure.

Events are numbered from 1. An *id* is the server's start and a number, such as `3f2a9c1d-41`: a client that
comes back with the id of an earlier start is told that events are missing, and does not take the numbers of
one start for those of another.

The *ring* keeps the newest events, as far as two bounds allow: how many, and how many bytes. A follower is a
number in the ring, and has no queue of its own. So a slow reader costs nothing but what its socket holds; it
misses what left the ring meanwhile, and is told how much that was.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from actors.values.errors import InvalidArgument
from actors.values.events import Portion, ToldEvent, WantedEvents

OVERHEAD: Final = 200
"""Bytes of a kept event beside its text: the object, the names in it, its place in the ring."""

PORTION_BYTES: Final = 64 * 1024
"""Text of the events that a follower takes at once; the last one of them may go beyond it."""

_LOOKED_AT: Final = 512
"""Events that one look passes over at most, wanted or not."""

_ID: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLimits:
    """How many events are kept, and how many bytes they may take."""

    entries: int
    bytes: int


class Ring:
    """The newest events. `latest` is the number of the last one that was told, 0 for none."""

    __slots__ = ("_bytes", "_kept", "_limits", "latest")

    def __init__(self, limits: RingLimits) -> None:
        self.latest = 0
        self._limits = limits
        self._kept: deque[ToldEvent] = deque()
        self._bytes = 0

    @property
    def kept(self) -> int:
        """How many events are kept."""
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """How much room they take."""
        return self._bytes

    @property
    def oldest(self) -> int:
        """The number of the oldest event that is kept; of the next one to come if none is."""
        return self.latest - len(self._kept) + 1

    def add(self, told: ToldEvent) -> None:
        """Keep `told`, and drop the oldest ones that have no room beside it."""
        self.latest += 1
        self._kept.append(told)
        self._bytes += _room_of(told)
        while self._kept and (len(self._kept) > self._limits.entries or self._bytes > self._limits.bytes):
            self._bytes -= _room_of(self._kept.popleft())

    def after(self, number: int) -> Iterator[tuple[int, ToldEvent]]:
        """Yield the kept events behind `number`, oldest first."""
        begin = max(number + 1, self.oldest)
        return enumerate(islice(self._kept, begin - self.oldest, None), begin)


def _room_of(told: ToldEvent) -> int:
    return len(told.text) + OVERHEAD


@dataclass(frozen=True, slots=True)
class Place:
    """Where a follower is: it has seen everything up to `number`.

    `gap`: events are missing before what comes next, and nothing tells how many.
    """

    number: int
    gap: bool = False


def id_of(boot: str, number: int) -> str:
    """Return the id of an event of this start."""
    return f"{boot}-{number}"


def place_after(after: str | None, ring: Ring, boot: str) -> Place:
    """Return where a follower goes on that has seen the event with id `after` (`EventStream.follow`).

    Raises InvalidArgument for what is no id.
    """
    if after is None:
        return Place(ring.latest)
    if after in {"", "0"}:
        return Place(0)
    found = _ID.fullmatch(after)
    if found is None:
        raise InvalidArgument(
            f"'{after[:64]}' is no id of an event: give the id of the last event that you have, such as"
            f" {id_of(boot, max(ring.latest, 1))}, or 0 for all that are kept"
        )
    if found[1] != boot:
        return Place(ring.oldest - 1, gap=True)
    return Place(min(int(found[2]), ring.latest))


def portion(ring: Ring, place: Place, wanted: WantedEvents, boot: str) -> tuple[Portion, Place]:
    """Return what a follower at `place` takes next, and where it is afterwards."""
    dropped = max(0, ring.oldest - 1 - place.number)
    events: list[tuple[str, ToldEvent]] = []
    number, size = place.number + dropped, 0
    for number, told in islice(ring.after(place.number), _LOOKED_AT):
        if wanted.wants(told):
            events.append((id_of(boot, number), told))
            size += len(told.text)
            if size >= PORTION_BYTES:
                break
    taken = Portion(
        events=events,
        upto=id_of(boot, number),
        gap=place.gap or dropped > 0,
        missed=None if place.gap else dropped,
    )
    return taken, Place(number)
