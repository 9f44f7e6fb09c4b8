"""`preserve_ordering`: answers leave in the order in which their requests were dispatched.

Each request takes a ticket at its first dispatch and keeps it through retries. An answer waits until every
earlier ticket has its own. So an answer that views an arena slot must be copied before it is given in, or the
slot it holds may be the one an earlier request needs.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from actors.values.requests import InferRequest

Answer = TypeVar("Answer")


class ReorderBuffer(Generic[Answer]):
    """Hold finished answers until their turn comes."""

    def __init__(self) -> None:
        self._waiting: deque[InferRequest] = deque()  # ticket `_next` is at the left
        self._tickets: dict[InferRequest, int] = {}
        self._answers: dict[int, Answer] = {}
        self._next = 0

    def __len__(self) -> int:
        """How many tickets are out: requests whose answer has not been delivered."""
        return len(self._waiting)

    def __contains__(self, request: InferRequest) -> bool:
        """Whether the request has a ticket: it was dispatched, and its answer has not been delivered."""
        return request in self._tickets

    @property
    def held(self) -> int:
        """How many answers wait for an earlier one."""
        return len(self._answers)

    def ticket(self, request: InferRequest) -> int:
        """Return the request's ticket, the next one at its first dispatch."""
        ticket = self._tickets.get(request)
        if ticket is None:
            ticket = self._tickets[request] = self._next + len(self._waiting)
            self._waiting.append(request)
        return ticket

    def release(self, ticket: int, answer: Answer) -> list[tuple[InferRequest, Answer]]:
        """Take in the answer for `ticket` and return the answers that may be delivered now, in order.

        Errors and cancellations are answers too: every ticket needs one. Raises ValueError for a ticket that
        is not out or has its answer.
        """
        if not self._next <= ticket < self._next + len(self._waiting) or ticket in self._answers:
            raise ValueError(f"ticket {ticket} is not out")
        self._answers[ticket] = answer
        deliverable: list[tuple[InferRequest, Answer]] = []
        while self._next in self._answers:
            request = self._waiting.popleft()
            del self._tickets[request]
            deliverable.append((request, self._answers.pop(self._next)))
            self._next += 1
        return deliverable
