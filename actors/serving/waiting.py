"""Callers that wait for room in a model's queue: which is next, and when each looks again."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

import trio

from actors.sequences.policy.sequences import SequenceQueue
from actors.serving.policy.fairness import Turns
from actors.serving.policy.queueing import RequestQueue
from actors.values.errors import DeadlineExceeded, TritiumError
from actors.values.requests import InferRequest

REFUSED_AT_ONCE: Final = 128
"""Callers that are woken at a time where all are refused.

Each that has left wakes the next. Waking one costs some 30 µs.
"""


class _Place:
    """A caller's place in the line."""

    __slots__ = ("called", "refusal")

    def __init__(self) -> None:
        self.called = trio.Event()  # look again: there may be room, or a refusal
        self.refusal: TritiumError | None = None

    def refuse(self, error: TritiumError) -> None:
        """End the wait with `error`, as soon as its caller looks."""
        if self.refusal is None:
            self.refusal = error


class WaitingLine:
    """The callers that wait for room in `queue`, first come first served; tenants of a queue take turns.

    `on_left` is called whenever a caller has come in or gone away.
    """

    def __init__(self, queue: RequestQueue, model: str, on_left: Callable[[], None]) -> None:
        self._queue = queue
        self._sequences = queue if isinstance(queue, SequenceQueue) else None
        self._model = model
        self._on_left = on_left
        self._places: OrderedDict[InferRequest, _Place] = OrderedDict()
        self._turns = None if queue.ledger is None else Turns()
        self._refused: deque[_Place] = deque()  # not woken yet

    def __len__(self) -> int:
        return len(self._places)

    def may_pass(self, request: InferRequest) -> bool:
        """Whether a newcomer need not stand behind the waiting callers."""
        if not self._places:
            return True
        if self._turns is not None:
            return not self._turns.waits(request.tenant)
        return self._sequences is not None and self._sequences.may_pass(request)

    def ahead(self) -> int:
        """How many requests go before a newcomer's, as far as that is known: tenants take turns."""
        return len(self._places) if self._turns is None else 0

    async def wait(self, request: InferRequest) -> None:
        """Wait until the queue has room for `request`.

        Raises DeadlineExceeded, and the error that it was refused with.
        """
        place = self._enter(request)
        try:
            while True:
                with trio.move_on_at(request.deadline):
                    await place.called.wait()
                if place.refusal is not None:
                    raise place.refusal
                if not place.called.is_set():
                    raise DeadlineExceeded(
                        f"{request.prefix}the request's own deadline passed while it waited for room in the queue of model "
                        f"'{self._model}'"
                    )
                if self._queue.admits(request):
                    return
                place.called = trio.Event()
        finally:
            self._leave(request)

    def _enter(self, request: InferRequest) -> _Place:
        place = self._places[request] = _Place()
        if self._turns is not None:
            self._turns.add(request)
        if self._sequences is not None:
            self._sequences.waits_for_room(request, waits=True)
        return place

    def _leave(self, request: InferRequest) -> None:
        del self._places[request]
        if self._turns is not None:
            self._turns.remove(request)
        if self._sequences is not None:
            self._sequences.waits_for_room(request, waits=False)
        if self._refused:
            self._refused.popleft().called.set()
        # The next caller runs after this one. Whether this one came in or went away, there may be room for
        # the next.
        self.call_next()
        self._on_left()

    def call_next(self) -> None:
        """Have the next caller look again for room. When it leaves the line, it calls the one after it."""
        if not self._places:
            return
        if self._turns is None:
            next(iter(self._places.values())).called.set()
            if self._sequences is not None and (request := self._sequences.next_to_go_on()) is not None:
                self._places[request].called.set()
        elif (request := self._turns.next(self._queue.admits)) is not None:
            self._places[request].called.set()

    def refuse(self, request: InferRequest, error: TritiumError) -> bool:
        """End the wait of `request` with `error`; False where it does not wait."""
        place = self._places.get(request)
        if place is not None:
            place.refuse(error)
            place.called.set()
        return place is not None

    def refuse_all(self, error: TritiumError) -> None:
        """End every wait with `error`: no request that waits now comes in any more.

        The callers are woken some at a time.
        """
        for place in self._places.values():
            place.refuse(error)
        self._refused = deque(self._places.values())
        for _ in range(min(REFUSED_AT_ONCE, len(self._refused))):
            self._refused.popleft().called.set()
