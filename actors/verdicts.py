"""Is the server ready, and if not, which part of it is at fault, and since when. Pure.

Contract, repository.md section 8. A model that two repositories have is in neither's lifecycle: it is told of
and does not count. Two departures, both so that a change to one model never takes a server that serves out of
its load balancer: what is on its way (loading, unloading) does not count, and neither does what is not
essential.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from actors.specs import ModelKey

UNLOADED: Final = "unloaded"
"""The reason of a version that was unloaded on purpose."""

DUPLICATE_REASON: Final = "model appears in two or more repositories"

Named = tuple[ModelKey, int]
"""A model version's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known of one model version. Version 0 stands for a model that has none to show."""

    key: ModelKey
    version: int
    status: str  # as the index has it; empty: never asked to load
    reason: str = ""
    essential: bool = True
    trouble: str = ""  # what its own check or a probe says against it, while it is READY
    awaited: str = ""  # what has not been heard of it yet, while it is READY


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One model version that has a say: whether all is well with it, or why not, and since when."""

    key: ModelKey
    version: int
    reason: str  # empty: all is well
    since: float  # on trio's clock
    essential: bool = True
    logged: bool = False  # its reason was, where it became unavailable
    awaited: bool = False  # nothing speaks against it but that it has not been heard yet

    @property
    def ok(self) -> bool:
        """Whether all is well with it."""
        return not self.reason

    @property
    def named(self) -> Named:
        """What tells it from the others."""
        return self.key, self.version

    def __str__(self) -> str:
        return f"model {self.key} version {self.version}" if self.version else f"model {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the server is ready. `opened` stays true from the first time it was."""

    ready: bool = False
    finished: bool = False  # what was to be loaded at start has been, or has failed
    opened: bool = False
    since: float = 0.0  # when `ready` was last new
    missing: str = ""  # which repository the start went without, and why
    parts: tuple[Part, ...] = ()

    @property
    def failed(self) -> tuple[Part, ...]:
        """The essential parts that something is wrong with."""
        return tuple(part for part in self.parts if part.essential and not part.ok)


def judge(
    standings: Iterable[Standing],
    *,
    finished: bool,
    strict: bool,
    before: Verdict,
    now: float,
    missing: str = "",
) -> Verdict:
    """Return the verdict that follows `before`.

    Lenient: ready once `finished`, unless a repository is `missing` since the start. Strict: and as long as
    nothing is wrong with any essential part.
    """
    known = {part.named: part for part in before.parts}
    judged = (
        _part(standing, known.get((standing.key, standing.version)), opened=before.opened, now=now)
        for standing in standings
    )
    parts = tuple(part for part in judged if part is not None)
    ready = (
        finished and not missing and not (strict and any(part.essential and not part.ok for part in parts))
    )
    return Verdict(
        ready=ready,
        finished=finished,
        opened=before.opened or ready,
        since=before.since if ready is before.ready else now,
        missing=missing,
        parts=parts,
    )


def _part(standing: Standing, before: Part | None, *, opened: bool, now: float) -> Part | None:
    """Return the part that a version is; None where it has no say.

    It has none while it is on its way (loading, unloading), unless that began with a failure: then that
    stands until it serves or is gone. It has none either once it was unloaded, or where nobody ever asked for
    it.
    """
    match standing.status:
        case "READY":
            reason = standing.trouble or ("" if opened else standing.awaited)
        case "UNAVAILABLE" if standing.reason != UNLOADED:
            reason = standing.reason or "it is unavailable"
        case "LOADING" | "UNLOADING" if before is not None and not before.ok:
            reason = before.reason
        case _:
            return None
    return Part(
        key=standing.key,
        version=standing.version,
        reason=reason,
        since=before.since if before is not None and before.ok is not bool(reason) else now,
        essential=standing.essential and standing.reason != DUPLICATE_REASON,
        logged=standing.status == "UNAVAILABLE" and bool(standing.reason),
        awaited=bool(reason) and not standing.trouble and standing.status == "READY",
    )
