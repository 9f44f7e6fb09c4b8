"""The requests that wait for a model of sequences. Pure. Contract, scheduling.md section 6."""

from __future__ import annotations

import math
from collections.abc import Sequence

from actors.sequences.policy.lives import Lives
from actors.sequences.policy.records import Impatience, LiveSequence
from actors.serving.policy.waiting_line import ENDED_AT_ONCE, WaitingLine
from actors.values.errors import DeadlineExceeded, TritiumError, Unavailable
from actors.values.requests import FLAG_SEQUENCE_END, InferRequest


class SequenceQueue(WaitingLine):
    """A line in which requests follow each other. One that ends takes with it all of its sequence that waits.

    Requests leave it to run by `actors.sequences.policy.sequences.Sequences.form`.
    """

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._live = lives.roll.live
        self._tickets = lives.tickets
        self.room_order = lives.room

    def __len__(self) -> int:
        return len(self._tickets.queued)

    def __contains__(self, request: InferRequest) -> bool:
        return request in self._tickets

    @property
    def nbytes(self) -> int:
        """See `WaitingLine.nbytes`."""
        return self._tickets.nbytes

    @property
    def oldest_enqueued(self) -> float:
        """See `WaitingLine.oldest_enqueued`."""
        return self._tickets.oldest_enqueued

    def admits(self, request: InferRequest) -> bool:
        """See `WaitingLine.admits`; sequences with slots and the backlog each have their own room."""
        sequence = self._live.get(request.correlation_id if request.caller is None else request.sequence_key)
        seated = self._lives.slots.some_free if sequence is None else sequence.group is not None
        return self._tickets.fits(request, seated=seated)

    def push(self, request: InferRequest, now: float) -> None:
        """Enqueue a validated request at `now` (contract, section 6.1).

        Raises InvalidArgument for a request that belongs to no sequence, and Unavailable for a new sequence
        while none is begun.
        """
        sequence = self._live.get(request.correlation_id if request.caller is None else request.sequence_key)
        if sequence is None or request.flags or request.rows != 1:
            sequence = self._lives.roll.enrol(request)
        self._lives.append(sequence, request, now)
        if request.flags & FLAG_SEQUENCE_END:
            self._lives.close(sequence)

    def push_front(self, requests: Sequence[InferRequest]) -> None:
        """Put back requests that an instance did not run, each to the head of its sequence."""
        for request in reversed(requests):
            self.put_back(request)

    def put_back(self, request: InferRequest, now: float = -math.inf) -> None:
        """Put a request that ran until now back to the head of its sequence."""
        sequence = self._lives.stopped_running(request)
        if sequence is not None:
            self._tickets.put_back(request, sequence.ticket, seated=sequence.group is not None)
            sequence.queue.appendleft(request)
            self._lives.go_on(sequence, now)

    def abandon(self, request: InferRequest, now: float) -> list[InferRequest]:
        """End the sequence of a queued `request`: return it and all others of its sequence that wait."""
        return self._lives.end(request, now)

    def expire(self, now: float, *, at_most: int = ENDED_AT_ONCE) -> list[tuple[InferRequest, TritiumError]]:
        """End what is due at `now`: requests past their deadlines, waits in the backlog, idle sequences.

        See `WaitingLine.expire`. It stops as well once `at_most` requests have ended.
        """
        lives = self._lives
        ended: list[tuple[InferRequest, TritiumError]] = []
        for _ in range(at_most):
            target = lives.timers.pop_due(now) if len(ended) < at_most else None
            if target is None:
                break
            if isinstance(target, LiveSequence):
                lives.look_idle(target, now)
            elif isinstance(target, Impatience):
                expired = Unavailable("timeout of the corresponding sequence has been expired")
                waiting = target.sequence.queue
                ended += [(each, expired) for each in lives.end(waiting[0], now)] if waiting else []
            else:
                ended += [
                    (each, _too_late(each) if each is target else _ended_by(each, target))
                    for each in lives.end(target, now)
                ]
        return ended

    def next_expiry(self) -> float:
        """See `WaitingLine.next_expiry`."""
        return self._lives.timers.next_due()

    def drain(self) -> list[InferRequest]:
        """Remove and return everything; every sequence that waited is over."""
        everything = list(self._tickets)
        for request in everything:
            self._lives.end(request, math.inf)
        return everything


def _too_late(request: InferRequest) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{request.prefix}the request's own deadline passed while it waited for its turn in sequence"
        f" {request.correlation_id!r} of model '{request.model_name}', which ends by that; begin it again"
        " with the START flag"
    )


def _ended_by(request: InferRequest, late: InferRequest) -> Unavailable:
    return Unavailable(
        f"{request.prefix}sequence {request.correlation_id!r} of model '{request.model_name}' has ended, for"
        f" the deadline of another of its requests ({late.id or '<id_unknown>'}) passed; begin it again with"
        " the START flag"
    )
