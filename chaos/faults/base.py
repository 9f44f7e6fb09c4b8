"""What a fault is, what it is given, and what it says of itself.

The runner does with each fault of its plan:

    injection = await fault.inject(stage, random)   # writes Injected, with the injection's own time
    await trio.sleep(fault.lasts)
    await injection.heal()                          # always, whatever happens meanwhile; writes Healed

A fault chooses its target by `random` and by nothing else, so that a seed tells what will be hit as far as
the server's own course allows. It excuses what it makes inevitable and no more: zero is the goal.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import psutil

from chaos.record.records import Excuse, Fail, Injected, LogExpected, Ok, Unknown, Wire

Measure = Literal["", "worker", "hang", "actor", "supervisor"]
"""Which recovery time an injection counts for; "" for none."""

LONGEST: Final = 5.0
"""Seconds that a fault may last, from its injection until its cause is gone."""


def now() -> float:
    """Return the time of records: seconds of the machine's monotonic clock, which all processes share."""
    return time.monotonic()


class Server(Protocol):
    """The server process under test, as its users and its operator reach it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def http_port(self) -> int:
        """On the loopback address, as the other ports."""
        ...

    @property
    def grpc_port(self) -> int:
        """For gRPC."""
        ...

    @property
    def metrics_port(self) -> int:
        """For scrapes."""
        ...

    async def tree(self) -> Mapping[str, Any]:
        """Return the root of the supervision tree, as GET /v2/tritium/tree has it."""
        ...

    async def workers(self, model: str) -> Sequence[int]:
        """Return the process ids of the workers that serve a model's latest version, by instance."""
        ...

    def descendants(self) -> Sequence[psutil.Process]:
        """Return every process it has started that lives."""
        ...


class Sabotage(Protocol):
    """The control socket of a server that was started by `chaos.saboteur`.

    All methods raise SabotageRefused, with the reason.
    """

    async def crash(self, path: str) -> None:
        """Kill an actor or a supervisor, by its path in the tree."""
        ...

    async def fail(self, point: str, *, times: int = 1, within: str = "") -> None:
        """Have the next `times` passes of a named fault point raise.

        If `within` is given, only passes of the actor at that path raise.
        """
        ...

    async def disarm(self, point: str) -> bool:
        """Have a fault point raise no more. Returns whether it would have raised."""
        ...

    async def jump(self, seconds: float) -> None:
        """Move the wall clock, as the server's code reads it, by so many seconds.

        The monotonic clock goes on.
        """
        ...

    async def list(self) -> Sequence[str]:
        """Return every path that `crash` takes."""
        ...


class Order(Protocol):
    """Something that a model was told to do."""

    @property
    def stands(self) -> bool:
        """Whether the order still exists, neither taken nor withdrawn."""
        ...

    def withdraw(self) -> bool:
        """Take it back. Returns whether that was in time."""
        ...


class Control(Protocol):
    """The files that tell the workload's models to misbehave, see `chaos.workload.control`."""

    def once(self, model: str, action: str) -> Order:
        """Have the next execution (or, for `init_fail`, the next initialisation) of a model do `action`."""
        ...

    def hold(self, model: str, action: str) -> Order:
        """Have every execution (or initialisation) of a model do `action`, until that is withdrawn."""
        ...


class Clients(Protocol):
    """The load's clients, for requests that a fault sends beside the ordinary load.

    All these requests are in the history.
    """

    async def send(
        self, model: str, *, poison: str = "", protocol: Wire = "http", priority: int = 0, tenant: str = ""
    ) -> Ok | Fail | Unknown:
        """Send one request with an input of `poison` and return how it ended.

        Never raises for an error answer. `priority` is the request parameter of that name, 0 for none;
        `tenant` goes in the header (or metadata) `x-tenant`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that faults may act on."""

    server: Server
    sabotage: Sabotage
    repository: Path
    control: Control
    clients: Clients
    folder: Path  # of the run


Heal = Callable[[], Awaitable[None]]


async def nothing_to_heal() -> None:
    """The cause of a blow is gone when it has fallen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What a fault has done, as it goes into the record, and its undoing.

    See `chaos.record.records.Injected` for the fields. `t` is when it was done: just ahead of the act, after the
    target was looked up.
    """

    t: float
    models: Sequence[str]
    detail: str
    pid: int = 0
    excuses: Sequence[Excuse] = ()
    expects: Sequence[LogExpected] = ()
    measures: Measure = ""
    model: str = ""
    mutes: bool = False
    stops: bool = False
    undo: Heal = field(default=nothing_to_heal, repr=False)

    async def heal(self) -> None:
        """Take the cause away. A cause that is gone by itself by now is no error."""
        await self.undo()

    def record(self, n: int, fault: str) -> Injected:
        """Return the line of the record: the injection `n` of the run, of the fault of that name."""
        return Injected(
            t=self.t,
            n=n,
            fault=fault,
            models=self.models,
            detail=self.detail,
            pid=self.pid,
            excuses=self.excuses,
            expects=self.expects,
            measures=self.measures,
            model=self.model,
            mutes=self.mutes,
            stops=self.stops,
        )


class Fault(Protocol):
    """One way to do harm.

    `name` is its name in the catalogue. `expected` is one sentence about what can be seen of it from outside
    when the server keeps its promises. `weight` is how often it is drawn beside others. `lasts` is the
    seconds between the injection and its healing (0: a blow), at most `LONGEST`.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 (of the class)

    @property
    def expected(self) -> str: ...  # noqa: D102

    @property
    def weight(self) -> float: ...  # noqa: D102

    @property
    def lasts(self) -> float: ...  # noqa: D102

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Do it, once the target has been looked up.

        Raises NoTarget if there is nothing to hit just now.
        """
        ...


class NoTarget(Exception):
    """A fault found nothing to hit, for example because every worker was down already.

    The runner goes on to the next.
    """


class Restrained(NoTarget):
    """A fault that would ask for more than the server promises to survive just now.

    It is the harness that holds back.
    """


class Trouble(Exception):
    """What a fault saw that should not have been.

    `heal` raises it once the cause is gone; its words are `Healed.trouble`.
    """
