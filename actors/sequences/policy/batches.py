"""Which sequences of a group run next, and what their model is given with the requests. Pure.

Two strategies choose a batch from a group's *ready* sequences, whose first request could run: `direct` gives
each slot its own row and pads the rows between, `oldest` takes the requests that came first. No step looks at
more sequences than fit into a batch. Contract, scheduling.md sections 6.3 to 6.6.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

from actors.sequences.policy.controls import Controls, Extra, Padding, zeros
from actors.sequences.policy.implicit_state import ImplicitState
from actors.sequences.policy.records import Batch, LiveSequence, SlotGroup, StateKey
from actors.sequences.policy.tickets import Tickets
from actors.serving.policy.batching import BatchPolicy, Dispatch, Wait, affordable
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest
from actors.values.specs import DirectStrategy, ModelSpec, OldestStrategy, SequenceBatching
from actors.values.tensors import Tensor

_NEVER: Final = Wait(math.inf)
_FLAGS: Final = FLAG_SEQUENCE_START | FLAG_SEQUENCE_END


class Batches:
    """The batches of one model's sequences, and their controls and states."""

    def __init__(
        self,
        spec: ModelSpec,
        scheduling: SequenceBatching,
        controls: Controls,
        state: ImplicitState,
        tickets: Tickets,
    ) -> None:
        self._spec = spec
        self._controls = controls
        self._state = state
        self._tickets = tickets
        self._strategy: DirectStrategy | OldestStrategy = scheduling.strategy
        self.slots = max(1, spec.max_batch_size)
        """Slots of a group."""
        self._oldest: BatchPolicy | None = None
        if isinstance(scheduling.strategy, OldestStrategy):
            self._oldest = BatchPolicy(
                max_batch_size=self.slots,
                preferred_batch_sizes=frozenset(scheduling.strategy.preferred_batch_sizes),
                max_queue_delay=scheduling.strategy.max_queue_delay,
            )
            self.slots = scheduling.strategy.max_candidate_sequences or self.slots
        self._padding_extra: Extra = (
            *controls.padding,
            *(zeros(each.name, each.datatype, each.shape) for each in state.initial),
        )
        self.alone: set[InferRequest] = set()
        """Requests that are suspected of killing workers."""

    def padding(self) -> Padding:
        """Return the padding rows of a new group."""
        return Padding(self._spec, self._padding_extra)

    # -- which sequences could run ---------------------------------------------------------------------------

    def make_ready(self, sequence: LiveSequence, group: SlotGroup) -> None:
        """The first request of `sequence`, which has a slot in `group`, could run."""
        request = sequence.queue[0]
        if self._state.varies and request not in self.alone:
            key = request.batch_key
            states = self._state.initial if request.flags & FLAG_SEQUENCE_START else sequence.states
            request.batch_key = StateKey(
                key.inputs if isinstance(key, StateKey) else key, tuple(tuple(each.shape) for each in states)
            )
        insort(group.ready, (self._tickets.queued[request].number, sequence))

    def unready(self, sequence: LiveSequence, group: SlotGroup) -> None:
        """It could not run any more."""
        number = self._tickets.queued[sequence.queue[0]].number
        del group.ready[bisect_left(group.ready, number, key=_number)]

    def set_apart(self, request: InferRequest) -> None:
        """Let nothing else run in the batch of `request`, which is suspected of killing workers."""
        self.alone.add(request)
        request.batch_key = object()

    def acquit(self, request: InferRequest) -> None:
        """`request` is not suspected (any more), or is over."""
        self.alone.discard(request)

    # -- the next batch --------------------------------------------------------------------------------------

    def decide(self, group: SlotGroup, now: float) -> Dispatch | Wait:
        """Return how many sequences of `group` go into a batch at `now`, or until when there is no batch."""
        if group.running or not group.ready:
            return _NEVER
        if self._oldest is not None:
            heads = (sequence.queue[0] for _, sequence in group.ready)
            return self._oldest.decide(heads, oldest=self._waits_since(group), now=now)
        until = self._direct_until(group)
        return Wait(until) if until > now else Dispatch(len(group.ready))

    def suspects(self, group: SlotGroup) -> bool:
        """Whether the next batch of `group` is one request that is suspected of killing workers."""
        return bool(group.ready) and group.ready[0][1].queue[0] in self.alone

    def form(self, group: SlotGroup, decision: Dispatch) -> Batch:
        """Take the batch that `decide` has just decided on."""
        if self._oldest is None:
            return self._take_direct(group)
        chosen = [sequence for _, sequence in group.ready[: decision.requests]]
        return self._take_oldest(group, chosen[: affordable([each.queue[0].nbytes for each in chosen])])

    def _waits_since(self, group: SlotGroup) -> float:
        return self._tickets.queued[group.ready[0][1].queue[0]].enqueued_at

    def _direct_until(self, group: SlotGroup) -> float:
        """When a batch may run whose slots are as full as they are now (contract, section 6.4)."""
        strategy = self._strategy
        if not isinstance(strategy, DirectStrategy) or not (
            strategy.max_queue_delay and strategy.minimum_slot_utilization
        ):
            return -math.inf
        if len(group.ready) / self.slots >= strategy.minimum_slot_utilization:
            return -math.inf
        return self._waits_since(group) + strategy.max_queue_delay

    def _take_oldest(self, group: SlotGroup, chosen: Sequence[LiveSequence]) -> Batch:
        del group.ready[: len(chosen)]
        requests = [self._take(sequence, group) for sequence in chosen]
        return Batch(requests, alone=requests[0] in self.alone)

    def _take_direct(self, group: SlotGroup) -> Batch:
        """Take the requests with the shapes of the one that has waited longest; the other rows are padding.

        So a request whose shapes differ from all others comes first in its turn, and can't be passed over for
        ever.
        """
        ready = [sequence for _, sequence in group.ready]
        first = ready[0].queue[0]
        alike = [sequence for sequence in ready if sequence.queue[0].batch_key == first.batch_key]
        chosen = alike[: affordable([each.queue[0].nbytes for each in alike])]
        rows: list[InferRequest | None] = [None] * (max(group.slots) + 1)
        for sequence in chosen:
            rows[sequence.index] = self._take(sequence, group)
        taken = set(chosen)
        group.ready = [item for item in group.ready if item[1] not in taken]
        return Batch(group.padding.fill(rows, first), alone=first in self.alone)

    def _take(self, sequence: LiveSequence, group: SlotGroup) -> InferRequest:
        request = sequence.queue.popleft()
        sequence.ticket = self._tickets.take(request, seated=True)
        sequence.running, sequence.runs_in = request, group
        group.running += 1
        if request.flags & FLAG_SEQUENCE_START:
            sequence.states = self._state.initial
        flags = request.flags & _FLAGS
        controls = sequence.controls[flags]
        if controls is None:
            controls = sequence.controls[flags] = self._controls.of(sequence.correlation_id, flags)
        request.extra = controls + sequence.states
        return request

    # -- what came of it -------------------------------------------------------------------------------------

    def collect(self, request: InferRequest, outputs: list[Tensor], *, failed: bool) -> list[Tensor]:
        """See `actors.serving.policy.waiting_line.Sequencing.collect`."""
        if not self._state:
            return outputs
        sequence = request.queue_entry
        if not failed and isinstance(sequence, LiveSequence) and sequence.running is request:
            sequence.states = self._state.after(sequence.states, outputs)
        return self._state.visible(request, outputs)


def _number(item: tuple[int, LiveSequence]) -> int:
    return item[0]
