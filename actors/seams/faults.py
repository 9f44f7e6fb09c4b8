"""Named places in the code where a test can make a fault happen.

Such a place reads:

    if faults.points is not None:
        faults.points.passing("batcher.turn")

In production `points` is None, so a place costs one truth test. A machine that wants faults brings `Points`
(`engine.server.machine.Machine.seams`). An action can tell which task it runs in by
`trio.lowlevel.current_task()`: a child of the tree has its path for a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

Action = Callable[[], object]
"""Called at a place. What it raises comes out there."""

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batcher.turn": "a scheduler looks at its queue",
        "sequencer.turn": "a scheduler of sequences looks at its slots",
        "ensemble.turn": "a scheduler of an ensemble looks at its queue",
        "generation.turn": "a scheduler of a language model looks at its queue",
        "assigner.turn": "a scheduler gives engines of a language model what was meant for them",
        "generation.pulse": "the engines of a language model are looked at, whether they hang",
        "instance.live": "an instance actor has a worker and begins to look after it",
        "instance.packet": "a worker has said something",
        "instance.joins": "a worker begins to load its model; afterwards it gets clients' requests",
        "instance.exit": "an instance actor begins to wait for its worker's exit",
        "recycler.look": "a recycler looks whether a worker is due",
        "catalog.lanes": "the catalog begins to look after its lanes",
        "lane.operation": "a lane begins what is next",
        "deployment.apply": "a lane has read a model, and is about to load it",
        "deployment.retirement": "a version that was replaced or unloaded begins to drain",
        "watcher.look": "the watcher looks at the repositories",
        "watcher.tell": "the watcher tells the catalog what it has decided",
        "readiness.turn": "readiness looks whether probes are due",
        "residency.turn": "the residency actor decides who is in memory",
        "spares.step": "the spares' actor decides what to start or end",
        "janitor.remove": "the janitor is about to remove a directory",
        "events.turn": "the actor of the stream of events looks whether followers are to be woken",
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
    }
)
"""All places, and what is about to happen there."""


class Points:
    """What happens at each place."""

    def __init__(self) -> None:
        self._actions: dict[str, Action] = {}

    def passing(self, name: str) -> None:
        """The code passes a place. Raises what the action raises."""
        action = self._actions.get(name)
        if action is not None:
            action()

    def arm(self, name: str, action: Action) -> Callable[[], None]:
        """Call `action` wherever the code passes `name`; return a function that disarms it.

        The action itself may disarm it, and a second call has no effect on a later arming. Raises KeyError
        for an unknown name, and ValueError for one that is armed.
        """
        if name not in NAMES:
            raise KeyError(f"no fault point '{name}' to arm: there are {', '.join(sorted(NAMES))}")
        if name in self._actions:
            raise ValueError(f"fault point '{name}' is armed; disarm it first")
        self._actions[name] = action

        def disarm() -> None:
            if self._actions.get(name) is action:
                del self._actions[name]

        return disarm


points: Points | None = None
"""The process's own. Passing a place must cost nothing, so it needs no look-up of the current run."""


@contextmanager
def given(some: Points | None) -> Iterator[None]:
    """Have `some` be the `points` of the process around the block."""
    global points  # the one place that assigns it
    before, points = points, some
    try:
        yield
    finally:
        points = before
