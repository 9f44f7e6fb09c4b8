"""The passive state of one model version: queue, in-flight table, reply ports, statistics, instances.

It lives one level above the actors that may die. The supervisor's start function makes it and lends it to the
scheduler and to the instance actors. A restarted actor adopts the state that it finds. Everything here is
plain synchronous code on the loop's thread, except `submit`, which waits while the queue is full.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import trio

from actors.seams.slices import in_slices
from actors.serving.deaths import Deaths
from actors.serving.instances.batches import InFlight
from actors.serving.instances.worker import LiveWorker
from actors.serving.policy.batching import policy_for
from actors.serving.policy.coming_back import Pace
from actors.serving.policy.ordering import ReorderBuffer
from actors.serving.policy.queueing import RequestQueue
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.policy.retries import Aftermath, Fingerprint, Quarantine, SuspectQueue
from actors.serving.policy.slo import Admission
from actors.serving.policy.waiting_line import Sequencing, WaitingLine
from actors.serving.statistics import FailureReason, ModelStatistics
from actors.serving.validation import Validator
from actors.serving.waiting import WaitingCallers
from actors.values.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    Poisoned,
    TritiumError,
    Unavailable,
)
from actors.values.marks import marks_of
from actors.values.requests import InferRequest, InferResponse, Parameter
from actors.values.specs import DynamicBatching, InstanceSpec, ModelSpec, SequenceBatching
from actors.values.tensors import Tensor
from actors.wire.frames import Answer, Result
from actors.wire.gathering import Cut
from actors.wire.parts import Arrived

if TYPE_CHECKING:
    from actors.caching.cache import ModelCache
    from actors.values.interfaces import ServedModel

QUARANTINE_SECONDS: Final = 600.0
_NO_MARKS: Final[Mapping[InferRequest, Fingerprint]] = MappingProxyType({})
PROBE_SECONDS: Final = 5.0  # contract, python_backend.md section 1.2
STOPPING: Final = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class Status(Enum):
    """Where a model version stands, in the repository index's words (contract, repository.md section 4)."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


STATUS_CHANGES: Final[Mapping[Status, frozenset[Status]]] = {
    Status.LOADING: frozenset({Status.READY, Status.UNAVAILABLE, Status.UNLOADING}),
    Status.READY: frozenset({Status.UNAVAILABLE, Status.UNLOADING}),
    Status.UNAVAILABLE: frozenset({Status.READY, Status.UNLOADING}),
    Status.UNLOADING: frozenset({Status.UNAVAILABLE}),
}


class StatusObserver(Protocol):
    """The callback that is told when a model's status changes."""

    def __call__(self, state: ModelState) -> None:
        """`state.status` and `state.reason` are new."""


class Composite(Protocol):
    """What runs the requests of an ensemble, which has no instances (`actors.ensembles.ensemble`)."""

    def cancel(self, request: InferRequest) -> None:
        """The client of a request that has left the queue has gone. Never raises."""

    def steps_of(self, request: InferRequest) -> Sequence[tuple[ServedModel, InferRequest]]:
        """Return the requests to models that `request` waits for, each until its final answer.

        `request` has left the queue.
        """

    def give_up(self) -> None:
        """Cancel everything that runs: it has been answered, and its results are not needed."""

    def keep(self) -> None:
        """A request counts on the ensemble: keep the models that it is composed of as long."""

    def let_go(self) -> None:
        """No request counts on the ensemble any more."""


class InstanceState:
    """The part of an instance that outlives its worker: its status, its suspects, its counts."""

    __slots__ = (
        "exhausted",
        "key",
        "last_reason",
        "load_error",
        "pid",
        "restarts",
        "settled",
        "spec",
        "started_once",
        "suspects",
        "worker",
    )

    def __init__(self, spec: InstanceSpec, key: str) -> None:
        self.spec = spec
        # Its name in the supervision tree. No other instance of the version ever has the same one.
        self.key = key
        self.pid: int | None = None  # of its worker, from launch to burial
        self.settled = trio.Event()  # it has joined for the first time, or failed to
        self.load_error = ""  # why it failed to join
        self.worker: LiveWorker | None = None  # set while its model is loaded and warm
        self.suspects = SuspectQueue()  # batches that killed this instance, to run alone
        self.exhausted = False
        self.started_once = False
        self.restarts = 0
        self.last_reason = ""

    @property
    def hunting(self) -> bool:
        """Whether it looks for the request that killed it. It takes no fresh traffic until then."""
        return bool(self.suspects.running) or len(self.suspects) > 0


class ModelState:
    """One model version; see the module. Created on the loop's thread."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        statistics: ModelStatistics,
        on_status: StatusObserver,
        wall_clock: Callable[[], int],
        sequencing: Sequencing | None = None,
    ) -> None:
        """`wall_clock` gives milliseconds since the epoch, for `last_inference`.

        `sequencing`: the sequences of a model that has them, with the line of their requests.
        """
        self.spec = spec
        self.status = Status.LOADING
        self.reason = ""
        self.phase = "starting"  # what a load is busy with
        self.subtree = ""  # its name in the supervision tree
        self.marks = marks_of(spec)
        self._keys = itertools.count()
        self.instances = [InstanceState(instance, str(next(self._keys))) for instance in spec.instances]
        # The instances that execute, the least recently served first. A passive instance is not in it.
        self.rotation = [each for each in self.instances if not each.spec.passive]
        self.limiter: RateLimiter[InstanceState] | None = None  # where executions are rate-limited
        # Whether an instance has more to execute. Schedulers other than the batcher set their own function.
        self.wants: Callable[[InstanceState], bool] = self._queue_wants
        if isinstance(spec.scheduling, SequenceBatching) and sequencing is None:
            raise TypeError(f"model '{spec.name}' has sequences, and is made without")
        self.sequences = sequencing
        self.queue: WaitingLine = (
            RequestQueue(spec.scheduling, spec.queue_bounds, spec.fairness)
            if sequencing is None
            else sequencing.queue
        )
        self.statistics = statistics
        self.slo = None if spec.slo is None else Admission(spec.slo, policy_for(spec))
        self.quarantine = Quarantine(QUARANTINE_SECONDS)
        self._deaths = Deaths(self, QUARANTINE_SECONDS)
        self.in_flight: dict[InferRequest, None] = {}  # in the order of their arrival
        self.load_finished = trio.Event()  # READY or UNAVAILABLE for the first time
        self.given_up = False  # its workers are not waited for
        self.ended = trio.Event()  # it was retired, has drained, and its workers are gone
        self.load_seconds = 0.0
        self.since = self._created_at = trio.current_time()
        self._validate = Validator(spec)
        self._on_status = on_status
        self._wall_clock = wall_clock
        self._pace = Pace()
        self._line = WaitingCallers(self.queue, spec.name, self._look_again)
        self._ring, self.doorbell = trio.open_memory_channel[None](1)
        self._rung = False
        self.take_turn: Callable[[], None] | None = None  # the scheduler's, while it runs
        self.composite: Composite | None = None  # of an ensemble
        self.cache: ModelCache | None = None  # where its answers are kept
        self._pins = 0  # requests to ensembles that still count on this version
        self._drained = trio.Event()
        preserve = isinstance(spec.scheduling, DynamicBatching) and spec.scheduling.preserve_ordering
        self._ordering: ReorderBuffer[InferResponse | TritiumError] | None = (
            ReorderBuffer() if preserve else None
        )

    # -- standing --------------------------------------------------------------------------------------------

    def become(self, status: Status, reason: str = "") -> None:
        """Change the status, if it differs. Raises ValueError for a change that the table forbids."""
        if status is self.status:
            return
        if status not in STATUS_CHANGES[self.status]:
            raise ValueError(
                f"{self.spec.name}/{self.spec.version} can't go from {self.status.value} to {status.value}"
            )
        self.status, self.reason, self.since = status, reason, trio.current_time()
        if not self.load_finished.is_set():
            self.load_seconds = self.since - self._created_at
            self.load_finished.set()
        self._on_status(self)

    @property
    def degraded(self) -> bool:
        """Whether it serves with fewer instances than it should."""
        return self.status is Status.READY and any(instance.exhausted for instance in self.instances)

    def instance_ready(self, instance: InstanceState, worker: LiveWorker) -> None:
        """An instance's model is loaded and warm: it may be given batches."""
        if instance.started_once:
            instance.restarts += 1
            self.statistics.restarts += 1
        instance.worker, instance.started_once = worker, True
        if self.sequences is not None and not instance.spec.passive:
            self.sequences.join(instance.key, instance.spec.lanes, trio.current_time())
        instance.settled.set()
        # Not after a failed load: that is final, even where a sibling's load ends after it.
        if self.status in (Status.LOADING, Status.UNAVAILABLE) and all(
            each.started_once for each in self.instances
        ):
            self.become(Status.READY)
        self.ring()

    def load_failed(self, reason: str, instance: InstanceState | None = None) -> None:
        """An instance could not load the model, or died while loading.

        Before the version first serves, that is final.
        """
        if instance is not None and not instance.started_once:
            instance.load_error = reason
            instance.settled.set()
        if self.status is Status.LOADING:
            self.become(Status.UNAVAILABLE, reason)

    def add_instances(self, specs: Sequence[InstanceSpec]) -> list[InstanceState]:
        """Make room for more instances, which the caller starts."""
        added = [InstanceState(spec, str(next(self._keys))) for spec in specs]
        self.instances += added
        self.rotation += (each for each in added if not each.spec.passive)
        return added

    def remove_instance(self, instance: InstanceState) -> None:
        """Give an instance no more batches; the caller stops it.

        The batches that it has not begun, and its suspects, are queued again.
        """
        if instance.worker is not None and self.sequences is None:
            for batch in reversed(instance.worker.not_begun()):
                self.take_back(instance, batch)
        self.instances.remove(instance)
        # A passive instance is never in it, nor is one that was given up as stuck.
        if instance in self.rotation:
            self.rotation.remove(instance)
        if self.limiter is not None:
            self.limiter.withdraw(instance)
        instance.settled.set()
        self._deaths.end_sequences(instance, "has been taken out of service")
        self.queue.push_front(instance.suspects.drain())
        self.ring()

    def respecify(self, spec: ModelSpec) -> None:
        """Take over a configuration that differs from the present one only in its instances."""
        self.spec = spec

    def instance_exhausted(self, instance: InstanceState) -> None:
        """An instance died too often without progress.

        It is retried now and then, and nothing waits for it.
        """
        instance.exhausted = True
        error = Unavailable(f"instance '{instance.spec.name}' keeps dying: {instance.last_reason}")
        for request in instance.suspects.drain():
            self.fail(request, error, FailureReason.OTHER)
        if all(each.exhausted and each.worker is None for each in self.rotation):
            if self.status is Status.READY:
                self.become(
                    Status.UNAVAILABLE, f"Unavailable: all instances keep dying: {instance.last_reason}"
                )
            self.fail_queued(Unavailable(f"model '{self.spec.name}' is unavailable: {instance.last_reason}"))

    async def says_ready(self) -> bool:
        """Whether the version serves and its live instances say that they are ready, within `PROBE_SECONDS`.

        Only an instance with its own check is asked.
        """
        if self.status is not Status.READY:
            return False
        said = await self.asked()
        return said is not None and all(ready for _, _, ready in said)

    async def asked(self) -> list[tuple[InstanceState, LiveWorker, bool]] | None:
        """Ask each live instance now whether it is ready, and return the answers.

        Returns None where that takes longer than `PROBE_SECONDS`.
        """
        workers = [(each, each.worker) for each in self.instances if each.worker is not None]
        said: list[tuple[InstanceState, LiveWorker, bool]] = []
        all_answered = trio.Event()

        def tell(instance: InstanceState, worker: LiveWorker, ready: bool) -> None:  # `LiveWorker.probe`'s
            said.append((instance, worker, ready))
            if len(said) == len(workers):
                all_answered.set()

        tells = [(worker, partial(tell, instance, worker)) for instance, worker in workers]
        for worker, each in tells:
            worker.probe(each)
        try:
            if len(said) < len(workers):
                with trio.move_on_after(PROBE_SECONDS):
                    await all_answered.wait()
        finally:
            for worker, each in tells:
                worker.forget(each)
        return said if len(said) == len(workers) else None

    # -- requests in -----------------------------------------------------------------------------------------

    async def submit(self, request: InferRequest, *, pinned: bool = False) -> None:
        """Validate and queue `request`. See `actors.values.interfaces.ServedModel.submit`, and `pin`."""
        if self._validate.must_walk(request):
            await in_slices(self._validate.walk_strings(request))
            if request.cancelled:
                raise Cancelled("")
        try:
            self.submit_nowait(request, pinned=pinned)
        except trio.WouldBlock:
            await self._line.wait(request)
            # An equal request may have been answered meanwhile.
            if self.cache is None or not self.cache.intercept(request):
                self._enqueue(request)

    def submit_nowait(self, request: InferRequest, *, pinned: bool = False, in_company: bool = False) -> None:
        """Validate and queue `request`, if there is room.

        See `actors.values.interfaces.ServedModel.submit_nowait`, and `pin`.

        `in_company`: other requests may follow in this turn of the loop, so a batch should not begin with
            this request alone.
        """
        if not (pinned and self.status is Status.UNLOADING):
            self._check_accepting(request)
        if self._validate.must_walk(request):
            raise trio.WouldBlock
        self._validate(request)
        if request.synthetic:
            # It runs in a batch of its own: its failure must not become a client's.
            request.batch_key = object()
        if self.quarantine and self.quarantine.match(request, trio.current_time()):
            self.statistics.quarantined += 1
            raise Poisoned(
                f"{request.prefix}this request is quarantined: it killed workers of model '{self.spec.name}' before; "
                f"the same inputs are refused for {QUARANTINE_SECONDS:.0f} s after that"
            )
        if self._deaths.accused:
            self._deaths.recognise(request, trio.current_time())
        if self.cache is not None and self.cache.intercept(request):
            return
        if self.slo is not None:
            self._refuse_if_late(request, self.slo)
        if not (self._line.may_pass(request) and self.queue.admits(request)):
            raise trio.WouldBlock
        self._enqueue(request, in_company=in_company)

    def _enqueue(self, request: InferRequest, *, in_company: bool = False) -> None:
        if self.cache is not None and self.cache.holds(request):
            return
        try:
            self.queue.push(request, trio.current_time())
        except Unavailable as full:
            full.retry_after = full.retry_after or self._room_after()
            raise
        self.in_flight[request] = None
        if self.cache is not None:
            self.cache.queued(request)
        if len(self.in_flight) == 1 and self.take_turn is not None and not in_company:
            # No other request is in flight to share a batch with: waking the scheduler would only cost time.
            self.take_turn()
        else:
            self.ring()

    def queue_again(self, request: InferRequest, since: float) -> None:
        """Queue a request that was accepted at `since` and has waited in the cache for nothing.

        Its queue timeout runs from `since`.
        """
        if self.quarantine and self.quarantine.match(request, trio.current_time()):
            self._refuse_quarantined(request)
            return
        try:
            self.queue.push(request, since)
        except Unavailable as full:
            full.retry_after = full.retry_after or self._room_after()
            self.fail(request, full, FailureReason.OTHER)
            return
        self.in_flight[request] = None
        if self.cache is not None:
            self.cache.queued(request)
        self.ring()

    def _room_after(self) -> float:
        """Return the seconds in which the queued requests may have been answered; 0 where that is unknown."""
        return self._pace.after(
            len(self.queue),
            answered=self.statistics.success_count,
            usual=lambda: self.statistics.lane_rate * sum(each.spec.lanes for each in self.rotation),
            now=trio.current_time(),
        )

    def _refuse_if_late(self, request: InferRequest, slo: Admission) -> None:
        """Raise Unavailable for a request that can't be answered in time."""
        ahead = self.queue.ahead_of(request) + self._line.ahead()
        patience = self.queue.patience(request)
        slo.admit(request, ahead=ahead, patience=patience, now=trio.current_time())

    def _check_accepting(self, request: InferRequest) -> None:
        if self.status is Status.READY:
            return
        if self.status is Status.UNLOADING:
            if self.sequences is not None and not self.ended.is_set():
                # A request that goes on with a sequence is accepted (contract, section 6.1).
                self.sequences.stop(STOPPING)
                return
            raise Unavailable(request.prefix + STOPPING)
        raise Unavailable(
            f"Request for unknown model: '{self.spec.name}' version {self.spec.version} is not at ready state"
        )

    def _look_again(self) -> None:
        """A request has left the line: tasks that wait for the end of all requests count again."""
        self._drained.set()

    def cancel(self, request: InferRequest) -> None:
        """The client left. See `actors.values.interfaces.ServedModel.cancel`."""
        request.cancelled = True
        if self._line.refuse(request, Cancelled("")):
            return
        if request not in self.in_flight or self._cancel_waiting(request):
            return
        if self.cache is not None and self.cache.is_wanted(request):
            # It goes on for the requests that wait for its answer.
            return
        if self.composite is not None:
            self.composite.cancel(request)
        for instance in self.instances:
            worker = instance.worker
            if worker is None:
                continue
            batch = worker.holding(request)
            if batch is not None and self.take_back(instance, batch):
                self._cancel_waiting(request)
                return
            worker.cancel(request)

    def _cancel_waiting(self, request: InferRequest) -> bool:
        """Answer `request`, whose client has left, if it has not been dispatched. False if it has."""
        suspects = (instance.suspects for instance in self.instances)
        ended = self.queue.abandon(request, trio.current_time())
        if not ended and (
            (self.cache is not None and self.cache.withdraw(request))
            or any(each.remove(request) for each in suspects)
        ):
            ended = [request]
        for member in ended:
            self.fail(member, Cancelled(""), FailureReason.CANCELED)
        if ended and (self.limiter is not None or self.sequences is not None):
            # An instance may be standing in line for this request alone, and a slot may be free.
            self.ring()
        return bool(ended)

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
            self._drained.set()
            if self.composite is not None:
                self.composite.let_go()

    def count_composed(self, request: InferRequest, timing: tuple[int, int, int, int]) -> None:
        """Count a request for which other models were executed; `timing` is as in `InferResponse`."""
        if request.synthetic:
            return
        total_ns = int((trio.current_time() - request.accepted_at) * 1e9)
        self.statistics.succeeded(request.rows, *timing, total_ns, streamed=self.spec.decoupled)
        self.statistics.batch_executed(max(1, request.rows), *timing[1:], self._wall_clock())

    def describe_statistics(self) -> dict[str, object]:
        """Return this version's element of the statistics endpoint.

        It has a key `tritium` where there is more to tell than Triton does.
        """
        element = self.statistics.as_model_stats(self.spec.name, self.spec.version)
        ours: dict[str, object] = {}
        if (shares := self.queue.shares()) is not None:
            ours["tenants"] = {name: asdict(share) for name, share in shares.items()}
        if self.slo is not None:
            ours["slo"] = self.slo.sample(len(self.queue)).document()
        return {**element, "tritium": ours} if ours else element

    def count_hit(self, request: InferRequest, queue_ns: int, lookup_ns: int) -> None:
        """Count a request that is answered from the cache, now."""
        total_ns = int((trio.current_time() - request.accepted_at) * 1e9)
        self.statistics.cache_hit(queue_ns, lookup_ns, total_ns, self._wall_clock())

    # -- scheduling ------------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Tell the scheduler that something changed. Rings before its next look count as one."""
        if not self._rung:
            self._rung = True
            self._ring.send_nowait(None)

    def answer_door(self) -> None:
        """The scheduler is about to look at everything; a later change rings again."""
        if self._rung:
            self._rung = False
            try:
                self.doorbell.receive_nowait()
            except trio.WouldBlock:
                return  # it was woken by receiving it

    def made_room(self) -> None:
        """Requests have left the queue: the tasks that wait for room look again."""
        self._line.call_next()

    def dispatch(self, worker: LiveWorker, requests: Sequence[InferRequest], *, alone: bool = False) -> bool:
        """Hand a batch to an instance with room.

        If that fails, the requests of this batch are answered, no others are, and the result is False.
        """
        if self.quarantine and self.sequences is None:
            requests = self._sift(requests)
            if not requests:
                return False
        try:
            worker.dispatch(requests, now=trio.current_time(), alone=alone)
        except (OSError, MemoryError) as error:
            self._fail_batch(requests, f"no memory to run a batch of model '{self.spec.name}': {error}")
            return False
        except BaseException:
            self._fail_batch(
                requests, f"a batch of model '{self.spec.name}' could not be handed to its instance"
            )
            raise
        else:
            if self._ordering is not None:
                for request in requests:
                    self._ordering.ticket(request)
            if self.slo is not None:
                requests[0].dispatched_at = trio.current_time()
                self.slo.dispatched(len(self.queue))
            self._line.call_next()
            return True

    def _sift(self, requests: Sequence[InferRequest]) -> Sequence[InferRequest]:
        """Refuse the requests that were quarantined since they were accepted; return the rest."""
        now, newest = trio.current_time(), self.quarantine.added_at
        kept = []
        for request in requests:
            if request.accepted_at <= newest and self.quarantine.match(request, now):
                self._refuse_quarantined(request)
            else:
                kept.append(request)
        return kept

    def _refuse_quarantined(self, request: InferRequest) -> None:
        self.statistics.quarantined += 1
        why = f"{request.prefix}this request is quarantined: it killed workers of model '{self.spec.name}' before"
        self.fail(request, Poisoned(why), FailureReason.BACKEND)

    def take_back(self, instance: InstanceState, batch: InFlight) -> bool:
        """Put a batch that was handed to `instance` back to where it waited.

        Returns False if its model has begun with it.
        """
        now = trio.current_time()
        if instance.worker is None or not instance.worker.take_back(batch, now):
            return False
        requests = [request for request in batch.requests if not (request.padding or request.answered)]
        if self.sequences is not None:
            for request in reversed(requests):  # each goes to the head
                self.sequences.put_back(request, alone=batch.alone, now=now)
        elif batch.alone:
            instance.suspects.outcome_died((tuple(requests),))
        else:
            self.queue.push_front(requests)
        self.batch_ended(instance)
        self.ring()
        return True

    def _queue_wants(self, instance: InstanceState) -> bool:
        return len(self.queue) > 0 or len(instance.suspects) > 0

    def batch_ended(self, instance: InstanceState) -> None:
        """An execution of `instance` is over: other instances may take the resources that it held.

        Some of its answers may still be to come.
        """
        if self.limiter is not None:
            # It stays in line only if its scheduler can answer the bell: otherwise it would hold others up.
            stays = self.take_turn is not None and instance.worker is not None and instance in self.rotation
            self.limiter.ended(instance, again=stays and self.wants(instance))

    def _fail_batch(self, requests: Sequence[InferRequest], why: str) -> None:
        for request in requests:
            self.fail(request, Unavailable(request.prefix + why), FailureReason.OTHER)

    # -- answers out -----------------------------------------------------------------------------------------

    def completed(self, batch: InFlight, result: Result, answers: Sequence[Cut], *, borrowed: bool) -> None:
        """Answer the requests of a finished batch.

        `borrowed` outputs take a lease of the slot for each response.
        """
        now = trio.current_time()
        spec, statistics = self.spec, self.statistics
        if self.sequences is not None:
            answers = [_collected(self.sequences, *cut) for cut in answers if not cut[0].padding]
        # A worker's clock is believed only as far as it can be true. No duration exceeds the age of the
        # oldest request.
        limit = int((now - min(request.accepted_at for request in batch.requests)) * 1e9)
        input_ns, infer_ns = min(result.input_ns, limit), min(result.infer_ns, limit)
        output_ns = min(result.output_ns, limit)
        compute_ns = input_ns + infer_ns + output_ns
        rows = clients = 0
        for request, outputs, answer in answers:
            if not request.synthetic:
                clients += 1
                rows += request.rows
            total_ns = int((now - request.accepted_at) * 1e9)
            if request.accused is not None and not (answer is not None and answer.open):
                self._deaths.acquit(request)
            if answer is not None:
                if answer.rescheduled:
                    self._reschedule(request)
                    continue
                if answer.open:  # its answer comes in parts
                    continue
                if answer.code is not None:
                    self.fail(request, TritiumError.of(answer.code, answer.message), FailureReason.BACKEND)
                    continue
            queue_ns = max(0, total_ns - compute_ns)
            if not request.synthetic:
                statistics.succeeded(request.rows, queue_ns, input_ns, infer_ns, output_ns, total_ns)
            response = InferResponse(
                model_name=spec.name,
                model_version=spec.version,
                id=request.id,
                outputs=outputs,
                parameters=_parameters(request, None if answer is None else answer.parameters),
                timing=(queue_ns, input_ns, infer_ns, output_ns),
            )
            if borrowed:
                self._lend(response, batch, outputs)
            self.respond(request, response)
        if clients:
            statistics.batch_executed(rows, input_ns, infer_ns, output_ns, self._wall_clock())
        if self.slo is not None and batch.requests[0].dispatched_at >= 0.0:  # else it was a warmup
            latencies = [now - request.accepted_at for request in batch.requests if not request.synthetic]
            service = now - batch.requests[0].dispatched_at
            self.slo.returned(len(batch.requests), rows, service, latencies, now)

    def _reschedule(self, request: InferRequest) -> None:
        """The model released a request with RESCHEDULE: run it again (contract, section 6.7)."""
        if request.answered:
            return
        if self.sequences is None or not self.sequences.iterative:
            error = InvalidArgument(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to"
                " handle such a flag."
            )
            self.fail(request, error, FailureReason.BACKEND)
        elif request.cancelled:
            self.fail(request, Cancelled(""), FailureReason.CANCELED)
        elif self.sequences.reschedule(request, trio.current_time()):
            self.ring()
        else:
            why = f"sequence {request.correlation_id!r} of model '{self.spec.name}' has ended with its instance; send it again"
            self.fail(request, Unavailable(request.prefix + why), FailureReason.BACKEND)

    def partial(self, batch: InFlight, arrived: Arrived) -> None:
        """Pass on one part of a decoupled model's answer.

        A message with the end alone, without a response, becomes a final response without outputs. Times are
        the server's: a request computes from the start of its batch to its last part.
        """
        stream, answer = arrived.stream, arrived.answer
        request = stream.request
        total_ns = int((trio.current_time() - request.accepted_at) * 1e9)
        queue_ns = min(total_ns, max(0, int((batch.started_at - request.accepted_at) * 1e9)))
        if arrived.first and not request.synthetic:
            self.statistics.first_part(total_ns)
        if arrived.final and request.accused is not None:
            self._deaths.acquit(request)
        if answer is not None and answer.code is not None:
            error = TritiumError.of(answer.code, answer.message)
            if arrived.final:
                self.fail(request, error, FailureReason.BACKEND)
                return
            stream.take_when_dropped(error)
            self.respond(request, error, final=False)
            return
        response = InferResponse(
            model_name=self.spec.name,
            model_version=self.spec.version,
            id=request.id,
            outputs=arrived.outputs,
            parameters=_parameters(request, None if answer is None else answer.parameters),
            timing=(queue_ns, 0, total_ns - queue_ns, 0),
        )
        if arrived.costs:
            response.on_release(arrived.taken)
        if arrived.final and not request.synthetic:
            infer_ns = total_ns - queue_ns
            self.statistics.succeeded(request.rows, queue_ns, 0, infer_ns, 0, total_ns, streamed=True)
        self.respond(request, response, final=arrived.final)

    def _lend(self, response: InferResponse, batch: InFlight, outputs: Sequence[Tensor]) -> None:
        # The response may wait for an earlier one, which may need this very slot.
        if self._ordering is not None:
            for tensor in outputs:
                tensor.data = bytes(tensor.data)
            return
        batch.slot.lease()
        response.on_release(batch.slot.release)

    def fail(self, request: InferRequest, error: TritiumError, reason: FailureReason) -> None:
        """Answer an accepted request with an error, and count it.

        An ensemble's failures are all counted with the reason OTHER.
        """
        if self.composite is not None:
            reason = FailureReason.OTHER
        if not request.synthetic:
            self.statistics.failed(reason, int((trio.current_time() - request.accepted_at) * 1e9))
        self.respond(request, error)

    def respond(
        self, request: InferRequest, part: InferResponse | TritiumError, *, final: bool = True
    ) -> None:
        """Give one part of an answer. A part after the final one is counted as a bug and dropped."""
        if request.answered:
            self.statistics.reply_violations += not request.padding
            if isinstance(part, InferResponse):
                part.release()
            return
        if not final:
            request.reply.put(part, final=False)
            return
        request.answered = True
        self.in_flight.pop(request, None)
        if self.cache is not None:
            self.cache.settle(request, part)
        if self.sequences is not None:
            self.sequences.done(request, trio.current_time())
            if len(self.queue):
                self.ring()
        # A request that never ran is not in `_ordering`, and no other answer waits for its own.
        if self._ordering is None or request not in self._ordering:
            request.reply.put(part, final=True)
        else:
            for member, answer in self._ordering.release(self._ordering.ticket(request), part):
                member.reply.put(answer, final=True)
        if self._line:
            self._line.call_next()  # the answered request may have left the queue
        elif not self.in_flight:
            self._drained.set()

    # -- deaths and ends -------------------------------------------------------------------------------------

    def known_killers(self, marks: Mapping[InferRequest, Fingerprint]) -> Mapping[InferRequest, Fingerprint]:
        """Return those of `marks` under which a worker has died not long ago."""
        return self._deaths.known(marks)

    def settle(
        self,
        instance: InstanceState,
        aftermath: Aftermath,
        marks: Mapping[InferRequest, Fingerprint] = _NO_MARKS,
    ) -> None:
        """Carry out what `actors.serving.policy.retries` decided after the death of `instance`'s worker.

        `marks` are the fingerprints of the executed requests, as far as they were made.
        """
        self._deaths.settle(instance, aftermath, marks)

    def fail_queued(self, error: TritiumError) -> None:
        """Answer every waiting request with `error`."""
        if self.cache is not None:
            for request in self.cache.abandon():
                self.fail(request, error, FailureReason.OTHER)
        for request in self.queue.drain():
            self.fail(request, error, FailureReason.OTHER)
        self._line.refuse_all(error)

    def give_up(self, why: str) -> None:
        """Answer all remaining requests, and stop waiting for the workers that execute them."""
        self.given_up = True
        self.fail_queued(Unavailable(why))
        for instance in self.instances:
            instance.suspects.drain()
            if instance.worker is not None:
                instance.worker.disown()
        for request in list(self.in_flight):
            self.fail(request, Unavailable(request.prefix + why), FailureReason.OTHER)
        if self.composite is not None:
            self.composite.give_up()

    def stuck_for(self, now: float) -> float:
        """Return for how many seconds every serving instance has been busy with one execution.

        Returns 0 while one instance is not, or while executions have a time limit.
        """
        if self.spec.execution_timeout:
            return 0.0
        workers = [each.worker for each in self.rotation if each.worker is not None]
        since = max((worker.stuck_since for worker in workers), default=math.inf)
        return now - since if since < math.inf else 0.0

    def give_up_stuck(self, bound: float, why: str) -> None:
        """Answer with `why` the requests that have been executing for `bound` seconds.

        Where no instance is left to serve, every other request is answered as well.
        """
        now = trio.current_time()
        if self.stuck_for(now) >= bound:
            self.give_up(why)
            return
        for instance in list(self.rotation):
            worker = instance.worker
            if worker is None or self.spec.execution_timeout or now - worker.stuck_since < bound:
                continue
            held = [request for batch in worker.outstanding.values() for request in batch.requests]
            self.rotation.remove(instance)  # else it would seem idle once disowned
            worker.disown()
            for request in held:
                self.fail(request, Unavailable(request.prefix + why), FailureReason.OTHER)

    async def wait_drained(self) -> None:
        """Wait until every accepted request is answered and no ensemble's request counts on this version."""
        while self.in_flight or self._line or self._pins:
            if self._drained.is_set():
                self._drained = trio.Event()
            await self._drained.wait()

    def close(self) -> None:
        """The subtree has ended.

        A request that is unanswered now was dropped by a bug or by a deadline: tell its client.
        """
        self.fail_queued(Unavailable(STOPPING))
        for request in list(self.in_flight):
            self.fail(request, Unavailable(request.prefix + STOPPING), FailureReason.OTHER)
        if self.composite is not None:
            self.composite.give_up()


def _collected(
    sequences: Sequencing, request: InferRequest, outputs: list[Tensor], answer: Answer | None
) -> Cut:
    """Return what the client gets: no states, or the error of states that can't be kept."""
    failed = answer is not None and answer.code is not None
    try:
        return request, sequences.collect(request, outputs, failed=failed), answer
    except Internal as error:
        return request, [], Answer(code=error.code, message=request.prefix + error.message)


def _parameters(
    request: InferRequest, given: Mapping[str, Parameter] | None
) -> Mapping[str, Parameter] | None:
    if request.attempts <= 1:
        return given
    return {**(given or {}), "attempts": request.attempts}
