"""Whether a worker has done its time: the decision about `tritium.recycle`, and its reading.

See docs/worker_life.md. A worker that reaches a ceiling is replaced, not punished: its replacement loads
first and takes over, and the worker answers the requests that it has. That costs a load, so a version rests
after each replacement for a multiple of the time it took. However low a ceiling is, most of the time goes to
requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from actors.serving.policy.plan_reading import InvalidDocument, PlanReader
from actors.values.specs import Recycle

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at memory and requests.

A leak that fills a machine in less needs a limit, not a ceiling.
"""

REST: Final = 4.0
"""Rest after a replacement, as a multiple of the time that it took."""

SHORTEST_REST: Final = 1.0
LONGEST_REST: Final = 600.0
AFTER_FAILURE: Final = 30.0
"""Seconds until the next try after a replacement could not be loaded.

The wait doubles each time, up to `LONGEST_REST`.
"""

_MIB: Final = 1024 * 1024
_EXAMPLE: Final = '{"memory_mb": 4096, "requests": 1000000, "seconds": 86400}'


class InvalidRecycling(InvalidDocument):
    """Ceilings that are not valid."""

    subject = "recycling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wear:
    """How much a worker has used. A measurement that no ceiling needs may be left 0."""

    memory: int = 0  # bytes, with all processes that it has started
    requests: int = 0
    seconds: float = 0.0


def ceiling_reached(wear: Wear, ceilings: Recycle) -> str:
    """Return the ceiling that a worker has reached, `memory`, `requests` or `seconds`; empty for none."""
    for name in ("memory", "requests", "seconds"):
        ceiling = getattr(ceilings, name)
        if ceiling and getattr(wear, name) >= ceiling:
            return name
    return ""


def next_look(ages: Iterable[float], ceilings: Recycle) -> float:
    """Return in how many seconds workers of these ages should be looked at again."""
    if ceilings.memory or ceilings.requests:
        return LOOK_EVERY
    left = min((ceilings.seconds - age for age in ages), default=math.inf)
    return max(LOOK_EVERY, min(left, ceilings.seconds))


class Rest:
    """When a version's next worker may be replaced; on the caller's clock."""

    def __init__(self) -> None:
        self.until = -math.inf
        self._failures = 0

    def replaced(self, began: float, now: float) -> None:
        """A replacement that began at `began` has taken over."""
        self._failures = 0
        self.until = now + min(max(REST * (now - began), SHORTEST_REST), LONGEST_REST)

    def failed(self, now: float) -> None:
        """A replacement could not be loaded: the worker goes on, over its ceiling."""
        self.until = now + min(AFTER_FAILURE * 2.0**self._failures, LONGEST_REST)
        self._failures += 1


def read_recycle(document: object) -> Recycle:
    """Return the ceilings of a JSON object with `memory_mb`, `requests` and `seconds`.

    Raises InvalidRecycling.
    """
    reader = PlanReader()
    fields = reader.members("", document, ("memory_mb", "requests", "seconds"), _EXAMPLE)
    memory, requests = (
        reader.whole(key, fields[key]) if key in fields else 0 for key in ("memory_mb", "requests")
    )
    seconds = reader.number("seconds", fields["seconds"], at_least=1.0) if "seconds" in fields else 0.0
    if not fields and not reader.mistakes:
        reader.note("", "has no ceiling", f"use one or more of {_EXAMPLE}")
    if reader.mistakes:
        raise InvalidRecycling(reader.mistakes)
    return Recycle(memory=memory * _MIB, requests=requests, seconds=seconds)
