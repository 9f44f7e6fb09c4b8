"""What the cluster's registry holds of launched servers: an entry for each, and an order for each group.

The registry is the key-value store of Ray's GCS, in a namespace of its own. Everything in it is JSON. Servers
write their entries themselves; `engine.fleet.launching.reading` reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Self

NAMESPACE: Final = "tritium"
"""The namespace of Ray that actors, placement groups and the registry's keys are in."""
_ROOT: Final = "fleet/"


class Phase(StrEnum):
    """What a launched server is doing."""

    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    """It ended by itself, and is started again after a while."""
    STOPPING = "stopping"
    LOST = "lost"
    """Its node is dead. Ray starts it on another one, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedServer:
    """A server as the registry has it.

    `boot` differs after each start. A port is 0 where the server does not listen to the protocol. `failures`
    counts the ends in a row that nothing asked for, and `words` are the last lines of its log then. `node` is
    the number of Ray's node, `host` that node's address.
    """

    name: str
    node: str
    host: str
    http_port: int
    grpc_port: int = 0
    metrics_port: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    phase: Phase = Phase.STARTING
    boot: str = ""
    pid: int = 0
    failures: int = 0
    words: str = ""

    def written(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: bytes | str) -> Self:
        """Read what `written` wrote; keys that are not known are left out. Raises ValueError."""
        document = _known(cls, text)
        return cls(**{**document, "phase": Phase(document["phase"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What a group of servers was asked to be.

    `cpus` and `gpus` are what Ray reserves for each server. `python` runs the servers; if it is empty, it is
    the one that Ray's workers run on. `grace` is how many seconds a server has to end by itself.
    """

    group: str
    replicas: int
    flags: tuple[str, ...] = ()
    cpus: float = 1.0
    gpus: float = 0.0
    python: str = ""
    grace: float = 60.0
    labels: Mapping[str, str] = field(default_factory=dict)

    def written(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: bytes | str) -> Self:
        """Read what `written` wrote. Raises ValueError."""
        document = _known(cls, text)
        return cls(**{**document, "flags": tuple(document["flags"])})


@dataclass(frozen=True, slots=True)
class StandingOrder:
    """The order that a group stands by, and the number of the set of servers that carries it out."""

    order: LaunchOrder
    number: int

    def written(self) -> str:
        """Return it as JSON."""
        return json.dumps({"number": self.number, "order": self.order.written()})

    @classmethod
    def read(cls, text: bytes | str) -> Self:
        """Read what `written` wrote. Raises ValueError."""
        document = json.loads(text)
        return cls(LaunchOrder.read(document["order"]), document["number"])


def group_key(group: str) -> str:
    """Return the key of a group's order."""
    return f"{_ROOT}groups/{group}"


def servers_prefix(group: str) -> str:
    """Return how the keys of a group's servers begin."""
    return f"{_ROOT}servers/{group}/"


def server_key(group: str, name: str) -> str:
    """Return the key of a server's entry."""
    return servers_prefix(group) + name


def server_name(group: str, number: int, index: int) -> str:
    """Return the name of a server, and of its actor: `group-2-0` is the first one of the second set."""
    return f"{group}-{number}-{index}"


def set_of(group: str, name: str) -> int | None:
    """Return the number of the set that a server's name tells; None if it is not of the group."""
    found = re.fullmatch(rf"{re.escape(group)}-(\d+)-\d+", name)
    return int(found[1]) if found else None


def set_name(group: str, number: int) -> str:
    """Return the name of a set's placement group."""
    return f"{group}-{number}"


def _known(cls: type[Any], text: bytes | str) -> dict[str, Any]:
    document = json.loads(text)
    names = {each.name for each in fields(cls)}
    return {key: value for key, value in document.items() if key in names}
