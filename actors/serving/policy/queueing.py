"""What waits for one model, in what order, how much of it and for how long.

Contract, scheduling.md sections 1 and 3.3.

A queue has priority levels, strictly served in ascending order. Each level has two first-in-first-out lanes:
requests inside their queue timeout, and after those the requests whose timeout passed under the policy DELAY.
A lane is an `OrderedDict` from request to entry: both ends, and removal anywhere, take constant time.

Two clocks can run on a queued request. The *queue timeout* is the model's policy; it ends with REJECT or
DELAY, and no longer applies once a request has been taken. The *deadline* is the client's own and holds for
ever. One timer runs for the clock that is due first.

Full means one of two things. A level with `max_queue_size` refuses (`push` raises). Any other level waits:
its callers ask `admits` first, and `QueueBounds` decides.

If tenants share the queue fairly (`actors.serving.policy.fairness`), a lane is a `FairLane`, and each tenant
has its own bound. If levels age, a request that has waited goes to the end of the level above: a third clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heappush
from itertools import chain, count

from actors.serving.policy.fairness import FairLane, Ledger, Prices, TenantShare
from actors.serving.policy.levels import OCCUPIED, Level, Levels, QueueEntry
from actors.serving.policy.room import FirstCome, RoomOrder, Turns
from actors.serving.policy.timers import Timers
from actors.serving.policy.waiting_line import ENDED_AT_ONCE, WaitingLine
from actors.values.errors import Cancelled, DeadlineExceeded, Overloaded, TritiumError, Unavailable
from actors.values.requests import InferRequest
from actors.values.specs import Fairness, QueueBounds, Scheduling


class RequestQueue(WaitingLine):
    """The requests that wait for one model, of which any may go next that its level lets go.

    A request comes out of `take`, `expire`, `abandon` or `drain`. One that was only flagged cancelled is
    noticed when a scan meets it, and then comes out of the next `expire`, which `next_expiry` makes due.
    """

    def __init__(self, scheduling: Scheduling, bounds: QueueBounds, fairness: Fairness | None = None) -> None:
        self._bounds = bounds
        self._ledger = ledger = Ledger(fairness) if fairness is not None and fairness.by_tenant else None
        self._ageing = fairness.ageing if fairness is not None else 0.0
        self._levels = Levels(scheduling, ledger)
        self._len = 0
        self._nbytes = 0
        self._timers: Timers[InferRequest] = Timers()
        self._risen = count()  # settles the order of equal times
        self._cancelled: list[InferRequest] = []  # found by a scan, and not yet reported
        self.room_order: RoomOrder = FirstCome() if ledger is None else Turns()

    def __len__(self) -> int:
        return self._len

    def __contains__(self, request: InferRequest) -> bool:
        entry = request.queue_entry
        return isinstance(entry, QueueEntry) and entry.queued

    @property
    def nbytes(self) -> int:
        """See `WaitingLine.nbytes`."""
        return self._nbytes

    @property
    def oldest_enqueued(self) -> float:
        """See `WaitingLine.oldest_enqueued`."""
        present = self._levels.present
        return present[0].oldest() if len(present) == 1 else min(level.oldest() for level in present)

    def admits(self, request: InferRequest) -> bool:
        """Whether `request` may be pushed now; if not, its caller waits until something has left.

        True if its level refuses by itself. An empty queue admits a request larger than the bound on bytes,
        or that request would wait for ever.
        """
        if self._ledger is not None and not self._fits_tenant(request, self._ledger):
            return False
        levels = self._levels
        if not self._len or (
            levels.fixed
            and self._len < self._bounds.requests
            and self._nbytes + request.nbytes <= self._bounds.nbytes
        ):
            return True
        level = levels.of(request)
        if level.policy.max_queue_size > 0:
            return True
        fits = self._len < self._bounds.requests and self._nbytes + request.nbytes <= self._bounds.nbytes
        return fits and levels.has_room(level)

    def push(self, request: InferRequest, now: float) -> None:
        """Enqueue `request` at `now`.

        Raises Overloaded if its level has a `max_queue_size` and is full, or if the queue's bytes are full.
        Also raises it if its tenant has more waiting than it may, and must not wait for room.
        """
        levels = self._levels
        level = levels.known.get(request.priority)
        if level is None:
            level = levels.of(request)
        if level.policy.max_queue_size:
            self._refuse_if_full(level, request)
        if self._ledger is not None:
            self._ledger.refuse_beyond_bound(request)
        if not levels.fixed and not level:
            level = levels.entered(level)
        lane = level.waiting
        entry = QueueEntry(level, lane, now)
        request.queue_entry = lane[request] = entry
        self._len += 1
        self._nbytes += request.nbytes
        timeout = level.timeout
        if level.overrides and 0 < request.timeout < timeout:
            timeout = request.timeout
        entry.expires = now + timeout
        due = min(entry.expires, request.deadline)
        if self._ageing:
            entry.home = level
            entry.rises = now + self._ageing if level.number > 1 else math.inf
            due = min(due, entry.rises)
        if due < math.inf:
            entry.timer = self._timers.set(due, request)

    def push_front(self, requests: Sequence[InferRequest]) -> None:
        """Put back requests that an instance did not finish.

        Each goes to the head of its level, in the given order. Their queue timeouts applied until they were
        taken and don't any more; their own deadlines still hold. Bounds don't apply, because these requests
        were admitted before.
        """
        for request in reversed(requests):
            before = request.queue_entry
            if isinstance(before, QueueEntry):
                level, enqueued_at = before.level, before.enqueued_at
            else:
                before, level, enqueued_at = None, self._levels.of(request), request.accepted_at
            level = self._levels.entered(level)
            entry = QueueEntry(level, level.waiting, enqueued_at)
            entry.requeued = True
            due = request.deadline
            if self._ageing:
                entry.home, entry.rises = (level, math.inf) if before is None else (before.home, before.rises)
                due = min(due, entry.rises)
            request.queue_entry = level.waiting[request] = entry
            level.waiting.move_to_end(request, last=False)
            self._len += 1
            self._nbytes += request.nbytes
            if due < math.inf:
                entry.timer = self._timers.set(due, request)

    def abandon(self, request: InferRequest, now: float) -> list[InferRequest]:
        """See `WaitingLine.abandon`: no other request needs `request`."""
        del now
        entry = request.queue_entry
        if not isinstance(entry, QueueEntry) or not entry.queued:
            return []
        self._discard(request, entry)
        return [request]

    def head(self, max_rows: int) -> list[InferRequest]:
        """Return the first requests in scan order, without removing them.

        They are enough to have more than `max_rows` rows, or all there are.
        """
        found: list[InferRequest] = []
        flagged: list[InferRequest] = []
        rows = 0
        for request in chain.from_iterable(self._levels.lanes):
            if request.cancelled:
                flagged.append(request)
                continue
            found.append(request)
            rows += request.rows or 1
            if rows > max_rows:
                break
        for request in flagged:
            self._cancelled += self.abandon(request, math.inf)
        return found

    def take(self, n: int) -> list[InferRequest]:
        """Remove and return the first `n` requests in scan order, or all there are. Call `expire` before."""
        taken: list[InferRequest] = []
        for lane in self._levels.lanes:
            if len(taken) >= n:
                break
            while lane and len(taken) < n:
                request, entry = lane.popitem(last=False)
                entry.queued = False
                self._len -= 1
                self._nbytes -= request.nbytes
                if entry.timer:
                    self._timers.drop(entry.timer)
                (self._cancelled if request.cancelled else taken).append(request)
        if not self._levels.fixed:
            self._levels.served()
        return taken

    def pick(self, requests: Sequence[InferRequest]) -> list[InferRequest]:
        """Remove and return these requests, which `head` has just returned, whatever waits before them."""
        for request in requests:
            self.abandon(request, math.inf)
        return list(requests)

    def expire(self, now: float, *, at_most: int = ENDED_AT_ONCE) -> list[tuple[InferRequest, TritiumError]]:
        """Take out requests whose time is up at `now` and return them, each with the error for its client.

        It looks at no more than `at_most`; if there are more, `next_expiry` is still due. If a level's policy
        is DELAY, a queue timeout moves the request to the delayed lane instead.
        """
        ended: list[tuple[InferRequest, TritiumError]] = [
            (r, Cancelled("")) for r in self._cancelled[:at_most]
        ]
        del self._cancelled[:at_most]
        looks = at_most - len(ended)
        while looks > 0 and (request := self._timers.pop_due(now)) is not None:
            looks -= 1
            entry = request.queue_entry
            assert isinstance(entry, QueueEntry), "a timer runs for a request that is not queued"
            error: TritiumError
            if request.cancelled:
                error = Cancelled("")
            elif self._ageing and entry.rises < min(entry.expires, request.deadline):
                self._rise(request, entry)
                continue
            elif entry.expires > request.deadline:
                error = _deadline_passed(request, now - entry.enqueued_at)
            elif (entry.home if self._ageing else entry.level).delays:
                self._delay(request, entry)
                continue
            else:
                error = Unavailable("Request timeout expired")
            self._discard(request, entry)
            ended.append((request, error))
        return ended

    def next_expiry(self) -> float:
        """See `WaitingLine.next_expiry`."""
        if self._cancelled:
            return -math.inf
        return self._timers.next_due() if self._timers.running else math.inf

    def drain(self) -> list[InferRequest]:
        """Remove and return everything, in scan order, cancelled requests included."""
        everything = [*self._cancelled, *chain.from_iterable(self._levels.lanes)]
        for request in everything:
            self.abandon(request, math.inf)
        self._cancelled.clear()
        return everything

    def price_by(self, prices: Prices) -> bool:
        """Charge tenants by `prices` from now on, and not by rows. Return whether tenants are told apart."""
        if self._ledger is not None:
            self._ledger.prices = prices
        return self._ledger is not None

    def shares(self) -> Mapping[str, TenantShare] | None:
        """See `WaitingLine.shares`."""
        return None if self._ledger is None else self._ledger.shares()

    def ahead_of(self, request: InferRequest) -> float:
        """See `WaitingLine.ahead_of`."""
        own = self._levels.of(request)
        ahead = 0.0
        for level in self._levels.present:
            if level.number >= own.number:
                break
            ahead += len(level)
        lane = own.waiting
        return ahead + (lane.ahead_of(request.tenant) if isinstance(lane, FairLane) else len(lane))

    def patience(self, request: InferRequest) -> float:
        """Return how many seconds `request` might wait here before its level's policy refuses it.

        It is infinite if the policy never does.
        """
        level = self._levels.of(request)
        if level.delays:
            return math.inf
        return (
            min(level.timeout, request.timeout) if level.overrides and request.timeout > 0 else level.timeout
        )

    def _fits_tenant(self, request: InferRequest, ledger: Ledger) -> bool:
        """Whether the tenant of `request` may have one more waiting. Also true if `push` would refuse it."""
        if ledger.at_bound(request):
            return ledger.refuses
        if self._levels.of(request).policy.max_queue_size > 0:
            return True
        return ledger.admits(request, self._bounds.requests - self._len, self._bounds.nbytes - self._nbytes)

    def _refuse_if_full(self, level: Level, request: InferRequest) -> None:
        text = f"{request.prefix}Exceeds maximum queue size"
        if len(level) >= level.policy.max_queue_size:
            raise Overloaded(text)
        if self._ledger is not None:
            held = sum(
                lane.held(request.tenant)
                for lane in (level.waiting, level.delayed)
                if isinstance(lane, FairLane)
            )
            left = level.policy.max_queue_size - len(level)
            if held >= left > 0 and held:
                raise self._ledger.refusal(request, held, f"and the room that is left, {left}, is for others")
        if not self._levels.has_room(level):
            raise Overloaded(
                f"{text}: requests of {OCCUPIED} priority levels wait already, the most that may"
            )
        if self._len and self._nbytes + request.nbytes > self._bounds.nbytes:
            raise Overloaded(
                f"{text}: {self._nbytes} bytes of inputs wait already, the limit is {self._bounds.nbytes}"
            )

    def _discard(self, request: InferRequest, entry: QueueEntry) -> None:
        """Take a queued request out, wherever it is."""
        del entry.lane[request]
        entry.queued = False
        self._len -= 1
        self._nbytes -= request.nbytes
        if entry.timer:
            self._timers.drop(entry.timer)

    def _delay(self, request: InferRequest, entry: QueueEntry) -> None:
        """Move a request behind the unexpired ones of its level; only its own deadline still runs."""
        del entry.lane[request]
        entry.lane = entry.level.delayed
        entry.lane[request] = entry
        entry.expires = math.inf
        due = min(request.deadline, entry.rises) if self._ageing else request.deadline
        entry.timer = self._timers.set(due, request) if due < math.inf else 0

    def _rise(self, request: InferRequest, entry: QueueEntry) -> None:
        """Move a request that has waited long enough behind those of the level above.

        A delayed request goes behind the delayed ones.
        """
        level = self._levels.entered(self._levels.above(entry.level))
        lane = level.delayed if entry.lane is entry.level.delayed else level.waiting
        del entry.lane[request]
        lane[request] = entry
        entry.level, entry.lane = level, lane
        heappush(level.risen, (entry.enqueued_at, next(self._risen), entry))
        entry.rises = entry.rises + self._ageing if level.number > 1 else math.inf
        due = min(entry.expires, request.deadline, entry.rises)
        entry.timer = self._timers.set(due, request) if due < math.inf else 0


def _deadline_passed(request: InferRequest, waited: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{request.prefix}the request's own deadline passed after it had waited {waited:.3f} s in the queue"
        f" of model '{request.model_name}'; allow it more time, or give the model more instances"
    )
