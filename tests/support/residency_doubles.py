"""A catalog over models that take memory and serve by themselves, in virtual time.

The residency actor runs beside it.
"""

import itertools
import os
from functools import partial
from pathlib import Path

import trio
import trio.testing

from actors.catalog.catalog import Catalog, ControlMode
from actors.catalog.loading import Surroundings
from actors.residency import residency
from actors.residency.policy import UNKNOWN_OVERHEAD
from actors.residency.residents import Residents
from actors.seams.bell import Bell
from actors.serving.batcher import run as run_scheduler
from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.supervision.spec import ChildSpec, Strategy
from actors.supervision.supervisor import Supervisor
from actors.values.errors import TritiumError
from actors.values.generation.sleeping import SleepState
from actors.values.specs import ModelKey, Residency
from tests.support.catalog_doubles import FakeSource, FakeTree, model
from tests.support.doubles import Double
from tests.support.logged import Logged
from tests.support.model_doubles import Context, FakeWorker, make_request

UNIT = UNKNOWN_OVERHEAD
"""Memory of a model whose files take nothing, as far as anyone can tell before it has been measured."""


def milliseconds():
    return int(trio.current_time() * 1000)


class BusyWorker(FakeWorker):
    """Serves what it is given, one request after the other, for so many seconds each.

    While its version sleeps, it has no room.
    """

    @property
    def has_room(self):
        sleeper = self.state.sleeper
        return super().has_room and (sleeper is None or sleeper.state is SleepState.AWAKE)

    def __init__(self, state, instance, nursery, seconds):
        super().__init__(state, instance)
        self._nursery = nursery
        self._seconds = seconds
        self.served = Bell()

    def dispatch(self, requests, *, now, alone=False):
        batch = super().dispatch(requests, now=now, alone=alone)
        self._nursery.start_soon(self._serve)
        return batch

    async def _serve(self):
        with trio.move_on_after(self._seconds()):
            await trio.sleep_forever()
        self.finish()
        self.served.ring()


class Farm(FakeTree):
    """Versions with a worker each that takes memory from its start to its end. Loads last a second."""

    def __init__(self, router):
        super().__init__(router)
        self.nbytes = {}  # by model; else a unit
        self.on_gpus = {}  # by GPU, and by model
        self.service = {}  # seconds that a request takes, by model; else 0.1
        self.alive = {}  # pid → model
        self.most = 0  # bytes that were ever taken at once
        self.workers = {}  # model → the worker started last
        self.rests = {}  # bytes that a model takes asleep, where it may sleep
        self.sleepers = {}  # model → that of the version started last
        self._pids = itertools.count(100_000_000)

    @property
    def taken(self):
        return sum(self.size(name) for name in self.alive.values())

    @property
    def resident(self):
        """The models that have a process."""
        return sorted(set(self.alive.values()))

    def size(self, name):
        sleeper = self.sleepers.get(name)
        if sleeper is not None and sleeper.state is SleepState.ASLEEP:
            return self.rests[name]
        return self.nbytes.get(name, UNIT)

    def make_state(self, spec):
        return ModelState(
            spec, statistics=ModelStatistics(), on_status=self.router.roster.changed, wall_clock=milliseconds
        )

    async def start(self, state):
        for instance in state.instances:
            if state.spec.isolation == "thread":
                instance.pid = os.getpid()
            else:
                instance.pid = next(self._pids)
                self.alive[instance.pid] = state.spec.name
        self.most = max(self.most, self.taken)
        await super().start(state)
        self.nursery.start_soon(self._serve, state)

    async def _serve(self, state):
        await state.standing.load_finished.wait()
        if state.status is Status.READY:
            name, instance = state.spec.name, state.instances[0]
            worker = BusyWorker(state, instance, self.nursery, lambda: self.service.get(name, 0.1))
            self.workers[name] = instance.worker = worker
            if name in self.rests:
                self.sleepers[name] = state.sleeper = FakeSleeper(state, self.nursery)
                self.router.roster.changed(state)
            await run_scheduler(Context(), state)

    async def end(self, state):
        self.sleepers.pop(state.spec.name, None)
        for instance in state.instances:
            self.alive.pop(instance.pid, None)
            instance.pid = instance.worker = None
        await super().end(state)


class FakeMemory(Double):
    """Measures a farm, in no time unless the test sets one."""

    def __init__(self, farm):
        self.files = {}  # bytes on disk by model; else 0
        self.seconds = self.file_seconds = 0.0
        self.measured = []  # when
        self._farm = farm

    async def of_processes(self, pids):
        self.measured.append(trio.current_time())
        await trio.sleep(self.seconds)
        alive = self._farm.alive
        return {pid: self._farm.size(alive[pid]) for pid in pids if pid in alive}

    async def of_gpus(self, pids):
        alive = self._farm.alive
        return {
            gpu: {pid: nbytes[alive[pid]] for pid in pids if alive.get(pid) in nbytes}
            for gpu, nbytes in self._farm.on_gpus.items()
        }

    async def of_files(self, directory):
        nbytes = self.files.get(directory.parent.name, 0)
        await trio.sleep(self.file_seconds)
        return nbytes


def on_demand(name, *versions, **changes):
    """A found model that its first request loads."""
    changes.setdefault("residency", Residency.ON_DEMAND)
    changes.setdefault("version_directory", Path("/models", name, "1"))
    return model(name, *versions, **changes)


class Den:
    """Models, the catalog, and the residency actor in their part of a supervision tree."""

    def __init__(self, nursery, *found, budget=2 * UNIT, mode=ControlMode.NONE, on_gpus=None):
        self.nursery = nursery
        self.router = Router()
        self.farm = Farm(self.router)
        self.farm.nursery = nursery
        self.memory = FakeMemory(self.farm)
        self.log = Logged()
        self.source = FakeSource()
        self.source.models = {each.key.name: each for each in found}
        self.residents = Residents(self.router, budget=budget, on_gpus=on_gpus)
        lanes, retirements = Supervisor(), Supervisor()
        around = Surroundings(
            roster=self.router.roster,
            tree=self.farm,
            retirements=retirements,
            dormant=self.residents.dormant,
            swapped=lambda key, specs: None,
            left=lambda key: None,
            loads=trio.CapacityLimiter(8),
            extra_attempts=0,
            log=self.log,
        )
        self.catalog = Catalog(around, self.source, lanes, mode=mode)
        self.root = Supervisor(
            [
                lanes.spec("lanes"),
                retirements.spec("retirements"),
                ChildSpec("catalog", self.catalog.run),
                ChildSpec(
                    "residency",
                    partial(
                        residency.run,
                        residents=self.residents,
                        catalog=self.catalog,
                        memory=self.memory,
                        log=self.log,
                        wall_clock=milliseconds,
                    ),
                ),
            ],
            strategy=Strategy.REST_FOR_ONE,
        )

    async def begin(self):
        await self.nursery.start(partial(self.root.serve))
        await self.catalog.finished.wait()
        return self

    @property
    def info(self):
        """What the actor shows in the tree."""
        return next(each for each in self.root.tree().children if each.name == "residency").info

    def sample(self, name):
        (found,) = (each for each in self.residents.samples().models if each.key.name == name)
        return found

    @property
    def slept(self):
        """Names in the order in which they fell asleep."""
        return [keys["model"] for keys in self.log.of("model_slept")]

    @property
    def evicted(self):
        """Names in the order in which they went."""
        return [keys["model"] for keys in self.log.of("model_evicted")]

    def serving(self, name):
        return self.router.roster.serving(ModelKey(name))

    async def submit(self, name, **options):
        """Have a request accepted; raises what the server would tell the client."""
        request = make_request(**options)
        await self.router.resolve(name).submit(request)
        for sleeper in self.farm.sleepers.values():
            sleeper.wanted()
        return request

    async def ask(self, name, **options):
        """Make a request as a frontend does, and wait for its answer; returns that, or raises it."""
        request = await self.submit(name, **options)
        answer = await request.reply.wait()
        if isinstance(answer, TritiumError):
            raise answer
        return answer

    def asking(self, name, **options):
        """The same in the background; the returned list gets the outcome."""
        outcome = []

        async def ask():
            try:
                outcome.append((await self.ask(name, **options)).model_name)
            except TritiumError as error:
                outcome.append(error)

        self.nursery.start_soon(ask)
        return outcome


class FakeSleeper(Double):
    """What puts a version of a farm to sleep: at once when it is idle, and it wakes in a second.

    While it is not awake, its worker serves nothing. Requests that wait then are wanted.
    """

    def __init__(self, state, nursery, level=1):
        self.level = level
        self.state = SleepState.AWAKE
        self.awake_since = trio.current_time()
        self.wake_seconds = 0.0
        self.trouble = ""
        self.on_change = lambda: None
        self.stubborn = False  # it never falls asleep
        self.refused = []
        self._version = state
        self._nursery = nursery

    @property
    def wanted_since(self):
        waiting = [each.accepted_at for each in self._version.in_flight]
        return None if self.state is SleepState.AWAKE or not waiting else min(waiting)

    def wanted(self):
        """A request has come."""
        if self.wanted_since is not None:
            self.on_change()

    def fall_asleep(self, level, until):
        if self.state is SleepState.AWAKE:
            self._become(SleepState.FALLING)
            self._nursery.start_soon(self._fall, until)

    async def _fall(self, until):
        with trio.move_on_at(until):
            if self.stubborn:
                await trio.sleep_forever()
            worker = self._version.instances[0].worker
            while worker.outstanding:
                await worker.served.next_ring()
        if self.state is SleepState.FALLING:
            late = trio.current_time() >= until
            self.trouble = "it had work" if late else ""
            self._become(SleepState.AWAKE if late else SleepState.ASLEEP)

    def wake(self):
        if self.state in (SleepState.FALLING, SleepState.ASLEEP):
            self._become(SleepState.WAKING)
            self._nursery.start_soon(self._wake)

    async def _wake(self):
        await trio.sleep(1.0)
        self.awake_since, self.wake_seconds = trio.current_time(), 1.0
        self._become(SleepState.AWAKE)

    def refuse(self, why):
        self.refused.append(why)
        self._version.outcome.fail_all(why)

    def _become(self, state):
        self.state = state
        self._version.doorbell.ring()
        self.on_change()
