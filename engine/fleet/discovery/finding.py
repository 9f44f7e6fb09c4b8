"""Where replicas are found: in the file's list, by DNS, in Kubernetes' EndpointSlices, in a Ray cluster."""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio

from engine.fleet.discovery import slices
from engine.fleet.discovery.addresses import PORT, member
from engine.fleet.launching.reading import NoRegistry, Registry
from engine.fleet.launching.registry import LaunchedServer
from engine.fleet.ports import Member, Unreachable
from engine.fleet.wanted import Wanted

_RAY_GROUP: Final = "tritium"


class Discovery:
    """All the ways in which a fleet finds its replicas. Close it at the end."""

    def __init__(self) -> None:
        self._registries: dict[tuple[str, str], Registry] = {}
        self._ways: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Sequence[Member]]]] = {
            "dns": _by_dns,
            "endpointslices": _by_slices,
            "ray": self._by_ray,
        }

    async def discover(self, wanted: Wanted) -> Sequence[Member]:
        """Return the fleet's members, sorted by name. Raises Unreachable if one of the ways is barred."""
        found = list(wanted.members)
        for kind, options in wanted.discovery.items():
            found += await self._ways[kind](options)
        return sorted({each.name: each for each in found}.values(), key=lambda each: each.name)

    def close(self) -> None:
        """End what was begun for it."""
        for registry in self._registries.values():
            registry.close()
        self._registries.clear()

    async def _by_ray(self, options: Mapping[str, Any]) -> Sequence[Member]:
        key = str(options.get("address", "auto")), str(options.get("python", sys.executable))
        registry = self._registries.setdefault(key, Registry(*key))
        group = str(options.get("group", _RAY_GROUP))
        try:
            launched = await trio.to_thread.run_sync(registry.replicas, group)
        except NoRegistry as error:
            raise Unreachable(str(error)) from error
        return [_launched(each) for each in launched]


async def _by_dns(options: Mapping[str, Any]) -> Sequence[Member]:
    """Return a member for each address of a name, as a headless Service has one for each pod."""
    name = str(options["name"])
    try:
        infos = await trio.socket.getaddrinfo(name, options.get("port", PORT), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"the name {name} has no address: {error}") from error
    return [member(address, address, options) for address in sorted({str(each[4][0]) for each in infos})]


async def _by_slices(options: Mapping[str, Any]) -> Sequence[Member]:
    return await trio.to_thread.run_sync(slices.members, options, abandon_on_cancel=True)


def _launched(server: LaunchedServer) -> Member:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return Member(
        name=server.name,
        url=f"http://{host}:{server.http_port}",
        grpc=f"{host}:{server.grpc_port}" if server.grpc_port else "",
        metrics=f"http://{host}:{server.metrics_port}/metrics" if server.metrics_port else "",
        labels=server.labels,
    )
