"""One simulation from its beginning to its end: a whole server tree on a machine that is made up."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from actors.messages.events import Log
from actors.model import ModelState
from actors.residency import Memory
from actors.specs import ModelKey
from actors.supervision.lifecycle import ChildState
from chaos.descriptors import open_descriptors
from chaos.simulation import virtual
from chaos.simulation.clients import call
from chaos.simulation.disk import ARTIFACT, URI, Disk, folder_of
from chaos.simulation.faults import Faults
from chaos.simulation.judge import Judge
from chaos.simulation.models import MODELS
from chaos.simulation.outcomes import Outcome
from chaos.simulation.scenario import LENGTH, Request, Scenario
from chaos.simulation.trace import Trace
from chaos.simulation.workers import BACKEND, Workers
from engine.cache.settings import LocalCache
from engine.config.backends import BackendTraits
from engine.repository.fingerprint import Digests
from engine.repository.source import Source
from engine.residency import Memory as RealMemory
from engine.settings import MetricsSettings, Settings
from engine.sockets import BACKLOG, Sockets
from engine.tree import RunningServer, running_tree

POLL: Final = 1.0
ANSWERED_WITHIN: Final = 90.0  # seconds after the last request until which every one must have an answer
HEALTHY_WITHIN: Final = 120.0  # seconds after that until which the server must be as if nothing had been

_TRAITS: Final = BackendTraits(
    name=BACKEND, pure=True, concurrent=True, default_artifact=ARTIFACT, target="chaos.simulation:Simulated"
)


@dataclass(slots=True)
class Verdict:
    """What a simulation has come to. It has passed where there is nothing to complain about."""

    scenario: Scenario
    trace: Trace
    outcomes: list[Outcome] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
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
    """Implements `engine.machine.Machine`, and `chaos.simulation.workers.World`."""

    def __init__(self, verdict: Verdict, scratch: Path, nursery: trio.Nursery) -> None:
        self.disk = Disk(scratch)
        self.note = verdict.trace.note
        self.complain = verdict.complain
        self.workers: Workers
        self._seed = seed = verdict.scenario.seed
        self._chances = 0
        self._nursery = nursery
        self._random = Random(f"world {seed}")

    def start(self, run: Callable[[], Any], name: str) -> None:
        """See `World`."""
        self._nursery.start_soon(run, name=name)

    def backends(self, directory: Path | None) -> Mapping[str, BackendTraits]:
        """See `Machine`."""
        del directory
        return {BACKEND: _TRAITS}

    def launcher(
        self,
        backends: Mapping[str, BackendTraits],
        *,
        environ: Mapping[str, str],
        spare_workers: int,
        log: Log,
    ) -> Workers:
        """See `Machine`."""
        del backends, environ
        self.workers = Workers(self, log, spare_workers=spare_workers)
        return self.workers

    def sources(self, settings: Settings, environ: Mapping[str, str], digests: Digests) -> Sequence[Source]:
        """See `Machine`."""
        del settings, environ, digests
        return [self.disk]

    def memory(self) -> Memory:
        """See `Machine`."""
        return RealMemory()

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


def simulate(scenario: Scenario, scratch: Path) -> Verdict:
    """Run a scenario and judge it. Directories are written below `scratch`, and are good for other scenarios too."""
    verdict = Verdict(scenario, Trace(str(scratch)))
    before = open_descriptors()
    with verdict.trace.logging():
        try:
            virtual.run(partial(_simulate, verdict, scratch), seed=scenario.seed)
        except trio.TrioInternalError as error:
            verdict.complaints.append(f"it came to no end: {error.__cause__}")
    left = sorted(open_descriptors() - before)
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
            machine.disk.put(name, folder_of(name))
        with _listening() as (sockets, addresses):
            async with running_tree(_settings(), sockets, environ={}, machine=machine) as running:
                await _Simulation(verdict, machine, running, addresses).run()
        await trio.sleep(1.0)
        if machine.workers.alive:
            verdict.complain(f"{len(machine.workers.alive)} workers have outlived the server")
        around.cancel_scope.cancel()


def _settings() -> Settings:
    return Settings(
        model_repositories=(URI,),
        control_mode="poll",
        poll_interval=POLL,
        rate_limit=True,
        spare_workers=2,
        load_retry_count=14,  # more often than loads can be made to fail
        cache=LocalCache(size=1_000_000),
        metrics=MetricsSettings(cpu=False),
        exit_timeout=20.0,
    )


@contextmanager
def _listening() -> Iterator[tuple[Sockets, Mapping[str, bytes]]]:
    """Listen on Unix sockets whose names the kernel makes up."""
    opened = {}
    try:
        for name in ("http", "grpc"):
            sock = opened[name] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind("")
            sock.listen(BACKLOG)
        addresses = {name: sock.getsockname() for name, sock in opened.items()}
        yield Sockets(http=opened["http"], grpc=opened["grpc"]), addresses
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
        self._faults = Faults(running, machine.workers, machine.disk, self._note)
        self._states: dict[ModelState, None] = {}  # every version that ever was
        self._sums: dict[str, int] = {}
        self._began = 0.0
        running.router.on_change(self._changed)

    def _changed(self, key: ModelKey) -> None:
        router = self._running.router
        for state in (*router.serving(key).values(), *router.background(key)):
            self._states[state] = None

    async def run(self) -> None:
        """Wait for the models, send and break everything, wait for health, ask each model once more, drain."""
        with trio.move_on_after(60) as patience:
            await self._running.wait_loaded()
        if patience.cancelled_caught or self._running.catalog.start_failed:
            self._verdict.complain("the models did not load")
            return
        await self._disturb()
        self._faults.end()
        await self._until_healthy()
        await self._ask_again()
        draining_since = await self._drain()
        judge = Judge(
            self._machine.workers.journal, self._faults.windows, self._faults.crashed, draining_since
        )
        for complaint in judge.complaints(self._verdict.outcomes, self._sums):
            self._verdict.complain(complaint)
        self._verdict.crashed += self._faults.crashed

    # -- requests and faults -------------------------------------------------------------------------------------------

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
        if patience.cancelled_caught:
            answered = {outcome.request.id for outcome in self._verdict.outcomes}
            missing = [each.id for each in self._scenario.requests if each.id not in answered]
            self._verdict.complain(f"no answer after {ANSWERED_WITHIN:g} s: {missing or 'a sequence'}")

    async def _carry_out(self, fault: Any) -> None:
        await trio.sleep_until(self._began + fault.at)
        await self._faults.carry_out(fault)

    async def _send(self, request: Request) -> None:
        await trio.sleep_until(self._began + request.at)
        await self._call(request)

    async def _send_all(self, sequence: Sequence[Request]) -> None:
        total = 0
        await trio.sleep_until(self._began + sequence[0].at)
        for request in sequence:
            if not request.start:
                await trio.sleep(request.at)
            total = self._sums[request.id] = total + request.values[0]
            if not (await self._call(request)).ok:
                return

    async def _call(self, request: Request) -> Outcome:
        self._note("client sends", request.id, "to", request.model, "by", request.wire, request.values)
        outcome = await call(self._running, self._addresses, request)
        self._note("client has", outcome)
        self._verdict.outcomes.append(outcome)
        return outcome

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def _until_healthy(self) -> None:
        trouble: list[str] = []
        until = trio.current_time() + HEALTHY_WITHIN
        while trio.current_time() < until:
            trouble = list(self._trouble())
            if not trouble:
                return
            await trio.sleep(1.0)
        for each in trouble:
            self._verdict.complain(f"not healthy {HEALTHY_WITHIN:g} s after the last fault: {each}")

    def _trouble(self) -> Iterator[str]:
        running = self._running
        if not running.root.is_running:
            yield f"the tree has ended: {running.failures}"
            return
        for node in running.root.tree().walk():
            if node.state is not ChildState.RUNNING:
                yield f"{node.path} is {node.state.value}, since it has ended by {node.last_exit}"
        if not running.readiness.is_ready:
            yield "the server is not ready"
        held, disk = 0, self._machine.disk  # `held`: models with files
        for name in self._scenario.models:
            ready = running.router.ready(ModelKey(name))
            if not ready:
                yield f"model '{name}' does not serve"
            # A retirement that has crashed goes on with the catalog's next life.
            beside = running.router.background(ModelKey(name))
            if beside and "deployment.retirement" not in self._faults.crashed:
                yield f"{len(beside)} versions of model '{name}' still load or retire"
            held += bool(ready) and MODELS[name].kind != "ensemble"
            for state in ready.values():
                yield from _trouble_of(state)
        # One for the configuration as it is, and one for what serves, which may be older.
        lost = self._faults.crashed.count("janitor.remove")  # see `engine.repository.copies.Janitor`
        if not held <= disk.fetched - disk.released <= 2 * len(self._scenario.models) + lost:
            yield f"{disk.fetched - disk.released} directories are held by {held} models that serve"
        limiter = next((state.limiter for state in self._states if state.limiter is not None), None)
        if limiter is not None:
            statistics = limiter.statistics()
            if statistics.line or any(pool.used for pool in statistics.pools.values()):
                yield f"the rate limiter is not at rest: {statistics.pools}"

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
                wire="core" if model.kind == "decoupled" else "http",
                sequence=999 if sequence else 0,
                start=sequence,
                end=sequence,
            )
            self._sums[request.id] = request.values[0]
            with trio.move_on_after(10):
                outcome = await self._call(request)
                if not outcome.ok:
                    self._verdict.complain(f"no good answer in the end: {outcome}")
                continue
            self._verdict.complain(f"no answer in the end from '{name}'")

    async def _drain(self) -> float:
        """Drain with requests under way; return since when."""
        self._count()
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

    def _count(self) -> None:
        for state in self._states:
            name = f"{state.spec.name}/{state.spec.version}"
            if state.statistics.reply_violations:
                self._verdict.complain(
                    f"'{name}' was answered {state.statistics.reply_violations} times too often"
                )
        answered = sum(outcome.ok for outcome in self._verdict.outcomes)
        counted = sum(
            state.statistics.success_count
            for state in self._states
            if not any(state.spec.name in MODELS[name].steps for name in self._scenario.models)
        )
        # Those may have been counted before their clients, or their deadlines, called them off.
        left = sum(
            not outcome.ok and bool(outcome.request.patience or outcome.request.deadline)
            for outcome in self._verdict.outcomes
        )
        direct = sum(
            outcome.ok
            and not any(outcome.request.model in MODELS[name].steps for name in self._scenario.models)
            for outcome in self._verdict.outcomes
        )
        if not direct <= counted <= direct + left:
            self._verdict.complain(f"{direct} of {answered} good answers were counted as {counted}")


def _trouble_of(state: ModelState) -> Iterator[str]:
    name = f"{state.spec.name}/{state.spec.version}"
    if state.in_flight:
        yield f"{name} has {len(state.in_flight)} requests"
    if len(state.queue):
        yield f"{name} has {len(state.queue)} requests in its queue"
    if state.cache is not None and state.cache.waiting:
        yield f"{name} has {state.cache.waiting} requests that wait in the cache"
    for instance in state.instances:
        if instance.worker is None:
            yield f"instance {instance.key} of {name} has no worker: {instance.last_reason}"
        elif not (instance.worker.idle and instance.worker.has_room):
            yield f"instance {instance.key} of {name} is not idle"
        elif instance.worker.slots_in_use:
            yield f"{instance.worker.slots_in_use} slots of instance {instance.key} of {name} are leased, and nobody has them"
        if len(instance.suspects) or instance.suspects.running:
            yield f"instance {instance.key} of {name} has suspects"
