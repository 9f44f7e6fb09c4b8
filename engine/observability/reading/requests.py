"""The canonical lines of requests: how each ended, and where its time went."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.observability.reading.formats import Line, stamp
from engine.observability.reading.selecting import model_of, version_of

ENDS: Final = frozenset(
    {"request_completed", "request_failed", "request_rejected", "request_cancelled", "request_poisoned"}
)
"""Events of which each request has exactly one, if requests are logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Where the time of a request went, in seconds; together they are all of it."""

    queue: float
    """Waiting for room in the queue, to fill a batch, for an instance, or behind a batch in its worker."""
    earlier: float
    """Executions that came to nothing, and the restart of what they had killed."""
    compute_input: float
    compute_infer: float
    compute_output: float
    rest: float
    """Everything else: decoding, the event loop and, for what failed, the execution that failed."""

    def as_dict(self) -> dict[str, float]:
        """Return milliseconds, by name."""
        return {name: round(getattr(self, name) * 1e3, 3) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a request ended. Numbers that its line has not are 0, words are empty."""

    line: Line
    id: str
    serial: int
    model: str
    version: int
    outcome: str
    code: str
    total: float
    """Seconds from its acceptance to its end, as the frontend saw them."""
    spent: Spent
    attempts: int
    instance: str
    pid: int
    batch: int
    batch_requests: int
    relation: str
    """`step`, `call` or `copy`, if the server itself made it; a client's request has none."""
    message: str

    @property
    def accepted(self) -> float:
        """When it was accepted, in seconds since 1970."""
        return self.line.time - self.total

    @property
    def name(self) -> str:
        """Its id, else the server's own number."""
        return self.id or (f"#{self.serial}" if self.serial else "?")

    @property
    def wrong(self) -> bool:
        """Whether it ended badly, and not because its client left."""
        return self.outcome not in ("completed", "cancelled")

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "accepted": stamp(self.accepted),
            "ended": stamp(self.line.time),
            "request": self.name,
            "serial": self.serial,
            "model": self.model,
            "version": self.version,
            "outcome": self.outcome,
            "code": self.code,
            "message": self.message,
            "total_ms": round(self.total * 1e3, 3),
            "spent_ms": self.spent.as_dict(),
            "attempts": self.attempts,
            "instance": self.instance,
            "pid": self.pid,
            "batch": self.batch,
            "batch_requests": self.batch_requests,
            "relation": self.relation,
        }


def ended(line: Line) -> Ended | None:
    """Return what a canonical line says; None for a line that is none."""
    if line.event not in ENDS:
        return None
    keys = line.keys
    total = _seconds(keys, "total_us")
    return Ended(
        line=line,
        id=_word(keys, "request_id"),
        serial=_number(keys, "serial"),
        model=model_of(line),
        version=version_of(line),
        outcome=line.event.removeprefix("request_"),
        code=_word(keys, "code"),
        total=total,
        spent=_spent(keys, total),
        attempts=_number(keys, "attempts") or (1 if "batch" in keys else 0),
        instance=_word(keys, "instance"),
        pid=_number(keys, "pid"),
        batch=_number(keys, "batch"),
        batch_requests=_number(keys, "batch_requests"),
        relation=_word(keys, "relation"),
        message=_word(keys, "message"),
    )


def _spent(keys: Mapping[str, Any], total: float) -> Spent:
    earlier = _seconds(keys, "earlier_us")
    waited = _seconds(keys, "queue_us")
    computed = [_seconds(keys, f"compute_{part}_us") for part in ("input", "infer", "output")]
    return Spent(
        queue=max(0.0, waited - earlier),  # as Triton counts it, an earlier attempt is waiting as well
        earlier=earlier,
        compute_input=computed[0],
        compute_infer=computed[1],
        compute_output=computed[2],
        rest=max(0.0, total - max(waited, earlier) - math.fsum(computed)),
    )


def slowest(lines: Iterable[Line], most: int) -> Sequence[Ended]:
    """Return the `most` requests that took longest, the slowest first."""
    requests = (request for line in lines if (request := ended(line)) is not None)
    return heapq.nlargest(most, requests, key=lambda request: request.total)


def _seconds(keys: Mapping[str, Any], name: str) -> float:
    return _number(keys, name) / 1e6


def _number(keys: Mapping[str, Any], name: str) -> int:
    value = keys.get(name, 0)
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def _word(keys: Mapping[str, Any], name: str) -> str:
    value = keys.get(name, "")
    return value if isinstance(value, str) else str(value)
