"""Flags of `tritium serve` that a launched server is started with: what a user gave, and what is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_OFF: Final = frozenset({"false", "off", "0"})
_TAKEN: Final = {
    "replica-name": "each server is named after its group",
    "reuse-http-port": "each server has ports of its own",
    "reuse-grpc-port": "each server has ports of its own",
}


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one server, 0 where it does not listen."""

    http: int
    grpc: int
    metrics: int


def value_of(flags: Sequence[str], name: str) -> str | None:
    """Return the value of the last `--name=value` or `--name value`; None if it was not given."""
    found = None
    for index, word in enumerate(flags):
        if word.startswith(f"--{name}="):
            found = word.partition("=")[2]
        elif word == f"--{name}" and index + 1 < len(flags):
            found = flags[index + 1]
    return found


def what_is_wrong(flags: Sequence[str]) -> str:
    """Return why servers can't be started with these flags, in a sentence; empty if they can."""
    for name, why in _TAKEN.items():
        if value_of(flags, name) is not None:
            return f"--{name} can't be given to servers of a group: {why}"
    if (value_of(flags, "allow-http") or "").lower() in _OFF:
        return "--allow-http=false can't be given to servers of a group: a fleet asks them over HTTP"
    return ""


def ports_of(flags: Sequence[str], free: Sequence[int]) -> Ports:
    """Return the ports that the flags name, else the `free` ones: three, in the order of `Ports`."""
    return Ports(
        *(
            0 if _is_off(flags, service) else _port(flags, name) or port
            for (service, name), port in zip(_SERVICES, free, strict=True)
        )
    )


def command_words(flags: Sequence[str], name: str, ports: Ports) -> list[str]:
    """Return the flags of one server, which is called `name`."""
    given = zip(_SERVICES, (ports.http, ports.grpc, ports.metrics), strict=True)
    added = [f"--{flag}={port}" for (_, flag), port in given if port]
    return [*flags, *added, f"--replica-name={name}"]


_SERVICES: Final = (("http", "http-port"), ("grpc", "grpc-port"), ("metrics", "metrics-port"))


def _is_off(flags: Sequence[str], service: str) -> bool:
    return (value_of(flags, f"allow-{service}") or "").lower() in _OFF


def _port(flags: Sequence[str], name: str) -> int:
    word = value_of(flags, name) or ""
    return int(word) if word.isdecimal() else 0
