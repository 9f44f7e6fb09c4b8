"""What a fault is, what it is given, and what it says of itself.

The runner does with each fault of its plan:

    injection = await fault.inject(stage, random)   # writes Injected, with the injection's own time
    await trio.sleep(fault.lasts)
    await injection.undo()                          # always, whatever happens meanwhile; writes Healed

A fault chooses its target by `random` and by nothing else, so that a seed tells what will be hit as far as
the server's own course allows. It excuses what it makes inevitable and no more: zero is the goal.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from chaos.record.history import End
from chaos.record.records import Injected
from chaos.subject.sabotage import SabotageClient
from chaos.subject.server import Server
from chaos.workload.control import Control

if TYPE_CHECKING:
    from chaos.subject.certificates import ServedFiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that faults may act on."""

    server: Server
    sabotage: SabotageClient
    repository: Path
    control: Control
    # `Clients.send`, for requests that a fault sends beside the ordinary load; all of these are in the history.
    send: Callable[..., Awaitable[End]]
    folder: Path  # of the run
    collector: int = 0  # the port to which the server exports traces; 0 if it does not
    certificates: ServedFiles | None = None  # of the metrics' listener, if it speaks TLS


Heal = Callable[[], Awaitable[object]]


async def nothing_to_heal() -> None:
    """The cause of a blow is gone when it has fallen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection(Injected):
    """What a fault has done, as it goes into the record once it has its number, and its undoing.

    `t` is when it was done: just ahead of the act, after the target was looked up. `undo` takes the cause
    away. A cause that is gone by itself by now is no error.
    """

    n: int = 0
    fault: str = ""
    undo: Heal = field(default=nothing_to_heal, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(ABC):
    """One way to do harm.

    `name` is its name in the catalogue. `expected` is one sentence about what can be seen of it from outside
    when the server keeps its promises. `weight` is how often it is drawn beside others. `lasts` is the
    seconds between the injection and its healing (0: a blow), at most `chaos.plan.LONGEST`.
    """

    name: str
    expected: str
    weight: float = 1.0
    lasts: float = 0.0

    @abstractmethod
    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Do it, once the target has been looked up.

        Raises NoTarget if there is nothing to hit just now.
        """


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

    `undo` raises it once the cause is gone; its words are `Healed.trouble`.
    """


PATIENCE: Final = 20.0
"""Seconds within which a change must have taken effect.

They allow a poll or two, and the start of workers on a busy machine.
"""


async def until(
    look: Callable[[], Awaitable[T]],
    right: Callable[[T], bool],
    complaint: Callable[[T | None], str],
    *,
    pause: float = 0.02,
) -> T:
    """Look every `pause` seconds, until what is seen is right, and return that.

    Raises Trouble with the `complaint` about what was seen last if that takes longer than `PATIENCE`.
    """
    seen: T | None = None
    with trio.move_on_after(PATIENCE):
        while True:
            seen = await look()
            if right(seen):
                return seen
            await trio.sleep(pause)
    raise Trouble(complaint(seen))
