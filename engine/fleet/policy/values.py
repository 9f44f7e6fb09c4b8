"""What a fleet is told to be, what is seen of it, and what its controller does next.

Source: contract, deployment.md section 4.4. A *fleet* is a number of servers that stand side by side, each a
*replica*, known by its name. A *release* of a model is what one replica serves of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Release:
    """Versions of a model, ascending, and a configuration as JSON, which stands in the repository's place.

    Without versions the model is not served. An empty configuration is the repository's own.
    """

    versions: tuple[int, ...] = ()
    config: str = ""

    def __bool__(self) -> bool:
        return bool(self.versions)

    def __str__(self) -> str:
        if not self.versions:
            return "no version"
        several = "s" if len(self.versions) > 1 else ""
        with_config = " with a configuration of its own" if self.config else ""
        return f"version{several} {', '.join(map(str, self.versions))}{with_config}"


NONE: Final = Release()

Plan = Mapping[str, Any]
"""How requests are shared out over versions; the document of `docs/traffic.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one model should be.

    `replicas` is how many should serve it; None stands for all. Only those with all of `labels` count.
    `memory` is the bytes that it takes on each. `traffic` is None where the fleet leaves it alone.
    """

    model: str
    release: Release
    replicas: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    memory: int = 0
    traffic: Plan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a replica has passed with a new release, in seconds and shares. See `docs/fleet.md`."""

    settle: float = 10
    max_error_rate: float = 0.05
    min_requests: int = 20
    load_timeout: float = 300
    return_timeout: float = 60
    retry: float = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model as a replica shows it.

    `loading` is what the controller has asked it to load, and has no answer to. `failed` is why the last such
    load came to nothing, and `spoilt` whether the replica still counts such a load against itself. `ill` is
    why the model does not answer a probe; empty where all is well. `answers` and `errors` are counted since
    the replica's start, for the versions that it serves.
    """

    ready: Release = NONE
    loading: Release | None = None
    failed: str = ""
    spoilt: bool = False
    ill: str = ""
    answers: int = 0
    errors: int = 0
    traffic: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A replica that answered when it was asked last.

    `boot` differs after each start of it. `ready` is its own readiness, but for one that waits for the fleet.
    `withdrawn` is whether the fleet keeps it from being ready. `room` is the bytes of memory that models may
    take there in all; None where nothing is known. `waiting` are its requests that have no answer yet.
    """

    name: str
    boot: str = ""
    ready: bool = True
    withdrawn: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    room: int | None = None
    waiting: int | None = None
    models: Mapping[str, Served] = field(default_factory=dict)

    def served(self, model: str) -> Served:
        """Return the model as it is there; one that is not served if it is unknown."""
        return self.models.get(model, _UNKNOWN)


_UNKNOWN: Final = Served()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the fleet keeps of a model from one controller to the next.

    `good` is the release that was good on all replicas, `passed` the replicas on which the one that is being
    rolled out now (`rolling`) has proved good, and `refused` those that failed, each with the reason.
    """

    good: Release = NONE
    rolling: Release = NONE
    passed: frozenset[str] = frozenset()
    refused: Mapping[Release, str] = field(default_factory=dict)


# -- what a controller does


@dataclass(frozen=True, slots=True)
class Load:
    """Have a replica serve this release of a model, and no other."""

    replica: str
    model: str
    release: Release


@dataclass(frozen=True, slots=True)
class Unload:
    """Have a replica serve no version of a model."""

    replica: str
    model: str


@dataclass(frozen=True, slots=True)
class Write:
    """Keep this ledger of a model, before anything else is done."""

    model: str
    ledger: Ledger
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing now, for this reason; empty where all is as it should be.

    `stuck`: what is waited for comes by another file, or another fleet, alone.
    """

    model: str
    why: str = ""
    stuck: bool = False


Step = Load | Unload | Write | Wait
