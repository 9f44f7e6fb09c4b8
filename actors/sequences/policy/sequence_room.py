"""Which caller comes in next, where callers wait for room in a model's line of sequences. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from actors.sequences.policy.records import Key, LiveSequence
from actors.sequences.policy.tickets import Tickets
from actors.serving.policy.room import FirstCome, RoomOrder
from actors.values.requests import InferRequest

# How many sequences with slots are asked for a request to let in, each time that there is room.
_LOOKS: Final = 8


class SequenceRoom(RoomOrder):
    """First come, first served; and beside that, a request that goes on with a sequence that has a slot.

    Such a request does not wait for room in the backlog. No request passes an earlier one of its sequence.
    """

    def __init__(self, live: Mapping[Key, LiveSequence], tickets: Tickets) -> None:
        self._live = live
        self._tickets = tickets
        self._first_come = FirstCome()
        self._by_id: dict[int | str, OrderedDict[InferRequest, None]] = {}
        self._going_on: OrderedDict[int | str, None] = OrderedDict()  # those of them that have a slot

    def enter(self, request: InferRequest) -> None:
        """See `RoomOrder.enter`."""
        self._first_come.enter(request)
        name = request.correlation_id
        self._by_id.setdefault(name, OrderedDict())[request] = None
        sequence = self._live.get(name)
        if sequence is not None and sequence.group is not None:
            self._going_on[name] = None

    def leave(self, request: InferRequest) -> None:
        """See `RoomOrder.leave`."""
        self._first_come.leave(request)
        name = request.correlation_id
        line = self._by_id[name]
        del line[request]
        if not line:
            del self._by_id[name]
            self._going_on.pop(name, None)

    def may_pass(self, request: InferRequest) -> bool:
        """Whether `request` goes on with a sequence that has a slot, and none of the sequence waits."""
        sequence = self._live.get(request.correlation_id)
        return (
            sequence is not None and sequence.group is not None and request.correlation_id not in self._by_id
        )

    def next(self, admits: Callable[[InferRequest], bool]) -> Iterable[InferRequest]:
        """Return the caller that came first, and one that goes on with its sequence."""
        first = self._first_come.next(admits)
        going_on = self._next_to_go_on(admits)
        return first if going_on is None else (*first, going_on)

    def _next_to_go_on(self, admits: Callable[[InferRequest], bool]) -> InferRequest | None:
        """Look at a few only: a request that does not fit now is looked at again when something has left."""
        if self._tickets.any_fits_seated():
            for name in islice(self._going_on, _LOOKS):
                if admits(request := next(iter(self._by_id[name]))):
                    return request
        return None

    def ahead(self) -> int:
        """See `RoomOrder.ahead`."""
        return self._first_come.ahead()

    def seated(self, sequence: LiveSequence) -> None:
        """Note that a sequence has got a slot."""
        if sequence.key in self._by_id and not sequence.closing:
            self._going_on[sequence.correlation_id] = None

    def unseated(self, sequence: LiveSequence) -> None:
        """Note that a sequence, which an id named until now, has lost its slot or is over."""
        self._going_on.pop(sequence.correlation_id, None)
