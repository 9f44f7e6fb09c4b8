"""Named places in the code where a fault can be made to happen. They cost nothing until one is armed.

A decorator records which function a name stands for, and returns that very function. Arming a name puts a
wrapper in the function's place, which calls an *action* first. The action may raise, or, in front of a
coroutine function, wait. Disarming puts the function back. So a server in which nothing is armed runs the
same code as one without fault points.

The wrapper takes effect for callers that look the function up after it was armed. That is why points are
methods: their callers look them up on the instance at each call. A bound method that a caller keeps is not
affected.

An action can tell which task it runs in by `trio.lowlevel.current_task()`: a child of the tree has its path
for a name.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

Action = Callable[[], Awaitable[None] | None]
"""Called before the function.

An exception of it comes out of the function. In front of a coroutine function, its return value is awaited.
"""

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batcher.turn": "a scheduler looks at its queue",
        "sequencer.turn": "a scheduler of sequences looks at its slots",
        "ensemble.turn": "a scheduler of an ensemble looks at its queue",
        "ensemble.line": "steps that wait for room are worked off",
        "instance.live": "an instance actor has a worker and begins to look after it",
        "instance.packet": "a worker has said something",
        "instance.joins": "a worker has loaded its model, and gets clients' requests from now on",
        "instance.exit": "an instance actor begins to wait for its worker's exit",
        "recycler.look": "a recycler looks whether a worker is due",
        "catalog.lanes": "the catalog begins to look after its lanes",
        "catalog.startup": "the catalog lists what is to be loaded at start",
        "lane.operation": "a lane begins what is next",
        "deployment.apply": "a lane has read a model, and is about to load it",
        "deployment.retirement": "a version that was replaced or unloaded begins to drain",
        "watcher.look": "the watcher looks at the repositories",
        "watcher.tell": "the watcher tells the catalog what it has decided",
        "readiness.turn": "readiness looks whether probes are due",
        "traffic.guard": "the guard looks at the versions of plans with a rollback rule",
        "mirror.settle": "two answers are about to be compared",
        "residency.turn": "the residency actor decides who is in memory",
        "spares.step": "the spares' actor decides what to start or end",
        "spawner.run": "a process is about to be spawned",
        "janitor.remove": "the janitor is about to remove a directory",
        "loop_lag.record": "the loop's lag has been measured",
        "cache.find": "a request is looked up in the response cache",
        "cache.insert": "an answer is put into the response cache",
        "limiter.ask": "an instance asks whether it may execute",
        "supervisor.decide": "a supervisor decides about a child that has ended",
        "supervisor.restart": "a supervisor restarts a child",
        "http.accept": "a connection was accepted on the HTTP port",
        "http.connection": "a connection on the HTTP port begins to be served",
        "grpc.accept": "a connection was accepted on the gRPC port",
        "grpc.connection": "a connection on the gRPC port begins to be served",
        "metrics.scrape": "metrics are being written out",
        "calls.packet": "a worker has said something about calls to other models",
    }
)
"""All allowed names, and what is about to happen there."""


@dataclass(frozen=True, slots=True)
class Place:
    """The function that a name stands for: `qualname` in `module`.

    An action may wait where it is `waiting`.
    """

    module: str
    qualname: str
    waiting: bool


_places: dict[str, Place] = {}
_functions: dict[str, Callable[..., Any]] = {}  # the original function of each armed name


def fault_point(name: str) -> Callable[[F], F]:
    """Let `name`, one of `NAMES`, stand for the decorated method, which is not changed.

    Raises ValueError, TypeError.
    """
    if name not in NAMES:
        raise ValueError(
            f"'{name}' is no fault point; add it to actors.seams.fault_points.NAMES, with what happens there"
        )

    def note(function: F) -> F:
        if not inspect.isfunction(function) or "." not in function.__qualname__:
            raise TypeError(f"fault point '{name}' is {function!r}; it has to be a plain method")
        place = Place(function.__module__, function.__qualname__, inspect.iscoroutinefunction(function))
        if _places.setdefault(name, place) != place:
            raise ValueError(
                f"fault point '{name}' is {_places[name].qualname} already, and {place.qualname} wants it"
            )
        return function

    return note


def places() -> Mapping[str, Place]:
    """Return where each name is, for the modules that have been imported."""
    return MappingProxyType(_places)


def arm(name: str, action: Action) -> Callable[[], None]:
    """Call `action` in front of the function that `name` stands for; return a function that disarms it.

    The action itself may disarm it, and a second call has no effect on a later arming. Raises KeyError for an
    unknown name or one whose module has not been imported, and ValueError for one that is armed.
    """
    if name not in _places:
        why = "its module has not been imported" if name in NAMES else f"there are {', '.join(sorted(NAMES))}"
        raise KeyError(f"no fault point '{name}' to arm: {why}")
    if name in _functions:
        raise ValueError(f"fault point '{name}' is armed; disarm it first")
    owner, attribute = _owner(_places[name])
    function = _functions[name] = owner.__dict__[attribute]
    wrapper = _wrapped(function, action)
    setattr(owner, attribute, wrapper)

    def disarm() -> None:
        if owner.__dict__[attribute] is wrapper:
            del _functions[name]
            setattr(owner, attribute, function)

    return disarm


@contextmanager
def armed(name: str, action: Action) -> Iterator[None]:
    """Arm `name` around the block. Raises as `arm` does."""
    disarm = arm(name, action)
    try:
        yield
    finally:
        disarm()


def _owner(place: Place) -> tuple[type, str]:
    *names, attribute = place.qualname.split(".")
    return cast("type", functools.reduce(getattr, names, cast("Any", sys.modules[place.module]))), attribute


def _wrapped(function: Callable[..., Any], action: Action) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waits(*args: Any, **kwargs: Any) -> Any:
            awaitable = action()
            if awaitable is not None:
                await awaitable
            return await function(*args, **kwargs)

        return waits

    @functools.wraps(function)
    def goes_on(*args: Any, **kwargs: Any) -> Any:
        if action() is not None:
            raise TypeError(f"{function.__qualname__} can't wait, so an action in front of it may only raise")
        return function(*args, **kwargs)

    return goes_on
