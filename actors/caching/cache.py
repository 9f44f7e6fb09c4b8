"""The response cache as models see it.

Contract: scheduling.md section 8, and docs/cache.md for what is done differently.

`ResponseCache` belongs to the server: one store, near (in this process) or far (see `FarStore`), and the
actors that work for it. A `ModelCache` is a stage of each model version that uses the cache. It is called at
four points of a request's way: before it needs room in the queue (`intercept`), before and after it is queued
(`holds`, `queued`), when it is answered (`responding`), and when it is cancelled or its model ends.

A request is in one of these places: answered; waiting here for an equal request's answer, for its key or for
the far store; or in the queue and beyond, where others may wait for its answer (`actors.caching.policy.flights`).
While it waits here it is in the model's in-flight table. So the code that drains or ends the model finds it.

A bug in here costs only a look-up: each entry point is guarded, notes the bug (`ResponseCache.note_bug`), and
lets the request run as if there were no cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

import trio

from actors.caching.policy.cache import KeptAnswer, KeyMaker, LruCache, copy_of, entry_size, too_large
from actors.caching.policy.flights import Flight, Flights
from actors.seams import faults
from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.policy.timers import Timers
from actors.serving.ports import Stage
from actors.serving.statistics import FailureReason
from actors.supervision.context import ChildContext
from actors.supervision.offload import NotDone, Offload
from actors.values.errors import DeadlineExceeded, TritiumError
from actors.values.events import Event, Log
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import ModelSpec, SequenceBatching

HASHED_AT_ONCE: Final = 32 * 1024
"""Input bytes up to which a key is made on the loop: about 40 µs.

Beyond that, a hand-over to a thread costs less.
"""

COPIED_AT_ONCE: Final = 64 * 1024 * 1024
"""Bytes of an answer beyond which it is not kept.

Copying more would hold up all other requests for over 20 ms.
"""

HASHING_THREADS: Final = 2
HASHING_JOBS: Final = 1024
HASHING_BYTES: Final = 256 * 1024 * 1024

_LOG_PAUSE: Final = 1.0  # seconds between two log lines about the same thing


class Ticket:
    """What the cache knows about a request; lives in `request.cache_ticket`."""

    __slots__ = ("key", "seconds", "since", "timer")

    def __init__(self, key: bytes, since: float) -> None:
        self.key = key
        self.since = since  # when it was first seen, on trio's clock
        self.seconds = 0.0  # how long the look-up took
        self.timer = 0  # of its deadline, while it waits here; 0: none


def may_be_kept(spec: ModelSpec) -> bool:
    """Whether a model's answers depend on its requests alone, and come in one piece (contract, section 8)."""
    return not spec.decoupled and not isinstance(spec.scheduling, SequenceBatching)


class FarStore(Protocol):
    """A store that needs time to answer.

    It calls back on the loop, exactly once, and never within the call.
    """

    def look_up(self, key: bytes, found: Callable[[KeptAnswer | None], None]) -> bool:
        """Call `found` with the entry for `key`, or None.

        If no look-up is possible now, return False and never call `found`.
        """

    def insert(self, key: bytes, entry: KeptAnswer) -> None:
        """Keep `entry` if that is possible."""


class ResponseCache:
    """The server's one cache: `near` or `far`, whichever there is.

    Passive; its actors are `hashing` and `keep_deadlines`.
    """

    def __init__(self, *, near: LruCache | None = None, far: FarStore | None = None, log: Log) -> None:
        self.near = near
        self.far = far
        self.hashing = Offload(
            limiter=trio.CapacityLimiter(HASHING_THREADS), jobs=HASHING_JOBS, nbytes=HASHING_BYTES
        )
        self.deadlines: Timers[tuple[ModelCache, InferRequest]] = Timers()
        self.shared = 0  # answers given to requests that waited for an equal one's
        self.bugs = 0
        self._log = log
        self._said_at: dict[Event, float] = {}
        self._earlier = Bell()  # rings when the next deadline is earlier than before

    def of(self, state: ModelState) -> ModelCache:
        """Return the stage of a version whose answers are kept."""
        return ModelCache(state, self)

    def remind(self, at: float, model: ModelCache, request: InferRequest) -> int:
        """Call `model.expire(request)` at `at`, unless the timer that is returned is dropped."""
        if at < self.deadlines.next_due():
            self._earlier.ring()
        return self.deadlines.set(at, (model, request))

    async def keep_deadlines(self, ctx: ChildContext) -> None:
        """End requests whose deadline passes while they wait here. An actor's start function."""
        ctx.started()
        while True:
            while (late := self.deadlines.pop_due(trio.current_time())) is not None:
                model, request = late
                model.expire(request)
            with trio.move_on_at(self.deadlines.next_due()):
                await self._earlier.next_ring()

    def insert(self, key: bytes, entry: KeptAnswer) -> None:
        """Keep `entry`, which `refuses` has accepted."""
        if faults.points is not None:
            faults.points.passing("cache.insert")
        if self.far is not None:
            self.far.insert(key, entry)
        elif self.near is not None:
            began = trio.current_time()
            self.near.insert(key, entry)
            self.near.counts.insertion_seconds += trio.current_time() - began

    def refuses(self, nbytes: int) -> bool:
        """Whether an entry of this size can't be kept; if so, that is logged."""
        if self.near is None or self.near.fits(nbytes):
            return False
        self.say(Event.CACHE_ENTRY_SKIPPED, "warning", reason=too_large(nbytes, self.near.capacity))
        return True

    def note_bug(self, bug: Exception) -> None:
        """Log a bug in this module; the request runs as if there were no cache."""
        self.bugs += 1
        self.say(Event.CACHE_FAILED, "error", reason=f"{type(bug).__name__}: {bug}", exc_info=bug)

    def say(self, event: Event, level: str, **keys: object) -> None:
        """Log `event`, at most once per pause: any request may cause it, and so may every other."""
        now = trio.current_time()
        if now >= self._said_at.get(event, -_LOG_PAUSE) + _LOG_PAUSE:
            self._said_at[event] = now
            self._log(event, level=level, **keys)


class ModelCache(Stage):
    """The cache of one model version. Called on the loop's thread; no method raises."""

    __slots__ = ("_cache", "_coming", "_coming_nbytes", "_flights", "_hashed", "_keys", "_state")
    keeps_requests = True

    def __init__(self, state: ModelState, cache: ResponseCache) -> None:
        self._state = state
        self._cache = cache
        self._keys = KeyMaker(state.spec)
        self._flights = Flights(state.spec.queue_bounds)
        self._hashed: dict[InferRequest, Ticket] = {}  # requests whose key is being made on a thread
        # Requests that wait for their key or the far store, and may be queued after that.
        self._coming = 0
        self._coming_nbytes = 0

    @property
    def waiting(self) -> int:
        """How many requests wait here: for an equal one's answer, for their key, for the far store."""
        return self._flights.followers + self._coming

    # -- requests in -----------------------------------------------------------------------------------------

    def intercept(self, request: InferRequest) -> bool:
        """Whether the cache answers a validated `request`, now or later.

        It then needs no room in the queue.
        """
        if request.synthetic or request.nbytes > HASHED_AT_ONCE:
            return False
        try:
            began = trio.current_time()
            ticket = request.cache_ticket = Ticket(self._keys.key(request), began)
            return self._find(request, ticket, began)
        except Exception as bug:  # noqa: BLE001  # it costs a miss, and not the request
            self._cache.note_bug(bug)
            return self._has(request)

    def holds(self, request: InferRequest) -> bool:
        """Whether `request` waits here before it is queued: for its key, or for the far store.

        There is room for it in the queue.
        """
        if request.synthetic:
            return False
        try:
            ticket = request.cache_ticket
            return self._ask(request, ticket) if isinstance(ticket, Ticket) else self._hash(request)
        except Exception as bug:  # noqa: BLE001  # as above
            self._cache.note_bug(bug)
            return self._has(request)

    def queued(self, request: InferRequest) -> None:
        """`request` is in the queue: its answer will be kept.

        Equal requests that come in the meantime get the same answer.
        """
        ticket = request.cache_ticket
        if isinstance(ticket, Ticket) and self._flights.at(ticket.key) is None:
            self._flights.lead(ticket.key, request)

    def _has(self, request: InferRequest) -> bool:
        return request.answered or request in self._state.outcome.in_flight

    def _find(self, request: InferRequest, ticket: Ticket, began: float) -> bool:
        """Have `request` wait for an equal one, or answer it."""
        if faults.points is not None:
            faults.points.passing("cache.find")
        if self._flights.follow(ticket.key, request):
            self._hold(request, ticket)
            return True
        near = self._cache.near
        if near is None or self._flights.at(ticket.key) is not None:
            return False
        entry = near.lookup(ticket.key)
        ticket.seconds = trio.current_time() - began
        near.counts.lookup_seconds += ticket.seconds
        if entry is not None:
            self._answer(request, entry)
        return entry is not None

    def _hold(self, request: InferRequest, ticket: Ticket) -> None:
        """The request waits here from now on, at most until its deadline."""
        self._state.outcome.in_flight[request] = None
        if request.deadline < math.inf and not ticket.timer:
            ticket.timer = self._cache.remind(request.deadline, self, request)

    def _ask(self, request: InferRequest, ticket: Ticket) -> bool:
        """Have `request` wait for the far store."""
        far = self._cache.far
        if far is None or self._flights.at(ticket.key) is not None:
            # Its flight has too many followers, so it runs by itself.
            return False
        if not self._may_come_back(request):
            return False
        if not far.look_up(ticket.key, partial(self._on_found, ticket.key, request)):
            return False
        self._flights.lead(ticket.key, request).looking = True
        self._expect(request, 1)
        self._hold(request, ticket)
        return True

    def _hash(self, request: InferRequest) -> bool:
        if not self._may_come_back(request):
            return False
        ticket = Ticket(b"", trio.current_time())
        work, done = partial(self._keys.key, request), partial(self._on_key, request)
        if not self._cache.hashing.submit(work, done, nbytes=request.nbytes):
            return False  # it runs without the cache
        self._hashed[request] = ticket
        self._expect(request, 1)
        self._hold(request, ticket)
        return True

    def _may_come_back(self, request: InferRequest) -> bool:
        """Whether the queue will have room for all requests that may return to it from here."""
        queue, bounds = self._state.queue, self._state.spec.queue_bounds
        if not self._coming:
            return True
        nbytes = queue.nbytes + self._coming_nbytes + request.nbytes
        return len(queue) + self._coming < bounds.requests and nbytes <= bounds.nbytes

    def _expect(self, request: InferRequest, by: int) -> None:
        self._coming += by
        self._coming_nbytes += by * request.nbytes

    def _on_key(self, request: InferRequest, key: bytes | None, error: Exception | None) -> None:
        self._expect(request, -1)
        ticket = self._hashed.pop(request, None)
        if ticket is None:
            return  # the request has left
        if key is None:
            if error is not None and not isinstance(error, NotDone):
                self._cache.note_bug(error)
            self._run(request, ticket)
            return
        try:
            ticket.key = key
            request.cache_ticket = ticket
            if not self._find(request, ticket, ticket.since) and not self._ask(request, ticket):
                self._run(request, ticket)
        except Exception as bug:  # noqa: BLE001  # as above
            self._cache.note_bug(bug)
            self._rescue(request)

    def _on_found(self, key: bytes, asked: InferRequest, entry: KeptAnswer | None) -> None:
        """The far store has answered. The flight's leader may have changed since it was asked."""
        self._expect(asked, -1)
        flight = self._flights.at(key)
        if flight is None or not flight.looking:
            return  # all requests of the flight have left
        flight.looking = False
        ticket = flight.leader.cache_ticket
        if isinstance(ticket, Ticket):
            ticket.seconds = trio.current_time() - ticket.since
        leader = flight.leader
        if entry is None:
            self._run(leader, leader.cache_ticket)
            return
        followers = self._flights.land(leader)
        self._cache.shared += len(followers)
        for request in (leader, *followers):
            self._share(request, entry)

    def _run(self, request: InferRequest, ticket: object) -> None:
        """Queue a request that has waited here."""
        since = trio.current_time()
        if isinstance(ticket, Ticket):
            self._call_off(ticket)
            since = ticket.since
        self._state.intake.queue_again(request, since)

    def _rescue(self, request: InferRequest) -> None:
        """Have `request` run, unless it has been answered or runs already."""
        if not request.answered and request not in self._state.queue:
            self._flights.leave(request)
            self._run(request, request.cache_ticket)

    # -- answers ---------------------------------------------------------------------------------------------

    def _share(self, request: InferRequest, entry: KeptAnswer) -> None:
        """Answer one of several requests. A bug in that does not affect the others."""
        try:
            self._answer(request, entry)
        except Exception as bug:  # noqa: BLE001  # as above
            self._cache.note_bug(bug)
            self._rescue(request)

    def _answer(self, request: InferRequest, entry: KeptAnswer) -> None:
        """Answer `request` with a kept entry, and count a hit (contract, observability.md section 2)."""
        state, ticket = self._state, request.cache_ticket
        now = trio.current_time()
        seconds = waited = 0.0
        if isinstance(ticket, Ticket):
            if ticket.timer:
                self._call_off(ticket)
            seconds = ticket.seconds
            if request in state.outcome.in_flight:
                waited = max(0.0, now - ticket.since - seconds)
        queue_ns = int(waited * 1e9)
        response = InferResponse(
            model_name=state.spec.name,
            model_version=state.spec.version,
            id=request.id,
            outputs=entry.tensors(),
            timing=(queue_ns, 0, 0, 0),
        )
        request.cache_ticket = None  # this answer is not to be kept
        state.outcome.count_hit(request, queue_ns, int(seconds * 1e9))
        state.outcome.respond(request, response)

    def responding(self, request: InferRequest, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Keep the final part of an answer, and see to the requests that wait for it."""
        if not final:
            return
        ticket, request.cache_ticket = request.cache_ticket, None
        if not isinstance(ticket, Ticket):
            return
        self._call_off(ticket)
        try:
            flight = self._flights.led_by(request)
            if isinstance(part, InferResponse):
                self._succeeded(request, part, ticket, flight)
            elif flight is not None:
                failed = not (request.cancelled or isinstance(part, DeadlineExceeded))
                self._pass_on(self._flights.lose(request, failed=failed))
            else:
                self._flights.leave(request)
        except Exception as bug:  # noqa: BLE001  # as above
            self._cache.note_bug(bug)
            if self._flights.led_by(request) is not None:
                self._pass_on(self._flights.disperse(request))

    def _succeeded(
        self, request: InferRequest, part: InferResponse, ticket: Ticket, flight: Flight | None
    ) -> None:
        began = trio.current_time()
        entry = None
        if flight is not None:
            entry = self._keep(ticket.key, part, wanted=bool(flight.followers))
        spent = ticket.seconds + trio.current_time() - began
        self._state.statistics.cache_miss(int(spent * 1e9))
        if flight is None:
            return
        if entry is None:
            self._pass_on(self._flights.disperse(request))
            return
        followers = self._flights.land(request)
        self._cache.shared += len(followers)
        for follower in followers:
            self._share(follower, entry)

    def _keep(self, key: bytes, part: InferResponse, *, wanted: bool) -> KeptAnswer | None:
        """Return a copy of an answer, and have it kept if possible.

        None for an answer that is not worth a copy.
        """
        size = entry_size(part.outputs)
        kept = not self._cache.refuses(size)
        if size > COPIED_AT_ONCE or not (kept or wanted):
            return None
        try:
            entry = copy_of(part)
        except MemoryError:
            return None
        if kept:
            self._cache.insert(key, entry)
        return entry

    def _pass_on(self, requests: Iterable[InferRequest]) -> None:
        for request in requests:
            self._run(request, request.cache_ticket)

    def _call_off(self, ticket: Ticket) -> None:
        self._cache.deadlines.drop(ticket.timer)
        ticket.timer = 0

    # -- ends ------------------------------------------------------------------------------------------------

    def withdraw(self, request: InferRequest) -> bool:
        """End the wait of `request`, if it waits here. If this returns True, the caller answers it."""
        ticket = self._hashed.pop(request, None)
        if ticket is not None:
            self._call_off(ticket)
            return True
        flight = self._flights.led_by(request)
        if flight is None:
            return self._flights.leave(request)
        if flight.looking:
            self._flights.lose(request, failed=False)  # the look-up goes on for the next leader
            return True
        return False

    def is_wanted(self, request: InferRequest) -> bool:
        """Whether other requests wait for the answer of a running `request`, whose client has left.

        If not, later requests will not wait for it either.
        """
        flight = self._flights.led_by(request)
        if flight is None:
            return False
        if flight.followers:
            return True
        self._flights.disperse(request)
        return False

    def expire(self, request: InferRequest) -> None:
        """The request's deadline has passed: fail it if it still waits here."""
        try:
            waited = self.withdraw(request)
        except Exception as bug:  # noqa: BLE001  # as above
            self._cache.note_bug(bug)
            return
        if waited:
            error = DeadlineExceeded(
                f"{request.prefix}the request's own deadline passed while it waited for the response cache of model "
                f"'{request.model_name}': for the answer to an equal request, or for a look-up"
            )
            self._state.outcome.fail(request, error, FailureReason.OTHER)

    def abandon(self) -> list[InferRequest]:
        """Return all requests that wait here, for the caller to answer.

        No request leads a flight any more.
        """
        idle = [*self._hashed, *self._flights.scatter()]
        for ticket in self._hashed.values():
            self._call_off(ticket)
        self._hashed.clear()
        return idle
