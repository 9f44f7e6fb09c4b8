"""Callers that wait for room in a model's line of requests: which is next, and when each looks again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from actors.seams.bell import Bell
from actors.serving.policy.waiting_line import WaitingLine
from actors.values.errors import DeadlineExceeded, TritiumError
from actors.values.requests import InferRequest

REFUSED_AT_ONCE: Final = 128
"""Callers that are woken at a time where all are refused.

Each that has left wakes the next. Waking one costs some 30 µs.
"""


class _Place:
    """A caller's place among those that wait."""

    __slots__ = ("called", "refusal")

    def __init__(self) -> None:
        self.called = Bell()  # look again: there may be room, or a refusal
        self.refusal: TritiumError | None = None

    def refuse(self, error: TritiumError) -> None:
        """End the wait with `error`, as soon as its caller looks."""
        if self.refusal is None:
            self.refusal = error


class WaitingCallers:
    """The callers that wait for room in `line`, whose `room_order` says which comes in next.

    `places` holds them. `on_left` is called whenever a caller has come in or gone away.
    """

    def __init__(self, line: WaitingLine, model: str, on_left: Callable[[], None]) -> None:
        self._line = line
        self._order = line.room_order
        self._model = model
        self._on_left = on_left
        self.places: dict[InferRequest, _Place] = {}
        self._refused: deque[_Place] = deque()  # not woken yet

    def may_pass(self, request: InferRequest) -> bool:
        """Whether a newcomer need not stand behind the waiting callers."""
        return not self.places or self._order.may_pass(request)

    def ahead(self) -> int:
        """How many requests go before a newcomer's, as far as that is known."""
        return self._order.ahead()

    async def wait(self, request: InferRequest) -> None:
        """Wait until the line has room for `request`.

        Raises DeadlineExceeded, and the error that it was refused with.
        """
        place = self.places[request] = _Place()
        self._order.enter(request)
        heard = 0
        try:
            while True:
                with trio.move_on_at(request.deadline):
                    await place.called.wait(heard)
                if place.refusal is not None:
                    raise place.refusal
                if place.called.rings == heard:
                    raise DeadlineExceeded(
                        f"{request.prefix}the request's own deadline passed while it waited for room in the"
                        f" queue of model '{self._model}'"
                    )
                heard = place.called.rings
                if self._line.admits(request):
                    return
        finally:
            self._leave(request)

    def _leave(self, request: InferRequest) -> None:
        del self.places[request]
        self._order.leave(request)
        if self._refused:
            self._refused.popleft().called.ring()
        # The next caller runs after this one. Whether this one came in or went away, there may be room for
        # the next.
        self.call_next()
        self._on_left()

    def call_next(self) -> None:
        """Have the next caller look again for room. When it leaves, it calls the one after it."""
        if self.places:
            for request in self._order.next(self._line.admits):
                self.places[request].called.ring()

    def refuse(self, request: InferRequest, error: TritiumError) -> bool:
        """End the wait of `request` with `error`; False where it does not wait."""
        place = self.places.get(request)
        if place is not None:
            place.refuse(error)
            place.called.ring()
        return place is not None

    def refuse_all(self, error: TritiumError) -> None:
        """End every wait with `error`: no request that waits now comes in any more.

        The callers are woken some at a time.
        """
        for place in self.places.values():
            place.refuse(error)
        self._refused = deque(self.places.values())
        for _ in range(min(REFUSED_AT_ONCE, len(self._refused))):
            self._refused.popleft().called.ring()
