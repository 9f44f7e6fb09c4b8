"""How batches go to the instances of one model version, and come back unbegun. Passive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import trio

from actors.serving.doorbell import Doorbell
from actors.serving.instances.batches import HANDED, InFlight
from actors.serving.intake import Intake
from actors.serving.outcome import Outcome
from actors.serving.policy.blame import Blame
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.policy.waiting_line import Sequencing, WaitingLine
from actors.serving.ports import Observers
from actors.serving.standing import InstanceState, Standing
from actors.serving.statistics import FailureReason
from actors.values.errors import TritiumError, Unavailable
from actors.values.regions import device_place
from actors.values.requests import InferRequest
from actors.values.specs import InstanceSpec, ModelSpec
from actors.values.tensors import DevicePlace, Tensor
from actors.wire.gathering import lost_input

CRASHED: Final = "has crashed"


class Dispatcher:
    """Hands batches to the instances of one model version."""

    def __init__(
        self,
        spec: ModelSpec,
        standing: Standing,
        *,
        queue: WaitingLine,
        sequences: Sequencing | None,
        blame: Blame,
        intake: Intake,
        outcome: Outcome,
        doorbell: Doorbell,
    ) -> None:
        self.observers = Observers()
        self.limiter: RateLimiter[InstanceState] | None = None  # where executions are rate-limited
        # Whether an instance has more to execute. Schedulers other than the batcher set their own function.
        self.wants: Callable[[InstanceState], bool] = self._queue_wants
        # Whether requests may have inputs on a GPU. It stays so if the instances move elsewhere.
        self.takes_devices = spec.gpu >= 0
        self._name = spec.name
        self._standing = standing
        self._queue = queue
        self._sequences = sequences
        self._blame = blame
        self._intake = intake
        self._outcome = outcome
        self._doorbell = doorbell

    def dispatch(
        self, instance: InstanceState, requests: Sequence[InferRequest], *, alone: bool = False
    ) -> bool:
        """Hand a batch to an instance that lives and has room.

        If that fails, the requests of this batch are answered, no others are, and the result is False.
        """
        if not self._blame.clean and self._sequences is None:
            requests = self._sift(requests, alone=alone)
            if not requests:
                return False
        if self.takes_devices:
            requests = self._reachable(instance, requests)
            if not requests:
                return False
        assert instance.worker is not None, f"instance '{instance.spec.name}' has no worker"
        try:
            batch = instance.worker.dispatch(requests, now=trio.current_time(), alone=alone)
        except (OSError, MemoryError) as error:
            self._fail_unsent(requests, error)
            return False
        except BaseException as error:
            self._fail_unsent(requests, error)
            raise
        ordering = self._outcome.ordering
        if ordering is not None:
            for request in requests:
                ordering.ticket(request)
        self._intake.line.call_next()
        for observer in self.observers.told:
            observer.dispatched(batch, instance)
        return True

    def _sift(self, requests: Sequence[InferRequest], *, alone: bool) -> Sequence[InferRequest]:
        """Refuse the requests that were quarantined since they were accepted; return the rest.

        There is no time to hash long ones. Those that may be meant run each in a batch of its own, so that
        they harm no other request.
        """
        newest, refused = self._blame.quarantine.added_at, self._intake.refused
        kept = [each for each in requests if each.accepted_at > newest or not refused(each)]
        if alone or len(kept) < 2:
            return kept
        now = trio.current_time()
        apart = [each for each in kept if each.accepted_at <= newest and self._blame.must_hash(each, now)]
        if not apart:
            return kept
        others = [each for each in kept if each not in apart]
        for each in apart:
            each.batch_key = object()
        self._queue.push_front(apart if others else apart[1:])
        self._doorbell.ring()
        return others or apart[:1]

    def _reachable(self, instance: InstanceState, requests: Sequence[InferRequest]) -> Sequence[InferRequest]:
        """Answer the requests with inputs on a GPU that this instance can't read; return the others."""
        refused: dict[InferRequest, TritiumError] = {}
        for request in requests:
            for tensor in request.inputs:
                place = None if tensor.data else device_place(tensor)
                if place is None:
                    continue
                if place.keeper is not None and place.keeper.lost:
                    refused[request] = lost_input(request, tensor)
                elif instance.spec.kind != "GPU" or instance.spec.device_id != place.device:
                    refused[request] = elsewhere(request, tensor, place, instance.spec)
        for request, error in refused.items():
            self._outcome.fail(request, error, FailureReason.OTHER)
        return [each for each in requests if each not in refused] if refused else requests

    def _fail_unsent(self, requests: Sequence[InferRequest], error: BaseException) -> None:
        if isinstance(error, (OSError, MemoryError)):
            self._fail(requests, f"no memory to run a batch of model '{self._name}': {error}")
        else:
            self._fail(requests, f"a batch of model '{self._name}' could not be handed to its instance")

    def _fail(self, requests: Sequence[InferRequest], why: str) -> None:
        for request in requests:
            self._outcome.fail(request, Unavailable(request.prefix + why), FailureReason.OTHER)

    def take_back(self, instance: InstanceState, batch: InFlight) -> bool:
        """Put a batch that was handed to `instance` back to where it waited.

        Returns False if its model has begun with it.
        """
        now = trio.current_time()
        if instance.worker is None or not instance.worker.take_back(batch, now):
            return False
        self._put_back(instance, batch)
        self.ended(instance)
        self._doorbell.ring()
        return True

    def _put_back(self, instance: InstanceState, batch: InFlight) -> None:
        for observer in self.observers.told:
            observer.taken_back(batch)
        now = trio.current_time()
        requests = [request for request in batch.requests if not (request.padding or request.answered)]
        if self._sequences is not None:
            for request in reversed(requests):  # each goes to the head
                self._sequences.put_back(request, alone=batch.alone, now=now)
        elif batch.alone:
            instance.suspects.outcome_died((tuple(requests),))
        else:
            self._queue.push_front(requests)

    def unsent(self, instance: InstanceState, batch: InFlight, error: Exception) -> None:
        """Answer the requests of a batch that was handed to `instance` and could not be sent."""
        for observer in self.observers.told:
            observer.taken_back(batch)
        for place, why in (batch.unread or {}).items():
            if not batch.requests[place].answered:
                self._outcome.fail(batch.requests[place], why, FailureReason.OTHER)
        unanswered = [request for request in batch.requests if not (request.padding or request.answered)]
        self._fail_unsent(unanswered, error)
        self.ended(instance)
        self._doorbell.ring()

    def reclaim(self, instance: InstanceState) -> None:
        """The actor of `instance` has ended: take over what it left, which is nothing unless it crashed.

        Batches that the worker was not sent go back to where they waited. Any other may have run.
        """
        held, sequences = instance.held, self._sequences
        batches = [*held.open.values(), *held.outstanding.values()]
        unrun = [request for batch in batches if batch.state is HANDED for request in batch.requests]
        for request in unrun:
            request.attempts -= 1
        # Does nothing unless it crashed before its sequences were settled.
        self.end_sequences(instance, CRASHED, unrun=unrun)
        for batch in reversed(batches):
            ran = batch.state is not HANDED
            if ran:
                for observer in self.observers.told:
                    observer.died(batch, CRASHED)
            for request in batch.requests:
                stays = not ran and (sequences is None or sequences.may_move(request, ran=False))
                if not (stays or request.padding or request.answered):
                    self._outcome.fail(request, self._crashed(request, instance), FailureReason.OTHER)
            if not ran:
                self._put_back(instance, batch)
        if self.limiter is not None:
            self.limiter.died(instance)
        if instance not in self._standing.instances:
            # It will not come back to hunt for them.
            self._queue.push_front(instance.suspects.drain())
        if batches:
            # Other instances may take what was requeued.
            self._doorbell.ring()
        held.clear()

    def _crashed(self, request: InferRequest, instance: InstanceState) -> Unavailable:
        if self._sequences is None or self._sequences.keeps_state:
            return Unavailable(f"{request.prefix}instance '{instance.spec.name}' {CRASHED}")
        return sequence_lost(request, instance, CRASHED)

    def cancel(self, request: InferRequest) -> None:
        """The client of a dispatched `request` has left: take its batch back, or tell its worker."""
        for instance in self._standing.instances:
            worker = instance.worker
            if worker is None:
                continue
            batch = worker.holding(request)
            if batch is not None and self.take_back(instance, batch):
                self._intake.withdraw(request)
                return
        for worker in self._standing.workers:  # that of an instance which leaves is among them
            worker.cancel(request)

    def ended(self, instance: InstanceState) -> None:
        """An execution of `instance` is over: other instances may take the resources that it held.

        Some of its answers may still be to come.
        """
        if self.limiter is not None:
            # It stays in line only if its scheduler can answer the bell: otherwise it would hold others up.
            serves = instance.worker is not None and instance in self._standing.rotation
            stays = self._doorbell.take_turn is not None and serves
            self.limiter.ended(instance, again=stays and self.wants(instance))

    def withdraw(self, instance: InstanceState) -> None:
        """Give an instance no more batches.

        The batches that it has not begun, and its suspects, are queued again.
        """
        if instance.worker is not None and self._sequences is None:
            for batch in reversed(instance.worker.not_begun()):
                self.take_back(instance, batch)
        if self.limiter is not None:
            self.limiter.withdraw(instance)
        self._queue.push_front(instance.suspects.drain())
        self._doorbell.ring()

    def end_sequences(
        self, instance: InstanceState, why: str, *, unrun: Collection[InferRequest] = ()
    ) -> None:
        """Answer the waiting requests of an instance's sequences, unless they can go on elsewhere.

        `unrun` are requests that were handed to the instance, and that it did not begin.
        """
        if self._sequences is not None:
            for request in self._sequences.leave(instance.key, trio.current_time(), unrun=unrun):
                self._outcome.fail(request, sequence_lost(request, instance, why), FailureReason.BACKEND)

    def _queue_wants(self, instance: InstanceState) -> bool:
        return len(self._queue) > 0 or len(instance.suspects) > 0


def elsewhere(
    request: InferRequest, tensor: Tensor, place: DevicePlace, instance: InstanceSpec
) -> Unavailable:
    """Return the error of a request with an input on another GPU than its instance's."""
    return Unavailable(
        f"{request.prefix}input '{tensor.name}' of model '{request.model_name}' is on GPU {place.device}, and"
        f" instance '{instance.name}' is not: its instance groups have been changed; send the request again",
        retry_after=1.0,
    )


def sequence_lost(request: InferRequest, instance: InstanceState, why: str) -> Unavailable:
    """Return the error of a request whose sequence has ended with its instance."""
    return Unavailable(
        f"{request.prefix}sequence {request.correlation_id!r} of model '{request.model_name}' has ended: its "
        f"instance '{instance.spec.name}' {why}; begin it again with the START flag"
    )
