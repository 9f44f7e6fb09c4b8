"""The passive state of one model version, which its actors share. It is what frontends know of the version.

It lives one level above the actors that may die. The supervisor's start function makes it and lends it to the
scheduler and to the instance actors. A restarted actor adopts the state that it finds. All of it is plain
code on the loop's thread.

A request comes in through `intake`, and waits in `queue`. A scheduler hears the `doorbell`, and has the
`dispatcher` hand a batch to an instance of `standing`. `outcome` gives the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import trio

from actors.seams.bell import Bell
from actors.serving.dispatcher import Dispatcher
from actors.serving.doorbell import Doorbell
from actors.serving.instances.phases import LoadPhases
from actors.serving.instances.worker import LiveWorker
from actors.serving.intake import STOPPING, Intake
from actors.serving.outcome import Outcome
from actors.serving.policy.batching import policy_for
from actors.serving.policy.blame import Blame
from actors.serving.policy.gpus.easing import Easing
from actors.serving.policy.queueing import RequestQueue
from actors.serving.policy.slo import Admission, Promising
from actors.serving.policy.waiting_line import Sequencing, WaitingLine
from actors.serving.ports import BatchObserver, Composite, Mover, Observers, Sleeper, Stage
from actors.serving.promise import PromiseObserver, PromiseStage
from actors.serving.standing import InstanceState, Standing, Status
from actors.serving.statistics import FailureReason, ModelStatistics
from actors.serving.waiting import WaitingCallers
from actors.values.errors import (
    Cancelled,
    Unavailable,
)
from actors.values.marks import ClientMarks, marks_of
from actors.values.requests import InferRequest, ServedModel
from actors.values.specs import LanguageServing, ModelSpec, SequenceBatching


class StatusObserver(Protocol):
    """The callback that is told when a model's status changes."""

    def __call__(self, state: ModelState) -> None:
        """`state.status` and `state.reason` are new."""


def _no_helpers() -> Sequence[int]:
    return ()


class ModelState(ServedModel):
    """One model version; see the module. Created on the loop's thread."""

    # Slots take the place of the port's properties. A request asks for these several times.
    __slots__ = ("__dict__", "__weakref__", "marks", "spec")

    spec: ModelSpec
    marks: ClientMarks | None

    def __init__(
        self,
        spec: ModelSpec,
        *,
        statistics: ModelStatistics,
        on_status: StatusObserver,
        wall_clock: Callable[[], int],
        sequencing: Sequencing | None = None,
        stages: Sequence[Callable[[ModelState], Stage]] = (),
        observers: Sequence[Callable[[ModelState], BatchObserver]] = (),
        spans: BatchObserver | None = None,
    ) -> None:
        """`wall_clock` gives milliseconds since the epoch, for `last_inference`.

        `sequencing`: the sequences of a model that has them, with the line of their requests.

        `stages` and `observers` make the features that take part; a request passes the stages in this order.
        `spans` is told of batches, too, while a traced request is in flight.
        """
        self.spec = spec
        self.gpu = spec.gpu  # the one that all instances are on, now; -1: they are not
        self.marks = marks_of(spec)
        self.statistics = statistics
        self.subtree = ""  # its name in the supervision tree
        self.given_up = False  # its workers are not waited for
        self.composite: Composite | None = None  # of an ensemble, or of a language model
        self.engine: ModelState | None = None  # of a language model: the version inside it that has instances
        # Processes that it has beside those of instances.
        self.helpers: Callable[[], Sequence[int]] = _no_helpers
        self.mover: Mover | None = None  # of such an engine
        self.sleeper: Sleeper | None = None  # of a language model
        self.whole: ModelState | None = None  # of that one: the language model's version
        if isinstance(spec.scheduling, SequenceBatching) and sequencing is None:
            raise TypeError(f"model '{spec.name}' has sequences, and is made without")
        self.sequences = sequencing
        self.queue: WaitingLine = (
            RequestQueue(spec.scheduling, spec.queue_bounds, spec.fairness)
            if sequencing is None
            else sequencing.queue
        )
        self._pins = 0  # requests to ensembles that still count on this version
        self._drained = Bell()
        self.blame = Blame()
        self.doorbell = Doorbell()
        self.standing = Standing(spec, lambda: on_status(self))
        # Schedulers ask for these several times a batch, so they are bound here once.
        self.instances = self.standing.instances
        self.rotation = self.standing.rotation
        line = WaitingCallers(self.queue, spec.name, self._drained.ring)
        self.outcome = Outcome(
            spec,
            statistics=statistics,
            blame=self.blame,
            line=line,
            sequences=self.sequences,
            doorbell=self.doorbell,
            on_drained=self._drained.ring,
            wall_clock=wall_clock,
        )
        self.in_flight = self.outcome.in_flight
        self.intake = Intake(
            spec,
            self.standing,
            queue=self.queue,
            line=line,
            sequences=self.sequences,
            blame=self.blame,
            outcome=self.outcome,
            doorbell=self.doorbell,
            statistics=statistics,
        )
        self.dispatcher = Dispatcher(
            spec,
            self.standing,
            queue=self.queue,
            sequences=self.sequences,
            blame=self.blame,
            intake=self.intake,
            outcome=self.outcome,
            doorbell=self.doorbell,
        )
        self.easing = Easing(max(1, spec.max_batch_size))
        self.slo: Admission | None = None  # of what makes batches
        if spec.slo is not None and not isinstance(spec.scheduling, LanguageServing):
            self.slo = Admission(spec.slo, policy_for(spec))
        self.promise: Promising | None = self.slo
        self.stages = tuple(make(self) for make in stages)
        watching = tuple(make(self) for make in observers)
        if self.slo is not None:
            self.stages = (*self.stages, PromiseStage(self.slo, self.queue, line))
            watching = (*watching, PromiseObserver(self.slo, self.queue))
        self.intake.stages = self.outcome.stages = self.stages
        self.observers = self.outcome.observers = self.dispatcher.observers = Observers(watching, spans)

    def join(self, stage: Stage) -> None:
        """Have `stage` take part in the way of each request, behind the others."""
        self.stages = self.intake.stages = self.outcome.stages = (*self.stages, stage)

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self.standing.status

    @property
    def reason(self) -> str:
        """Why it stands there; empty where there is nothing to explain."""
        return self.standing.reason

    @property
    def executing(self) -> ModelState:
        """The version whose instances execute: the engine of a language model, or this one."""
        return self.engine or self

    def follow(self, phases: LoadPhases) -> None:
        """Have its instances tell `phases` what the load is busy with."""
        self.standing.phases = self.executing.standing.phases = phases

    async def says_ready(self) -> bool:
        """Whether it serves and its live instances say that they are ready; see `Standing.says_ready`."""
        return self.status is Status.READY and await self.executing.standing.says_ready()

    @property
    def keeps_requests(self) -> bool:
        """Whether requests may wait elsewhere than in the queue, or be passed on."""
        return self.composite is not None or any(stage.keeps_requests for stage in self.stages)

    def describe_statistics(self) -> dict[str, object]:
        """Return this version's element of the statistics endpoint.

        It has a key `tritium` where there is more to tell than Triton does.
        """
        element = self.statistics.as_model_stats(self.spec.name, self.spec.version)
        ours: dict[str, object] = {}
        if (shares := self.queue.shares()) is not None:
            ours["tenants"] = {name: share.document() for name, share in shares.items()}
        if self.promise is not None:
            ours["slo"] = self.promise.sample(len(self.queue)).document()
        if self.easing.shortages:
            ours["gpu_shortages"] = {"count": self.easing.shortages, "most_rows": self.easing.rows}
        return {**element, "tritium": ours} if ours else element

    def respecify(self, spec: ModelSpec) -> None:
        """Take over a configuration that differs from the present one only in its instances.

        Those of both serve until `settle`.
        """
        self.spec = spec
        self.gpu = spec.gpu if spec.gpu == self.gpu else -1
        self.intake.respecify(spec, self.gpu)

    def settle(self) -> None:
        """There are no instances now but those of its configuration."""
        self.gpu = self.spec.gpu
        self.intake.respecify(self.spec, self.gpu)
        self.dispatcher.takes_devices |= self.gpu >= 0

    # -- what frontends know: see `actors.values.requests.ServedModel` ---------------------------------------

    def submit(self, request: InferRequest) -> Coroutine[Any, Any, None]:
        """Validate and queue `request`."""
        return self.intake.submit(request)

    def submit_nowait(self, request: InferRequest) -> None:
        """Validate and queue `request`, if there is room."""
        self.intake.submit_nowait(request)

    def cancel(self, request: InferRequest) -> None:
        """The client left."""
        request.cancelled = True
        if self.intake.line.refuse(request, Cancelled("")):
            return
        if request not in self.outcome.in_flight or self.intake.withdraw(request):
            return
        if any(stage.is_wanted(request) for stage in self.stages):
            # It goes on for the requests that wait for its answer.
            return
        if self.composite is not None:
            self.composite.cancel(request)
        self.dispatcher.cancel(request)

    # -- for ensembles that are composed of it ---------------------------------------------------------------

    def pin(self) -> None:
        """A request to an ensemble counts on this version.

        Until `unpin` the version serves that request's steps, retired or not.
        """
        self._pins += 1
        if self._pins == 1 and self.composite is not None:
            self.composite.keep()

    def unpin(self) -> None:
        """A request to an ensemble no longer counts on this version."""
        self._pins -= 1
        if not self._pins:
            self._drained.ring()
            if self.composite is not None:
                self.composite.let_go()

    # -- instances come and go -------------------------------------------------------------------------------

    def instance_ready(self, instance: InstanceState, worker: LiveWorker) -> None:
        """An instance's model is loaded and warm: it may be given batches."""
        self.statistics.restarts += instance.started_once
        if self.sequences is not None and not instance.spec.passive:
            self.sequences.join(instance.key, instance.spec.lanes, trio.current_time())
        self.standing.joined(instance, worker)
        self.doorbell.ring()

    def remove_instance(self, instance: InstanceState) -> None:
        """Give an instance no more batches; the caller stops it.

        The batches that it has not begun, and its suspects, are queued again.
        """
        self.dispatcher.withdraw(instance)
        self.standing.remove(instance)
        self.dispatcher.end_sequences(instance, "has been taken out of service")

    async def wait_vacated(self, instance: InstanceState) -> None:
        """Wait until an instance that was removed has answered its requests, or others have taken them."""
        if self.mover is None:
            await instance.held.wait_idle()
        else:
            await self.mover.vacate(instance)

    def instance_exhausted(self, instance: InstanceState) -> None:
        """An instance died too often without progress.

        It is retried now and then, and nothing waits for it.
        """
        instance.exhausted = True
        self.doorbell.ring()  # requests may wait elsewhere for an instance that comes back
        why = instance.last_reason
        error = Unavailable(f"instance '{instance.spec.name}' keeps dying: {why}")
        for request in instance.suspects.drain():
            self.outcome.fail(request, error, FailureReason.OTHER)
        if self.standing.exhausted:
            if self.status is Status.READY:
                self.standing.become(Status.UNAVAILABLE, f"Unavailable: all instances keep dying: {why}")
            self.intake.fail_queued(Unavailable(f"model '{self.spec.name}' is unavailable: {why}"))

    # -- ends ------------------------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        """Answer all remaining requests, and stop waiting for the workers that execute them."""
        self.given_up = True
        self.intake.fail_queued(Unavailable(why))
        for instance in self.instances:
            instance.suspects.drain()
        for worker in self.standing.workers:
            worker.disown()
        self.outcome.fail_all(why)
        if self.composite is not None:
            self.composite.give_up()

    def stuck_for(self, now: float) -> float:
        """Return for how many seconds every serving instance has been busy with one execution.

        Returns 0 while one instance is not, or while executions have a time limit.
        """
        return 0.0 if self.spec.execution_timeout else self.executing.standing.stuck_for(now)

    def give_up_stuck(self, bound: float, why: str) -> None:
        """Answer with `why` the requests that have been executing for `bound` seconds.

        Where no instance is left to serve, every other request is answered as well.
        """
        now = trio.current_time()
        if self.stuck_for(now) >= bound:
            self.give_up(why)
            return
        for worker in list(self.standing.workers):
            if self.spec.execution_timeout or now - worker.stuck_since < bound:
                continue
            held = [request for batch in worker.outstanding.values() for request in batch.requests]
            # Otherwise it would seem idle once disowned. An instance that leaves has gone from there.
            self.rotation[:] = (each for each in self.rotation if each.worker is not worker)
            worker.disown()
            for request in held:
                self.outcome.fail(request, Unavailable(request.prefix + why), FailureReason.OTHER)

    async def wait_drained(self) -> None:
        """Wait until every accepted request is answered and no ensemble's request counts on this version."""
        while self.in_flight or self.intake.line.places or self._pins:
            await self._drained.next_ring()

    def close(self) -> None:
        """The subtree has ended.

        A request that is unanswered now was dropped by a bug or by a deadline: tell its client.
        """
        self.intake.fail_queued(Unavailable(STOPPING))
        self.outcome.fail_all(STOPPING)
        if self.composite is not None:
            self.composite.give_up()
