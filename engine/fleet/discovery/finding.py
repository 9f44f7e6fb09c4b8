"""Where replicas are found: in the file's list, by DNS, in Kubernetes' EndpointSlices, in a Ray cluster."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio

from engine.fleet.discovery import slices
from engine.fleet.discovery.addresses import member, ports
from engine.fleet.ports import Member, Unreachable
from engine.fleet.wanted import Wanted


async def discover(wanted: Wanted) -> Sequence[Member]:
    """Return the fleet's members, sorted by name. Raises Unreachable if some way can't be gone just now."""
    found = list(wanted.members)
    for kind, options in wanted.discovery.items():
        found += await _WAYS[kind](options)
    return sorted({each.name: each for each in found}.values(), key=lambda each: each.name)


async def _by_dns(options: Mapping[str, Any]) -> Sequence[Member]:
    """Return a member for each address of a name, as a headless Service has one for each pod."""
    name = str(options["name"])
    listened = ports(options)
    try:
        infos = await trio.socket.getaddrinfo(name, listened[0], type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unreachable(f"the name {name} has no address: {error}") from error
    return [member(address, address, listened) for address in sorted({str(i[4][0]) for i in infos})]


async def _by_slices(options: Mapping[str, Any]) -> Sequence[Member]:
    return await trio.to_thread.run_sync(slices.members, options, abandon_on_cancel=True)


async def _by_ray(options: Mapping[str, Any]) -> Sequence[Member]:
    from engine.fleet.launching.finding import replicas

    return await trio.to_thread.run_sync(replicas, options, abandon_on_cancel=True)


_WAYS: Final[Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Sequence[Member]]]]] = {
    "dns": _by_dns,
    "endpointslices": _by_slices,
    "ray": _by_ray,
}
