"""Workers that are tasks.

A worker here is what the server sees of a process: it is started, told to end, waited for. What goes on inside
it is `chaos.simulation.world.process`. All that it was busy with when it died is written down, because nothing
else excuses an error.
"""

from __future__ import annotations

import signal
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

import trio

from actors.serving.policy.confinement import Usage
from actors.serving.policy.retries import DeathReason, Exit, Signal
from actors.values.events import Log
from actors.values.specs import InstanceSpec, ModelSpec
from chaos.simulation.world.models import MODELS, Model
from engine.processes.spares import Environment, Spares

BACKEND: Final = "simulated"
POISON: Final = "poison"  # the request parameter that kills
RAISE: Final = "raise"  # the one that makes its model raise
REAPED_WITHIN: Final = 0.01  # seconds from a death to when it can be waited for


@dataclass(frozen=True, slots=True)
class Misdeed:
    """What a worker does once in place of answering, to its next batch."""

    what: str  # one of `chaos.simulation.scenario.MISDEEDS`
    after: float = 0.0  # seconds into the execution


class World(Protocol):
    """What a worker takes from the simulation around it."""

    @property
    def chance(self) -> Random:
        """Chance."""

    def start(self, run: Callable[[], Any], name: str) -> None:
        """Run a task beside the server."""

    def note(self, *words: object) -> None:
        """Write a line of the trace."""

    def complain(self, text: str) -> None:
        """Something is wrong with the server."""


@dataclass(slots=True)
class Journal:
    """What workers have done, by request id unless a field says otherwise.

    Most excuses for errors come from here.
    """

    begun: Counter[tuple[str, str]] = field(default_factory=Counter)  # by model and request id
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    died_under: Counter[str] = field(default_factory=Counter)  # deaths while it executed
    # When the server ended a worker that was at work and did nothing wrong: the time, the worker's model, and
    # what it executed.
    ended_under: list[tuple[float, str, Sequence[str]]] = field(default_factory=list)
    hung_under: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)  # answered with an error by the model
    sequences_lost: set[tuple[str, int]] = field(default_factory=set)  # model and correlation id
    # Deaths of a model's workers that the server had not asked for.
    deaths: dict[str, list[float]] = field(default_factory=dict)
    load_failures: dict[str, list[float]] = field(default_factory=dict)
    launches_refused: list[float] = field(default_factory=list)  # when; of whichever model


Live = Callable[["SimulatedWorker", socket.socket, "Workers", World], Awaitable[None]]


class Workers:
    """Starts workers: the launcher of the simulated machine. Implements `engine.server.machine.SparingLauncher`."""

    def __init__(self, world: World, log: Log, live: Live, *, spare_workers: int) -> None:
        """`live` is what goes on inside of each."""
        self.live = live
        self.journal = Journal()
        self.alive: list[SimulatedWorker] = []
        self.misdeeds: dict[str, deque[Misdeed]] = {}  # by model: the next batches get one each
        self.load_troubles: dict[str, deque[str]] = {}  # by model: refuse, die, or dawdle
        # So many launches fail as if the system had no process to give.
        self.refuse_launches = 0
        self.spares = Spares(self._start_spare, limit=spare_workers, log=log)
        self._world = world
        self._pids = 100

    def backend_path(self, spec: ModelSpec) -> str:
        """See `actors.serving.instances.launching.Launcher`."""
        return "chaos.simulation:Simulated"

    def limits(self) -> dict[str, int]:
        """See `actors.serving.instances.launching.Launcher`."""
        return {"open_files": 64}

    async def launch(self, spec: ModelSpec, instance: InstanceSpec) -> SimulatedWorker:
        """See `actors.serving.instances.launching.Launcher`."""
        environment = Environment(
            interpreter="simulated", variables=(("lanes", str(instance.lanes)),), cores=instance.cores
        )
        spare = self.spares.take(environment)
        worker = await self._start() if spare is None else spare
        assert isinstance(worker, SimulatedWorker)
        worker.model = MODELS[spec.name]
        self.spares.launched(environment, spare=spare is not None)
        worker.on_reaped = lambda: self.spares.ended(environment)
        self._world.note("worker", worker.pid, "launched for", f"{spec.name}/{spec.version}")
        return worker

    async def _start_spare(self, environment: Environment) -> SimulatedWorker:
        return await self._start()

    async def _start(self) -> SimulatedWorker:
        await trio.sleep(self._world.chance.uniform(0.001, 0.05))
        if self.refuse_launches:
            self.refuse_launches -= 1
            self.journal.launches_refused.append(trio.current_time())
            raise OSError(11, "the simulated system has no process to give")
        self._pids += 1
        worker = SimulatedWorker(self._pids, self, self._world)
        self.alive.append(worker)
        return worker

    def serving(self, model: str) -> list[SimulatedWorker]:
        """Return the workers of a model that have loaded it, the oldest first."""
        return [
            each for each in self.alive if each.model is not None and each.model.name == model and each.loaded
        ]


class SimulatedWorker:
    """A simulated process. Implements `actors.serving.instances.launching.Launched` and `engine.processes.spares.Spare`."""

    def __init__(self, pid: int, workers: Workers, world: World) -> None:
        self.pid = pid
        self.model: Model | None = None  # what it was launched for
        self.output: int | None = None
        self.on_reaped: Callable[[], None] | None = None
        self.loaded = False
        self.suspended = False
        self.misbehaved = False  # it has given its server a reason to end it
        # Request ids by lane. Requests that are open though their execution is over are under minus their
        # batch.
        self.executing: dict[int, Sequence[str]] = {}
        self.sequences: set[int] = set()  # correlation ids that it knows
        self.socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs.setblocking(False)
        self._workers = workers
        self._world = world
        self._reason: DeathReason | None = None
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._resumed = trio.Event()
        self._resumed.set()
        world.start(self._live, f"worker {pid}")

    # -- actors.serving.instances.launching.Launched ----------------------------------------------------------------------------

    async def wait(self) -> DeathReason:
        """See `Launched`."""
        await self._ended.wait()
        assert self._reason is not None
        if self.on_reaped is not None:
            on_reaped, self.on_reaped = self.on_reaped, None
            on_reaped()
        return self._reason

    @property
    def abandoned(self) -> bool:
        """See `Launched`."""
        return False

    @property
    def exited(self) -> bool:
        """See `Launched`."""
        return self._reason is not None

    @property
    def dying(self) -> bool:
        """See `Launched`."""
        return self.exited

    @property
    def fit(self) -> bool:
        """See `engine.processes.spares.Spare`."""
        return not self.exited and not self.suspended

    def glance(self) -> Usage | None:
        """See `Launched`."""
        return Usage(1, 1)

    def usage(self, *, exact: bool = False) -> Usage:
        """See `Launched`."""
        return Usage(1, 1)

    def terminate(self) -> None:
        """See `Launched`."""
        self._accuse()
        if not self.suspended:
            self.die(Signal(signal.SIGTERM))

    def kill(self) -> None:
        """See `Launched`."""
        self._accuse()
        self.die(Signal(signal.SIGKILL))

    def _accuse(self) -> None:
        """Write down that the server ends this worker while it is doing its work rightly."""
        if self.model is not None and self.executing and not self.misbehaved and not self.exited:
            ids = tuple(each for lane in self.executing.values() for each in lane)
            self._workers.journal.ended_under.append((trio.current_time(), self.model.name, ids))

    # -- dying -----------------------------------------------------------------------------------------------

    def die(self, reason: DeathReason, *, asked: bool = False) -> None:
        """End at once, as a process does; nothing happens to a worker that has ended.

        `asked` is true if the server wants it to end.
        """
        if self._reason is not None:
            return
        self._reason = reason
        self._write_down(reason, asked=asked)
        trio.lowlevel.notify_closing(self._theirs)
        self._theirs.close()
        self._scope.cancel()

    def suspend(self) -> None:
        """Stop, as SIGSTOP does."""
        self.suspended = self.misbehaved = True
        self._resumed = trio.Event()

    def resume(self) -> None:
        """Go on."""
        self.suspended = False
        self._resumed.set()

    def _write_down(self, reason: DeathReason, *, asked: bool) -> None:
        journal, name = self._workers.journal, "" if self.model is None else self.model.name
        lost = [each for ids in self.executing.values() for each in ids]
        for each in lost:
            journal.died_under[each] += 1
        journal.sequences_lost.update((name, each) for each in self.sequences)
        if lost or not asked:
            journal.deaths.setdefault(name, []).append(trio.current_time())
        self._world.note(
            "worker", self.pid, f"of {name or 'nobody'} dies of {reason}, executing", sorted(lost)
        )

    async def _live(self) -> None:
        try:
            with self._scope:
                await self._workers.live(self, self._theirs, self._workers, self._world)
                self.die(Exit(0), asked=True)
        except* (OSError, trio.ClosedResourceError):
            # Its server has gone, or it died while it was at it.
            self.die(Exit(79))
        except* Exception as bug:  # noqa: BLE001  # told where people look for it
            self._world.complain(
                f"worker {self.pid} has a bug, or the server told it nonsense: {bug.exceptions!r}"
            )
            self.die(Exit(1))
        with trio.CancelScope(shield=True):
            await trio.sleep(self._world.chance.random() * REAPED_WITHIN)
        self._workers.alive.remove(self)
        self._ended.set()

    async def pause(self, seconds: float) -> None:
        """Let time pass, in which it may be stopped by a signal."""
        await trio.sleep(seconds)
        await self._resumed.wait()
