"""What a fleet is told to be, what is seen of it, and what its controller does next.

Source: contract, deployment.md section 4.4. A *fleet* is a number of servers that stand side by side, each a
*replica*. A replica is named by its URL. Versions of a model are a sorted tuple; an empty one means that the
model is not served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Versions = tuple[int, ...]
NONE: Final[Versions] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one model should be.

    `replicas` is how many should serve it; None stands for all. Only those with all of `labels` count.
    `memory` is the bytes that it takes on each.
    """

    model: str
    versions: Versions
    replicas: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a replica has passed with new versions, in seconds and shares. See `docs/fleet.md`."""

    settle: float = 10
    max_error_rate: float = 0.05
    min_requests: int = 20
    load_timeout: float = 300
    return_timeout: float = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model as a replica shows it.

    `failed` is why its last load came to nothing, `ill` why it does not answer a probe; empty where all is
    well. `answers` and `errors` are counted since the replica's start, for the versions that it serves.
    """

    ready: Versions = NONE
    busy: bool = False
    failed: str = ""
    ill: str = ""
    answers: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A replica that answered when it was asked last.

    `boot` differs after each start of it. `room` is the bytes of memory that models may take there in all;
    None where nothing is known.
    """

    name: str
    boot: str = ""
    ready: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    room: int | None = None
    models: Mapping[str, Served] = field(default_factory=dict)

    def served(self, model: str) -> Served:
        """Return the model as it is there; one that is not served if it is unknown."""
        return self.models.get(model, _UNKNOWN)


_UNKNOWN: Final = Served()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the fleet keeps of a model from one controller to the next.

    `good` are the versions that were good on all replicas, `passed` the replicas on which those that are
    being rolled out now (`rolling`) have proved good, and `refused` the versions that failed, each with the
    reason.
    """

    good: Versions = NONE
    rolling: Versions = NONE
    passed: frozenset[str] = frozenset()
    refused: Mapping[Versions, str] = field(default_factory=dict)


# -- what a controller does


@dataclass(frozen=True, slots=True)
class Load:
    """Have a replica serve these versions of a model, and no others."""

    replica: str
    model: str
    versions: Versions


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
    """Nothing now, for this reason; empty where all is as it should be."""

    model: str
    why: str = ""


Step = Load | Unload | Write | Wait
