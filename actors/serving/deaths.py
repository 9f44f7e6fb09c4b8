"""What becomes of the requests that a dead worker held: decisions are carried out on its model's state.

`actors.serving.policy.retries` has decided by then. Sequences are different. A sequence goes on if no request
of it has run, or if the server keeps its state; any other sequence has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

import trio

from actors.serving.dispatcher import sequence_lost
from actors.serving.model import ModelState
from actors.serving.policy.blame import Fingerprint
from actors.serving.policy.retries import Aftermath
from actors.serving.policy.waiting_line import Sequencing
from actors.serving.standing import InstanceState
from actors.serving.statistics import FailureReason
from actors.values.errors import Cancelled, TritiumError, Unavailable
from actors.values.requests import InferRequest

_NO_MARKS: Final[Mapping[InferRequest, Fingerprint]] = MappingProxyType({})


def settle(
    state: ModelState,
    instance: InstanceState,
    aftermath: Aftermath,
    marks: Mapping[InferRequest, Fingerprint] = _NO_MARKS,
) -> Sequence[InferRequest]:
    """Carry out what `actors.serving.policy.retries` decided after the death of `instance`'s worker.

    `marks` are the fingerprints of the executed requests, as far as they were made. Return the requests that
    are quarantined for it.
    """
    sequences, outcome = state.sequences, state.outcome
    now = trio.current_time()
    convicted = _blame(state, aftermath, marks, now)
    if sequences is not None:
        sequences.about_to_leave(instance.key)
    for request in aftermath.cancelled:
        outcome.fail(request, Cancelled(""), FailureReason.CANCELED)
    for request, error in aftermath.refuse:
        outcome.fail(request, _told(state, request, error, instance), FailureReason.BACKEND)
    if state.dispatcher.limiter is not None:
        state.dispatcher.limiter.died(instance)
    if sequences is not None:
        _settle_sequences(state, sequences, instance, aftermath, now)
    else:
        _run_again(state, instance, aftermath)
    if aftermath.suspects and sequences is None:
        # The hunted request is to blame, so the instance goes on.
        instance.exhausted = False
    elif instance.exhausted:
        state.instance_exhausted(instance)  # its trial ended as its lives before
    state.doorbell.ring()
    return convicted


def _blame(
    state: ModelState, aftermath: Aftermath, marks: Mapping[InferRequest, Fingerprint], now: float
) -> Sequence[InferRequest]:
    """Remember the requests that ran as the worker died; return those that are quarantined for it."""
    blame = state.blame
    for request in aftermath.accused:
        mark = marks.get(request)
        if mark is not None:
            blame.accuse(request, now, mark)
    for request in aftermath.quarantine:
        state.statistics.quarantined += 1
        blame.convict(request, now, marks.get(request))
    hung = [request for request in aftermath.hung if blame.hung(request, now, marks.get(request))]
    state.statistics.quarantined += len(hung)
    return [*aftermath.quarantine, *hung]


def _told(
    state: ModelState, request: InferRequest, error: TritiumError, instance: InstanceState
) -> TritiumError:
    sequences = state.sequences
    if sequences is None or sequences.keeps_state or not isinstance(error, Unavailable):
        return error
    # The requests of an ended sequence can't be tried again.
    return sequence_lost(request, instance, f"died of {instance.last_reason}")


def _run_again(state: ModelState, instance: InstanceState, aftermath: Aftermath) -> None:
    statistics = state.statistics
    if len(aftermath.suspects) > 1:
        statistics.bisected += 1
    instance.suspects.outcome_died(())
    state.queue.push_front(aftermath.requeue)
    statistics.retried += sum(1 for request in aftermath.requeue if request.attempts)
    heir: InstanceState | None = instance
    if instance not in state.instances:
        # It was dismissed, and will not come back to hunt for the suspects. One that lives comes first.
        heir = max(state.rotation, key=lambda each: each.worker is not None, default=None)
    if heir is not None:
        heir.suspects.push_split(aftermath.suspects)
        statistics.retried += sum(map(len, aftermath.suspects))
        return
    died = f"instance '{instance.spec.name}' died of {instance.last_reason}"
    why = f"{died}, and no other is left to try it again"
    for request in chain.from_iterable(aftermath.suspects):
        state.outcome.fail(request, Unavailable(request.prefix + why), FailureReason.BACKEND)


def _settle_sequences(
    state: ModelState, sequences: Sequencing, instance: InstanceState, aftermath: Aftermath, now: float
) -> None:
    """Let sequences go on that may.

    Of sequences that have begun, requests that ran are run again only where that is allowed.
    """
    why = f"died of {instance.last_reason}"
    again = [*aftermath.requeue, *chain.from_iterable(aftermath.suspects)]
    suspects = set(again[len(aftermath.requeue) :])
    unrun = {request for request in again if not request.attempts}
    state.dispatcher.end_sequences(instance, why, unrun=unrun)
    moving: list[InferRequest] = []
    lost: list[InferRequest] = []
    for request in again:
        moves = sequences.may_move(request, ran=request.attempts > 0)
        (moving if moves else lost).append(request)
    for request in reversed(moving):  # each goes to the head of its queue
        sequences.put_back(request, alone=request in suspects, now=now)
    state.statistics.retried += sum(1 for request in moving if request.attempts)
    for request in lost:
        state.outcome.fail(request, sequence_lost(request, instance, why), FailureReason.BACKEND)
