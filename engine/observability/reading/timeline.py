"""The lives of instances and models: starts, exits, restarts, and how long each was away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.observability.reading.formats import Line, stamp
from engine.observability.reading.selecting import actor_of, model_of

_FAMILIES: Final = (
    "worker_",
    "child_",
    "model_",
    "server_",
    "traffic_",
    "listener_",
    "repository_",
    "spare_",
)
_SINGLES: Final = frozenset({"restarts_exhausted", "batch_bisected", "readiness_changed", "fault_injected"})
_OUTPUT: Final = frozenset({"worker_output"})

DEATH_LEVELS: Final = frozenset({"warning", "error", "critical"})
"""Levels at which `worker_exited` tells of a death; an end that was asked for is information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An instance, or a model, that did not serve. Times are seconds since 1970."""

    who: str
    """Place in the supervision tree; for a model `NAME/VERSION`."""
    model: str
    began: float
    reason: str
    detail: str
    pid: int
    ended: float | None = None
    """When it served again; None if the log ends before that."""
    deaths: int = 1
    """How often it died before it served again."""

    @property
    def seconds(self) -> float | None:
        """How long it was away; None if it has not come back."""
        return None if self.ended is None else self.ended - self.began

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "who": self.who,
            "model": self.model,
            "began": stamp(self.began),
            "ended": None if self.ended is None else stamp(self.ended),
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "reason": self.reason,
            "detail": self.detail,
            "pid": self.pid,
            "deaths": self.deaths,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happened to instances and models, in the log's order, and the outages in order of beginning."""

    events: Sequence[Line]
    outages: Sequence[Outage]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "events": [line.as_dict() for line in self.events],
            "outages": [each.as_dict() for each in self.outages],
        }


def tells_of_life(line: Line) -> bool:
    """Whether a line belongs in a timeline.

    It tells that an instance or a model came, went, or changed, and is not about a request.
    """
    if line.event in _OUTPUT:
        return False
    return line.event in _SINGLES or line.event.startswith(_FAMILIES)


def timeline(lines: Iterable[Line]) -> Timeline:
    """Return the lives that `lines` tell of."""
    watch = Outages()
    events = []
    for line in lines:
        if tells_of_life(line):
            events.append(line)
            watch.see(line)
    return Timeline(events=events, outages=watch.found())


class Outages:
    """Finds outages in lines that are shown to it one after the other."""

    def __init__(self) -> None:
        self._over: list[Outage] = []
        self._open: dict[str, Outage] = {}

    def see(self, line: Line) -> None:
        """Take note of a line."""
        match line.event:
            case "worker_exited" if line.level in DEATH_LEVELS:
                self._begin(actor_of(line), line)
            case "worker_ready" | "worker_exited":  # it serves, or it was taken out of service
                self._end(actor_of(line), line)
            case "model_unavailable" if line.level in DEATH_LEVELS:
                self._begin(_version(line), line)
            case "model_ready" | "model_unavailable" | "model_unloading":
                self._end(_version(line), line)
            case "server_stopped":
                self._over += self._open.values()  # the next server's instances are others
                self._open.clear()

    def found(self) -> Sequence[Outage]:
        """Return the outages so far, those that last among them."""
        return sorted((*self._over, *self._open.values()), key=lambda each: each.began)

    def _begin(self, who: str, line: Line) -> None:
        before = self._open.get(who)
        if before is not None:
            self._open[who] = replace(before, deaths=before.deaths + 1)
            return
        pid = line.keys.get("pid", 0)
        self._open[who] = Outage(
            who=who,
            model=model_of(line),
            began=line.time,
            reason=str(line.keys.get("reason", "")),
            detail=str(line.keys.get("detail", "")),
            pid=pid if isinstance(pid, int) else 0,
        )

    def _end(self, who: str, line: Line) -> None:
        outage = self._open.pop(who, None)
        if outage is not None:
            self._over.append(replace(outage, ended=line.time))


def _version(line: Line) -> str:
    return f"{model_of(line)}/{line.keys.get('version', '')}".rstrip("/")
