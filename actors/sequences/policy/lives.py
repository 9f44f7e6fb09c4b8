"""How the sequences of a model live, from their START until their last request is answered. Pure.

    START ──► backlog ──► slot ──► closing, when END is queued, or it was idle, or a client cancelled ──► gone
                 ▲          │
                 └──────────┘ its instance died, and its state is kept (`checkpoint`) or nothing of it has run

A sequence that has lost its slot to an instance's death, and has nothing queued, is in neither place; its
next request puts it into the backlog. An id names a sequence only until the sequence closes. Requests that
are queued then still run, and the slot is free when nothing is queued or running. Only `LiveSequence.group`
says which sequence has a slot, and `LiveSequence.timer` is its only clock. So neither can be given back
twice.
"""

from __future__ import annotations

import math
from typing import Final

from actors.sequences.policy.batches import Batches
from actors.sequences.policy.records import Due, Impatience, LiveSequence
from actors.sequences.policy.roll import Roll
from actors.sequences.policy.sequence_room import SequenceRoom
from actors.sequences.policy.slots import Slots
from actors.sequences.policy.tickets import Tickets
from actors.serving.policy.timers import Timers
from actors.values.requests import InferRequest

RECHECK: Final = 0.05
"""Seconds that a sequence from the backlog keeps its slot at least (section 6.2).

It does not matter how long ago its last request came.
"""


class Lives:
    """The sequences of one model: each step of their lives, carried out on all that knows of them."""

    def __init__(
        self, idle: float, roll: Roll, slots: Slots, tickets: Tickets, batches: Batches, timers: Timers[Due]
    ) -> None:
        """A sequence ends that is `idle` for so many seconds."""
        self._idle = idle
        self.roll = roll
        self.slots = slots
        self.tickets = tickets
        self.batches = batches
        self.timers = timers
        self.room = SequenceRoom(roll.live, tickets)

    # -- requests come and go --------------------------------------------------------------------------------

    def append(self, sequence: LiveSequence, request: InferRequest, now: float) -> None:
        """Queue `request` as the last one of its sequence."""
        group = sequence.group
        request.queue_entry = sequence
        self.tickets.add(request, now, seated=group is not None)
        sequence.queue.append(request)
        sequence.last_arrival = now
        if group is None:
            if sequence.running is None:
                self.slots.wait(sequence)
            if request.timeout > 0:
                self._grow_impatient(sequence, now + request.timeout)
            self.fill(now)
        elif sequence.running is None and len(sequence.queue) == 1:
            self.batches.make_ready(sequence, group)

    def stopped_running(self, request: InferRequest) -> LiveSequence | None:
        """Return the sequence of `request`, if that ran until now; else None."""
        sequence = request.queue_entry
        if not isinstance(sequence, LiveSequence) or sequence.running is not request:
            return None
        assert sequence.runs_in is not None, "what runs, runs in a group"
        sequence.runs_in.running -= 1
        sequence.running = sequence.runs_in = None
        request.extra = ()
        return sequence

    def go_on(self, sequence: LiveSequence, now: float) -> None:
        """Make the next request of a sequence ready, or free its slot if it has ended. Nothing of it runs."""
        group = sequence.group
        if sequence.queue:
            if group is not None:
                self.batches.make_ready(sequence, group)
            else:
                self.slots.wait(sequence, first=True)
                self.fill(now)
        elif sequence.closing:
            self._vacate(sequence, now)

    # -- slots -----------------------------------------------------------------------------------------------

    def fill(self, now: float) -> None:
        """Give free slots to sequences of the backlog."""
        while (sequence := self.slots.assign()) is not None:
            self.room.seated(sequence)
            self.tickets.move(sequence.queue, seated=True)
            self._calm(sequence)
            sequence.seated_at = now
            if not sequence.closing and not sequence.timer:
                sequence.timer = self.timers.set(self._idle_at(sequence), sequence)
            assert sequence.group is not None, "it has just got its slot"
            self.batches.make_ready(sequence, sequence.group)

    def unseat(self, sequence: LiveSequence) -> None:
        """Its slot is gone, with its instance."""
        sequence.group = None
        if not sequence.closing:
            self.room.unseated(sequence)
        self.tickets.move(sequence.queue, seated=False)

    def _vacate(self, sequence: LiveSequence, now: float) -> None:
        """Free the slot of a sequence that needs it no more, if it has one."""
        if self.slots.release(sequence):
            self.fill(now)

    # -- clocks ----------------------------------------------------------------------------------------------

    def look_idle(self, sequence: LiveSequence, now: float) -> None:
        """The timer of a sequence has run out: end it, if it has been idle for too long."""
        sequence.timer = 0
        if sequence in self.slots.backlog:
            return  # its clock starts when it has a slot
        due = self._idle_at(sequence)
        if due > now:
            sequence.timer = self.timers.set(due, sequence)
            return
        self.close(sequence)
        if sequence.running is None and not sequence.queue:
            self._vacate(sequence, now)

    def _idle_at(self, sequence: LiveSequence) -> float:
        return max(sequence.last_arrival + self._idle, sequence.seated_at + RECHECK)

    def _grow_impatient(self, sequence: LiveSequence, due: float) -> None:
        earliest, timer = sequence.patience
        if due < earliest:
            self.timers.drop(timer)
            sequence.patience = due, self.timers.set(due, Impatience(sequence))

    def _calm(self, sequence: LiveSequence) -> None:
        self.timers.drop(sequence.patience[1])
        sequence.patience = math.inf, 0

    # -- ends ------------------------------------------------------------------------------------------------

    def end(self, request: InferRequest, now: float) -> list[InferRequest]:
        """End the sequence of a queued `request`: return it and all others of its sequence that wait.

        A request of the sequence that runs is not touched; the slot is free when it has its answer.
        """
        sequence = request.queue_entry
        if request not in self.tickets or not isinstance(sequence, LiveSequence):
            return []
        ended = self.empty(sequence)
        self.slots.backlog.pop(sequence, None)
        self.close(sequence)
        if sequence.running is None:
            self._vacate(sequence, now)
        return ended

    def empty(self, sequence: LiveSequence) -> list[InferRequest]:
        """Take everything out of a sequence's queue."""
        group = sequence.group
        if group is not None and sequence.queue and sequence.running is None:
            self.batches.unready(sequence, group)
        self._calm(sequence)
        ended = list(sequence.queue)
        sequence.queue.clear()
        for request in ended:
            self.tickets.take(request, seated=group is not None)
            self.batches.acquit(request)
        return ended

    def close(self, sequence: LiveSequence) -> None:
        """Close a sequence: its id names it no longer."""
        if not sequence.closing:
            sequence.closing = True
            self.timers.drop(sequence.timer)
            sequence.timer = 0
            if self.roll.strike(sequence):
                self.room.unseated(sequence)
