"""Which sequence has which slot, and which of its requests run next. Contract, scheduling.md section 6.

Theory of operation. A *sequence* is a line of requests with one correlation id, and at most one of them runs
at a time. It needs a *slot* to run at all: a place in a *group*, which is one lane of one instance and
executes one batch at a time. A sequence without a slot waits in the backlog with all its requests, and moves
as a whole. A sequence that has lost its slot to an instance's death, and has nothing queued, is in neither
place; its next request puts it into the backlog.

    START ──► backlog ──► slot ──► closing, when END is queued, or it was idle, or a client cancelled ──► gone
                 ▲          │
                 └──────────┘ its instance died, and its state is kept (`checkpoint`) or nothing of it has run

An id names a sequence only until the sequence closes. Requests that are queued then still run, and the slot
is free when nothing is queued or running. Only `LiveSequence.group` says which sequence has a slot, and
`LiveSequence.timer` is its only clock, so neither can be given back twice.

Two strategies choose a batch from a group's *ready* sequences, whose first request could run: `direct` gives
each slot its own row and pads the rows between, `oldest` takes the requests that came first. Nothing here
waits or knows the time, and no step looks at more sequences than fit into a batch.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Final

from actors.sequences.policy.controls import Controls, Extra, Padding, zeros
from actors.sequences.policy.implicit_state import ImplicitState
from actors.sequences.policy.sequence_slots import (
    Batch,
    Impatience,
    Key,
    LiveSequence,
    SequenceCounts,
    Share,
    SlotGroup,
    StateKey,
    Ticket,
)
from actors.serving.policy.batching import BatchPolicy, Dispatch, Wait, affordable
from actors.serving.policy.queueing import ENDED_AT_ONCE, RequestQueue
from actors.serving.policy.timers import Timers
from actors.values.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    TritiumError,
    Unavailable,
)
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest
from actors.values.specs import Direct, DirectStrategy, ModelSpec, OldestStrategy, SequenceBatching
from actors.values.tensors import Tensor
from actors.wire.frames import Answer
from actors.wire.gathering import Cut

RECHECK: Final = 0.05
"""Seconds that a sequence from the backlog keeps its slot at least (section 6.2).

It does not matter how long ago its last request came.
"""

# How many sequences with slots are asked for a request to let in, each time that there is room.
_LOOKS: Final = 8
_NEVER: Final = Wait(math.inf)
_FLAGS: Final = FLAG_SEQUENCE_START | FLAG_SEQUENCE_END


class SequenceQueue(RequestQueue):
    """The requests that wait for one sequence model, and whose turn it is; see the module.

    Every request given in comes out exactly once: of `form`, `expire`, `abandon`, `leave`, `remove` or
    `drain`. A request that came out of `form` ends by `done`, or comes back by `push_front`, `put_back` or
    `reschedule`.
    """

    __slots__ = (
        "_alone",
        "_arrivals",
        "_backlog",
        "_batches",
        "_controls",
        "_expired",
        "_free",
        "_going_on",
        "_groups",
        "_idle",
        "_iterative",
        "_keep",
        "_limits",
        "_live",
        "_made",
        "_model",
        "_numbers",
        "_oldest",
        "_padding_extra",
        "_queued",
        "_shares",
        "_slots",
        "_spec",
        "_state",
        "_strategy",
        "_timers",
        "_waiting_for_room",
        "last_restarted",
        "restarted",
        "stopping",
    )

    def __init__(self, spec: ModelSpec, scheduling: SequenceBatching) -> None:
        super().__init__(Direct(), spec.queue_bounds)
        strategy = scheduling.strategy
        self._spec = spec
        self._model = spec.name
        self._strategy: DirectStrategy | OldestStrategy = strategy
        self._limits = spec.queue_bounds
        self._batches = max(1, spec.max_batch_size)
        self._slots = self._batches
        self._oldest: BatchPolicy | None = None
        if isinstance(strategy, OldestStrategy):
            self._slots = strategy.max_candidate_sequences or self._batches
            self._oldest = BatchPolicy(
                max_batch_size=self._batches,
                preferred_batch_sizes=frozenset(strategy.preferred_batch_sizes),
                max_queue_delay=strategy.max_queue_delay,
            )
        self._idle = scheduling.max_idle
        self._iterative = scheduling.iterative
        self._keep = scheduling.checkpoint
        self._controls = Controls(scheduling.controls, batches=spec.batches)
        self._state = ImplicitState(spec, scheduling)
        self._padding_extra: Extra = (
            *self._controls.padding,
            *(zeros(state.name, state.datatype, state.shape) for state in self._state.initial),
        )
        self._live: dict[Key, LiveSequence] = {}
        self._queued: OrderedDict[InferRequest, Ticket] = OrderedDict()
        self._backlog: OrderedDict[LiveSequence, None] = OrderedDict()
        self._groups: dict[str, list[SlotGroup]] = {}
        self._free: list[tuple[int, int, SlotGroup]] = []  # the lowest slot of all groups first
        self._timers: Timers[LiveSequence | Impatience | InferRequest] = Timers()
        self._shares = (Share(), Share())  # of the backlog, of slots
        self._alone: set[InferRequest] = set()
        self._waiting_for_room: dict[int | str, OrderedDict[InferRequest, None]] = {}
        self._going_on: OrderedDict[int | str, None] = OrderedDict()  # those of them that have a slot
        self._arrivals = count()
        self._numbers = count()
        self._made = count(1)
        self._expired = 0
        self.restarted = 0  # sequences that were begun anew without having ended
        self.last_restarted: int | str = 0
        self.stopping = ""  # why no new sequence is begun

    # -- what waits ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._queued)

    def __contains__(self, request: InferRequest) -> bool:
        return request in self._queued

    @property
    def nbytes(self) -> int:
        """How many input bytes wait."""
        return sum(share.nbytes for share in self._shares)

    @property
    def queued_for_slots(self) -> int:
        """How many requests of sequences with a slot wait."""
        return self._shares[True].requests

    @property
    def queued_in_backlog(self) -> int:
        """How many requests of sequences without a slot wait."""
        return self._shares[False].requests

    @property
    def depth_by_level(self) -> Mapping[int, int]:
        """How many requests wait; there is one level."""
        return {0: len(self._queued)}

    @property
    def oldest_enqueued(self) -> float:
        """When the request that has waited longest was enqueued; infinite if none waits."""
        return next(iter(self._queued.values())).enqueued_at if self._queued else math.inf

    def counts(self) -> SequenceCounts:
        """Return how many sequences are where."""
        groups = [group for groups in self._groups.values() for group in groups]
        seated = sum(len(group.slots) for group in groups)
        return SequenceCounts(
            live=len(self._live),
            seated=seated,
            backlogged=len(self._backlog),
            free_slots=sum(len(group.slots) if group.leaving else group.limit for group in groups) - seated,
            expired=self._expired,
            restarted=self.restarted,
        )

    # -- requests in -----------------------------------------------------------------------------------------

    def admits(self, request: InferRequest) -> bool:
        """Whether `request` may be pushed now; if not, its caller waits until something has left.

        The backlog and the sequences with slots each have the queue's bounds. With one bound for both, a full
        backlog would keep the sequences with slots from ever coming to an end.
        """
        sequence = self._live.get(request.correlation_id)
        seated = bool(self._free) if sequence is None else sequence.group is not None
        share = self._shares[seated]
        return not share.requests or (
            share.requests < self._limits.requests and share.nbytes + request.nbytes <= self._limits.nbytes
        )

    def may_pass(self, request: InferRequest) -> bool:
        """Whether `request` may be queued before others that wait for room.

        It may if it goes on with a sequence that has a slot.
        """
        sequence = self._live.get(request.correlation_id)
        return (
            sequence is not None
            and sequence.group is not None
            and request.correlation_id not in self._waiting_for_room
        )

    def waits_for_room(self, request: InferRequest, *, waits: bool) -> None:
        """Note that `request` begins (`waits`) or has ceased to wait for room.

        While it waits, no later request of its sequence may pass it.
        """
        name = request.correlation_id
        line = self._waiting_for_room.setdefault(name, OrderedDict())
        if waits:
            line[request] = None
            sequence = self._live.get(name)
            if sequence is not None and sequence.group is not None:
                self._going_on[name] = None
        else:
            line.pop(request, None)
        if not line:
            del self._waiting_for_room[name]
            self._going_on.pop(name, None)

    def next_to_go_on(self) -> InferRequest | None:
        """Return a request that waits for room and has it, of a sequence with a slot.

        Such a request does not wait for room in the backlog.

        It looks at a few only: a request that does not fit now is looked at again when something has left.
        """
        if self._shares[True].requests >= max(1, self._limits.requests):
            return None
        for name in islice(self._going_on, _LOOKS):
            if self.admits(request := next(iter(self._waiting_for_room[name]))):
                return request
        return None

    def push(self, request: InferRequest, now: float) -> None:
        """Enqueue a validated request at `now` (contract, section 6.1).

        Raises InvalidArgument for a request that belongs to no sequence, and Unavailable for a new sequence
        while the queue is `stopping`.
        """
        sequence = self._live.get(request.correlation_id)
        if sequence is None or request.flags or request.rows != 1:
            sequence = self._admit(request)
        self._append(sequence, request, now)
        if request.flags & FLAG_SEQUENCE_END:
            self._close(sequence)

    def _admit(self, request: InferRequest) -> LiveSequence:
        """Return the sequence of `request`, a new one if it begins one."""
        if request.synthetic and not request.correlation_id:
            return LiveSequence(self._own_key(request, _FLAGS), request.correlation_id, self._state.initial)
        own = self._iterative and not request.correlation_id
        mismatch = None if own else self._controls.mismatch(request.correlation_id)
        if mismatch is not None and request.correlation_id:
            control, given = mismatch
            raise InvalidArgument(
                f"{request.prefix}sequence batching control '{control.name}' data-type is '{given}', but model '{self._model}' expects"
                f" '{control.datatype}'"
            )
        to_model = f"to model '{self._model}' must specify"
        if request.rows != 1:
            raise InvalidArgument(
                f"inference request {to_model} batch-size 1 due to requirements of sequence batcher"
            )
        if not request.correlation_id and not own:
            raise InvalidArgument(f"inference request {to_model} a non-zero or non-empty correlation ID")
        if self.stopping and (own or request.flags & FLAG_SEQUENCE_START):
            raise Unavailable(self.stopping)
        key: Key
        if own:
            key = self._own_key(request, FLAG_SEQUENCE_START)
            request.correlation_id = str(key[0]) if self._controls.wants_text else key[0]
        else:
            key = request.correlation_id
        sequence = self._live.get(key)
        if sequence is None:
            if not request.flags & FLAG_SEQUENCE_START:
                raise InvalidArgument(
                    f"inference request for sequence {request.correlation_id} {to_model} the START flag on the first"
                    " request of the sequence"
                )
            sequence = self._live[key] = LiveSequence(key, request.correlation_id, self._state.initial)
        elif request.flags & FLAG_SEQUENCE_START:
            self.restarted += 1
            self.last_restarted = request.correlation_id
        return sequence

    def _own_key(self, request: InferRequest, flags: int) -> tuple[int]:
        request.flags |= flags
        return (next(self._made),)

    def _append(self, sequence: LiveSequence, request: InferRequest, now: float) -> None:
        timer = 0 if request.deadline == math.inf else self._timers.set(request.deadline, request)
        request.queue_entry = sequence
        self._queued[request] = Ticket(next(self._arrivals), now, timer)
        sequence.queue.append(request)
        sequence.last_arrival = now
        self._shares[sequence.group is not None].add(request)
        if sequence.group is None:
            if sequence.running is None:
                self._backlog[sequence] = None
            if request.timeout > 0:
                self._grow_impatient(sequence, now + request.timeout)
            self._fill(now)
        elif sequence.running is None and len(sequence.queue) == 1:
            self._make_ready(sequence, sequence.group)

    def _grow_impatient(self, sequence: LiveSequence, due: float) -> None:
        earliest, timer = sequence.patience
        if due < earliest:
            self._timers.drop(timer)
            sequence.patience = due, self._timers.set(due, Impatience(sequence))

    # -- slots -----------------------------------------------------------------------------------------------

    def join(self, instance: str, lanes: int, now: float) -> None:
        """Add the slots of an instance whose model is loaded; each of its lanes is a group of its own."""
        groups = self._groups[instance] = []
        for _ in range(lanes):
            padding = Padding(self._spec, self._padding_extra)
            group = SlotGroup(instance, next(self._numbers), self._slots, padding)
            groups.append(group)
            heappush(self._free, (0, group.number, group))
        self._fill(now)

    def groups(self, instance: str) -> Sequence[SlotGroup]:
        """Return the groups of an instance that has joined."""
        return self._groups.get(instance, ())

    def about_to_leave(self, instance: str) -> None:
        """Note that an instance has died: slots freed while its requests are settled stay empty.

        The backlog does not get them.
        """
        for group in self._groups.get(instance, ()):
            group.leaving = True
        self._free = [each for each in self._free if not each[2].leaving]
        heapify(self._free)

    def leave(self, instance: str, now: float, *, unrun: Collection[InferRequest] = ()) -> list[InferRequest]:
        """Remove an instance that is gone, and return the queued requests of its sequences that are over.

        Sequences that `may_move` go on in a free slot, before those of the backlog. Requests that were
        running are left to the caller: each ends by `done`, or comes back by `put_back`. `unrun` are those of
        them that were handed to the instance, which did not begin them.
        """
        lost: list[InferRequest] = []
        moving: list[LiveSequence] = []
        self.about_to_leave(instance)
        for group in self._groups.pop(instance, ()):
            sequences = list(group.slots.values())
            group.slots.clear()
            group.ready.clear()
            for sequence in sequences:
                sequence.group = None
                if not sequence.closing:
                    self._going_on.pop(sequence.correlation_id, None)
                self._move(sequence, seated=False)
                running = sequence.running
                following = running or (sequence.queue[0] if sequence.queue else None)
                if not self.may_move(following, ran=running is not None and running not in unrun):
                    lost += self._empty(sequence)
                    self._close(sequence)
                elif sequence.queue and running is None:
                    moving.append(sequence)
        moving.sort(key=lambda sequence: self._queued[sequence.queue[0]].number, reverse=True)
        for sequence in moving:
            self._backlog[sequence] = None
            self._backlog.move_to_end(sequence, last=False)
        self._fill(now)
        return lost

    def may_move(self, following: InferRequest | None, *, ran: bool) -> bool:
        """Whether a sequence may go on in another instance; `following` is its oldest unanswered request.

        It may if its state is kept, or if it has no state yet: it begins with that request, which has not run
        (`ran`).
        """
        begins = following is not None and bool(following.flags & FLAG_SEQUENCE_START)
        return self._keep or (begins and not ran)

    def _fill(self, now: float) -> None:
        """Give free slots to sequences of the backlog."""
        while self._backlog and self._free:
            sequence, _ = self._backlog.popitem(last=False)
            index, _, group = heappop(self._free)
            if index == group.fresh:
                group.fresh += 1
                if group.fresh < group.limit:
                    heappush(self._free, (group.fresh, group.number, group))
            self._seat(sequence, group, index, now)

    def _seat(self, sequence: LiveSequence, group: SlotGroup, index: int, now: float) -> None:
        sequence.group, sequence.index = group, index
        group.slots[index] = sequence
        if sequence.key in self._waiting_for_room and not sequence.closing:
            self._going_on[sequence.correlation_id] = None
        self._move(sequence, seated=True)
        self._timers.drop(sequence.patience[1])
        sequence.patience = math.inf, 0
        sequence.seated_at = now
        if not sequence.closing and not sequence.timer:
            sequence.timer = self._timers.set(self._idle_at(sequence), sequence)
        if sequence.queue:
            self._make_ready(sequence, group)

    def _idle_at(self, sequence: LiveSequence) -> float:
        return max(sequence.last_arrival + self._idle, sequence.seated_at + RECHECK)

    def _move(self, sequence: LiveSequence, *, seated: bool) -> None:
        for request in sequence.queue:
            self._shares[seated].add(request)
            self._shares[not seated].add(request, -1)

    def _vacate(self, sequence: LiveSequence, now: float) -> None:
        """Free the slot of a sequence that needs it no more, if it has one."""
        group, sequence.group = sequence.group, None
        if group is not None:
            del group.slots[sequence.index]
            if not group.leaving:
                heappush(self._free, (sequence.index, group.number, group))
                self._fill(now)

    def _close(self, sequence: LiveSequence) -> None:
        """Close a sequence: its id names it no longer."""
        if not sequence.closing:
            sequence.closing = True
            self._timers.drop(sequence.timer)
            sequence.timer = 0
            if self._live.pop(sequence.key, None) is not None:  # a probe's never was there
                self._going_on.pop(sequence.correlation_id, None)

    def _finish(self, sequence: LiveSequence, now: float) -> None:
        """Make the next request of a sequence ready, or free its slot if it has ended. Nothing of it runs."""
        group = sequence.group
        if sequence.queue:
            if group is not None:
                self._make_ready(sequence, group)
            else:
                self._backlog[sequence] = None
                self._backlog.move_to_end(sequence, last=False)
                self._fill(now)
        elif sequence.closing:
            self._vacate(sequence, now)

    # -- batches ---------------------------------------------------------------------------------------------

    def _make_ready(self, sequence: LiveSequence, group: SlotGroup) -> None:
        request = sequence.queue[0]
        if self._state.varies and request not in self._alone:
            key = request.batch_key
            states = self._state.initial if request.flags & FLAG_SEQUENCE_START else sequence.states
            request.batch_key = StateKey(
                key.inputs if isinstance(key, StateKey) else key, tuple(tuple(each.shape) for each in states)
            )
        insort(group.ready, (self._queued[request].number, sequence))

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
        return bool(group.ready) and group.ready[0][1].queue[0] in self._alone

    def form(self, group: SlotGroup, decision: Dispatch) -> Batch:
        """Take the batch that `decide` has just decided on."""
        if self._oldest is None:
            return self._take_direct(group)
        chosen = [sequence for _, sequence in group.ready[: decision.requests]]
        return self._take_oldest(group, chosen[: affordable(map(_next_bytes, chosen))])

    def _waits_since(self, group: SlotGroup) -> float:
        return self._queued[group.ready[0][1].queue[0]].enqueued_at

    def _direct_until(self, group: SlotGroup) -> float:
        """When a batch may run whose slots are as full as they are now (contract, section 6.4)."""
        strategy = self._strategy
        if not isinstance(strategy, DirectStrategy) or not (
            strategy.max_queue_delay and strategy.minimum_slot_utilization
        ):
            return -math.inf
        if len(group.ready) / self._slots >= strategy.minimum_slot_utilization:
            return -math.inf
        return self._waits_since(group) + strategy.max_queue_delay

    def _take_oldest(self, group: SlotGroup, chosen: Sequence[LiveSequence]) -> Batch:
        del group.ready[: len(chosen)]
        requests = [self._take(sequence, group) for sequence in chosen]
        return Batch(requests, alone=requests[0] in self._alone)

    def _take_direct(self, group: SlotGroup) -> Batch:
        """Take the requests with the shapes of the one that has waited longest; the other rows are padding.

        So a request whose shapes differ from all others comes first in its turn, and can't be passed over for
        ever.
        """
        ready = [sequence for _, sequence in group.ready]
        first = ready[0].queue[0]
        alike = [sequence for sequence in ready if sequence.queue[0].batch_key == first.batch_key]
        chosen = alike[: affordable(map(_next_bytes, alike))]
        rows: list[InferRequest | None] = [None] * (max(group.slots) + 1)
        for sequence in chosen:
            rows[sequence.index] = self._take(sequence, group)
        taken = set(chosen)
        group.ready = [item for item in group.ready if item[1] not in taken]
        return Batch(group.padding.fill(rows, first), alone=first in self._alone)

    def _take(self, sequence: LiveSequence, group: SlotGroup) -> InferRequest:
        request = sequence.queue.popleft()
        sequence.ticket = self._forget(request, seated=True)
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

    def _forget(self, request: InferRequest, *, seated: bool) -> Ticket:
        ticket = self._queued.pop(request)
        if ticket.timer:
            self._timers.drop(ticket.timer)
        self._shares[seated].add(request, -1)
        return ticket

    # -- answers ---------------------------------------------------------------------------------------------

    def collect(self, cuts: Sequence[Cut]) -> list[Cut]:
        """Return what clients get of a finished batch: no padding, and no states.

        The states are kept for the next requests.
        """
        real = [cut for cut in cuts if not cut[0].padding]
        return [self._collected(*cut) for cut in real] if self._state else real

    def _collected(self, request: InferRequest, outputs: list[Tensor], answer: Answer | None) -> Cut:
        sequence = request.queue_entry
        failed = answer is not None and answer.code is not None
        if not failed and isinstance(sequence, LiveSequence) and sequence.running is request:
            try:
                sequence.states = self._state.after(sequence.states, outputs)
            except Internal as error:
                return request, [], Answer(code=error.code, message=request.prefix + error.message)
        return request, self._state.visible(request, outputs), answer

    def done(self, request: InferRequest, now: float) -> None:
        """`request` has its answer; if it was running, its sequence goes on."""
        sequence = self._stopped_running(request)
        if sequence is not None:
            self._alone.discard(request)
            if self._iterative:
                self._close(sequence)
            self._finish(sequence, now)

    def _stopped_running(self, request: InferRequest) -> LiveSequence | None:
        sequence = request.queue_entry
        if not isinstance(sequence, LiveSequence) or sequence.running is not request:
            return None
        if sequence.runs_in is not None:
            sequence.runs_in.running -= 1
        sequence.running = sequence.runs_in = None
        request.extra = ()
        return sequence

    @property
    def keeps_state(self) -> bool:
        """Whether a sequence that has begun outlives its instance (`tritium.checkpoint`)."""
        return self._keep

    @property
    def iterative(self) -> bool:
        """Whether the model may ask for a request to be run again (contract, section 6.7)."""
        return self._iterative

    def reschedule(self, request: InferRequest, now: float) -> bool:
        """Queue again a request that ran, as the next one of its sequence (contract, section 6.7).

        Its flags are cleared.

        Return False if its sequence has ended with its instance meanwhile: then the caller answers it.
        """
        held = request.queue_entry
        if not self._keep and isinstance(held, LiveSequence) and held.group is None:
            return False
        sequence = self._stopped_running(request)
        if sequence is None:
            return False
        request.flags = 0
        request.attempts = 0
        self._alone.discard(request)
        # With a queue, other requests of its sequence are before it.
        group = sequence.group if sequence.queue else None
        self._append(sequence, request, now)
        if group is not None:
            self._make_ready(sequence, group)
        return True

    def push_front(self, requests: Sequence[InferRequest]) -> None:
        """Put back requests that an instance did not run, each to the head of its sequence."""
        for request in reversed(requests):
            self.put_back(request, alone=False, now=-math.inf)

    def put_back(self, request: InferRequest, *, alone: bool, now: float) -> None:
        """Put a request back that was running when its instance died.

        `alone`: nothing else may run in its batch.
        """
        sequence = self._stopped_running(request)
        if sequence is None:
            return
        if alone:
            self._alone.add(request)
            request.batch_key = object()
        timer = 0 if request.deadline == math.inf else self._timers.set(request.deadline, request)
        self._queued[request] = sequence.ticket._replace(timer=timer)
        self._queued.move_to_end(request, last=False)
        sequence.queue.appendleft(request)
        self._shares[sequence.group is not None].add(request)
        self._finish(sequence, now)

    # -- ends ------------------------------------------------------------------------------------------------

    def abandon(self, request: InferRequest, now: float) -> list[InferRequest]:
        """End the sequence of a queued `request`: return it and all others of its sequence that wait.

        A request of the sequence that runs is not touched; the slot is free when it has its answer.
        """
        sequence = request.queue_entry
        if request not in self._queued or not isinstance(sequence, LiveSequence):
            return []
        ended = self._empty(sequence)
        self._backlog.pop(sequence, None)
        self._close(sequence)
        if sequence.running is None:
            self._vacate(sequence, now)
        return ended

    def _empty(self, sequence: LiveSequence) -> list[InferRequest]:
        """Take everything out of a sequence's queue."""
        group = sequence.group
        if group is not None and sequence.queue and sequence.running is None:
            self._unready(sequence, group)
        self._timers.drop(sequence.patience[1])
        sequence.patience = math.inf, 0
        ended = list(sequence.queue)
        sequence.queue.clear()
        for request in ended:
            self._forget(request, seated=group is not None)
            self._alone.discard(request)
        return ended

    def _unready(self, sequence: LiveSequence, group: SlotGroup) -> None:
        number = self._queued[sequence.queue[0]].number
        del group.ready[bisect_left(group.ready, number, key=_number)]

    def remove(self, request: InferRequest) -> bool:
        """Take one request out and leave its sequence as it is. Return False if it is not here (any more)."""
        sequence = request.queue_entry
        if request not in self._queued or not isinstance(sequence, LiveSequence):
            return False
        group = sequence.group
        ready = group is not None and sequence.running is None
        if ready and group is not None:
            self._unready(sequence, group)
        sequence.queue.remove(request)
        self._forget(request, seated=group is not None)
        if sequence.queue:
            if ready and group is not None:
                self._make_ready(sequence, group)
        elif sequence.running is None:
            self._backlog.pop(sequence, None)
            if sequence.group is None:
                self._close(sequence)
            elif sequence.closing:
                self._vacate(sequence, sequence.last_arrival)
        return True

    def expire(self, now: float, *, at_most: int = ENDED_AT_ONCE) -> list[tuple[InferRequest, TritiumError]]:
        """End what is due at `now`: requests past their deadlines, waits in the backlog, idle sequences.

        Return the requests that this takes out, each with the error for its client. At most `at_most` timers
        are looked at, and none once that many requests have ended; if there are more, `next_expiry` is still
        due.
        """
        ended: list[tuple[InferRequest, TritiumError]] = []
        for _ in range(at_most):
            target = self._timers.pop_due(now) if len(ended) < at_most else None
            if target is None:
                break
            if isinstance(target, LiveSequence):
                self._look_idle(target, now)
            elif isinstance(target, Impatience):
                expired = Unavailable("timeout of the corresponding sequence has been expired")
                waiting = target.sequence.queue
                ended += [(each, expired) for each in self.abandon(waiting[0], now)] if waiting else []
            else:
                ended += [
                    (each, _too_late(each) if each is target else _ended_by(each, target))
                    for each in self.abandon(target, now)
                ]
        return ended

    def _look_idle(self, sequence: LiveSequence, now: float) -> None:
        sequence.timer = 0
        if sequence in self._backlog:
            return  # its clock starts when it has a slot
        due = self._idle_at(sequence)
        if due > now:
            sequence.timer = self._timers.set(due, sequence)
            return
        self._expired += 1
        self._close(sequence)
        if sequence.running is None and not sequence.queue:
            self._vacate(sequence, now)

    def next_expiry(self) -> float:
        """When `expire` next has something to do; infinite for never."""
        return self._timers.next_due()

    def head(self, max_rows: int) -> list[InferRequest]:
        """Return the requests that have waited longest, with more than `max_rows` rows or all there are."""
        return [request for request, _ in zip(self._queued, range(max_rows + 1), strict=False)]

    def take(self, n: int) -> list[InferRequest]:
        """Remove and return the `n` requests that have waited longest, without running them."""
        taken = self.head(n - 1) if n > 0 else []
        for request in taken:
            self.remove(request)
        return taken

    def drain(self) -> list[InferRequest]:
        """Remove and return everything; every sequence that waited is over."""
        everything = list(self._queued)
        for request in everything:
            self.abandon(request, math.inf)
        return everything


def _next_bytes(sequence: LiveSequence) -> int:
    return sequence.queue[0].nbytes


def _number(item: tuple[int, LiveSequence]) -> int:
    return item[0]


def _too_late(request: InferRequest) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{request.prefix}the request's own deadline passed while it waited for its turn in sequence"
        f" {request.correlation_id!r} of model '{request.model_name}', which ends by that; begin it again with the START flag"
    )


def _ended_by(request: InferRequest, late: InferRequest) -> Unavailable:
    return Unavailable(
        f"{request.prefix}sequence {request.correlation_id!r} of model '{request.model_name}' has ended, for the deadline of"
        f" another of its requests ({late.id or '<id_unknown>'}) passed; begin it again with the START flag"
    )
