"""The waiting requests of all sequences of a model, in the order in which they came. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import count

from actors.sequences.policy.records import Due, Ticket
from actors.serving.policy.timers import Timers
from actors.values.requests import InferRequest
from actors.values.specs import QueueBounds


class _Share:
    """What waits either for slots or in the backlog."""

    def __init__(self) -> None:
        self.requests = 0
        self.nbytes = 0

    def add(self, request: InferRequest, sign: int = 1) -> None:
        """Count `request`; with a `sign` of -1, count it no longer."""
        self.requests += sign
        self.nbytes += sign * request.nbytes


class Tickets:
    """Each waiting request, with its place in the order of arrival and the timer of its own deadline.

    The backlog and the sequences with slots (`seated`) each have the queue's bounds. With one bound for both,
    a full backlog would keep the sequences with slots from ever coming to an end.
    """

    def __init__(self, bounds: QueueBounds, timers: Timers[Due]) -> None:
        self._bounds = bounds
        self._timers = timers
        self.queued: OrderedDict[InferRequest, Ticket] = OrderedDict()  # the oldest first
        self._shares = (_Share(), _Share())  # of the backlog, of slots
        self._arrivals = count()

    def __contains__(self, request: InferRequest) -> bool:
        return request in self.queued

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self.queued)

    def __getitem__(self, request: InferRequest) -> Ticket:
        return self.queued[request]

    @property
    def nbytes(self) -> int:
        """How many input bytes wait."""
        return sum(share.nbytes for share in self._shares)

    @property
    def oldest_enqueued(self) -> float:
        """When the request that has waited longest was enqueued; infinite if none waits."""
        return next(iter(self.queued.values())).enqueued_at if self.queued else math.inf

    def waiting(self, *, seated: bool) -> int:
        """Return how many requests wait, of sequences with a slot or of those without."""
        return self._shares[seated].requests

    def fits(self, request: InferRequest, *, seated: bool) -> bool:
        """Whether there is room for one more request."""
        share = self._shares[seated]
        return not share.requests or (
            share.requests < self._bounds.requests and share.nbytes + request.nbytes <= self._bounds.nbytes
        )

    def any_fits_seated(self) -> bool:
        """Whether there may be room for a request of a sequence with a slot."""
        return self._shares[True].requests < max(1, self._bounds.requests)

    def add(self, request: InferRequest, now: float, *, seated: bool) -> None:
        """Let `request` wait, behind all others."""
        timer = 0 if request.deadline == math.inf else self._timers.set(request.deadline, request)
        self.queued[request] = Ticket(next(self._arrivals), now, timer)
        share = self._shares[seated]
        share.requests += 1
        share.nbytes += request.nbytes

    def put_back(self, request: InferRequest, ticket: Ticket, *, seated: bool) -> None:
        """Let `request`, which had `ticket`, wait again, before all others."""
        timer = 0 if request.deadline == math.inf else self._timers.set(request.deadline, request)
        self.queued[request] = ticket._replace(timer=timer)
        self.queued.move_to_end(request, last=False)
        self._shares[seated].add(request)

    def take(self, request: InferRequest, *, seated: bool) -> Ticket:
        """Return the ticket of `request`, which waits no longer."""
        ticket = self.queued.pop(request)
        if ticket.timer:
            self._timers.drop(ticket.timer)
        share = self._shares[seated]
        share.requests -= 1
        share.nbytes -= request.nbytes
        return ticket

    def move(self, requests: Iterable[InferRequest], *, seated: bool) -> None:
        """Count `requests` of a sequence that has got a slot (`seated`), or lost it."""
        for request in requests:
            self._shares[seated].add(request)
            self._shares[not seated].add(request, -1)
