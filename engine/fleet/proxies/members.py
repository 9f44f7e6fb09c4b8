"""Makes servers behind a proxy of a fleet's members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from engine.fleet.ports import Member
from engine.fleet.proxies.values import Unwritable, Upstream


def upstreams(
    members: Iterable[Member], placed: Mapping[str, Sequence[str]] | None = None
) -> Sequence[Upstream]:
    """Return the members as servers behind a proxy. Raises Unwritable.

    `placed` names the members that have each model, as `place` does; without it each has every model.
    """
    return [
        _upstream(
            each,
            None
            if placed is None
            else frozenset(model for model, names in placed.items() if each.name in names),
        )
        for each in members
    ]


def _upstream(member: Member, models: frozenset[str] | None) -> Upstream:
    parts = urlsplit(member.url)
    if parts.scheme != "http" or parts.path.strip("/"):
        raise Unwritable(
            f"replica '{member.name}': a proxy asks servers by http://HOST:PORT, and this has {member.url}"
        )
    calls = urlsplit(f"//{member.grpc}") if member.grpc else None
    if calls is not None and calls.hostname != parts.hostname:
        raise Unwritable(
            f"replica '{member.name}': one host has both ports; this has {member.url} and {member.grpc}"
        )
    return Upstream(
        name=member.name,
        host=parts.hostname or "",
        http_port=parts.port or 80,
        grpc_port=calls.port if calls is not None else None,
        models=models,
    )
