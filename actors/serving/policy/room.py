"""Which caller comes in next, where callers wait for room in a full line of requests. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from actors.values.native import mypyc_attr
from actors.values.requests import InferRequest

# How many tenants are asked for a caller to let in, each time that there is room.
_LOOKS: Final = 8


@mypyc_attr(allow_interpreted_subclasses=True)
class RoomOrder(ABC):
    """The order in which callers that wait for room in a line come in."""

    @abstractmethod
    def enter(self, request: InferRequest) -> None:
        """Note that the caller of `request` begins to wait."""

    @abstractmethod
    def leave(self, request: InferRequest) -> None:
        """Note that it waits no longer."""

    @abstractmethod
    def may_pass(self, request: InferRequest) -> bool:
        """Whether the newcomer `request` need not stand behind the callers that wait."""

    @abstractmethod
    def next(self, admits: Callable[[InferRequest], bool]) -> Iterable[InferRequest]:
        """Return requests whose callers look for room now; `admits` says whether the line has room for one.

        A caller that has come in, or gone away, asks again. So one is enough.
        """

    @abstractmethod
    def ahead(self) -> int:
        """Return how many callers certainly go before a newcomer."""


class FirstCome(RoomOrder):
    """First come, first served."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[InferRequest, None] = OrderedDict()

    def enter(self, request: InferRequest) -> None:
        """See `RoomOrder.enter`."""
        self._waiting[request] = None

    def leave(self, request: InferRequest) -> None:
        """See `RoomOrder.leave`."""
        del self._waiting[request]

    def may_pass(self, request: InferRequest) -> bool:
        """See `RoomOrder.may_pass`."""
        del request
        return not self._waiting

    def next(self, admits: Callable[[InferRequest], bool]) -> Iterable[InferRequest]:
        """See `RoomOrder.next`."""
        del admits
        return (next(iter(self._waiting)),) if self._waiting else ()

    def ahead(self) -> int:
        """See `RoomOrder.ahead`."""
        return len(self._waiting)


class Turns(RoomOrder):
    """Tenants take turns, so that one without room holds up no other; each has a line of its own."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, OrderedDict[InferRequest, None]] = OrderedDict()

    def enter(self, request: InferRequest) -> None:
        """See `RoomOrder.enter`."""
        self._lines.setdefault(request.tenant, OrderedDict())[request] = None

    def leave(self, request: InferRequest) -> None:
        """See `RoomOrder.leave`."""
        line = self._lines[request.tenant]
        del line[request]
        if not line:
            del self._lines[request.tenant]

    def may_pass(self, request: InferRequest) -> bool:
        """Whether no caller of its tenant waits."""
        return request.tenant not in self._lines

    def next(self, admits: Callable[[InferRequest], bool]) -> Iterable[InferRequest]:
        """Return a caller that `admits` lets in, or none if there was none among the tenants looked at.

        It looks at a few tenants each time, and at the next few the next time. While the queue holds anything
        there is a next time, and an empty queue admits the first caller it looks at.
        """
        lines = self._lines
        for _ in range(min(_LOOKS, len(lines))):
            tenant, line = next(iter(lines.items()))
            lines.move_to_end(tenant)
            request = next(iter(line))
            if admits(request):
                return (request,)
        return ()

    def ahead(self) -> int:
        """Return 0: how many go before a newcomer depends on their tenants."""
        return 0
