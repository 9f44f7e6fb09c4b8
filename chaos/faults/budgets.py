"""How often a supervisor may be made to restart something before it gives up.

That it gives up is a promise as well, and no bug. A supervisor that gives up ends everything below it, in the
end the server (docs/architecture.md, "What supervises what"). Faults stay one restart below what is allowed,
so that there is room for a restart that no fault has caused.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chaos.faults.base import Restrained


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """At most `most` crashes within `period` seconds under each supervisor of each server."""

    most: int
    period: float
    _spent: dict[tuple[int, str], deque[float]] = field(default_factory=dict, compare=False, repr=False)

    def spend(self, server: int, supervisor: str, now: float) -> None:
        """Note a crash under a supervisor of the server with this process id.

        Raises Restrained if that would be too many.
        """
        times = self._spent.setdefault((server, supervisor), deque())
        while times and times[0] < now - self.period:
            times.popleft()
        if len(times) >= self.most:
            raise Restrained(
                f"'{supervisor or 'root'}' had {len(times)} restarts in {self.period:g} s, and allows hardly more"
            )
        times.append(now)
