"""A replica as the controller meets it, and what can come of asking it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.fleet.policy.claims import Register
from engine.fleet.policy.values import Plan, Release, Seen


class Unreachable(Exception):
    """The replica did not answer, with the reason."""


class Superseded(Exception):
    """The replica knows a higher epoch: another controller has taken over."""


class Refused(Exception):
    """The replica answered that it does not do what was asked of it, with its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A server that belongs to the fleet, as it was found. `url` is that of its HTTP port."""

    name: str
    url: str
    grpc: str = ""
    metrics: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a replica shows."""

    seen: Seen
    register: Register
    metrics: str = ""


class Replica(Protocol):
    """One server of the fleet."""

    async def look(
        self, models: Mapping[str, Sequence[Release]], *, plans: Collection[str], deep: bool
    ) -> Look:
        """Return what it shows of `models`, each with the releases that are told apart. Raises Unreachable.

        Of the models in `plans` it shows how requests are shared out over versions, too. `deep` has it prove
        by an inference that each answers.
        """
        ...

    async def write(
        self, epoch: int, sequence: int, document: Any, *, withdrawn: bool | None = None
    ) -> Register:
        """Have it keep `document`, or the epoch alone if that is None. Raises Unreachable, Superseded."""
        ...

    async def load(self, model: str, release: Release, epoch: int) -> None:
        """Have it serve a release; return when it does. Raises Refused, Unreachable, Superseded."""
        ...

    async def unload(self, model: str, epoch: int) -> None:
        """Have it serve no version. Raises Refused, Unreachable, Superseded."""
        ...

    async def share(self, model: str, plan: Plan, epoch: int) -> None:
        """Put a traffic plan in force. Raises Refused, Unreachable, Superseded."""
        ...
