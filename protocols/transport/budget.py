"""Memory for requests that are being received: which of them may come on, which are too late or too slow.

A request of up to `FREE` bytes is free. A longer one holds all bytes that it announces, from its head until
its request is answered. So a request that was let in always finds room for its rest, and requests of which
half has come can't wait for each other. Where the length is unknown (a chunked body, the many small messages
of one gRPC connection), its holder asks for more as more comes. Those who hold something go before newcomers,
because their end makes room. One of them at a time may go beyond the limit, so one always comes to its end.

Newcomers stand in one line and are let in in their order, whatever their size. So none starves: neither a
large one behind small ones nor small ones behind it for longer than `WAIT`.

A reservation is cheap for its client, who may announce gigabytes and send next to nothing. So while others
wait, a holder must keep a pace at which its rest is here within `LONGEST_REST`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from protocols.transport.room import PATIENCE

FREE: Final = 64 * 1024
"""Bytes of a request that cost no room: what one read brings anyway."""

WAIT: Final = 10.0
"""Seconds for which a request waits for room; after that it is refused, to be sent again."""

LONGEST_REST: Final = 60.0
"""Seconds in which the rest of a request must be expected to be here, while others wait for its room."""


class Holder(Protocol):
    """The owner of some room."""

    def progress(self) -> tuple[int, int]:
        """Return how many bytes have come since it was let in, and how many are still to come."""


H = TypeVar("H", bound=Holder)


@dataclass(slots=True)
class _Share:
    """What a holder has, and since when; times during which it waited for more are left out."""

    size: int
    since: float


@dataclass(frozen=True, slots=True)
class _Wish:
    """How many bytes a holder wants in all, and since when."""

    size: int
    since: float


class ReceiveBudget(Generic[H]):
    """`limit` bytes for all requests together. Times are seconds on the caller's clock.

    A request that is longer than the limit comes alone.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._shares: dict[H, _Share] = {}
        self._growing: OrderedDict[H, _Wish] = OrderedDict()  # those who hold some already, or are urgent
        self._line: OrderedDict[H, _Wish] = OrderedDict()  # newcomers
        self._overdrawn: H | None = None  # the one that may go beyond the limit

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._growing) + len(self._line)

    def holds(self, holder: H) -> int:
        """Return how many bytes `holder` has."""
        share = self._shares.get(holder)
        return 0 if share is None else share.size

    def ask(self, holder: H, size: int, now: float, *, urgent: bool = False) -> bool:
        """Ask that `holder` may have `size` bytes in all; True where it has them now, False where it waits.

        `urgent` is a newcomer whose request has room already, under another name. Raises ValueError where the
        holder waits already.
        """
        if holder in self._growing or holder in self._line:
            raise ValueError(f"{holder!r} waits already")
        more = size - self.holds(holder)
        if more <= 0:
            return True
        growing = urgent or holder in self._shares
        if holder is self._overdrawn or (
            not self._growing and (growing or not self._line) and self._may(holder, more, growing=growing)
        ):
            self._grant(holder, size, now, now)
            return True
        (self._growing if growing else self._line)[holder] = _Wish(size, now)
        return False

    def shrink(self, holder: H, size: int) -> None:
        """Note that `holder` turned out to need `size` bytes only. Ask `admitted` next."""
        share = self._shares[holder]
        self.held += size - share.size
        share.size = size
        self._settle()

    def release(self, holder: H) -> None:
        """Note that `holder` has or wants nothing any more. Ask `admitted` next."""
        share = self._shares.pop(holder, None)
        if share is not None:
            self.held -= share.size
            self._settle()
        self.leave(holder)

    def leave(self, holder: H) -> None:
        """Note that `holder` waits no longer; what it has, it keeps. Ask `admitted` next."""
        self._growing.pop(holder, None)
        self._line.pop(holder, None)

    def admitted(self, now: float) -> Sequence[H]:
        """Return those who waited and have now what they asked for, in order."""
        admitted: list[H] = []
        for line, growing in ((self._growing, True), (self._line, False)):
            while line:
                holder, wish = next(iter(line.items()))
                if not self._may(holder, wish.size - self.holds(holder), growing=growing):
                    return admitted
                del line[holder]
                self._grant(holder, wish.size, wish.since, now)
                admitted.append(holder)
        return admitted

    def late(self, now: float) -> Sequence[H]:
        """Return those who have waited for `WAIT`, who wait no longer. Ask `admitted` next."""
        late = [
            holder
            for line in (self._growing, self._line)
            for holder, wish in line.items()
            if now >= wish.since + WAIT
        ]
        for holder in late:
            self.leave(holder)
        return late

    def behind(self, now: float) -> Sequence[H]:
        """Return those who are too slow while others wait, as many as the first in line needs to be gone.

        Those who hold the most come first. They are told to `release`.
        """
        first = next(iter((self._growing or self._line).items()), None)
        if first is None:
            return ()
        missing = self.held + first[1].size - self.holds(first[0]) - self.limit
        slow = [
            (share.size, holder) for holder, share in self._shares.items() if self._slow(holder, share, now)
        ]
        slow.sort(key=lambda pair: -pair[0])
        behind: list[H] = []
        for size, holder in slow:
            if missing <= 0:
                break
            missing -= size
            behind.append(holder)
        return behind

    def _slow(self, holder: H, share: _Share, now: float) -> bool:
        elapsed = now - share.since
        if elapsed < PATIENCE or holder in self._growing:
            return False
        came, rest = holder.progress()
        return rest * elapsed > came * LONGEST_REST

    def _may(self, holder: H, more: int, *, growing: bool) -> bool:
        if self.held + more <= self.limit or self.held == self.holds(holder):
            return True
        if growing and self._overdrawn is None:
            self._overdrawn = holder
            return True
        return False

    def _settle(self) -> None:
        """Let another holder go beyond the limit once all are within it, or the one that did has left."""
        if self.held <= self.limit or self._overdrawn not in self._shares:
            self._overdrawn = None

    def _grant(self, holder: H, size: int, asked: float, now: float) -> None:
        share = self._shares.get(holder)
        if share is None:
            self._shares[holder] = _Share(size, now)
            self.held += size
        else:
            self.held += size - share.size
            share.size = size
            share.since += now - asked
