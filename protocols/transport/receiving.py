"""The room that all listeners of a server have for requests on their way in: a thin shell of the budget.

`protocols.transport.budget` decides. Here its decisions are told to those whom they concern, in whatever
protocol they speak. Any listener's sweep has the time looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import trio

from actors.values.errors import Unavailable
from actors.values.families import Block, Families, Family, once
from protocols.transport.budget import ReceiveBudget

NO_ROOM: Final = "the server has no memory left for a request of this size, as others are being received; see --receive-memory"
TOO_SLOW: Final = (
    "other requests wait for the memory that this one holds, and it comes in too slowly; see --receive-memory"
)


def no_room() -> Unavailable:
    """Return the error for a request that has waited long enough."""
    return Unavailable(NO_ROOM, retry_after=1.0)


def too_slow() -> Unavailable:
    """Return the error for a request that holds room which others wait for."""
    return Unavailable(TOO_SLOW, retry_after=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomCounts:
    """The room at one moment. Sizes are bytes."""

    held: int
    limit: int
    waiting: int
    waited: int  # requests that had to wait, ever
    refused: int  # of them, those that waited in vain
    outrun: int  # requests that were too slow while others waited


class ReceivingRoom:
    """What the requests of one server hold together while they are received; no bound by default."""

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._budget: ReceiveBudget[Claim] = ReceiveBudget(limit)
        self._waited = self._refused = self._outrun = 0

    def counts(self) -> RoomCounts:
        """Return a snapshot."""
        budget = self._budget
        return RoomCounts(
            held=budget.held,
            limit=budget.limit,
            waiting=budget.waiting,
            waited=self._waited,
            refused=self._refused,
            outrun=self._outrun,
        )

    def sweep(self, now: float) -> None:
        """Refuse those who have waited for too long, and end those who hold others up."""
        budget = self._budget
        if not budget.waiting:
            return
        for claim in budget.late(now):
            self._refused += 1
            claim.told(granted=False)
        for claim in budget.behind(now):
            self._outrun += 1
            claim.outrun()
        self._admit(now)

    # For claims

    def ask(self, claim: Claim, size: int, *, urgent: bool) -> bool:
        """See `Claim.ask`."""
        granted = self._budget.ask(claim, size, trio.current_time(), urgent=urgent)
        self._waited += not granted
        return granted

    def shrink(self, claim: Claim, size: int) -> None:
        """See `Claim.shrink`."""
        self._budget.shrink(claim, size)
        self._admit(None)

    def release(self, claim: Claim) -> None:
        """See `Claim.release`."""
        self._budget.release(claim)
        self._admit(None)

    def leave(self, claim: Claim) -> None:
        """See `Claim.give_up`."""
        self._budget.leave(claim)
        self._admit(None)

    def holds(self, claim: Claim) -> int:
        """See `Claim.size`."""
        return self._budget.holds(claim)

    def _admit(self, now: float | None) -> None:
        if self._budget.waiting:
            for claim in self._budget.admitted(trio.current_time() if now is None else now):
                claim.told(granted=True)


def _nothing_known() -> tuple[int, int]:
    return 0, 0


class Claim:
    """What one request holds of the room, or wants of it.

    `progress` returns how many of its bytes have come, and how many are still to come. `outrun` is called
    where it is too slow while others wait: the request must end, and `release`.
    """

    __slots__ = ("_outrun", "_progress", "_room", "_told")

    def __init__(
        self,
        room: ReceivingRoom,
        progress: Callable[[], tuple[int, int]] = _nothing_known,
        outrun: Callable[[], None] | None = None,
    ) -> None:
        self._room = room
        self._progress = progress
        self._outrun = outrun
        self._told: Callable[[bool], None] | None = None

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return self._room.holds(self)

    @property
    def waiting(self) -> bool:
        """Whether it waits for an answer."""
        return self._told is not None

    def ask(self, size: int, told: Callable[[bool], None], *, urgent: bool = False) -> bool:
        """Ask for `size` bytes in all; True where they are granted at once.

        Otherwise `told` is called later, with whether they were granted. `urgent` is of a request that holds
        room under another claim, too.
        """
        if self._room.ask(self, size, urgent=urgent):
            return True
        self._told = told
        return False

    async def take(self, size: int, *, urgent: bool = False) -> bool:
        """Do as `ask` does, and wait for the answer."""
        answered = trio.Event()
        granted = False

        def told(verdict: bool) -> None:
            nonlocal granted
            granted = verdict
            answered.set()

        if self.ask(size, told, urgent=urgent):
            return True
        await answered.wait()
        return granted

    def shrink(self, size: int) -> None:
        """Give back what it holds beyond `size` bytes."""
        if size < self.size:
            self._room.shrink(self, size)

    def release(self) -> None:
        """Give back everything, and wait no longer; nothing is told of that."""
        self._told = None
        self._room.release(self)

    def give_up(self) -> None:
        """Wait no longer: `told` is told that nothing was granted."""
        if self._told is not None:
            self._room.leave(self)
            self.told(granted=False)

    # For the room

    def progress(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many are still to come."""
        return self._progress()

    def told(self, *, granted: bool) -> None:
        """Take the answer."""
        told, self._told = self._told, None
        if told is not None:
            told(granted)

    def outrun(self) -> None:
        """The request is too slow."""
        if self._outrun is not None:
            self._outrun()


FAMILIES: Final[Families[RoomCounts]] = (
    Family(
        "tritium_receive_bytes",
        "gauge",
        "Memory held for requests that are being received, in bytes",
        lambda counts: counts.held,
    ),
    Family(
        "tritium_receive_limit_bytes",
        "gauge",
        "Memory that requests may hold together while they are received, in bytes",
        lambda counts: counts.limit,
    ),
    Family(
        "tritium_receive_waiting",
        "gauge",
        "Requests that wait for memory before more of them is read",
        lambda counts: counts.waiting,
    ),
    Family(
        "tritium_receive_waited_total",
        "counter",
        "Requests that had to wait for memory before more of them was read",
        lambda counts: counts.waited,
    ),
    Family(
        "tritium_receive_refused_total",
        "counter",
        "Requests that were refused because no memory was left for them in time",
        lambda counts: counts.refused,
    ),
    Family(
        "tritium_receive_outrun_total",
        "counter",
        "Requests that were ended because they came in too slowly while others waited for their memory",
        lambda counts: counts.outrun,
    ),
)


def room_blocks(counts: RoomCounts) -> Iterator[Block]:
    """Yield what the room of a server counts."""
    yield from once(FAMILIES, counts)
