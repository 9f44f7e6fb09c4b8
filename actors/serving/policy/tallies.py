"""What each tenant got, for metrics: the largest tenants by name, all others together.

Names of tenants come from clients, so neither memory nor the number of series may grow with them. Listed
tenants are always told by name. Of the others, those with the most rows served lately are told by name; that
choice is made at each reading. A tenant's count by name begins when its name is first told, and joins
`others` when the name is told no longer. So no count ever falls, and the sum of all counts is that of all
requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from actors.values.requests import InferRequest

OTHERS: Final = "other"
"""Stands for all tenants that are not told by name. A client that calls itself so is one of them."""

SHOWN: Final = 20
"""Tenants that are told by name beside the listed ones."""

CANDIDATES: Final = 512
"""How many other tenants have a count of rows lately served: the most recently served ones."""

# To be shown, a tenant needs this many times the rows of the least of the shown ones. Otherwise two tenants
# that are alike would take turns.
_BETTER: Final = 1.5
# The part of the recent rows that remains after each reading.
_FADED: Final = 0.5


@dataclass(slots=True)
class Tally:
    """Counts of one tenant, or of many.

    They are requests and rows handed to instances, requests refused for want of room, and tokens of language
    models.
    """

    requests: int = 0
    rows: int = 0
    refused: int = 0
    prompt: int = 0
    generated: int = 0

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.prompt + self.generated

    def add(self, other: Tally) -> None:
        """Add the counts of `other`."""
        self.requests += other.requests
        self.rows += other.rows
        self.refused += other.refused
        self.prompt += other.prompt
        self.generated += other.generated


class TenantTallies:
    """The counts of a model's tenants. Counting costs a look-up or two."""

    def __init__(self, listed: Iterable[str]) -> None:
        self._listed = frozenset(listed)
        self._named = {tenant: Tally() for tenant in self._listed}
        # Rows lately served, by tenant, of the tenants told by name.
        self._recent: dict[str, float] = {}
        # The same of other tenants; the last served is last.
        self._candidates: OrderedDict[str, float] = OrderedDict()
        self.others = Tally()

    def served(self, request: InferRequest) -> None:
        """Count a request that is handed to an instance. The server's own requests belong to no tenant."""
        if request.synthetic:
            return
        tally = self._of(request.tenant, request.rows)
        tally.requests += 1
        tally.rows += request.rows

    def refused(self, tenant: str) -> None:
        """Count a request that was refused because its tenant had too many waiting."""
        self._of(tenant, 0).refused += 1

    def used(self, tenant: str, prompt: int, generated: int) -> None:
        """Count tokens that a tenant has used."""
        tally = self._of(tenant, prompt + generated)
        tally.prompt += prompt
        tally.generated += generated

    def named(self) -> dict[str, Tally]:
        """Return the counts of the tenants told by name, which may be others than last time."""
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
        """Tell a tenant by name if it was lately served much more than one that is told by name now."""
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
