"""The rate limiter: which instances, of all models, may execute now. Pure: told everything, never waits.

Theory of operation (contract, scheduling.md section 5, mode `execution_count`). A resource is a number of
interchangeable units in a *pool*: one pool in the server if the resource is global, else one for each
device. While an instance executes, it holds what its `rate_limiter` lists, once for each execution if it has
several lanes. An instance that can't begin at once stands in a line, ordered by `execution_count × priority`,
then by arrival:

- An instance takes no unit from a pool that an instance ahead of it in the line waits for. So the head waits
  for its own resources only, and is never starved by many small ones.
- An instance that shares no pool with any instance ahead is not held up by them: that costs those ahead
  nothing.
- An instance that ends, dies, leaves or steps out of the line frees its units, and *rings* those that may
  begin now.

A count belongs to a competition, not to a lifetime. An instance that comes to compete, newly loaded or after
a pause, begins level with the least of those it competes with. Otherwise a model that was idle for an hour
would make all others wait until it has caught up. Counts, and so shares, are exact among instances that
always have work: priority 2 gets half the share of 1.

A scheduler uses it as follows for an instance that has room and a batch that is ready, without a wait between
the two calls::

    if limiter.ask(instance):  # else the instance stands in line, and its scheduler is rung when it may begin
        hand_over(instance, batch)
        limiter.began(instance)

Afterwards it calls `limiter.ended(instance, again=...)` for each batch, or `limiter.died(instance)` once for
all of them. A scheduler that has nothing left to execute calls `withdraw`, or the instances behind would wait
for nothing. An instance is any hashable; the server uses `actors.serving.model.InstanceState`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Final, Generic, NamedTuple, TypeVar

from actors.seams import faults
from actors.values.errors import InvalidArgument
from actors.values.specs import InstanceSpec

Key = TypeVar("Key", bound=Hashable)

SHARED: Final = ""
"""The device of a global resource's pool."""

HOST: Final = "host"
"""The device of instances that are on no GPU."""


class PoolName(NamedTuple):
    """A resource on a device: `SHARED`, `HOST`, or `gpu 0` and so on."""

    resource: str
    device: str


class PoolSample(NamedTuple):
    """A pool at one moment, in units."""

    capacity: int
    used: int


@dataclass(frozen=True, slots=True)
class LimiterStatistics(Generic[Key]):
    """The limiter at one moment. `line` has the instances that wait, the next one first."""

    pools: Mapping[PoolName, PoolSample]
    line: tuple[Key, ...]


@dataclass(slots=True, eq=False)
class _Pool:
    name: PoolName
    capacity: int = 0
    used: int = 0


class _Member(Generic[Key]):
    """An instance that the limiter knows."""

    def __init__(
        self,
        key: Key,
        owner: Hashable,
        needs: Mapping[_Pool, int],
        priority: int,
        ring: Callable[[], None],
    ) -> None:
        self.key = key
        self.owner = owner
        self.needs = needs
        self.priority = priority
        self.ring = ring
        # Execution count × priority, as of the competition it is in.
        self.reached = 0
        self.executing = 0
        # While it stands in line, instances with a lower place came before it.
        self.place: int | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Where it belongs in the line."""
        return self.reached, self.place or 0

    @property
    def level(self) -> int | None:
        """Its level in a competition; None outside any. If it executes, that is its level when it began."""
        if self.place is not None:
            return self.reached
        return self.reached - self.priority if self.executing else None


class RateLimiter(Generic[Key]):
    """All resources of one server, and all instances that need them; see the module."""

    def __init__(self, capacities: Mapping[tuple[str, int | None], int]) -> None:
        """Take the operator's `capacities`, by resource and device.

        Device None stands for every device, and for a global resource. Device 0 is also the host's, for
        instances that are on no GPU. For a global resource the device does not matter. A capacity that is not
        given is the most that any one instance needs.
        """
        self._given = dict(capacities)
        self._members: dict[Key, _Member[Key]] = {}
        self._pools: dict[PoolName, _Pool] = {}
        self._line: list[_Member[Key]] = []
        self._places = count()

    # -- the instances ---------------------------------------------------------------------------------------

    def enter(
        self, owner: Hashable, instances: Iterable[tuple[Key, InstanceSpec]], ring: Callable[[], None]
    ) -> None:
        """Make instances known, all of them or none. `ring` has their scheduler ask again, later.

        Raises InvalidArgument, with the contract's texts, if the instances could never execute, or if a
        resource is global here and not elsewhere. Instances with the same `owner` do not count as elsewhere:
        these may be about to take their place.
        """
        entering = list(instances)
        self._check_kinds(owner, [spec for _, spec in entering])
        for _, spec in entering:
            self._check_capacity(spec)
        for key, spec in entering:
            needs = {self._pool(name): units for name, units in needs_of(spec).items()}
            self._members[key] = _Member(key, owner, needs, max(1, spec.rate_limit.priority), ring)
            for pool, units in needs.items():
                if self._limit(pool.name) is None:
                    pool.capacity = max(pool.capacity, units)
        self._wake()  # there may be more of something now

    def _check_kinds(self, owner: Hashable, specs: Sequence[InstanceSpec]) -> None:
        others = (pool.name for each in self._members.values() if each.owner != owner for pool in each.needs)
        shared = {name.resource: name.device == SHARED for name in others}
        for spec in specs:
            for name in needs_of(spec):
                if shared.setdefault(name.resource, name.device == SHARED) != (name.device == SHARED):
                    raise InvalidArgument(
                        f'Resource "{name.resource}" is present as both global and device-specific resource in the'
                        " model configuration."
                    )

    def _check_capacity(self, spec: InstanceSpec) -> None:
        for name, needed in needs_of(spec).items():
            limit = self._limit(name)
            if limit is not None and limit < needed:
                raise InvalidArgument(
                    f'Resource count for "{name.resource}" is limited to {limit} which will prevent scheduling of one or'
                    f" more model instances, the minimum required count is {needed}"
                )

    def _limit(self, name: PoolName) -> int | None:
        """Return the operator's capacity, if one was given."""
        everywhere = self._given.get((name.resource, None))
        if name.device == SHARED:
            if everywhere is not None:
                return everywhere
            return next(
                (units for (resource, _), units in self._given.items() if resource == name.resource), None
            )
        device = 0 if name.device == HOST else int(name.device.removeprefix("gpu "))
        return self._given.get((name.resource, device), everywhere)

    def _pool(self, name: PoolName) -> _Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool(name, capacity=self._limit(name) or 0)
        return pool

    def leave(self, key: Key) -> None:
        """Forget an instance, and free what it holds. Does nothing if it is not known."""
        member = self._members.pop(key, None)
        if member is None:
            return
        self._free(member)
        for pool in member.needs:
            self._resize(pool)
        self._wake()

    def _resize(self, pool: _Pool) -> None:
        needed = [each.needs[pool] for each in self._members.values() if pool in each.needs]
        if not needed:
            del self._pools[pool.name]
        elif self._limit(pool.name) is None:
            pool.capacity = max(needed)

    def limits(self, key: Key) -> bool:
        """Whether an instance needs any resource: if not, it is never held up."""
        member = self._members.get(key)
        return member is not None and bool(member.needs)

    # -- which may execute -----------------------------------------------------------------------------------

    def ask(self, key: Key) -> bool:
        """Whether this instance may begin now. If not it stands in line, and is rung when it may.

        Its scheduler then calls `began` if the instance begins, or `withdraw` if it does not want to after
        all.
        """
        if faults.points is not None:
            faults.points.passing("limiter.ask")
        member = self._members[key]
        if not member.needs:
            return True
        if member.place is None:
            self._line_up(member)
        return self._may_begin(member)

    def _line_up(self, member: _Member[Key]) -> None:
        if not member.executing:  # it comes from outside the competition
            levels = [
                each.level for each in self._members.values() if each.needs.keys() & member.needs.keys()
            ]
            member.reached = max(
                member.reached, min((each for each in levels if each is not None), default=0)
            )
        member.place = next(self._places)
        insort(self._line, member, key=_rank)

    def _may_begin(self, member: _Member[Key]) -> bool:
        ahead = takewhile(lambda each: each is not member, self._line)
        return all(member.needs.keys().isdisjoint(each.needs) for each in ahead) and _fits(member)

    def began(self, key: Key) -> None:
        """It executes one more batch, and holds the units for that.

        Raises RuntimeError if `ask` would not let it.
        """
        member = self._members[key]
        if not member.needs:
            return
        if member.place is None or not self._may_begin(member):
            raise RuntimeError(f"{key!r} began to execute without being allowed to")
        self._step_out(member)
        for pool, units in member.needs.items():
            pool.used += units
        member.executing += 1
        member.reached += member.priority
        self._wake()  # there may be room for those behind it

    def ended(self, key: Key, *, again: bool) -> None:
        """One batch of it is done. With `again` it has more to execute: it is in line before others are rung.

        Does nothing if it holds nothing: its worker's death has freed that already.
        """
        member = self._members.get(key)
        if member is None or not member.executing:
            return
        if again and member.place is None:
            self._line_up(member)
        self._give_back(member)
        self._wake()

    def withdraw(self, key: Key) -> None:
        """It has nothing to execute, or no room: the instances behind it must not wait for it."""
        member = self._members.get(key)
        if member is not None and member.place is not None:
            self._step_out(member)
            self._wake()

    def died(self, key: Key) -> None:
        """Its worker is gone: free all that it holds, and take it out of the line.

        Does nothing if the instance is not known.
        """
        member = self._members.get(key)
        if member is not None and (member.executing or member.place is not None):
            self._free(member)
            self._wake()

    def _free(self, member: _Member[Key]) -> None:
        while member.executing:
            self._give_back(member)
        if member.place is not None:
            self._step_out(member)

    def _give_back(self, member: _Member[Key]) -> None:
        member.executing -= 1
        for pool, units in member.needs.items():
            pool.used -= units

    def _step_out(self, member: _Member[Key]) -> None:
        self._line.remove(member)
        member.place = None

    def _wake(self) -> None:
        """Ring the instances that may begin.

        An instance that shares a pool with one of them is rung once that one has begun, or has withdrawn.
        """
        wanted: set[_Pool] = set()
        for member in self._line:
            if wanted.isdisjoint(member.needs) and _fits(member):
                member.ring()
            wanted.update(member.needs)

    def statistics(self) -> LimiterStatistics[Key]:
        """Return a snapshot."""
        return LimiterStatistics(
            {name: PoolSample(pool.capacity, pool.used) for name, pool in self._pools.items()},
            tuple(member.key for member in self._line),
        )


def needs_of(spec: InstanceSpec) -> dict[PoolName, int]:
    """Return what one execution of an instance holds, in units by pool.

    A resource that is listed twice counts twice.
    """
    device = f"gpu {spec.device_id}" if spec.kind == "GPU" else HOST
    needs: dict[PoolName, int] = {}
    for each in spec.rate_limit.resources:
        if each.count:
            name = PoolName(each.name, SHARED if each.shared else device)
            needs[name] = needs.get(name, 0) + each.count
    return needs


def _rank(member: _Member[Key]) -> tuple[int, int]:
    return member.rank


def _fits(member: _Member[Key]) -> bool:
    return all(pool.used + units <= pool.capacity for pool, units in member.needs.items())
