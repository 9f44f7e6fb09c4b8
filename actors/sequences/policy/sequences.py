"""Models of sequences: which sequence has which slot, and which of its requests run next. Pure.

Contract, scheduling.md section 6. A *sequence* is a line of requests with one correlation id, and at most one
of them runs at a time. It needs a *slot* to run at all: a place in a *group*, which is one lane of one
instance and executes one batch at a time. A sequence without a slot waits in the backlog with all its
requests, and moves as a whole.

The parts: `records` (a sequence, a group of slots), `roll` (which id names which sequence), `tickets` (what
waits, in order), `slots` (slots and backlog), `batches` (what runs next), and `lives` (each step from START
to the end, over all of those). `sequence_queue` is the line of requests. `Sequences` is told of instances and
answers.
Nothing here waits or knows the time.
"""

from __future__ import annotations

from collections.abc import Collection

from actors.sequences.policy.batches import Batches
from actors.sequences.policy.controls import Controls
from actors.sequences.policy.implicit_state import ImplicitState
from actors.sequences.policy.lives import Lives
from actors.sequences.policy.records import Due, LiveSequence
from actors.sequences.policy.roll import Roll
from actors.sequences.policy.sequence_queue import SequenceQueue
from actors.sequences.policy.slots import Slots
from actors.sequences.policy.tickets import Tickets
from actors.serving.policy.timers import Timers
from actors.serving.policy.waiting_line import Sequencing
from actors.values.requests import FLAG_SEQUENCE_START, InferRequest
from actors.values.specs import ModelSpec, SequenceBatching
from actors.values.tensors import Tensor


class Sequences(Sequencing):
    """The sequences of one model, as instances and answers change them; see the module.

    Its scheduler looks into `roll`, `tickets` and `slots`, and takes batches of `batches`.
    """

    def __init__(self, spec: ModelSpec, scheduling: SequenceBatching) -> None:
        self.iterative = scheduling.iterative
        self.keeps_state = scheduling.checkpoint
        self.has_states = bool(scheduling.states)
        timers: Timers[Due] = Timers()
        controls = Controls(scheduling.controls, batches=spec.batches)
        state = ImplicitState(spec, scheduling)
        self.tickets = Tickets(spec.queue_bounds, timers)
        self.roll = Roll(spec.name, controls, state.initial, iterative=scheduling.iterative)
        self.slots = Slots()
        self.batches = Batches(spec, scheduling, controls, state, self.tickets)
        self._lives = Lives(scheduling.max_idle, self.roll, self.slots, self.tickets, self.batches, timers)
        self.queue = self._queue = SequenceQueue(self._lives)

    def stop(self, why: str) -> None:
        """See `Sequencing.stop`."""
        self.roll.stopping = why

    # -- instances -------------------------------------------------------------------------------------------

    def join(self, instance: str, lanes: int, now: float) -> None:
        """Add the slots of an instance whose model is loaded; each of its lanes is a group of its own."""
        self.slots.add(instance, [self.batches.padding() for _ in range(lanes)], self.batches.slots)
        self._lives.fill(now)

    def about_to_leave(self, instance: str) -> None:
        """Note that an instance has died: the backlog does not get what its sequences free."""
        self.slots.close(instance)

    def leave(self, instance: str, now: float, *, unrun: Collection[InferRequest] = ()) -> list[InferRequest]:
        """See `Sequencing.leave`. Sequences that `may_move` go on in a free slot, before the backlog's."""
        lost: list[InferRequest] = []
        moving: list[LiveSequence] = []
        for sequence in self.slots.remove(instance):
            self._lives.unseat(sequence)
            running = sequence.running
            following = running or (sequence.queue[0] if sequence.queue else None)
            if not self.may_move(following, ran=running is not None and running not in unrun):
                lost += self._lives.empty(sequence)
                self._lives.close(sequence)
            elif sequence.queue and running is None:
                moving.append(sequence)
        moving.sort(key=lambda sequence: self.tickets[sequence.queue[0]].number, reverse=True)
        for sequence in moving:
            self.slots.wait(sequence, first=True)
        self._lives.fill(now)
        return lost

    def may_move(self, following: InferRequest | None, *, ran: bool) -> bool:
        """Whether a sequence may go on in another instance; `following` is its oldest unanswered request.

        It may if its state is kept, or if it has no state yet: it begins with that request, which has not run
        (`ran`).
        """
        begins = following is not None and bool(following.flags & FLAG_SEQUENCE_START)
        return self.keeps_state or (begins and not ran)

    # -- answers ---------------------------------------------------------------------------------------------

    def collect(self, request: InferRequest, outputs: list[Tensor], *, failed: bool) -> list[Tensor]:
        """Return the outputs without states, which are kept for the next request. See `Sequencing`."""
        return self.batches.collect(request, outputs, failed=failed)

    def done(self, request: InferRequest, now: float) -> None:
        """See `Sequencing.done`."""
        sequence = self._lives.stopped_running(request)
        if sequence is not None:
            if self.batches.alone:
                self.batches.acquit(request)
            if self.iterative:
                self._lives.close(sequence)
            self._lives.go_on(sequence, now)

    def reschedule(self, request: InferRequest, now: float) -> bool:
        """See `Sequencing.reschedule`. Contract, section 6.7."""
        held = request.queue_entry
        if not self.keeps_state and isinstance(held, LiveSequence) and held.group is None:
            return False
        sequence = self._lives.stopped_running(request)
        if sequence is None:
            return False
        request.flags = 0
        request.attempts = 0
        self.batches.acquit(request)
        # With a queue, other requests of its sequence are before it.
        group = sequence.group if sequence.queue else None
        self._lives.append(sequence, request, now)
        if group is not None:
            self.batches.make_ready(sequence, group)
        return True

    def put_back(self, request: InferRequest, *, alone: bool, now: float) -> None:
        """See `Sequencing.put_back`."""
        held = request.queue_entry
        if alone and isinstance(held, LiveSequence) and held.running is request:
            self.batches.set_apart(request)
        self._queue.put_back(request, now)


def sequencing_of(spec: ModelSpec) -> Sequences | None:
    """Return the sequences of a model that has them (`sequence_batching`); None for any other."""
    return Sequences(spec, spec.scheduling) if isinstance(spec.scheduling, SequenceBatching) else None
