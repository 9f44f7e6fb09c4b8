"""What becomes of the requests that a dead worker held: decisions are carried out on its model's state.

`actors.serving.policy.retries` has decided by then. Sequences are different. A sequence goes on if no request of
it has run, or if the server keeps its state; any other sequence has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final

import trio

from actors.serving.policy.retries import Aftermath, Fingerprint, Quarantine
from actors.serving.policy.waiting_line import Sequencing
from actors.serving.statistics import FailureReason
from actors.values.errors import Cancelled, TritiumError, Unavailable
from actors.values.requests import InferRequest

if TYPE_CHECKING:
    from actors.serving.model import InstanceState, ModelState


# Fingerprints; a batch that killed its worker has one for each request.
_ACCUSED: Final = 4096


class Deaths:
    """Settles the deaths of one model version's workers."""

    def __init__(self, state: ModelState, remembered: float) -> None:
        """`remembered`: for how many seconds a request is known that hung, or that ran as a worker died."""
        self._state = state
        self._hung = Quarantine(remembered)  # requests that hung once, perhaps by bad luck
        self.accused = Quarantine(remembered, capacity=_ACCUSED)  # requests that ran as a worker died

    def known(self, marks: Mapping[InferRequest, Fingerprint]) -> Mapping[InferRequest, Fingerprint]:
        """Return those of `marks` under which a worker has died before."""
        now = trio.current_time()
        return {request: mark for request, mark in marks.items() if self.accused.holds(mark, now)}

    def recognise(self, request: InferRequest, now: float) -> None:
        """If `request` is accused, have it run in a batch of its own.

        So it harms no other request, and if the worker dies again, the culprit is known for certain.
        """
        request.accused = self.accused.find(request, now)
        if request.accused is not None:
            request.batch_key = object()

    def acquit(self, request: InferRequest) -> None:
        """The accused `request` has its answer, and its worker lives."""
        if isinstance(request.accused, Fingerprint):
            self.accused.discard(request.accused)
            request.accused = None

    def settle(
        self, instance: InstanceState, aftermath: Aftermath, marks: Mapping[InferRequest, Fingerprint]
    ) -> None:
        """Carry out the decision after the death of `instance`'s worker.

        `marks` are the fingerprints that were made by then.
        """
        state, sequences = self._state, self._state.sequences
        now = trio.current_time()
        for request in aftermath.accused:
            mark = marks.get(request)
            if mark is not None:
                self.accused.add(request, now, mark)
        if sequences is not None:
            sequences.about_to_leave(instance.key)
        for request in aftermath.quarantine:
            self._quarantine(request, now, marks.get(request))
        for request in aftermath.hung:
            self._remember_hang(request, now, marks.get(request))
        for request in aftermath.cancelled:
            state.fail(request, Cancelled(""), FailureReason.CANCELED)
        for request, error in aftermath.refuse:
            state.fail(request, self._told(request, error, instance), FailureReason.BACKEND)
        if state.limiter is not None:
            state.limiter.died(instance)
        if sequences is not None:
            self._settle_sequences(sequences, instance, aftermath, now)
        else:
            self._run_again(instance, aftermath)
        if aftermath.suspects and sequences is None:
            # The hunted request is to blame, so the instance goes on.
            instance.exhausted = False
        elif instance.exhausted:
            state.instance_exhausted(instance)  # its trial ended as its lives before
        state.ring()

    def _told(self, request: InferRequest, error: TritiumError, instance: InstanceState) -> TritiumError:
        sequences = self._state.sequences
        if sequences is None or sequences.keeps_state or not isinstance(error, Unavailable):
            return error
        # The requests of an ended sequence can't be tried again.
        return _sequence_lost(request, instance, f"died of {instance.last_reason}")

    def _run_again(self, instance: InstanceState, aftermath: Aftermath) -> None:
        state, statistics = self._state, self._state.statistics
        if len(aftermath.suspects) > 1:
            statistics.bisected += 1
        heir = instance
        # A dismissed instance will not come back to hunt for the suspects.
        if instance not in state.instances:
            heir = next((each for each in state.rotation if each.worker is not None), state.rotation[0])
        instance.suspects.outcome_died(())
        heir.suspects.push_split(aftermath.suspects)
        state.queue.push_front(aftermath.requeue)
        statistics.retried += sum(1 for request in aftermath.requeue if request.attempts)
        statistics.retried += sum(map(len, aftermath.suspects))

    def _settle_sequences(
        self, sequences: Sequencing, instance: InstanceState, aftermath: Aftermath, now: float
    ) -> None:
        """Let sequences go on that may.

        Of sequences that have begun, requests that ran are run again only where that is allowed.
        """
        why = f"died of {instance.last_reason}"
        again = [*aftermath.requeue, *chain.from_iterable(aftermath.suspects)]
        suspects = set(again[len(aftermath.requeue) :])
        self.end_sequences(instance, why, unrun={request for request in again if not request.attempts})
        moving: list[InferRequest] = []
        lost: list[InferRequest] = []
        for request in again:
            moves = sequences.may_move(request, ran=request.attempts > 0)
            (moving if moves else lost).append(request)
        for request in reversed(moving):  # each goes to the head of its queue
            sequences.put_back(request, alone=request in suspects, now=now)
        self._state.statistics.retried += sum(1 for request in moving if request.attempts)
        for request in lost:
            self._state.fail(request, _sequence_lost(request, instance, why), FailureReason.BACKEND)

    def end_sequences(
        self, instance: InstanceState, why: str, *, unrun: Collection[InferRequest] = ()
    ) -> None:
        """Answer the waiting requests of an instance's sequences, unless they can go on elsewhere.

        `unrun` are requests that were handed to the instance, and that it did not begin.
        """
        if self._state.sequences is not None:
            for request in self._state.sequences.leave(instance.key, trio.current_time(), unrun=unrun):
                self._state.fail(request, _sequence_lost(request, instance, why), FailureReason.BACKEND)

    def _remember_hang(self, request: InferRequest, now: float, mark: Fingerprint | None) -> None:
        """Remember a request that hung.

        A request is not run again after a hang, so a second hang comes from a request with the same inputs.
        """
        if self._hung.match(request, now):
            self._quarantine(request, now, mark)
        else:
            self._hung.add(request, now, mark)

    def _quarantine(self, request: InferRequest, now: float, mark: Fingerprint | None) -> None:
        self._state.statistics.quarantined += 1
        self._state.quarantine.add(request, now, mark)


def _sequence_lost(request: InferRequest, instance: InstanceState, why: str) -> Unavailable:
    return Unavailable(
        f"{request.prefix}sequence {request.correlation_id!r} of model '{request.model_name}' has ended: its instance"
        f" '{instance.spec.name}' {why}; begin it again with the START flag"
    )
