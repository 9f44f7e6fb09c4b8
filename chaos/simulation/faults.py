"""What a scenario's faults do to the server and to what it stands on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import trio

from actors.seams.faults import Points
from actors.serving.policy.retries import Signal
from actors.supervision.errors import SupervisionError
from actors.supervision.lifecycle import ChildState
from actors.values.specs import ModelKey
from chaos.simulation.plan import Fault
from chaos.simulation.trace import Note
from chaos.simulation.world.disk import Disk, Folder, broken
from chaos.simulation.world.texts import Texts
from chaos.simulation.world.workers import Misdeed, Workers
from engine.server.running import RunningServer

# Seconds from a change on the disk until the server has followed it.
WATCHED_WITHIN: Final = 8.0


class SimulatedCrash(Exception):
    """What an actor crashes with at a fault point."""


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which some errors are expected. Without a `model` it is about all models."""

    why: str
    model: str
    begin: float
    end: float

    def meets(self, begin: float, end: float) -> bool:
        """Whether some of that time is in it."""
        return self.begin <= end and begin <= self.end


def met(windows: Iterable[Window], why: str, model: str, begin: float, end: float) -> bool:
    """Whether one of the windows, for this reason and about this model, was open at some time in between."""
    return any(each.why == why and each.model == model and each.meets(begin, end) for each in windows)


@dataclass(frozen=True, slots=True)
class Blow:
    """An actor that was made to crash, or was killed, with all below it."""

    at: float
    path: str


class Faults:
    """Carries faults out, and remembers what they excuse."""

    def __init__(
        self,
        running: RunningServer,
        workers: Workers,
        texts: Texts,
        disk: Disk,
        note: Note,
        points: Points,
        *,
        folder: Callable[..., Folder],
        watched: bool,
    ) -> None:
        """`folder` makes up directories as `folder_of` does.

        `watched` tells whether the server follows what happens to the repository without being asked to.
        """
        self.windows: list[Window] = []
        self.blows: list[Blow] = []
        self.crashed: list[str] = []  # fault points at which something was made to crash
        self._running = running
        self._workers = workers
        self._texts = texts
        self._disk = disk
        self._note = note
        self._points = points
        self._make_folder = folder
        self._watched = watched
        self._disarm: dict[str, Callable[[], None]] = {}
        self._versions: dict[str, int] = {}
        self._does: Mapping[str, Callable[[Fault], object]] = {
            "misdeed": self._misdeed,
            "signal": self._signal,
            "trouble": self._trouble,
            "launches": self._launches,
            "touch": self._touch,
            "version": self._version,
            "texts": lambda fault: self._texts.kill(fault.model),
            "crash": self._crash,
            "kill": self._kill,
        }
        self._lasts: Mapping[str, Callable[[Fault], Callable[[], object]]] = {
            "suspend": self._suspend,
            "broken": self._broken,
            "remove": self._remove,
            "disk": self._unavailable,
            "sleep": self._sleep,
        }

    async def carry_out(self, fault: Fault) -> None:
        """Do it, and undo it where it lasts."""
        self._note("fault", fault.what, fault.model, fault.detail, fault.seconds)
        if fault.what in self._does:
            self._does[fault.what](fault)
            return
        heal = self._lasts[fault.what](fault)
        await trio.sleep(fault.seconds)
        self._note("healed", fault.what, fault.model)
        heal()

    def end(self) -> None:
        """Take back what has not come to pass."""
        for disarm in self._disarm.values():
            disarm()
        self._workers.misdeeds.clear()
        self._workers.load_troubles.clear()
        self._workers.refuse_launches = 0

    # -- workers ---------------------------------------------------------------------------------------------

    def _misdeed(self, fault: Fault) -> None:
        queue = self._workers.misdeeds.setdefault(fault.model, deque())
        queue.append(Misdeed(fault.detail, after=fault.seconds))

    def _signal(self, fault: Fault) -> None:
        serving = self._workers.serving(fault.model)
        if serving:
            serving[fault.seed % len(serving)].die(Signal(int(fault.detail)))

    def _suspend(self, fault: Fault) -> Callable[[], object]:
        serving = self._workers.serving(fault.model)
        if not serving:
            return lambda: None
        worker = serving[fault.seed % len(serving)]
        worker.suspend()
        self._last("suspended", fault)
        return worker.resume

    def _trouble(self, fault: Fault) -> None:
        self._workers.load_troubles.setdefault(fault.model, deque()).append(fault.detail)

    def _launches(self, fault: Fault) -> None:
        self._workers.refuse_launches += 1 + fault.seed % 2

    def _sleep(self, fault: Fault) -> Callable[[], object]:
        """Put the engines of a language model to sleep, as residency does; then wake them."""
        serving = self._running.router.roster.serving(ModelKey(fault.model)).values()
        sleepers = [state.sleeper for state in serving if state.sleeper is not None]
        for sleeper in sleepers:
            sleeper.fall_asleep(1 + fault.seed % 2, trio.current_time() + fault.seconds)

        def wake() -> None:
            for sleeper in sleepers:
                sleeper.wake()

        return wake

    # -- the disk --------------------------------------------------------------------------------------------

    def _touch(self, fault: Fault) -> None:
        if fault.model in self._disk.folders:
            self._disk.put(fault.model, self._folder(fault.model, weights=fault.seed))
            self._replaced(fault.model)

    def _version(self, fault: Fault) -> None:
        if fault.model in self._disk.folders:
            self._versions[fault.model] = self._versions.get(fault.model, 1) + 1
            self._disk.put(fault.model, self._folder(fault.model))
            self._replaced(fault.model)

    def _replaced(self, model: str) -> None:
        """Another version will serve before long, and forever.

        Sequences that go on then were begun with a version that retires.
        """
        self.windows.append(Window("replaced", model, trio.current_time(), math.inf))

    def _broken(self, fault: Fault) -> Callable[[], object]:
        folder = self._disk.folders.get(fault.model)
        if folder is None:
            return lambda: None
        self._disk.put(fault.model, broken(folder))
        self._last("unreadable", fault)
        return lambda: self._restore(fault.model)

    def _remove(self, fault: Fault) -> Callable[[], object]:
        self._disk.remove(fault.model)
        self._last("unreadable", fault)
        if self._watched:
            self._last("removed", fault, WATCHED_WITHIN)
        return lambda: self._restore(fault.model)

    def _folder(self, model: str, *, weights: int = 0) -> Folder:
        return self._make_folder(model, version=self._versions.get(model, 1), weights=weights)

    def _last(self, why: str, fault: Fault, more: float = 0.0) -> None:
        """The effect lasts as long as the fault says, and `more`."""
        now = trio.current_time()
        self.windows.append(Window(why, fault.model, now, now + fault.seconds + more))

    def _restore(self, model: str) -> None:
        self._disk.put(model, self._folder(model))

    def _unavailable(self, fault: Fault) -> Callable[[], object]:
        self._last("unreadable", replace(fault, model=""))
        self._disk.unavailable = "disk can't be read: it is simulated"

        def heal() -> None:
            self._disk.unavailable = ""

        return heal

    # -- actors ----------------------------------------------------------------------------------------------

    def _crash(self, fault: Fault) -> None:
        name = fault.detail
        if name in self._disarm:
            return

        def crash() -> None:
            path = trio.lowlevel.current_task().name
            if name.startswith("supervisor.") and not path.startswith("models/"):
                # Others are killed by `kill`, and the end of the root would end everything.
                return
            disarm()
            self.crashed.append(name)
            self.blows.append(Blow(trio.current_time(), path))
            self._note("crash at", name, "in", path)
            if name.startswith(("http.", "grpc.", "metrics.")):
                self._connections_end()
            raise SimulatedCrash(name)

        disarm = self._disarm[name] = self._points.arm(name, crash)
        if name == "catalog.lanes":
            self._running.root.kill("repository/catalog")  # it comes by there when it begins

    def _connections_end(self) -> None:
        now = trio.current_time()
        self.windows.append(Window("connections", "", now, now + 0.5))

    def _kill(self, fault: Fault) -> None:
        tree = self._running.root.tree()
        paths = [each.path for each in tree.walk() if each.path and each.state is ChildState.RUNNING]
        path = Random(fault.seed).choice(paths)
        self._note("kill", path)
        self.blows.append(Blow(trio.current_time(), path))
        if path.startswith("frontends"):
            self._connections_end()
        try:
            self._running.root.kill(path)
        except SupervisionError as error:
            self._note("not killed:", error)
