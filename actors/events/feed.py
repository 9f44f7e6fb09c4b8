"""The stream of events: what the server tells its log of is kept for a while, and told to those that follow.

`EventFeed` is passive where events are told: `tell` neither waits nor raises, whatever followers do. Its
actor wakes them, a moment after an event, so that a burst of events is one portion; and where nothing
happens, now and then, so that each end of a connection knows that the other is there. What is kept belongs to
the feed, so a restarted actor loses nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import trio

from actors.events.policy import Place, Ring, RingLimits, place_after, portion
from actors.seams import faults
from actors.seams.bell import Bell
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.values.errors import Unavailable
from actors.values.events import LOGGED_ONLY, Event, Portion, ToldEvent, WantedEvents

HEARTBEAT: Final = 15.0
"""Seconds after which a follower learns that nothing has happened."""

GATHERING: Final = 0.02
"""Seconds in which events collect before followers are woken."""

_INTENSITY: Final = Intensity(3, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLimits:
    """What is kept, and how many may follow at once."""

    ring: RingLimits
    followers: int


@dataclass(slots=True)
class FeedCounts:
    """What is told of the feed in numbers."""

    told: Counter[str]
    followers: int = 0
    refused: int = 0  # followers that there was no place for
    missed: int = 0  # events that followers were too slow for


class EventFeed:
    """Implements `actors.values.events.EventStream`. `boot` names this start of the server: 8 hex digits."""

    def __init__(self, limits: FeedLimits, *, boot: str) -> None:
        self.counts = FeedCounts(Counter({event.value: 0 for event in Event if event not in LOGGED_ONLY}))
        self._limits = limits
        self._boot = boot
        self._ring = Ring(limits.ring)
        self._news = Bell()
        self._followers: set[Follower] = set()
        self._token = trio.lowlevel.current_trio_token()
        self._draining = False

    @property
    def kept(self) -> tuple[int, int]:
        """How many events are kept, and how many bytes they take."""
        return self._ring.kept, self._ring.bytes

    def tell(self, told: ToldEvent) -> None:
        """Take an event. From any thread; never waits, never raises."""
        if trio.lowlevel.in_trio_run():
            self._take(told)
            return
        try:
            self._token.run_sync_soon(self._take, told)
        except trio.RunFinishedError:
            return  # the server has ended

    def _take(self, told: ToldEvent) -> None:
        self.counts.told[told.event] += 1
        self._ring.add(told)
        self._news.ring()

    def follow(
        self,
        wanted: WantedEvents,
        after: str | None,
        *,
        live: bool = True,
        outlives_draining: bool = False,
    ) -> Follower:
        """Take a follower on (`EventStream.follow`)."""
        place = place_after(after, self._ring, self._boot)
        if len(self._followers) >= self._limits.followers:
            self.counts.refused += 1
            raise Unavailable(
                f"{len(self._followers)} clients follow the events of this server, and no more may"
                " (--events-followers)"
            )
        follower = Follower(self, wanted, place, live=live, outlives_draining=outlives_draining)
        self._followers.add(follower)
        self.counts.followers = len(self._followers)
        if self._draining and not outlives_draining:
            follower.end()
        return follower

    def next_portion(self, place: Place, wanted: WantedEvents) -> tuple[Portion, Place]:
        """Return what comes behind `place`, and the place behind that."""
        taken, there = portion(self._ring, place, wanted, self._boot)
        self.counts.missed += taken.missed or 0
        return taken, there

    def is_latest(self, place: Place) -> bool:
        """Whether nothing has come behind `place`."""
        return place.number >= self._ring.latest and not place.gap

    def leave(self, follower: Follower) -> None:
        """Let a follower go."""
        self._followers.discard(follower)
        self.counts.followers = len(self._followers)

    def drain(self) -> None:
        """End the streams that end before the server does, once they have what was told until now."""
        self._draining = True
        for each in self._followers:
            if not each.outlives_draining:
                each.end()

    def close(self) -> None:
        """End all streams, once they have what was told until now."""
        self._draining = True
        for each in self._followers:
            each.end()

    # The actor

    def spec(self) -> ChildSpec:
        """Return the actor as a child: its trouble is its own, and its siblings notice nothing."""
        return ChildSpec("events", self.run, intensity=_INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)

    async def run(self, ctx: ChildContext) -> None:
        """Wake the followers when there is something new, or nothing for a while. For ever."""
        ctx.started()
        heard = 0
        while True:
            if faults.points is not None:
                faults.points.passing("events.turn")
            quiet = True
            with trio.move_on_after(HEARTBEAT):
                heard = await self._news.wait(heard)
                await trio.sleep(GATHERING)
                quiet = False
            for each in self._followers:
                each.wake(beat=quiet)
            ctx.publish(told=self._ring.latest, kept=self._ring.kept, followers=len(self._followers))


class Follower:
    """One follower's place in the stream. Implements `actors.values.events.Following`."""

    def __init__(
        self, feed: EventFeed, wanted: WantedEvents, place: Place, *, live: bool, outlives_draining: bool
    ) -> None:
        self.outlives_draining = outlives_draining
        self._feed = feed
        self._wanted = wanted
        self._place = place
        self._ending = not live
        self._closed = False
        self._beat = True  # the first portion comes at once, and has the id to come back with
        self._bell = Bell()

    async def take(self) -> Portion | None:
        """Wait for more, or for the time to show that the stream lives; None at its end."""
        while not self._closed:
            if not self._feed.is_latest(self._place):
                taken, self._place = self._feed.next_portion(self._place, self._wanted)
                if taken.events or taken.gap:
                    return await self._given(taken)
                await trio.lowlevel.checkpoint()  # what was passed over may have been much
            elif self._beat:
                taken, _ = self._feed.next_portion(self._place, self._wanted)
                return await self._given(taken)
            elif self._ending:
                break
            else:
                await self._bell.next_ring()
        await trio.lowlevel.checkpoint()
        return None

    async def _given(self, taken: Portion) -> Portion:
        self._beat = False
        await trio.lowlevel.checkpoint()
        return taken

    def wake(self, *, beat: bool) -> None:
        """Have it look, and take an empty portion if there is nothing and `beat` is set."""
        self._beat = self._beat or beat
        self._bell.ring()

    def end(self) -> None:
        """Have it end behind what was told until now."""
        self._ending = True
        self._bell.ring()

    def close(self) -> None:
        """Give up the place. A task that waits in `take` learns that it is the end."""
        self._closed = True
        self._feed.leave(self)
        self._bell.ring()
