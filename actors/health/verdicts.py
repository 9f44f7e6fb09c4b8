"""Is the server ready, and if not, which part of it is at fault, and since when. Pure.

Contract, repository.md section 8. A model that two repositories have is in neither's lifecycle: it is
reported, and does not count. There are two departures from the contract. Versions that are loading or
unloading do not count, and neither do models that are not essential. Both serve one purpose: a change to one
model never takes a serving server out of its load balancer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from actors.values.interfaces import DUPLICATE_REASON, UNLOADED
from actors.values.specs import ModelKey

Named = tuple[ModelKey, int]
"""The name of a model version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """What is known of one model version. Version 0 stands for a model that has no version to show."""

    key: ModelKey
    version: int
    status: str  # as the index has it; empty: never asked to load
    reason: str = ""
    essential: bool = True
    # Found by its own check or a probe, while it is READY.
    trouble: str = ""
    # The check or probe that is still to be heard, while it is READY.
    awaited: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One model version that counts: whether it is well, or why not, and since when."""

    key: ModelKey
    version: int
    reason: str  # why it is not well; else empty
    since: float  # on trio's clock
    essential: bool = True
    logged: bool = False  # its reason was logged when it became unavailable
    # Its only fault is that a check or a probe is still to be heard.
    awaited: bool = False

    @property
    def ok(self) -> bool:
        """Whether it is well."""
        return not self.reason

    @property
    def named(self) -> Named:
        """The name that tells it from the others."""
        return self.key, self.version

    def __str__(self) -> str:
        return f"model {self.key} version {self.version}" if self.version else f"model {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the server is ready. `opened` is true from the first time that it was ready."""

    ready: bool = False
    # Every model to be loaded at start has been loaded, or has failed.
    finished: bool = False
    opened: bool = False
    since: float = 0.0  # when `ready` last changed
    missing: str = ""  # which repository was missing at the start, and why
    parts: tuple[Part, ...] = ()

    @property
    def failed(self) -> tuple[Part, ...]:
        """The essential parts that are not well."""
        return tuple(part for part in self.parts if part.essential and not part.ok)


def judge(
    standings: Iterable[VersionFacts],
    *,
    finished: bool,
    strict: bool,
    before: Verdict,
    now: float,
    missing: str = "",
) -> Verdict:
    """Return the verdict that follows `before`.

    Lenient: ready once `finished`, unless a repository is `missing` since the start. Strict: in addition,
    every essential part must be well.
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


def _part(standing: VersionFacts, before: Part | None, *, opened: bool, now: float) -> Part | None:
    """Return the part for a version; None if it does not count.

    A version does not count while it is loading or unloading. If that began after a failure, the failure
    stands until the version serves or is gone. A version does not count either once it was unloaded, or if it
    was never asked for.
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
