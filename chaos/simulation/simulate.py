"""One simulation from its beginning to its end: a whole server tree on a simulated machine."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from actors.generation.texts import TextWorkers
from actors.residency.residency import Memory
from actors.seams.faults import Points
from actors.seams.given import Seams
from actors.serving.model import ModelState
from actors.serving.policy.gpus.placing import Room
from actors.values.events import Log
from actors.values.hardware.gpus import Gpu
from actors.values.specs import ModelKey, ModelSpec
from chaos.languages.page import Asked
from chaos.languages.telling import TellingBackend
from chaos.record.descriptors import left_open, open_descriptors
from chaos.simulation.clients import Conversation, call
from chaos.simulation.faults import Faults
from chaos.simulation.judging.control import Control, Standing
from chaos.simulation.judging.health import disagreement, miscounts, trouble
from chaos.simulation.judging.invariants import Invariants
from chaos.simulation.judging.judge import Judge
from chaos.simulation.observers import Looked, Observer
from chaos.simulation.operators import Ordered, carry_out
from chaos.simulation.orders import ATTEMPTS
from chaos.simulation.outcomes import Outcome
from chaos.simulation.plan import LENGTH, Look, Order, Request, Scenario, Told, Watched, Wire
from chaos.simulation.trace import Trace
from chaos.simulation.world import virtual
from chaos.simulation.world.disk import ARTIFACT, URI, Disk, Folder, folder_of
from chaos.simulation.world.models import MODELS, TELLS
from chaos.simulation.world.process import live
from chaos.simulation.world.texts import Texts
from chaos.simulation.world.workers import BACKEND, Workers
from chaos.wires.http import Broken
from engine.observability.gpus import Gpus
from engine.processes.backends import BackendTraits, traits_of
from engine.processes.gpus.nvml import NoGpus
from engine.repository.fingerprint import Digests
from engine.repository.source import Source
from engine.server.residency import Memory as RealMemory
from engine.server.running import RunningServer
from engine.server.sockets import BACKLOG, Sockets
from engine.server.tree import running_tree
from engine.settings.cache import LocalCache
from engine.settings.reporting import MetricsSettings
from engine.settings.settings import Settings

POLL: Final = 1.0
# Seconds after the last request within which every request must have an answer.
ANSWERED_WITHIN: Final = 90.0
# Seconds after that within which the server must be as if nothing had happened.
HEALTHY_WITHIN: Final = 120.0

_LAST_WIRES: Final[Mapping[str, Wire]] = {"decoupled": "core", "language": "openai"}
"""By kind, how a model is asked in the end, if not by HTTP."""

_TRAITS: Final = BackendTraits(
    name=BACKEND, pure=True, concurrent=True, default_artifact=ARTIFACT, target="chaos.simulation:Simulated"
)
_TELLS: Final = traits_of(TellingBackend, name=TELLS, target=_TRAITS.target)


@dataclass(slots=True)
class Verdict:
    """The result of a simulation. It has passed if there is nothing to complain about."""

    scenario: Scenario
    trace: Trace
    outcomes: list[Outcome] = field(default_factory=list)
    orders: list[Ordered] = field(default_factory=list)  # as they were asked for
    complaints: list[str] = field(default_factory=list)
    looks: list[Looked] = field(default_factory=list)
    recycled: Counter[str] = field(default_factory=Counter)  # workers, by the ceiling that they reached
    crashed: list[str] = field(default_factory=list)  # fault points at which something crashed

    @property
    def passed(self) -> bool:
        """Whether everything was as it should be."""
        return not self.complaints

    def complain(self, text: str) -> None:
        """Something is wrong."""
        self.trace.note("complaint:", text)
        self.complaints.append(text)


class SimulatedMachine:
    """Implements `engine.server.machine.Machine`, and `chaos.simulation.world.workers.World`."""

    def __init__(self, verdict: Verdict, scratch: Path, nursery: trio.Nursery) -> None:
        self.disk = Disk(scratch)
        self.note = verdict.trace.note
        self.complain = verdict.complain
        self.workers: Workers
        self.texts = Texts(self)
        self._seed = seed = verdict.scenario.seed
        self._chances = 0
        self._nursery = nursery
        self._random = Random(f"world {seed}")
        self.points = Points()

    def start(self, run: Callable[[], Any], name: str) -> None:
        """See `World`."""
        self._nursery.start_soon(run, name=name)

    def backends(self, directory: Path | None) -> Mapping[str, BackendTraits]:
        """See `Machine`."""
        return {BACKEND: _TRAITS, TELLS: _TELLS}

    def launcher(
        self,
        backends: Mapping[str, BackendTraits],
        *,
        environ: Mapping[str, str],
        spare_workers: int,
        log: Log,
    ) -> Workers:
        """See `Machine`."""
        self.workers = Workers(self, log, live, spare_workers=spare_workers)
        return self.workers

    def sources(self, settings: Settings, environ: Mapping[str, str], digests: Digests) -> Sequence[Source]:
        """See `Machine`."""
        return [self.disk]

    def gpu_table(self, environ: Mapping[str, str]) -> Sequence[Gpu]:
        """See `Machine`. There are none."""
        del environ
        return ()

    def text_workers(self, environ: Mapping[str, str], log: Log) -> Callable[[ModelSpec], TextWorkers]:
        """See `Machine`."""
        return self.texts.of

    def gpu_room(self, environ: Mapping[str, str]) -> Mapping[str, Room]:
        """See `Machine`. There are no GPUs."""
        raise NoGpus("a simulated machine has none")

    def devices(self, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
        """See `Machine`: there is no GPU."""

    def memory(self, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> Memory:
        """See `Machine`."""
        return RealMemory()

    def gpus(self, environ: Mapping[str, str]) -> Gpus:
        """See `Machine`."""
        raise NoGpus("a simulated machine has none")

    @property
    def chance(self) -> Random:
        """What decides about what workers do."""
        return self._random

    def random(self) -> Random:
        """See `Machine`: each part of the server has its own."""
        self._chances += 1
        return Random(f"server {self._seed} {self._chances}")

    def wall_clock(self) -> int:
        """See `Machine`."""
        return int(trio.current_time() * 1000)

    def cores(self) -> int:
        """See `Machine`: the same wherever this runs."""
        return 2

    def monotonic(self) -> float:
        """See `Machine`."""
        return trio.current_time()

    def seams(self) -> Seams:
        """See `Machine`."""
        return virtual.seams(self._seed, self.points)


def simulate(scenario: Scenario, scratch: Path) -> Verdict:
    """Run a scenario and judge it.

    Directories are written below `scratch`, and other scenarios can use them too.
    """
    verdict = Verdict(scenario, Trace(str(scratch)))
    before = open_descriptors()
    with verdict.trace.logging():
        try:
            virtual.run(partial(_simulate, verdict, scratch), seed=scenario.seed)
        except trio.TrioInternalError as error:
            verdict.complaints.append(f"it came to no end: {error.__cause__}")
    left = sorted(left_open(before))
    if left:
        verdict.complaints.append(
            f"{len(left)} descriptors are left open: {', '.join(target for _, target in left)}"
        )
    return verdict


async def _simulate(verdict: Verdict, scratch: Path) -> None:
    scenario = verdict.scenario
    async with trio.open_nursery() as around:
        machine = SimulatedMachine(verdict, scratch, around)
        for name in scenario.models:
            machine.disk.put(name, _folder(scenario, name))
        with _listening() as (sockets, addresses):
            async with running_tree(_settings(scenario), sockets, environ={}, machine=machine) as running:
                await _Simulation(verdict, machine, running, addresses).run()
        await trio.sleep(1.0)
        if machine.workers.alive:
            verdict.complain(f"{len(machine.workers.alive)} workers have outlived the server")
        around.cancel_scope.cancel()


def _folder(scenario: Scenario, name: str, *, version: int = 1, weights: int = 0) -> Folder:
    return folder_of(name, version=version, weights=weights, recycle=scenario.recycle.get(name, ""))


def _settings(scenario: Scenario) -> Settings:
    startup = scenario.startup
    return Settings(
        model_repositories=(URI,),
        control_mode="poll" if startup is None else "explicit",
        poll_interval=POLL if startup is None else 0.0,
        load_models=() if startup is None else tuple(startup),
        rate_limit=True,
        spare_workers=2,
        # Where no operator asks for another load, retry more often than loads can be made to fail.
        load_retry_count=14 if startup is None else ATTEMPTS - 1,
        cache=LocalCache(size=1_000_000),
        metrics=MetricsSettings(cpu=False),
        exit_timeout=20.0,
    )


@contextmanager
def _listening() -> Iterator[tuple[Sockets, Mapping[str, bytes]]]:
    """Listen on Unix sockets whose names the kernel makes up."""
    opened = {}
    try:
        for name in ("http", "grpc", "metrics", "openai"):
            sock = opened[name] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind("")
            sock.listen(BACKLOG)
        addresses = {name: sock.getsockname() for name, sock in opened.items()}
        yield Sockets(**opened), addresses
    finally:
        for sock in opened.values():
            sock.close()


class _Simulation:
    """What goes on around a server that runs."""

    def __init__(
        self,
        verdict: Verdict,
        machine: SimulatedMachine,
        running: RunningServer,
        addresses: Mapping[str, bytes],
    ) -> None:
        self._verdict = verdict
        self._scenario = verdict.scenario
        self._machine = machine
        self._running = running
        self._addresses = addresses
        self._note = verdict.trace.note
        watched = verdict.scenario.startup is None
        self._faults = Faults(
            running,
            machine.workers,
            machine.texts,
            machine.disk,
            self._note,
            machine.points,
            folder=partial(_folder, verdict.scenario),
            watched=watched,
        )
        self._control = Control(
            verdict.scenario.startup,
            verdict.orders,
            journal=machine.workers.journal,
            windows=self._faults.windows,
            blows=self._faults.blows,
        )
        self._states: dict[ModelState, None] = {}  # every version that ever was
        self._sums: dict[str, int] = {}
        self._began = 0.0
        # When another version of a model began to serve, by its name.
        self._swaps: dict[str, list[float]] = {}
        self._serving: dict[ModelKey, list[ModelState]] = {}
        self._observer = Observer(addresses, verdict.scenario.models, self._swapped)
        running.router.roster.on_change(self._changed)

    def _changed(self, key: ModelKey) -> None:
        router = self._running.router
        for state in (*router.roster.serving(key).values(), *router.roster.background(key)):
            self._states[state] = None
        serving = list(router.roster.serving(key).values())
        if serving != self._serving.get(key, []):
            self._serving[key] = serving
            self._swaps.setdefault(key.name, []).append(trio.current_time())

    def _swapped(self, model: str, begin: float, end: float) -> bool:
        return any(begin <= at <= end for at in self._swaps.get(model, ()))

    async def run(self) -> None:
        """Wait for the models, send and break everything, wait for health, ask each model again, drain."""
        with trio.move_on_after(60) as patience:
            await self._running.wait_loaded()
        if patience.cancelled_caught or self._running.catalog.start_failed:
            self._verdict.complain("the models did not load")
            return
        invariants = Invariants(self._states.keys(), self._verdict.complain)
        self._machine.start(invariants.watch, "invariants")
        await self._disturb()
        self._faults.end()
        if self._scenario.startup is not None:
            await self._come_to_rest()
        await self._until(self._trouble, "not healthy")
        await self._ask_again()
        await self._compare_counts()
        draining_since = await self._drain()
        judge = Judge(
            self._machine.workers.journal,
            self._faults.windows,
            self._faults.crashed,
            self._faults.blows,
            self._control,
            draining_since,
        )
        for complaint in (
            *self._control.complaints(),
            *judge.complaints_of(self._verdict.looks),
            *judge.complaints_of_workers(),
        ):
            self._verdict.complain(complaint)
        for complaint in judge.complaints(self._verdict.outcomes, self._sums):
            self._verdict.complain(complaint)
        self._verdict.crashed += self._faults.crashed
        for state in self._states:
            self._verdict.recycled.update(state.statistics.recycled)

    # -- requests and faults ---------------------------------------------------------------------------------

    async def _disturb(self) -> None:
        self._began = trio.current_time()
        with trio.move_on_after(LENGTH + ANSWERED_WITHIN) as patience:
            async with trio.open_nursery() as nursery:
                for request in self._scenario.requests:
                    nursery.start_soon(self._send, request)
                for sequence in self._scenario.sequences:
                    nursery.start_soon(self._send_all, sequence)
                for fault in self._scenario.faults:
                    nursery.start_soon(self._carry_out, fault)
                for look in self._scenario.looks:
                    nursery.start_soon(self._look, look)
                for order in self._scenario.orders:
                    nursery.start_soon(self._order, order)
        if patience.cancelled_caught:
            answered = {outcome.request.id for outcome in self._verdict.outcomes}
            missing = [each.id for each in self._scenario.requests if each.id not in answered]
            missing += [str(each) for each in self._verdict.orders if not each.code]
            self._verdict.complain(f"no answer after {ANSWERED_WITHIN:g} s: {missing or 'a sequence'}")

    async def _carry_out(self, fault: Any) -> None:
        await trio.sleep_until(self._began + fault.at)
        await self._faults.carry_out(fault)

    async def _look(self, look: Look) -> None:
        await trio.sleep_until(self._began + look.at)
        looked = await self._observer.look(look)
        self._verdict.looks.append(looked)
        self._note("observer has", looked)

    async def _order(self, order: Order) -> None:
        await trio.sleep_until(self._began + order.at)
        await self._ask_for(order)

    async def _ask_for(self, order: Order) -> Ordered:
        done = Ordered(order, began=trio.current_time())
        self._verdict.orders.append(done)
        self._note("operator asks for", order.what, "of", order.model, "by", order.wire)
        await carry_out(self._running, self._addresses, done)
        self._note("operator has", done)
        return done

    async def _send(self, request: Request) -> None:
        await trio.sleep_until(self._began + request.at)
        await self._call(request)

    async def _send_all(self, sequence: Sequence[Request]) -> None:
        total = 0
        await trio.sleep_until(self._began + sequence[0].at)
        async with Conversation(self._addresses["grpc"]) as conversation:
            for request in sequence:
                if not request.start:
                    await trio.sleep(request.at)
                total = self._sums[request.id] = total + request.values[0]
                if not (await self._call(request, conversation)).ok:
                    return

    async def _call(self, request: Request, conversation: Conversation | None = None) -> Outcome:
        self._note("client sends", request.id, "to", request.model, "by", request.wire, request.values)
        outcome = await call(self._running, self._addresses, request, conversation)
        self._note("client has", outcome)
        self._verdict.outcomes.append(outcome)
        return outcome

    # -- afterwards ------------------------------------------------------------------------------------------

    async def _until(self, look: Callable[[], Awaitable[Sequence[str]]], what: str) -> None:
        """Wait until a look finds nothing wrong; complain if that takes too long."""
        found: Sequence[str] = []
        until = trio.current_time() + HEALTHY_WITHIN
        while trio.current_time() < until:
            try:
                found = await look()
            except (Broken, OSError) as error:
                found = [f"it can't be asked: {error!r}"]
            if not found:
                return
            await trio.sleep(1.0)
        for each in found:
            self._verdict.complain(f"{what} {HEALTHY_WITHIN:g} s after the last fault: {each}")

    async def _trouble(self) -> Sequence[str]:
        return list(trouble(self._running, self._scenario.models, self._machine.disk, self._states))

    async def _come_to_rest(self) -> None:
        """See that the server is as the orders have left it; then load all models for the next checks."""
        models = self._scenario.models
        await self._until(
            lambda: disagreement(self._addresses, models, self._control), "not what was ordered"
        )
        for name in models:
            gone = self._control.standings(name) == {Standing.UNLOADED}
            wire: Wire = self._machine.chance.choice(("core", "http", "grpc"))
            if gone and MODELS[name].kind not in ("sequence", "decoupled", "language"):
                await self._call(Request(id=f"gone-{name}", at=0.0, model=name, values=(1,), wire=wire))
        for name in models:
            done = await self._ask_for(Order(at=0.0, what="load", model=name, wire="core"))
            if not done.ok:
                self._verdict.complain(f"could not be loaded in the end: {done}")

    async def _ask_again(self) -> None:
        """Every model has to answer well now: no excuse."""
        for name in self._scenario.models:
            model = MODELS[name]
            sequence = model.kind == "sequence"
            request = Request(
                id=f"last-{name}",
                at=0.0,
                model=name,
                values=(7777,) * (1 if sequence or model.kind != "batched" else model.rows),
                wire=_LAST_WIRES.get(model.kind, "http"),
                sequence=999 if sequence else 0,
                start=sequence,
                end=sequence,
                told=Told(asked=Asked(50, 7)) if model.kind == "language" else None,
            )
            self._sums[request.id] = request.values[0]
            with trio.move_on_after(10):
                outcome = await self._call(request)
                if not outcome.ok:
                    self._verdict.complain(f"no good answer in the end: {outcome}")
                continue
            self._verdict.complain(f"no answer in the end from '{name}'")

    async def _compare_counts(self) -> None:
        """Metrics and statistics have to agree about what serves, now that nothing goes on.

        Metrics go on over reloads, and begin anew after an unload.
        """
        both: tuple[Watched, Watched] = ("metrics", "statistics")
        for what in both:
            await self._look(Look(at=0.0, what=what, wire="http"))
        metrics, statistics = (self._observer.served.get(what, {}) for what in both)
        for key, count in statistics.items():
            generations = [
                state.statistics.success_count
                for state in self._states
                if (state.spec.name, str(state.spec.version)) == key
            ]
            since = {count + sum(generations[-1 - before : -1]) for before in range(len(generations))}
            if metrics.get(key) not in since:
                self._verdict.complain(
                    f"metrics count {metrics.get(key)} good answers of {key}, statistics {count},"
                    f" and those of its generations {generations}"
                )

    async def _drain(self) -> float:
        """Drain with requests under way; return since when."""
        for miscount in miscounts(self._states, self._scenario.models, self._verdict.outcomes):
            self._verdict.complain(miscount)
        last = [replace(each, id=f"drain-{each.id}", at=0.0) for each in self._scenario.requests[:12]]
        last = [each for each in last if not (each.poison or each.raises or each.patience)]
        async with trio.open_nursery() as nursery:
            for request in last:
                nursery.start_soon(self._call, request)
            await trio.sleep(0.004)
            since = trio.current_time()
            if not await self._running.drain():
                self._verdict.complain("draining took too long")
        for state in self._states:
            if state.in_flight:
                self._verdict.complain(
                    f"'{state.spec.name}' still has {len(state.in_flight)} requests after draining"
                )
        return since
