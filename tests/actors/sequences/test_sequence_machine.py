"""Which sequence has which slot, exactly: a sequence model's queue against a model made of a few lists.

It says which slot, which row and which turn. It covers the order of the backlog, what idles and when, padded
rows, slots used again after a death, sequences that go on elsewhere, requests that run again (iterative), and
callers that wait for room. No two clocks ever stop at the same moment, because the queue does not promise
which of two equal ones is first.
"""

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.sequences.policy.lives import RECHECK
from actors.sequences.policy.sequences import sequencing_of
from actors.serving.policy.batching import Wait
from actors.values.datatypes import DataType
from actors.values.errors import DeadlineExceeded, InvalidArgument, TritiumError, Unavailable
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest
from actors.values.specs import DirectStrategy, OldestStrategy, QueueBounds, SequenceBatching
from actors.values.tensors import Tensor
from tests.support.examples import examples
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort

START, END = FLAG_SEQUENCE_START, FLAG_SEQUENCE_END
MOMENT = 1 / 1024
IDLE = 2.0
DELAY = 0.75
INSTANCES = ("0", "1", "2")


class Sequence:
    """What the model knows of a sequence: its requests, and where it is."""

    def __init__(self, name):
        self.name = name
        self.queue = []
        self.running = None
        self.seat = None  # instance and index
        self.over = False  # its id may be used anew
        self.last = 0.0
        self.seated_at = -math.inf
        self.patience = math.inf

    @property
    def idle_at(self):
        return max(self.last + IDLE, self.seated_at + RECHECK)


class SlotsAndTurns(RuleBasedStateMachine):
    """Clients, instances and a clock do what they like."""

    @initialize(
        oldest=st.booleans(),
        slots=st.sampled_from([2, 3, 1]),
        batch=st.integers(1, 3),
        waits=st.booleans(),
        keeps=st.booleans(),
        iterative=st.sampled_from([False, False, True]),
        bounds=st.sampled_from([QueueBounds()] * 3 + [QueueBounds(requests=2), QueueBounds(nbytes=20)]),
    )
    def begin(self, oldest, slots, batch, waits, keeps, iterative, bounds):
        self.oldest, self.slots, self.keeps, self.iterative = oldest, slots, keeps, iterative
        self.batch = batch if oldest else slots
        self.delay = DELAY if waits else 0.0
        strategy = (
            OldestStrategy(max_candidate_sequences=slots, max_queue_delay=self.delay)
            if oldest
            else DirectStrategy(max_queue_delay=self.delay, minimum_slot_utilization=0.6)
        )
        self.bounds = bounds
        spec = make_spec(
            max_batch_size=self.batch,
            queue_bounds=bounds,
            scheduling=SequenceBatching(
                strategy=strategy, max_idle=IDLE, checkpoint=keeps, iterative=iterative
            ),
        )
        sequencing: Any = sequencing_of(spec)
        self.sequencing = sequencing
        self.queue = sequencing.queue
        self.stopping = ""
        self.now = 0.0
        self.arrivals = 0
        self.arrival = {}  # of a request: its place in the order, and when that was
        self.live = {}
        self.backlog = []
        self.instances = {}  # by name: its sequences by index
        self.ages = {}  # in the order of joining
        self.leaving = ""
        self.running = {}
        self.alone = set()
        self.lines = {}  # of requests that wait for room, by sequence
        self.restarted = 0
        self.come(INSTANCES[0])

    # The model

    def seated(self):
        return [sequence for slots in self.instances.values() for sequence in slots.values()]

    def sequences(self):
        """All sequences, including those whose ids may be used again."""
        running = [sequence for pairs in self.running.values() for _, sequence in pairs]
        found = [*self.live.values(), *self.backlog, *self.seated(), *running]
        return list(dict.fromkeys(found))

    def queued(self):
        return [request for sequence in self.sequences() for request in sequence.queue]

    def free(self):
        return sorted(
            (index, self.ages[name], name)
            for name, slots in self.instances.items()
            for index in range(self.slots)
            if index not in slots and name != self.leaving
        )

    def fill(self):
        while self.backlog and (free := self.free()):
            sequence, (index, _, name) = self.backlog.pop(0), free[0]
            self.instances[name][index] = sequence
            sequence.seat = name, index
            sequence.seated_at = self.now
            sequence.patience = math.inf

    def close(self, sequence):
        if not sequence.over:
            sequence.over = True
            self.live = {name: each for name, each in self.live.items() if each is not sequence}

    def settle(self, sequence):
        """Nothing of it runs any more."""
        if sequence.queue and sequence.seat is None:
            if sequence in self.backlog:
                self.backlog.remove(sequence)
            self.backlog.insert(0, sequence)
        elif not sequence.queue and sequence.over:
            self.vacate(sequence)
        self.fill()

    def vacate(self, sequence):
        if sequence.seat is not None:
            name, index = sequence.seat
            del self.instances[name][index]
            sequence.seat = None
            self.fill()

    def over(self, sequence):
        """End it: return what was queued."""
        ended, sequence.queue = sequence.queue, []
        if sequence in self.backlog:
            self.backlog.remove(sequence)
        sequence.patience = math.inf
        self.close(sequence)
        if sequence.running is None:
            self.vacate(sequence)
        return ended

    def append(self, sequence, request):
        self.arrivals += 1
        self.arrival[request] = self.arrivals, self.now
        sequence.queue.append(request)
        sequence.last = self.now
        if sequence.seat is None:
            if sequence.running is None and sequence not in self.backlog:
                self.backlog.append(sequence)
            if request.timeout:
                sequence.patience = min(sequence.patience, self.now + request.timeout)
            self.fill()

    def ready(self, name):
        """The instance's sequences whose first request could run, by its arrival."""
        found = [each for each in self.instances[name].values() if each.queue and each.running is None]
        return sorted(found, key=lambda sequence: self.arrival[sequence.queue[0]][0])

    def fits(self, request, *, seated):
        others = [
            each
            for sequence in self.sequences()
            if (sequence.seat is not None) == seated
            for each in sequence.queue
        ]
        return not others or (
            len(others) < self.bounds.requests
            and sum(each.nbytes for each in others) + request.nbytes <= self.bounds.nbytes
        )

    def admits(self, request):
        sequence = self.live.get(request.correlation_id)
        return self.fits(request, seated=bool(self.free()) if sequence is None else sequence.seat is not None)

    # Requests come

    @rule(
        burst=st.lists(
            st.tuples(
                st.sampled_from([1, 2, 3, 4, 5, 0]),
                st.sampled_from([None, None, None, None, END, START, 0, START | END]),
                st.sampled_from("aaaab"),
                st.sampled_from([math.inf] * 5 + [1.25]),
                st.sampled_from([0.0] * 4 + [0.5]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def send(self, burst):
        for each in burst:
            self.send_one(*each)

    def send_one(self, who, flags, key, patience, timeout):
        if flags is None:  # as a client with a fixed plan does
            flags = 0 if who in self.live else START
        self.tick()
        request = InferRequest(
            model_name="model",
            inputs=[Tensor("INPUT", DataType.FP32, (1, 2), bytes(8))],
            correlation_id=who,
            flags=flags,
            timeout=timeout,
            deadline=self.now + patience,
            reply=NoPort(),
            accepted_at=self.now,
        )
        request.rows, request.nbytes, request.batch_key = 1, 8, key
        sequence = self.live.get(who)
        assert self.queue.room_order.may_pass(request) == (
            sequence is not None and sequence.seat is not None and who not in self.lines
        )
        admitted = self.admits(request)
        assert self.queue.admits(request) == admitted
        if admitted and who not in self.lines:
            self.push(request)
        elif who:
            self.queue.room_order.enter(request)
            self.lines.setdefault(who, []).append(request)

    @precondition(lambda self: self.lines)
    @rule()
    def let_in_who_may_go_on(self):
        self.tick()
        expected = None
        for who, line in self.lines.items():
            sequence = self.live.get(who)
            if sequence is not None and sequence.seat is not None and self.admits(line[0]):
                expected = line[0]
                break
        _, *going_on = self.queue.room_order.next(self.queue.admits)  # beside the one that came first
        assert going_on == ([] if expected is None else [expected])
        if expected is not None:
            self.leave_line(expected)
            self.push(expected)

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def give_up_waiting_for_room(self, data):
        line = self.lines[data.draw(st.sampled_from(sorted(self.lines)))]
        self.leave_line(data.draw(st.sampled_from(line)))

    def leave_line(self, request):
        self.queue.room_order.leave(request)
        who = request.correlation_id
        self.lines[who].remove(request)
        if not self.lines[who]:
            del self.lines[who]

    def push(self, request):
        who, flags = request.correlation_id, request.flags
        own = self.iterative and not who
        sequence = self.live.get(who)
        refused: type[TritiumError] | None = None
        if not who and not own:
            refused = InvalidArgument
        elif self.stopping and (own or flags & START):
            refused = Unavailable
        elif sequence is None and not flags & START and not own:
            refused = InvalidArgument
        if refused:
            with pytest.raises(refused):
                self.queue.push(request, self.now)
            assert request not in self.queue
            return
        self.queue.push(request, self.now)
        if own:
            sequence = None
            assert request.flags & START
        if sequence is None:
            # No client knows an id that the server made, so no client's request belongs to that sequence.
            sequence = self.live[("made", len(self.arrival)) if own else who] = Sequence(who)
        elif flags & START:
            self.restarted += 1
        self.append(sequence, request)
        if flags & END:
            self.close(sequence)

    @precondition(lambda self: self.stopping or len(self.live) > 2)
    @rule()
    def stop_or_go_on(self):
        self.stopping = "" if self.stopping else "it is being unloaded"
        self.sequencing.stop(self.stopping)

    # Batches

    @precondition(lambda self: self.queued())
    @rule(later=st.sampled_from([0.0, 0.0, 0.25]))
    def run(self, later):
        self.tick(later)
        for name in sorted(self.instances):
            [group] = self.sequencing.slots.groups(name)
            decision = self.sequencing.batches.decide(group, self.now)
            ready = self.ready(name)
            if self.running.get(name) or not ready:
                assert decision == Wait(math.inf)
                continue
            first = ready[0].queue[0]
            assert self.sequencing.batches.suspects(group) == (first in self.alone)
            until = self.until(ready)
            if until > self.now:
                assert decision == Wait(until)
                continue
            expected = self.expected(name, ready)
            batch = self.sequencing.batches.form(group, decision)
            assert [None if each.padding else each for each in batch.requests] == expected
            assert batch.alone == (first in self.alone)
            self.running[name] = []
            for sequence in ready:
                if sequence.queue[0] in expected:
                    sequence.running = sequence.queue.pop(0)
                    self.running[name].append((sequence.running, sequence))

    def until(self, ready):
        """When a batch may run."""
        first = ready[0].queue[0]
        due = self.arrival[first][1] + self.delay
        if not self.oldest:
            return due if self.delay and len(ready) / self.slots < 0.6 else -math.inf
        alike = self.alike(ready)
        full = len(alike) == self.batch or len(alike) < len(ready)
        return -math.inf if full or not self.delay else due

    def alike(self, ready):
        """Return the first sequences, as many as share a batch with the first one."""
        found: list[Any] = []
        for sequence in ready:
            if sequence.queue[0].batch_key != ready[0].queue[0].batch_key or len(found) == self.batch:
                break
            found.append(sequence)
        return found

    def expected(self, name, ready):
        if self.oldest:
            return [sequence.queue[0] for sequence in self.alike(ready)]
        rows = [None] * (max(self.instances[name]) + 1)
        for sequence in ready:
            if sequence.queue[0].batch_key == ready[0].queue[0].batch_key:
                rows[sequence.seat[1]] = sequence.queue[0]
        return rows

    @precondition(lambda self: any(self.running.values()))
    @rule(data=st.data())
    def complete(self, data):
        self.tick()
        name = data.draw(st.sampled_from([name for name, pairs in self.running.items() if pairs]))
        for request, sequence in self.running.pop(name):
            self.done(request, sequence)

    def done(self, request, sequence):
        self.sequencing.done(request, self.now)
        self.alone.discard(request)
        sequence.running = None
        if self.iterative:
            self.close(sequence)
        self.settle(sequence)

    @precondition(lambda self: self.iterative and any(self.running.values()))
    @rule(data=st.data())
    def run_again(self, data):
        self.tick()
        name = data.draw(st.sampled_from([name for name, pairs in self.running.items() if pairs]))
        for request, sequence in self.running.pop(name):
            again = self.keeps or sequence.seat is not None
            assert self.sequencing.reschedule(request, self.now) == again
            if again:
                assert request.flags == 0
                self.alone.discard(request)
                sequence.running = None
                self.append(sequence, request)
            else:
                self.done(request, sequence)

    @precondition(lambda self: any(self.running.values()))
    @rule(data=st.data())
    def hand_back(self, data):
        """An instance returns a batch that it has not run."""
        name = data.draw(st.sampled_from([name for name, pairs in self.running.items() if pairs]))
        pairs = self.running.pop(name)
        self.queue.push_front([request for request, _ in pairs])
        for request, sequence in pairs:
            sequence.running = None
            sequence.queue.insert(0, request)
            self.settle(sequence)

    # Ends

    @precondition(lambda self: len(self.queued()) > 1)
    @rule(data=st.data())
    def abandon(self, data):
        self.tick()
        request = data.draw(st.sampled_from(self.queued()))
        [sequence] = [each for each in self.sequences() if request in each.queue]
        assert self.queue.abandon(request, self.now) == self.over(sequence)
        assert self.queue.abandon(request, self.now) == []

    @precondition(lambda self: self.sequences())
    @rule(seconds=st.sampled_from([0.25, 0.5, 0.5, IDLE]))
    def wait(self, seconds):
        self.tick(seconds)

    def tick(self, seconds=0.0):
        """Let time pass, at least a moment; everything that becomes due ends at its time."""
        end = self.now + seconds + MOMENT
        while (due := self.queue.next_expiry()) <= end:
            self.now = due
            self.expire()
        self.now = end
        self.expire()

    def expire(self):
        expected = []
        while due := self.due(self.now):
            _, _, kind, target = min(due)
            if kind == "idle":
                self.close(target)
                if target.running is None and not target.queue:
                    self.vacate(target)
            else:
                [sequence] = (
                    [target] if kind == "patience" else [s for s in self.sequences() if target in s.queue]
                )
                for request in self.over(sequence):
                    late = request is target
                    expected.append((request, DeadlineExceeded if late else Unavailable))
        ended = [(request, type(error)) for request, error in self.queue.expire(self.now)]
        assert ended == expected
        assert self.queue.next_expiry() > self.now

    def due(self, now):
        found = [
            (sequence.idle_at, id(sequence), "idle", sequence)
            for sequence in self.live.values()
            if sequence not in self.backlog
        ]
        for sequence in self.sequences():
            found.append((sequence.patience, id(sequence), "patience", sequence))
            found += [(request.deadline, id(request), "deadline", request) for request in sequence.queue]
        return [each for each in found if each[0] <= now]

    # Instances

    @precondition(lambda self: len(self.instances) < (2 if self.sequences() else 1))
    @rule(data=st.data())
    def join(self, data):
        self.tick()
        self.come(data.draw(st.sampled_from([name for name in INSTANCES if name not in self.instances])))

    def come(self, name):
        self.ages[name] = max(self.ages.values(), default=0) + 1
        self.instances[name] = {}
        self.sequencing.join(name, 1, self.now)
        self.fill()

    @precondition(lambda self: self.instances and self.sequences())
    @rule(
        data=st.data(),
        answered=st.sampled_from([0, 0, 1, 3]),
        again=st.booleans(),
        alone=st.booleans(),
        ran=st.booleans(),
    )
    def die(self, data, answered, again, alone, ran):
        """Kill an instance after some requests of its batch are answered.

        The rest is answered at its death, or runs again where the state is kept. Where the instance had not
        begun its batch, a sequence goes on if the next request is its first.
        """
        self.tick()
        busy = [name for name in self.instances if self.running.get(name)]
        name = data.draw(st.sampled_from(sorted(busy or self.instances)))
        pairs = self.running.pop(name, [])
        self.leaving = name
        self.sequencing.about_to_leave(name)
        for request, sequence in pairs[:answered]:
            self.done(request, sequence)
        pairs = pairs[answered:]
        slots = self.instances.pop(name)
        self.leaving = ""
        unrun = [] if ran else [request for request, _ in pairs]
        lost = self.sequencing.leave(name, self.now, unrun=unrun)
        moving = []
        expected = []
        for sequence in slots.values():
            sequence.seat = None
            following = sequence.running or next(iter(sequence.queue), None)
            begins = following is not None and bool(following.flags & START)
            if not (self.keeps or (begins and not (ran and sequence.running))):
                expected += sequence.queue
                sequence.queue = []
                self.close(sequence)
            elif sequence.queue and sequence.running is None:
                moving.append(sequence)
        assert sorted(map(id, lost)) == sorted(map(id, expected))
        moving.sort(key=lambda sequence: self.arrival[sequence.queue[0]][0])
        self.backlog = moving + self.backlog
        self.fill()
        for request, sequence in pairs:
            moves = not ran and bool(request.flags & START)
            if again if self.keeps else moves:
                if alone:
                    self.alone.add(request)
                sequence.running = None
                self.sequencing.put_back(request, alone=alone, now=self.now)
                sequence.queue.insert(0, request)
                self.settle(sequence)
            else:
                if self.iterative and again:
                    assert not self.sequencing.reschedule(request, self.now)
                self.done(request, sequence)

    # What must be

    @invariant()
    def the_figures_agree(self):
        slots, roll = self.sequencing.slots, self.sequencing.roll
        groups = [group for name in self.instances for group in slots.groups(name)]
        assert (len(roll.live), roll.restarted) == (len(self.live), self.restarted)
        assert sum(len(group.slots) for group in groups) == len(self.seated())
        assert (len(slots.backlog), slots.some_free) == (len(self.backlog), bool(self.free()))
        queued = self.queued()
        assert len(self.queue) == len(queued)
        assert all(request in self.queue for request in queued)
        assert self.queue.nbytes == sum(request.nbytes for request in queued)
        in_slots = sum(len(sequence.queue) for sequence in self.seated())
        assert (
            self.sequencing.tickets.waiting(seated=True),
            self.sequencing.tickets.waiting(seated=False),
        ) == (
            in_slots,
            len(queued) - in_slots,
        )

    @invariant()
    def no_slot_is_free_while_somebody_waits_for_one(self):
        assert not (self.backlog and self.free())


TestSlotsAndTurns = SlotsAndTurns.TestCase
TestSlotsAndTurns.settings = settings(
    max_examples=examples(150, few=25), stateful_step_count=50, deadline=None
)
