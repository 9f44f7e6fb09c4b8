"""Groups of servers in a Ray cluster: started, changed, shown and stopped. This process is Ray's driver.

Each set of servers has a placement group with one bundle a server, spread strictly, and a detached actor in
each bundle (`ServerOwner`). A group that is to be otherwise gets a new set beside the old one. The old set is
stopped when all of the new one serve. A placement group can't grow, and a server can't be handed other flags.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.fleet.launching import registry
from engine.fleet.launching.heads import HeadAway, check_listens, head_of
from engine.fleet.launching.owner import ServerOwner
from engine.fleet.launching.registry import NAMESPACE, LaunchedServer, LaunchOrder, Phase, StandingOrder
from engine.fleet.launching.room import bundle, what_lacks

_LOOKED_EVERY: Final = 0.1  # seconds
_PLACED_WITHIN: Final = 15.0  # seconds, where the cluster has the nodes
_ENDINGS: Final = 3  # ends in a row after which a server's start is given up
_BEYOND_GRACE: Final = 10.0
_ADDRESSES: Final = (
    "give the address that `ray start --head` prints (host:6379), auto on a node of the cluster,"
    " or ray://host:10001 from elsewhere"
)


class LaunchFailed(Exception):
    """A group could not be as it was asked to be: what is the matter, and a hint of what would work."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class RayMissing(LaunchFailed):
    """The package `ray` is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """For how many seconds nodes may be awaited, and servers that start."""

    nodes: float = 0.0
    start: float = 300.0


class RayGroups:
    """The groups of one cluster, for a driver that is connected to it."""

    def __init__(self, ray: Any, say: Callable[[str], None]) -> None:
        """`ray` is the module; `say` takes a line of what is going on."""
        self._ray = ray
        self._say = say

    def standing(self, group: str) -> StandingOrder | None:
        """Return what a group is; None if there is no such group."""
        from ray.experimental.internal_kv import _internal_kv_get

        found = _internal_kv_get(registry.group_key(group), namespace=NAMESPACE)
        return StandingOrder.read(found) if found else None

    def servers(self, group: str) -> list[LaunchedServer]:
        """Return the servers of a group by name. Those are lost whose nodes are dead."""
        from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

        keys = sorted(_internal_kv_list(registry.servers_prefix(group), namespace=NAMESPACE))
        found = [_internal_kv_get(key, namespace=NAMESPACE) for key in keys]
        entries = [LaunchedServer.read(each) for each in found if each]
        alive = {each["NodeID"] for each in self._ray.nodes() if each["Alive"]}
        return [each if each.node in alive else replace(each, phase=Phase.LOST) for each in entries]

    def start(self, order: LaunchOrder, patience: Patience) -> list[LaunchedServer]:
        """Have a group be as `order` says; return its servers once all serve. Raises LaunchFailed."""
        standing = self.standing(order.group)
        if standing is not None and standing.order == order:
            self._say(f"group {order.group} is as it should be: servers that are missing are started")
            return self._started(standing, patience)
        number = 1 if standing is None else standing.number + 1
        # What another launch may have begun, and not come to the end of.
        self._removed(order.group, lambda each: standing is None or each != standing.number, order.grace)
        following = StandingOrder(order, number)
        try:
            self._reserve(following, patience)
            servers = self._started(following, patience)
        except BaseException:
            self._removed(order.group, lambda each: each == number, order.grace)
            raise
        self._keep(following)
        if standing is not None:
            self._say(f"set {number} serves: set {standing.number} is drained and stopped")
            self._removed(order.group, lambda each: each != number, standing.order.grace)
        return servers

    def stop(self, group: str) -> int:
        """Drain and stop a group's servers; return how many there were. Raises LaunchFailed."""
        standing = self.standing(group)
        stopped = self._removed(group, lambda _: True, standing.order.grace if standing else 60.0)
        if standing is None and not stopped:
            raise LaunchFailed(f"there is no group {group} in this cluster", self._groups_there())
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(registry.group_key(group), namespace=NAMESPACE)
        return stopped

    def _groups_there(self) -> str:
        from ray.experimental.internal_kv import _internal_kv_list

        prefix = registry.group_key("")
        keys = sorted(_internal_kv_list(prefix, namespace=NAMESPACE))
        there = ", ".join(key.decode().removeprefix(prefix) for key in keys)
        return f"groups are {there}" if there else "there are no groups"

    def shown(self, group: str) -> list[LaunchedServer]:
        """Return the servers of a group. Raises LaunchFailed if there is no such group."""
        if self.standing(group) is None:
            raise LaunchFailed(f"there is no group {group} in this cluster", self._groups_there())
        return self.servers(group)

    # -- a set

    def _keep(self, standing: StandingOrder) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        key = registry.group_key(standing.order.group)
        _internal_kv_put(key, standing.written(), namespace=NAMESPACE)

    def _reserve(self, standing: StandingOrder, patience: Patience) -> None:
        from ray.util.placement_group import placement_group

        order = standing.order
        until = time.monotonic() + patience.nodes
        lacks = what_lacks(order, self._ray.nodes())
        if lacks and not patience.nodes:
            raise LaunchFailed(
                lacks, "add nodes, ask for fewer replicas, or wait for nodes with --wait SECONDS"
            )
        # Also where nodes lack: this is what a cluster that scales itself takes as a wish.
        group = placement_group(
            [bundle(order)] * order.replicas,
            strategy="STRICT_SPREAD",
            name=registry.set_name(order.group, standing.number),
            lifetime="detached",
        )
        if lacks:
            self._say(f"{lacks}: waiting for nodes")
        if not group.wait(max(_PLACED_WITHIN, until - time.monotonic())):
            lacks = what_lacks(order, self._ray.nodes())
            raise LaunchFailed(
                lacks
                or f"the cluster's nodes have no room for {order.replicas} servers beside what they run",
                "" if lacks else "stop what runs there (a group: --stop), or ask for less",
            )

    def _started(self, standing: StandingOrder, patience: Patience) -> list[LaunchedServer]:
        """Start what is missing of a set; return its servers once all serve."""
        order = standing.order
        names = [registry.server_name(order.group, standing.number, index) for index in range(order.replicas)]
        until = time.monotonic() + patience.start
        pending = {self._actor(standing, index).pid.remote(): index for index in range(order.replicas)}
        told: dict[str, Phase] = {}
        while True:
            found = {each.name: each for each in self.servers(order.group) if each.name in names}
            for each in found.values():
                if told.get(each.name) is not each.phase:
                    told[each.name] = each.phase
                    self._say(f"{each.name} is {each.phase} on node {each.node[:8]}, {each.host}")
            # An entry is its actor's own once that has answered; before, it may be that of one that died.
            served = len(found) == len(names) and all(each.phase is Phase.SERVING for each in found.values())
            if served and not pending:
                return [found[name] for name in names]
            _check(found.values(), names, time.monotonic() >= until, patience.start)
            pending = dict(self._again(standing, pending))
            time.sleep(_LOOKED_EVERY)

    def _again(self, standing: StandingOrder, pending: dict[Any, int]) -> Iterator[tuple[Any, int]]:
        """Make actors again whose making came to nothing: their node had died, and Ray did not know yet."""
        if not pending:
            return
        done, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=0)
        for ref, index in pending.items():
            if ref not in done:
                yield ref, index
                continue
            try:
                self._ray.get(ref)
            except self._ray.exceptions.ActorUnavailableError:
                yield self._actor(standing, index).pid.remote(), index
            except self._ray.exceptions.ActorDiedError as error:
                if "creation" in str(error) and "node" not in str(error):
                    raise LaunchFailed(f"the actor of a server could not be made: {error}") from error
                yield self._actor(standing, index).pid.remote(), index

    def _actor(self, standing: StandingOrder, index: int) -> Any:
        """Return the actor of a server, which is made if there is none."""
        from ray.util.placement_group import get_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        order = standing.order
        name = registry.server_name(order.group, standing.number, index)
        try:
            group = get_placement_group(registry.set_name(order.group, standing.number))
        except ValueError as error:
            raise LaunchFailed(
                f"the placement group of {name} is gone", f"stop the group: --name {order.group} --stop"
            ) from error
        owner = self._ray.remote(ServerOwner).options(
            name=name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=order.cpus,
            num_gpus=order.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        )
        return owner.remote(order, name)

    def _removed(self, group: str, which: Callable[[int], bool], grace: float) -> int:
        """Drain and remove the sets that `which` takes by number; return how many servers ended."""
        from ray.experimental.internal_kv import _internal_kv_del

        actors = {
            each["name"]: number
            for each in self._ray.util.list_named_actors(all_namespaces=True)
            if each["namespace"] == NAMESPACE
            and (number := registry.set_of(group, each["name"])) is not None
            and which(number)
        }
        handles = []
        for name in actors:
            with suppress(ValueError):  # it has ended meanwhile
                handles.append(self._ray.get_actor(name, namespace=NAMESPACE))
        stops = [each.stop.remote() for each in handles]
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=grace + _BEYOND_GRACE)
        for each in handles:
            self._ray.kill(each, no_restart=True)
        gone = {registry.set_of(group, each.name): each.name for each in self.servers(group)}
        for number in {each for each in (*actors.values(), *gone) if each is not None and which(each)}:
            self._unreserve(registry.set_name(group, number))
        for each in self.servers(group):
            number = registry.set_of(group, each.name)
            if number is not None and which(number):
                _internal_kv_del(registry.server_key(group, each.name), namespace=NAMESPACE)
        return len(handles)

    def _unreserve(self, name: str) -> None:
        from ray.util.placement_group import get_placement_group, remove_placement_group

        with suppress(ValueError):  # there is none of this name
            remove_placement_group(get_placement_group(name))


def _check(found: Collection[LaunchedServer], names: Sequence[str], late: bool, seconds: float) -> None:
    """Raise LaunchFailed if a server ends each time it is started, or if it is too late for all."""
    for each in found:
        if each.failures >= _ENDINGS:
            raise LaunchFailed(
                f"{each.name} ended {each.failures} times as it was started on node {each.node[:8]},"
                f" {each.host}:\n{each.words}",
                "Tritium and the model repository must be on each node, at the same paths;"
                " --python names the Python there that has Tritium",
            )
    if late:
        serving = {each.name for each in found if each.phase is Phase.SERVING}
        missing = ", ".join(name for name in names if name not in serving)
        raise LaunchFailed(
            f"not ready after {seconds:g} s: {missing}", "give servers longer to load with --timeout SECONDS"
        )


@contextmanager
def connected(address: str, say: Callable[[str], None]) -> Iterator[RayGroups]:
    """Connect to a cluster, and disconnect at the end. Raises LaunchFailed."""
    try:
        import ray
        from ray import cloudpickle
    except ImportError as error:
        raise RayMissing("the package ray is not installed") from error
    if address == "local":
        raise LaunchFailed(
            "--ray local would start a cluster of its own, which ends with this command",
            "start one with `ray start --head`, and give its address, or auto",
        )
    try:
        if address.startswith("ray://"):
            check_listens(address)
        else:
            address = head_of(address)
    except HeadAway as error:
        raise LaunchFailed(str(error), _ADDRESSES) from error
    import engine.fleet.launching

    cloudpickle.register_pickle_by_value(engine.fleet.launching)
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise LaunchFailed(
            f"no Ray cluster could be joined at {address}: {error}",
            f"{_ADDRESSES}; where it asks for a token, set RAY_AUTH_MODE and RAY_AUTH_TOKEN or"
            " RAY_AUTH_TOKEN_PATH here, too",
        ) from error
    # A client's connection takes no level.
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield RayGroups(ray, say)
    finally:
        ray.shutdown()
