"""Which tenant goes next, if several wait: weighted start-time fair queueing.

Each tenant has a line of its own, first in, first out, and every line has a *start tag*: the virtual time at
which its first request may begin. The line with the lowest tag goes next. Serving a request of `rows` rows
moves its line's tag on by `rows / weight`, so a tenant with twice the weight is served twice as often.
Virtual time is the tag of the request that was served last. A tenant that comes back after a pause begins at
virtual time: it does not save up what it did not use, and what it still owes is remembered until virtual time
has passed it.

Tags belong to lines and not to requests, and are charged when a request is taken. So a cancelled request
costs its tenant nothing. Everything takes O(log n) in the number of tenants that wait. When no request waits
any more, no tenant holds up another, and all tags are forgotten.

What a request costs may be known only later, as with language models, whose costs are tokens (`Prices`).
Then it is charged an estimate when it is taken, and `charge` corrects that: it moves the tag of its line, or
what that owes. Giving back never takes a line behind where virtual time was when it began to wait.

Reference: Goyal, Vin and Cheng, "Start-time Fair Queueing" (SIGCOMM 1996).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, ValuesView
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

from actors.serving.policy.tallies import OTHERS, TenantTallies
from actors.values.errors import Overloaded
from actors.values.families import Families, Family, SplitFamily, by
from actors.values.requests import InferRequest
from actors.values.specs import Fairness

E = TypeVar("E")

REMEMBERED: Final = 1024
"""Tenants without waiting requests whose debts a lane remembers; of more, the smallest debts are forgiven."""

TENANT_RETRY: Final = 1.0
"""Seconds after which a tenant that had too many requests waiting may try again."""

# Virtual time beyond which tags are counted anew: they would lose the digits that small costs need.
_REBASED: Final = 2.0**32
# Heap items of lines that have emptied.
_STALE_ALLOWED: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """What a tenant got of a model, in all, and what it has waiting.

    It got requests and rows handed to instances, and requests refused.
    """

    requests: int
    rows: int
    share: float  # of all rows, or of all tokens
    refused: int
    queued: int
    tokens: Mapping[str, int] | None = None  # of a language model: of prompts, and generated

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


FAMILIES: Final[Families[TenantShare]] = (
    Family(
        "tritium_tenant_requests_total",
        "counter",
        "Requests of a tenant that were handed to an instance",
        lambda share: share.requests,
    ),
    Family(
        "tritium_tenant_rows_total",
        "counter",
        "Rows of those requests, which is what shares are measured in",
        lambda share: share.rows,
    ),
    SplitFamily(
        "tritium_tenant_tokens_total",
        "counter",
        "Tokens of a tenant, which is what shares of a language model are measured in",
        lambda share: by("kind", share.tokens.items()) if share.tokens is not None else (),
    ),
    Family(
        "tritium_tenant_refused_total",
        "counter",
        "Requests that were refused because their tenant had too many waiting",
        lambda share: share.refused,
    ),
    Family(
        "tritium_tenant_queued",
        "gauge",
        "Requests of a tenant that wait in the queue",
        lambda share: share.queued,
    ),
)


class Prices(Protocol):
    """What requests cost that are not charged by their rows."""

    def of(self, request: InferRequest) -> float:
        """Return what `request` will about cost; above 0."""

    def taken(self, request: InferRequest, lane: FairLane[Any], cost: float) -> None:
        """`request` was taken from `lane`, and charged `cost`. The lane is told what it costs in the end."""


class _Held:
    """One tenant's waiting requests."""

    __slots__ = ("nbytes", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.nbytes = 0


class Ledger:
    """What each tenant has waiting in a queue and what it has got, over all lanes of the queue."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._held: dict[str, _Held] = {}
        self.prices: Prices | None = None  # by rows
        self.tallies = TenantTallies(fairness.weights)

    def weight(self, tenant: str) -> float:
        """Return the weight of `tenant`."""
        return self._fairness.weights.get(tenant, self._fairness.default_weight)

    def cost(self, request: InferRequest) -> float:
        """Return what taking `request` costs its tenant, as far as it is known."""
        if self.prices is not None:
            return self.prices.of(request)
        return request.rows or 1  # one without rows still takes a place

    def taken(self, request: InferRequest, lane: FairLane[Any], cost: float) -> None:
        """Count a request that was taken from `lane`, and charged `cost`."""
        self.tallies.served(request)
        if self.prices is not None:
            self.prices.taken(request, lane, cost)

    def shares(self) -> dict[str, TenantShare]:
        """Return the share of each tenant told by name, and under `OTHERS` that of all others together."""
        counted = self.tallies.named()
        queued = dict.fromkeys((*counted, OTHERS), 0)
        for tenant, held in self._held.items():
            queued[tenant if tenant in counted else OTHERS] += held.requests
        counted[OTHERS] = self.tallies.others
        in_tokens = self.prices is not None
        got = {tenant: tally.tokens if in_tokens else tally.rows for tenant, tally in counted.items()}
        total = sum(got.values())
        return {
            tenant: TenantShare(
                requests=tally.requests,
                rows=tally.rows,
                share=got[tenant] / total if total else 0.0,
                refused=tally.refused,
                queued=queued[tenant],
                tokens={"prompt": tally.prompt, "generated": tally.generated} if in_tokens else None,
            )
            for tenant, tally in counted.items()
        }

    def entered(self, request: InferRequest) -> None:
        """Count a request that has begun to wait."""
        held = self._held.get(request.tenant)
        if held is None:
            held = self._held[request.tenant] = _Held()
        held.requests += 1
        held.nbytes += request.nbytes

    def left(self, request: InferRequest) -> None:
        """Count a request that has stopped waiting."""
        held = self._held[request.tenant]
        held.requests -= 1
        held.nbytes -= request.nbytes
        if not held.requests:
            del self._held[request.tenant]

    def admits(self, request: InferRequest, requests: int, nbytes: int) -> bool:
        """Whether there is room for `request` beside what its tenant has waiting.

        `requests` and `nbytes` are what is left for all. No tenant may have more waiting than is left. So one
        tenant alone gets half of the queue, two get a third each, and there is always room for another
        tenant. A tenant with nothing here always fits; another check finds out whether the queue has room.
        """
        held = self._held.get(request.tenant)
        if held is None:
            return True
        return held.requests < requests and held.nbytes + request.nbytes <= nbytes

    def at_bound(self, request: InferRequest) -> bool:
        """Whether the tenant of `request` has as many waiting as one tenant may have."""
        most = self._fairness.max_queued
        held = self._held.get(request.tenant)
        return bool(most) and held is not None and held.requests >= most

    @property
    def refuses(self) -> bool:
        """Whether a tenant that is at its bound is refused. Otherwise it waits."""
        return self._fairness.refuses

    def refusal(self, request: InferRequest, waiting: int, bound: str) -> Overloaded:
        """Return the error for the client of a tenant that has too many waiting, and count it."""
        self.tallies.refused(request.tenant)
        whose = f"tenant '{request.tenant}'" if request.tenant else "clients without a tenant of their own"
        return Overloaded(
            f"{request.prefix}Exceeds maximum queue size: {waiting} requests of {whose} wait already,"
            f" {bound}",
            retry_after=TENANT_RETRY,
        )

    def refuse_beyond_bound(self, request: InferRequest) -> None:
        """Raise Overloaded if the tenant of `request` is at its bound and must not wait."""
        if self.refuses and self.at_bound(request):
            most = self._fairness.max_queued
            raise self.refusal(request, self._held[request.tenant].requests, f"the limit is {most}")


class _Line:
    """One tenant's requests in a lane, the oldest first."""

    __slots__ = ("debt", "finish", "floor", "requests", "start", "ticket", "weight")

    def __init__(self, weight: float, finish: float) -> None:
        self.weight = weight
        self.requests: OrderedDict[InferRequest, None] = OrderedDict()
        # The tag of the first of them.
        self.start = finish
        # The tag of the last that was taken.
        self.finish = finish
        # Of its item in the heap; 0 while it has none.
        self.ticket = 0
        # Of its item among the debts.
        self.debt = 0
        # Virtual time when it began to wait: the tag goes back no further.
        self.floor = finish


class FairLane(Generic[E]):
    """Requests in fair order, each with the queue's record of it (`E`).

    It has the part of an `OrderedDict` that `RequestQueue` uses. Assigning enters at the end of the tenant's
    line, `popitem` takes the next one in fair order, and `values` are in the order of arrival. A request's
    tenant must not change while it is here.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._arrived: OrderedDict[InferRequest, E] = OrderedDict()
        # Requests that were put back: they are paid for, and go first.
        self._returned: OrderedDict[InferRequest, None] = OrderedDict()
        # Lines of the tenants that wait, or owe.
        self._lines: dict[str, _Line] = {}
        # (start, ticket, line) of the lines with requests.
        self._heap: list[tuple[float, int, _Line]] = []
        # (finish, ticket, tenant) of the lines without. What a line owes may have grown or shrunk since.
        self._owing: list[tuple[float, int, str]] = []
        # Tickets settle the order of equal tags, and tell stale heap items.
        self._tickets = count(1)
        self._virtual = 0.0
        # Of all tenants that wait.
        self._weight = 0.0
        self.era = 0  # a number of its own between any two times that all tags were forgotten

    def __len__(self) -> int:
        """How many requests are here."""
        return len(self._arrived)

    def __iter__(self) -> Iterator[InferRequest]:
        """Yield the requests in the order in which `popitem` would give them.

        The first k cost O(k log k), however many tenants wait: the heap is walked from its top, not copied.
        """
        yield from self._returned
        heap = self._heap
        tickets = count(next(self._tickets))
        # Each: start, ticket, place in the heap (-1: a line seen before), line, its remaining requests.
        front: list[tuple[float, int, int, _Line, Iterator[InferRequest] | None]] = []
        if heap:
            front.append((heap[0][0], heap[0][1], 0, heap[0][2], None))
        while front:
            start, ticket, place, line, rest = heappop(front)
            if place >= 0:
                for below in (2 * place + 1, 2 * place + 2):
                    if below < len(heap):
                        item = heap[below]
                        heappush(front, (item[0], item[1], below, item[2], None))
                if line.ticket != ticket:
                    # It has emptied since.
                    continue
                rest = iter(line.requests)
            assert rest is not None, "a line that has been here has a rest"
            request = next(rest, None)
            if request is not None:
                yield request
                start += self._ledger.cost(request) / line.weight
                heappush(front, (start, next(tickets), -1, line, rest))

    def values(self) -> ValuesView[E]:
        """The entries of all requests, in the order of arrival."""
        return self._arrived.values()

    def __setitem__(self, request: InferRequest, entry: E) -> None:
        self._arrived[request] = entry
        self._ledger.entered(request)
        line = self._lines.get(request.tenant)
        if line is None:
            line = self._lines[request.tenant] = _Line(self._ledger.weight(request.tenant), self._virtual)
        line.requests[request] = None
        if not line.ticket:
            self._weight += line.weight
            line.floor = self._virtual
            self._stand(line, max(self._virtual, line.finish))

    def __delitem__(self, request: InferRequest) -> None:
        del self._arrived[request]
        self._ledger.left(request)
        if request in self._returned:
            del self._returned[request]
        else:
            self._leave(request)
        if not self._arrived:
            self._forget_everything()

    def popitem(self, *, last: bool) -> tuple[InferRequest, E]:
        """Take the request whose turn it is. `last` is False. Raises KeyError if there is none."""
        assert not last, "there is a next in fair order, and no last"
        if self._returned:
            request = next(iter(self._returned))
            entry = self._arrived[request]
            del self[request]
            return request, entry
        line = self._next_line()
        request, _ = line.requests.popitem(last=False)
        entry = self._arrived.pop(request)
        self._ledger.left(request)
        cost = self._ledger.cost(request)
        self._ledger.taken(request, self, cost)
        self._virtual = max(self._virtual, line.start)
        line.finish = line.start + cost / line.weight
        if line.requests:
            self._stand(line, line.finish)
        else:
            self._retire(request.tenant, line)
        self._forgive()
        if not self._arrived:
            self._forget_everything()
        elif self._virtual > _REBASED:
            self._rebase()
        return request, entry

    def move_to_end(self, request: InferRequest, *, last: bool) -> None:
        """Put a request that has just been added to the head of the lane, before every tenant.

        `last` is False.
        """
        assert not last, "every line has an end of its own"
        self._arrived.move_to_end(request, last=False)
        self._leave(request)
        self._returned[request] = None
        self._returned.move_to_end(request, last=False)

    def charge(self, tenant: str, cost: float, era: int) -> None:
        """Charge `tenant` with `cost` more than was known when a request of its was taken.

        Below 0 that much is given back. `era` was the lane's then: what was forgotten since is not given
        back. While no request waits, nothing is owed.
        """
        if not self._arrived or (cost < 0 and era != self.era):
            return
        line = self._lines.get(tenant)
        if line is None:
            if cost > 0:
                weight = self._ledger.weight(tenant)
                line = self._lines[tenant] = _Line(weight, self._virtual + cost / weight)
                self._owe(tenant, line)
                self._bound_debts()
        elif line.ticket:
            self._stand(line, max(line.start + cost / line.weight, min(line.start, line.floor)))
            self._drop_stale()
        else:
            line.finish += cost / line.weight

    def count(self, tenant: str, prompt: int, generated: int) -> None:
        """Count tokens that `tenant` has used."""
        self._ledger.tallies.used(tenant, prompt, generated)

    def held(self, tenant: str) -> int:
        """Return how many requests of `tenant` are here in line."""
        line = self._lines.get(tenant)
        return 0 if line is None else len(line.requests)

    def ahead_of(self, tenant: str) -> float:
        """Return about how many requests would go before one of `tenant` that came now."""
        weight = self._ledger.weight(tenant)
        others = self._weight - (weight if self.held(tenant) else 0.0)
        in_turn = (self.held(tenant) + 1) * (others + weight) / weight - 1
        return min(float(len(self)), len(self._returned) + max(0.0, in_turn))

    @property
    def remembered(self) -> int:
        """Of how many tenants something is known."""
        return len(self._lines)

    def _next_line(self) -> _Line:
        heap = self._heap
        while heap:
            _, ticket, line = heappop(heap)
            if line.ticket == ticket:
                return line
        raise KeyError("no tenant waits")

    def _stand(self, line: _Line, start: float) -> None:
        """Give a line that has requests its place among the others."""
        line.start = start
        line.ticket = next(self._tickets)
        heappush(self._heap, (start, line.ticket, line))

    def _leave(self, request: InferRequest) -> None:
        """Take a request out of its tenant's line, out of turn."""
        line = self._lines[request.tenant]
        del line.requests[request]
        if not line.requests:
            # Nothing was served, so it owes what it owed before.
            line.finish = line.start
            self._retire(request.tenant, line)
            self._drop_stale()

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._lines) + _STALE_ALLOWED:
            self._heap[:] = [item for item in self._heap if item[2].ticket == item[1]]
            heapify(self._heap)

    def _retire(self, tenant: str, line: _Line) -> None:
        """A line has emptied; it is remembered while it owes something."""
        line.ticket = 0
        self._weight -= line.weight
        if line.finish <= self._virtual:
            del self._lines[tenant]
            return
        self._owe(tenant, line)
        self._bound_debts()

    def _bound_debts(self) -> None:
        while len(self._owing) > REMEMBERED:
            self._drop_smallest_debt()

    def _owe(self, tenant: str, line: _Line) -> None:
        line.debt = next(self._tickets)
        heappush(self._owing, (line.finish, line.debt, tenant))

    def _forgive(self) -> None:
        """Forget the tenants whose debts virtual time has passed."""
        while self._owing and self._owing[0][0] <= self._virtual:
            self._drop_smallest_debt()

    def _drop_smallest_debt(self) -> None:
        """Forget the smallest debt. One that has grown gets another place instead."""
        finish, debt, tenant = heappop(self._owing)
        line = self._lines.get(tenant)
        if line is None or line.ticket or line.debt != debt:
            return
        if line.finish > finish:
            self._owe(tenant, line)
        else:
            del self._lines[tenant]

    def _forget_everything(self) -> None:
        self._lines.clear()
        self._heap.clear()
        self._owing.clear()
        self._virtual = self._weight = 0.0
        self.era += 1

    def _rebase(self) -> None:
        """Count virtual time from now."""
        gone, self._virtual = self._virtual, 0.0
        for line in self._lines.values():
            line.start -= gone
            line.finish -= gone
            line.floor -= gone
        self._heap[:] = [
            (line.start, ticket, line) for _, ticket, line in self._heap if line.ticket == ticket
        ]
        heapify(self._heap)
        self._owing = [(finish - gone, ticket, tenant) for finish, ticket, tenant in self._owing]
