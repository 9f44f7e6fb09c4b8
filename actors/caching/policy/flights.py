"""Single flight: of requests with the same key only one runs.

That request is the *leader*. The others wait for its answer and are its *followers*.

Theory of operation. A flight is open from its leader's start to its leader's end. If the leader gets an
answer, all its followers get the same. It may get none, because its client left, its deadline passed or the
model failed. Then the follower that has waited longest leads in its place, and the others go on waiting.
After `FAILURES` answers that were errors no request waits any more, and all run on their own. Otherwise
inputs that fail would fail one after the other, each as late as all before it together.

A flight may begin by asking a cache that takes its time (`looking`). A leader that leaves then has only its
place to hand on, and the answer from the cache is for the request that leads when it comes.

Nothing here waits or looks at a clock; the caller carries out what it returns.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from actors.values.requests import InferRequest
from actors.values.specs import QueueBounds

FAILURES: Final = 2
"""Errors in a row after which requests that are equal run side by side."""


class Flight:
    """One key's requests that are under way."""

    __slots__ = ("failures", "followers", "key", "leader", "looking")

    def __init__(self, key: bytes, leader: InferRequest) -> None:
        self.key = key
        self.leader = leader
        # The one that has waited longest is first.
        self.followers: OrderedDict[InferRequest, None] = OrderedDict()
        self.looking = False
        self.failures = 0


class Flights:
    """All flights of one model. Followers are not part of its queue, but have the same bound."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._by_key: dict[bytes, Flight] = {}
        self._of: dict[InferRequest, Flight] = {}  # leaders and followers
        self._followers = 0
        self._nbytes = 0

    def __len__(self) -> int:
        """How many flights are open."""
        return len(self._by_key)

    @property
    def followers(self) -> int:
        """How many requests wait for another's answer."""
        return self._followers

    def at(self, key: bytes) -> Flight | None:
        """Return the open flight of `key`."""
        return self._by_key.get(key)

    def led_by(self, request: InferRequest) -> Flight | None:
        """Return the flight that `request` leads."""
        flight = self._of.get(request)
        return flight if flight is not None and flight.leader is request else None

    def lead(self, key: bytes, request: InferRequest) -> Flight:
        """Open a flight. Raises ValueError if one is open: follow that, or run without."""
        if key in self._by_key or request in self._of:
            raise ValueError(f"{request!r} can't lead: the flight is open, or it is in one")
        flight = self._by_key[key] = self._of[request] = Flight(key, request)
        return flight

    def follow(self, key: bytes, request: InferRequest) -> bool:
        """Have `request` wait for the answer to `key`. False without a leader, or if too many wait."""
        flight = self._by_key.get(key)
        if flight is None or self._followers >= self._bounds.requests:
            return False
        if self._nbytes + request.nbytes > self._bounds.nbytes:
            return False
        flight.followers[request] = None
        self._of[request] = flight
        self._followers += 1
        self._nbytes += request.nbytes
        return True

    def leave(self, request: InferRequest) -> bool:
        """Take out a follower whose client has left or whose deadline has passed. False if it is none."""
        flight = self._of.get(request)
        if flight is None or flight.leader is request:
            return False
        self._take(flight, request)
        del self._of[request]
        return True

    def land(self, leader: InferRequest) -> list[InferRequest]:
        """The leader has its answer: close its flight and return the requests that get the same answer."""
        flight = self._of[leader]
        return self._close(flight)

    def lose(self, leader: InferRequest, *, failed: bool) -> list[InferRequest]:
        """The leader got no answer; `failed` says that the model failed. Return the requests that run now.

        That is the next leader, or all followers after `FAILURES`. It may be none, for example while the
        cache still looks for the answer.
        """
        flight = self._of[leader]
        flight.failures += failed
        if not flight.followers or flight.failures >= FAILURES:
            return self._close(flight)
        del self._of[leader]
        heir = flight.leader = next(iter(flight.followers))
        self._take(flight, heir)
        return [] if flight.looking else [heir]

    def disperse(self, leader: InferRequest) -> list[InferRequest]:
        """Close the leader's flight, since its answer can't be shared; return the requests that run now."""
        return self._close(self._of[leader])

    def scatter(self) -> list[InferRequest]:
        """Close all flights and return every request that is not running.

        Those are the followers, and the leaders that look for an answer in the cache.
        """
        idle = []
        for flight in list(self._by_key.values()):
            if flight.looking:
                idle.append(flight.leader)
            idle += self._close(flight)
        return idle

    def _close(self, flight: Flight) -> list[InferRequest]:
        flight.looking = False  # an answer found now has no taker
        del self._by_key[flight.key]
        del self._of[flight.leader]
        followers = list(flight.followers)
        for request in followers:
            self._take(flight, request)
            del self._of[request]
        return followers

    def _take(self, flight: Flight, request: InferRequest) -> None:
        del flight.followers[request]
        self._followers -= 1
        self._nbytes -= request.nbytes
