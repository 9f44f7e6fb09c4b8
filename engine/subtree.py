"""What a model version's subtree consists of, and how one is started and ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Final

import trio

from actors import batcher, instance
from actors.instance import Launcher
from actors.messages.errors import Unavailable
from actors.messages.events import Event, Log
from actors.model import STOPPING, InstanceState, ModelState, Status
from actors.router import Router
from actors.specs import ModelSpec
from actors.supervision.context import ChildContext
from actors.supervision.errors import NotFound, NotRunning
from actors.supervision.events import Event as SupervisionEvent
from actors.supervision.events import RestartsExhausted
from actors.supervision.spec import Backoff, ChildSpec, Intensity, Kind, OnExhausted, Strategy
from actors.supervision.supervisor import Supervisor
from engine.observability.metrics import new_statistics
from engine.observability.sources import ModelSample
from engine.settings import MetricsSettings

INSTANCE_INTENSITY: Final = Intensity(4, 30.0)
"""The fifth death within 30 s without an answered batch is one too many (DESIGN section 2)."""

INSTANCE_BACKOFF: Final = Backoff(initial=0.1, factor=2.0, cap=30.0, jitter=0.5, first_immediate=True)


class ModelSubtrees:
    """Starts and ends `models/<name>/<version>`. Implements `actors.catalog.ModelTree` and `MetricsSource`."""

    def __init__(
        self,
        supervisor: Supervisor,
        router: Router,
        launcher: Launcher,
        *,
        log: Log,
        metrics: MetricsSettings,
        stop_within: float,
    ) -> None:
        """`supervisor` is the dynamic one that versions become children of; `stop_within` seconds an instance may take."""
        self._supervisor = supervisor
        self._router = router
        self._launcher = launcher
        self._log = log
        self._metrics = metrics
        self._stop_within = stop_within

    def make_state(self, spec: ModelSpec) -> ModelState:
        """Return the state of a version about to be loaded."""
        return ModelState(
            spec,
            statistics=new_statistics(self._metrics, spec.first_response_buckets),
            on_status=self._on_status,
            wall_clock=milliseconds_since_epoch,
        )

    def _on_status(self, state: ModelState) -> None:
        self._router.changed(state)
        event, level = {
            Status.LOADING: (Event.MODEL_LOADING, "info"),
            Status.READY: (Event.MODEL_READY, "info"),
            Status.UNLOADING: (Event.MODEL_UNLOADING, "info"),
            Status.UNAVAILABLE: (Event.MODEL_UNAVAILABLE, "info" if state.reason == "unloaded" else "error"),
        }[state.status]
        keys: dict[str, object] = {"reason": state.reason} if state.reason else {}
        if state.status is Status.READY:
            keys["load_seconds"] = round(state.load_seconds, 3)
        self._log(event, level=level, model=state.spec.name, version=state.spec.version, **keys)

    async def start(self, state: ModelState) -> None:
        """Start the subtree of a version. See `actors.catalog.ModelTree`."""
        name = _child_name(state)
        await self.end(state)  # what a failed attempt before this one left
        await self._supervisor.start_child(
            ChildSpec(
                name,
                partial(self._run, state),
                kind=Kind.SUPERVISOR,
                shutdown=self._stop_within + 10.0,
                intensity=Intensity(3, 60.0),
                on_exhausted=OnExhausted.RETRY_AT_CAP,  # one model's trouble is no reason to end another
            )
        )

    async def _run(self, state: ModelState, ctx: ChildContext) -> None:
        """The version's own supervisor, around its passive state."""
        ctx.publish(model=state.spec.name, version=state.spec.version)
        instances = Supervisor(
            [self._instance_child(state, index, each) for index, each in enumerate(state.instances)]
        )
        version = Supervisor(
            [
                instances.spec("instances"),
                ChildSpec("scheduler", lambda ctx: batcher.run(ctx, state)),
            ],
            strategy=Strategy.REST_FOR_ONE,
        )
        try:
            await version.run(ctx)
        finally:
            if ctx.asked:  # it will not come back, so what is unanswered will never run
                state.close()

    def _instance_child(self, state: ModelState, index: int, each: InstanceState) -> ChildSpec:
        return ChildSpec(
            str(index),
            partial(self._run_instance, state, each),
            shutdown=self._stop_within + 5.0,
            intensity=INSTANCE_INTENSITY,
            on_exhausted=OnExhausted.RETRY_AT_CAP,
            backoff=INSTANCE_BACKOFF,
        )

    async def _run_instance(self, state: ModelState, each: InstanceState, ctx: ChildContext) -> None:
        await instance.run(ctx, state, each, launcher=self._launcher, log=self._log)

    async def end(self, state: ModelState) -> None:
        """Stop and forget the subtree, then answer what is left unanswered."""
        name = _child_name(state)
        try:
            await self._supervisor.terminate_child(name)
            self._supervisor.delete_child(name)
        except (NotFound, NotRunning):
            pass  # it never started, or its supervisor has gone first
        state.close()

    def observe(self, event: SupervisionEvent) -> None:
        """Notice instances that ran out of restarts. A part of the tree's observer."""
        if not isinstance(event, RestartsExhausted):
            return
        for state in self._router.states():
            prefix = f"models/{_child_name(state)}/instances/"
            if event.path.startswith(prefix):
                state.instance_exhausted(state.instances[int(event.path.removeprefix(prefix))])
                if state.degraded:
                    self._log(
                        Event.MODEL_DEGRADED,
                        level="warning",
                        model=state.spec.name,
                        version=state.spec.version,
                        instance=event.path,
                    )

    async def drain(self, within: float) -> bool:
        """Accept nothing new and wait until all that was accepted is answered. False if that took too long."""
        states = [state for state in self._router.states() if state.status is Status.READY]
        for state in states:
            state.become(Status.UNLOADING)
        with trio.move_on_after(within) as scope:
            for state in states:
                await state.wait_drained()
        for state in states:
            state.fail_queued(Unavailable(STOPPING))
        return not scope.cancelled_caught

    def models(self) -> Iterable[ModelSample]:
        """Return every loaded version, for metrics."""
        now = trio.current_time()
        for state in self._router.states():
            if not state.load_finished.is_set():
                continue
            depth = len(state.queue)
            held = sum(each.worker.waiting for each in state.instances if each.worker is not None)
            state.statistics.pending = depth + held + sum(len(each.suspects) for each in state.instances)
            yield ModelSample(
                name=state.spec.name,
                version=state.spec.version,
                statistics=state.statistics,
                tags=state.spec.metric_tags,
                queue_depth=depth,
                queue_age=max(0.0, now - state.queue.oldest_enqueued) if depth else 0.0,
                load_duration=state.load_seconds,
                instances=_by_standing(state),
            )


def _by_standing(state: ModelState) -> dict[str, int]:
    counts = {"serving": 0, "starting": 0, "exhausted": 0}
    for each in state.instances:
        counts["serving" if each.worker is not None else "exhausted" if each.exhausted else "starting"] += 1
    return counts


def _child_name(state: ModelState) -> str:
    return f"{state.spec.name}/{state.spec.version}"


def milliseconds_since_epoch() -> int:
    """Return the wall clock's time."""
    return time.time_ns() // 1_000_000
