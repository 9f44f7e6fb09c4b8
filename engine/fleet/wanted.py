"""What the fleet's file says, read: see `engine.fleet.document` for its form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.fleet.policy.scaling import Scale
from engine.fleet.policy.values import Rules, Wish
from engine.fleet.ports import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often the controller looks, and how long it waits, in seconds."""

    interval: float = 1
    takeover: float = 10
    drain_delay: float = 5
    request: float = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What is trusted and shown where replicas are asked over `https://`.

    Files are of PEM; without a `ca_file` it is what the system trusts. Certificates are for `server_name`, or
    for the host of a replica's URL if that is empty.
    """

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    server_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a fleet should be.

    `members` are those that the file lists, `discovery` where others are found: a kind, and what it needs.
    """

    members: Sequence[Member] = ()
    discovery: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    wishes: Sequence[Wish] = ()
    rules: Rules = field(default_factory=Rules)
    scale: Scale = field(default_factory=Scale)
    timing: Timing = field(default_factory=Timing)
    tls: Tls = field(default_factory=Tls)

    def wish(self, model: str) -> Wish | None:
        """Return what a model should be; None for one that the file does not name."""
        return next((each for each in self.wishes if each.model == model), None)
