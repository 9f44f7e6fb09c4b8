"""What each tenant got, for metrics: of the largest by name, of all others together.

Names of tenants come from clients, so neither memory nor the number of series may grow with them. Listed
tenants are always told by name. Of the others, those that were lately served most are; who is, is decided
when somebody reads. A tenant's count by name begins when its name is first told, and joins `others` when it
no longer is: so no count ever falls, and the sum of all counts is that of all requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from actors.messages.requests import InferRequest

OTHERS: Final = "other"
"""What stands for everybody who is not told by name. A client that calls itself so is one of them."""

SHOWN: Final = 20
"""Tenants that are told by name beside the listed ones."""

CANDIDATES: Final = 512
"""Others of whom is known how much they were lately served: the most recently served ones."""

_BETTER: Final = 1.5  # times as much as the least of the shown ones: or two alike would take turns
_FADED: Final = 0.5  # what is left of what was lately served, each time that somebody reads


@dataclass(slots=True)
class Tally:
    """Counts of one tenant, or of many: requests and rows handed to instances, and requests refused for want of room."""

    requests: int = 0
    rows: int = 0
    refused: int = 0

    def add(self, other: Tally) -> None:
        """Count what `other` has counted."""
        self.requests += other.requests
        self.rows += other.rows
        self.refused += other.refused


class TenantTallies:
    """The counts of a model's tenants. Counting costs a look-up or two."""

    __slots__ = ("_candidates", "_listed", "_named", "_recent", "others")

    def __init__(self, listed: Iterable[str]) -> None:
        self._listed = frozenset(listed)
        self._named = {tenant: Tally() for tenant in self._listed}
        self._recent: dict[str, float] = {}  # of the named ones: rows lately served
        self._candidates: OrderedDict[str, float] = OrderedDict()  # the same of others, the last served last
        self.others = Tally()

    def served(self, request: InferRequest) -> None:
        """Count a request that is handed to an instance. The server's own are nobody's."""
        if request.synthetic:
            return
        tally = self._of(request.tenant, request.rows)
        tally.requests += 1
        tally.rows += request.rows

    def refused(self, tenant: str) -> None:
        """Count a request that was refused because its tenant had too many waiting."""
        self._of(tenant, 0).refused += 1

    def named(self) -> dict[str, Tally]:
        """Return the counts of those who are told by name, who may be others than last time."""
        self._choose()
        return dict(sorted(self._named.items()))

    def _of(self, tenant: str, rows: int) -> Tally:
        tally = self._named.get(tenant)
        if tally is not None:
            if tenant not in self._listed:
                self._recent[tenant] = self._recent.get(tenant, 0.0) + rows
            return tally
        if tenant == OTHERS:
            return self.others
        if len(self._named) < len(self._listed) + SHOWN:
            self._recent[tenant] = float(rows)
            tally = self._named[tenant] = Tally()
            return tally
        candidates = self._candidates
        candidates[tenant] = candidates.get(tenant, 0.0) + rows
        candidates.move_to_end(tenant)
        if len(candidates) > CANDIDATES:
            candidates.popitem(last=False)
        return self.others

    def _choose(self) -> None:
        """Name whom much more was done for lately than for somebody named."""
        candidates, recent = self._candidates, self._recent
        while candidates and recent:
            best = max(candidates, key=candidates.__getitem__)
            least = min(recent, key=recent.__getitem__)
            if candidates[best] <= _BETTER * recent[least]:
                break
            recent[best] = candidates.pop(best)
            del recent[least]
            self.others.add(self._named.pop(least))
            self._named[best] = Tally()
        for counts in (recent, candidates):
            for tenant in counts:
                counts[tenant] *= _FADED
