"""What a model version's subtree consists of, and how one is started and ended."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from actors.caching.cache import ResponseCache, may_be_kept
from actors.calls.admission import Permit
from actors.calls.call_waits import CallWaits
from actors.calls.callees import Callees
from actors.calls.calls import CallHost
from actors.calls.subjects import Subjects
from actors.catalog.earlier import in_all
from actors.ensembles import ensemble
from actors.ensembles.ensemble import Ensembler
from actors.generation import assigning, generator
from actors.generation.engine import engine_spec
from actors.generation.families import GenerationSample
from actors.generation.generator import Generator
from actors.generation.texts import TextWorkers
from actors.padding.observing import PaddingObserver, counts_of, pads
from actors.seams.threads import in_thread
from actors.sequences import sequencer
from actors.sequences.policy.sequences import sequencing_of
from actors.serving import batcher
from actors.serving.instances import instance
from actors.serving.instances.comeback import Comeback, LoadTurns
from actors.serving.instances.launching import Launcher
from actors.serving.instances.recycling import Measure, Recycler
from actors.serving.model import ModelState, StatusObserver
from actors.serving.policy.holding import HoldBack, StartAfter
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.ports import BatchObserver, Stage
from actors.serving.records import Recorder, RecordObserver, RecordStage
from actors.serving.routing.router import Router
from actors.serving.standing import InstanceState, Status
from actors.supervision.context import ChildContext
from actors.supervision.events import RestartsExhausted, SupervisionEvent
from actors.supervision.spec import Backoff, ChildSpec, Intensity, Kind, OnExhausted, Strategy
from actors.supervision.supervisor import Supervisor
from actors.tracing.observer import SpanObserver
from actors.values.errors import InvalidArgument
from actors.values.events import Event, Log
from actors.values.interfaces import UNLOADED
from actors.values.requests import ServedModel
from actors.values.specs import Ensemble, EnsembleStep, LanguageServing, ModelSpec
from engine.observability.models import ModelSample, new_statistics
from engine.observability.pending import waiting_requests
from engine.processes.family import Family
from engine.server.instance_changes import InstanceChanges, forget
from engine.server.languages.composing import LanguageModels, no_text_workers
from engine.settings.reporting import MetricsSettings

STUCK_EVERY: Final = 0.5  # seconds between two looks at what hangs, while the server ends
INSTANCE_INTENSITY: Final = Intensity(4, 30.0)
"""The fifth death within 30 s without an answered batch is one too many (DESIGN section 2)."""

INSTANCE_BACKOFF: Final = Backoff(initial=0.1, factor=2.0, cap=30.0, jitter=0.5, first_immediate=True)


async def memory_of(pid: int) -> int:
    """Return the bytes that only the end of a process, and of all that it has started, would give back."""
    family = Family(pid, "")
    usage = await in_thread(family.usage)
    if usage.processes > 1:
        usage = await in_thread(partial(family.usage, exact=True))
    return usage.memory


class ModelSubtrees:
    """Starts and ends `models/<name>/<version>`.

    Implements `actors.catalog.loading.ModelTree` and `MetricsSource`.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        router: Router,
        launcher: Launcher,
        *,
        log: Log,
        metrics: MetricsSettings,
        stop_within: float,
        limiter: RateLimiter[InstanceState] | None = None,
        cache: ResponseCache | None = None,
        start_after: StartAfter | None = None,
        measure: Measure = memory_of,
        subjects: Subjects | None = None,
        permit: Permit | None = None,
        wall_clock: Callable[[], int] | None = None,
        recorder: Recorder | None = None,
        cores: int = 0,
        serving: Callable[[], bool] = lambda: True,
        gpu_uuid: Callable[[int], str] = lambda _: "",
        text_workers: Callable[[ModelSpec], TextWorkers] | None = None,
    ) -> None:
        """Set up the subtree.

        `supervisor` is the dynamic one that versions become children of. An instance may take `stop_within`
        seconds to stop.

        Without a `limiter` executions are not rate-limited, without a `cache` no answers are kept, and
        without `start_after` no first batch is held back. `measure` is asked for what may be recycled.
        `subjects` is what workers may ask and tell the server. `wall_clock` gives milliseconds since the
        epoch; the default is the machine's own. With a `recorder` a record is kept of each request.

        At once, `cores` workers may load without delaying one another, and half as many without delaying
        those that serve. `serving` says whether there are any workers that serve. `gpu_uuid` tells the UUID
        of a GPU by its id, and nothing where that is not known. Without `text_workers` there are no language
        models.
        """
        self._supervisor = supervisor
        self._router = router
        self._launcher = launcher
        self._log = log
        self._metrics = metrics
        self._stop_within = stop_within
        self._cache = cache
        self._start_after = start_after
        self._measure = measure
        self._wall_clock = wall_clock or milliseconds_since_epoch
        self._recorder = recorder
        self._gpu_uuid = gpu_uuid
        self._cores = cores
        self._spans = SpanObserver()
        self._comeback = Comeback()
        self._turns = LoadTurns(cores, needed=serving)
        self._callees = Callees(router)
        self._host = CallHost(
            self._callees, subjects or Subjects(), CallWaits(self._resolve_step), permit=permit
        )
        self.states: dict[str, ModelState] = {}  # all whose subtrees stand, by their names
        self._changes = InstanceChanges(self._instance_child, limiter)
        self._languages = LanguageModels(self._bare_state, text_workers or no_text_workers, log=log)

    def make_state(self, spec: ModelSpec) -> ModelState:
        """Return the state of a version about to be loaded."""
        if isinstance(spec.scheduling, LanguageServing):
            state = self._bare_state(replace(spec, instances=()), self._on_status)
            state.respecify(spec)
            self._languages.equip(state, self._wall_clock)
            return state
        state = self._bare_state(spec, self._on_status)
        if isinstance(spec.scheduling, Ensemble):
            state.composite = Ensembler(state, self._resolve_step, lambda: self._router.roster.changes)
        return state

    def _bare_state(self, spec: ModelSpec, on_status: StatusObserver) -> ModelState:
        """Return a state that composes no others."""
        stages: list[Callable[[ModelState], Stage]] = []
        observers: list[Callable[[ModelState], BatchObserver]] = []
        if self._recorder is not None:
            stages.append(partial(RecordStage, recorder=self._recorder))
            observers.append(partial(RecordObserver, recorder=self._recorder))
        if pads(spec):
            padding = PaddingObserver(spec)
            observers.append(lambda state: padding)
        if self._cache is not None and self._is_cached(spec):
            stages.append(self._cache.of)
        return ModelState(
            spec,
            statistics=new_statistics(self._metrics, spec.first_response_buckets),
            on_status=on_status,
            wall_clock=self._wall_clock,
            sequencing=sequencing_of(spec),
            stages=stages,
            observers=observers,
            spans=self._spans,
        )

    def _is_cached(self, spec: ModelSpec) -> bool:
        return self._cache is not None and spec.response_cache and may_be_kept(spec)

    def _resolve_step(self, step: EnsembleStep) -> ServedModel:
        """Return the version that answers for the model of a step now."""
        version = "" if step.model_version < 0 else str(step.model_version)
        return self._router.resolve(step.model_name, version, namespace=step.model_namespace)

    def _on_status(self, state: ModelState) -> None:
        self._router.roster.changed(state)
        serves = self._router.roster.serving(state.spec.key).get(state.spec.version) is state
        if not serves and state.status is not Status.UNLOADING and state.reason != UNLOADED:
            return  # it is on its way: how that ends is the catalog's to tell
        event, level = {
            Status.LOADING: (Event.MODEL_LOADING, "info"),
            Status.READY: (Event.MODEL_READY, "info"),
            Status.UNLOADING: (Event.MODEL_UNLOADING, "info"),
            Status.UNAVAILABLE: (Event.MODEL_UNAVAILABLE, "info" if state.reason == UNLOADED else "error"),
        }[state.status]
        keys: dict[str, object] = {"reason": state.reason} if state.reason else {}
        self._log(event, level=level, model=state.spec.name, version=state.spec.version, **keys)

    async def start(self, state: ModelState) -> None:
        """Start the subtree of a version. See `actors.catalog.loading.ModelTree`."""
        try:
            self._changes.limit(state, state.instances)
        except InvalidArgument as error:
            state.standing.load_failed(f"{error.code.rendered}: {error.message}")
            return
        state.subtree = self._free_name(state.spec)
        self.states[state.subtree] = state
        self._changes.stands(state.subtree)
        await self._supervisor.start_child(self._version_child(state))
        if state.engine is not None:
            await self._start_engine(state.engine, state)
        elif state.composite is not None and state.status is Status.LOADING:
            # There are no instances to wait for, and the ensemble was checked to fit together.
            state.standing.become(Status.READY)

    async def _start_engine(self, engine: ModelState, state: ModelState) -> None:
        try:
            self._changes.limit(engine, engine.instances)
        except InvalidArgument as error:
            state.standing.load_failed(f"{error.code.rendered}: {error.message}")
            return
        engine.subtree = f"{state.subtree}/engine"
        self.states[engine.subtree] = engine
        self._changes.stands(engine.subtree)
        await self._supervisor.start_child(self._version_child(engine))

    def standing(self) -> list[ChildSpec]:
        """Return the children that a supervisor restarts with after it died with all versions.

        They come back with one instance of each version first.
        """
        self._comeback = Comeback([state.instances for state in self.states.values()], cores=self._cores)
        return [self._version_child(state) for state in self.states.values()]

    def _version_child(self, state: ModelState) -> ChildSpec:
        return ChildSpec(
            state.subtree,
            partial(self._run, state),
            kind=Kind.SUPERVISOR,
            shutdown=self._stop_within + 10.0,
            intensity=Intensity(3, 60.0),
            on_exhausted=OnExhausted.RETRY_AT_CAP,  # one model's trouble is no reason to end another
        )

    def _free_name(self, spec: ModelSpec) -> str:
        """Return `<name>/<version>`, with `@2` and so on if an earlier generation of it is still there."""
        name = f"{spec.name}/{spec.version}"
        candidates = itertools.chain((name,), (f"{name}@{generation}" for generation in itertools.count(2)))
        return next(each for each in candidates if each not in self.states)

    async def _run(self, state: ModelState, ctx: ChildContext) -> None:
        """The version's own supervisor, around its passive state."""
        ctx.publish(model=state.spec.name, version=state.spec.version)
        if state.spec.namespace:
            ctx.publish(namespace=state.spec.namespace)
        hold = HoldBack(self._start_after)
        version = Supervisor(
            [
                ChildSpec("instances", partial(self._run_instances, state), kind=Kind.SUPERVISOR),
                ChildSpec("scheduler", lambda ctx: _schedule(ctx, state, self._log, hold)),
                *self._further_children(state),
            ],
            # A text worker goes on where the generator, which its streams belong to, is looked after anew.
            strategy=Strategy.ONE_FOR_ONE if state.engine else Strategy.REST_FOR_ONE,
        )
        try:
            await version.run(ctx)
        finally:
            if ctx.asked:  # it will not come back, so what is unanswered will never run
                state.close()

    async def _run_instances(self, state: ModelState, ctx: ChildContext) -> None:
        """The supervisor of a version's instances.

        It starts with those that there are when it begins, because others may have taken their place.
        """
        instances = Supervisor([self._instance_child(state, each) for each in state.instances])
        self._changes.supervised(state.subtree, instances)
        await instances.run(ctx)

    def _instance_child(self, state: ModelState, each: InstanceState) -> ChildSpec:
        return ChildSpec(
            each.key,
            partial(self._run_instance, state, each),
            shutdown=self._stop_within + 5.0,
            intensity=INSTANCE_INTENSITY,
            on_exhausted=OnExhausted.RETRY_AT_CAP,
            backoff=INSTANCE_BACKOFF,
        )

    def _further_children(self, state: ModelState) -> list[ChildSpec]:
        if isinstance(state.composite, Generator):  # what is recycled is the engine
            return [
                self._languages.text_child(state, state.composite),
                *self._languages.pulse_children(state),
            ]
        ceilings = state.spec.recycle
        if ceilings is None:
            return []
        recycler = Recycler(state, ceilings, instances=self._changes, measure=self._measure, log=self._log)
        return [ChildSpec("recycler", recycler.run, shutdown=self._stop_within + 6.0)]

    async def _run_instance(self, state: ModelState, each: InstanceState, ctx: ChildContext) -> None:
        await instance.run(
            ctx,
            state,
            each,
            launcher=self._launcher,
            log=self._log,
            asks=self._host,
            comeback=self._comeback,
            turns=self._turns,
        )

    async def end(self, state: ModelState) -> None:
        """Stop and forget the subtree, then answer what is left unanswered."""
        await self._end(state)
        if state.engine is not None:
            await self._end(state.engine)

    async def _end(self, state: ModelState) -> None:
        if self.states.get(state.subtree) is state:
            await forget(self._supervisor, state.subtree)
            del self.states[state.subtree]
            self._changes.ended(state.subtree)
        self._changes.forget_limits(state.instances)
        state.close()

    async def scale(self, state: ModelState, spec: ModelSpec) -> None:
        """See `InstanceChanges.scale`."""
        engine = state.engine
        if engine is None:
            await self._changes.scale(state, spec)
        else:
            await self._changes.scale(engine, engine_spec(spec))
            state.respecify(spec)
            self._languages.follow(state)

    def observe(self, event: SupervisionEvent) -> None:
        """Notice instances that ran out of restarts. A part of the tree's observer."""
        if not isinstance(event, RestartsExhausted):
            return
        path = event.path.removeprefix("models/")
        version, _, key = path.partition("/instances/")
        if (state := self.states.get(path.removesuffix("/texts"))) is not None:
            self._languages.texts_exhausted(state)
            return
        state = self.states.get(version)
        each = next((each for each in state.instances if each.key == key), None) if state else None
        if state is None or each is None:
            return
        state.instance_exhausted(each)
        if state.standing.degraded:
            self._log(
                Event.MODEL_DEGRADED,
                level="warning",
                model=state.spec.name,
                version=state.spec.version,
                instance=event.path,
            )

    async def drain(self, within: float) -> bool:
        """Accept nothing new and wait until all that was accepted is answered.

        Returns False if that took too long; then `give_up` is next.
        """
        states = list(self.states.values())
        self._callees.draining = True
        for state in states:
            if state.status is Status.READY:
                state.standing.become(Status.UNLOADING)
        with trio.move_on_after(within) as scope:
            for state in states:
                await state.wait_drained()
        return not scope.cancelled_caught

    async def give_up_stuck(self, bound: float) -> None:
        """At the server's end, answer long executions of models without a limit with UNAVAILABLE.

        These are requests that have been executing for `bound` seconds. It does so for ever; a `bound` of 0
        leaves them alone.
        """
        why = (
            f"the server is stopping, and the model has been executing for more than {bound:g} s (--unready-after-hang-secs);"
            " send the request again, to another server"
        )
        while bound:
            for state in list(self.states.values()):
                state.give_up_stuck(bound, why)
            await trio.sleep(STUCK_EVERY)

    def give_up(self, why: str) -> None:
        """Answer whatever is not answered with UNAVAILABLE, and wait for no worker."""
        for state in list(self.states.values()):
            state.give_up(why)

    def models(self) -> Iterable[ModelSample]:
        """Return every loaded version, for metrics."""
        now = trio.current_time()
        for state in self._router.roster.states():
            depth = len(state.queue)
            if state.engine is not None:
                state.statistics.take_over(state.engine.statistics)
            state.statistics.pending = waiting_requests(state)
            yield ModelSample(
                name=state.spec.name,
                version=state.spec.version,
                namespace=state.spec.namespace,
                statistics=in_all(state.statistics),
                tags=state.spec.metric_tags,
                cached=self._is_cached(state.spec),
                queue_depth=depth,
                queue_age=max(0.0, now - state.queue.oldest_enqueued) if depth else 0.0,
                load_duration=state.standing.load_seconds,
                load_phases=state.standing.phases.seconds(now),
                instances=_by_standing(state.executing),
                tenants=state.queue.shares() or {},
                slo=state.promise.sample(depth) if state.promise is not None else None,
                padding=counts_of(state.dispatcher.observers.told),
                gpu_buffers=_gpu_buffers(state),
                generation=state.composite.sample() if isinstance(state.composite, Generator) else None,
                gpu_uuid=self._gpu_of(state.spec),
            )

    def generations(self) -> Iterable[tuple[ModelSpec, GenerationSample]]:
        """Return the READY versions of language models, for metrics."""
        for state in self._router.roster.states():
            if state.status is Status.READY and isinstance(state.composite, Generator):
                yield state.spec, state.composite.sample()

    def _gpu_of(self, spec: ModelSpec) -> str:
        """Return the UUID of a version's only GPU. Counts are by version, so of two GPUs neither has them."""
        devices = {(each.kind, each.device_id) for each in spec.instances}
        if len(devices) != 1:
            return ""
        kind, device = devices.pop()
        return self._gpu_uuid(device) if kind == "GPU" else ""


async def _schedule(ctx: ChildContext, state: ModelState, log: Log, hold: HoldBack) -> None:
    """Run the scheduler actor of a version's kind."""
    if isinstance(state.composite, Ensembler):
        await ensemble.run(ctx, state, state.composite)
    elif isinstance(state.composite, Generator):
        await generator.run(ctx, state, state.composite)
    elif state.whole is not None and isinstance(state.whole.composite, Generator):
        await assigning.run(ctx, state, state.whole.composite.line)
    elif state.sequences is not None:
        await sequencer.run(ctx, state, log=log, hold=hold)
    else:
        await batcher.run(ctx, state, hold=hold)


def _gpu_buffers(state: ModelState) -> Mapping[str, int] | None:
    """Return the counts of all workers' buffers together; None if outputs can't stay on a GPU."""
    if state.spec.gpu < 0:
        return None
    told = {"buffers": 0, "in_use": 0, "bytes": 0}
    for worker in state.standing.workers:
        for key, count in (worker.buffers.told if worker.buffers is not None else {}).items():
            told[key] += count
    return told


def _by_standing(state: ModelState) -> dict[str, int]:
    counts = {"serving": 0, "starting": 0, "exhausted": 0}
    for each in state.instances:
        if each.worker is not None:
            standing = "passive" if each.spec.passive else "serving"
        else:
            standing = "exhausted" if each.exhausted else "starting"
        counts[standing] = counts.get(standing, 0) + 1
    return counts


def milliseconds_since_epoch() -> int:
    """Return the wall clock's time."""
    return time.time_ns() // 1_000_000
