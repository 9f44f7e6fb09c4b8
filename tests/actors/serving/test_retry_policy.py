"""`actors.serving.policy.retries` against DESIGN section 4: which requests are retried, suspected and refused."""

from __future__ import annotations

import math
from itertools import chain
from signal import Signals
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.serving.policy.blame import Quarantine, fingerprint_of
from actors.serving.policy.retries import (
    Aftermath,
    Exit,
    Hang,
    ModelError,
    NotStarted,
    Oom,
    ProtocolError,
    Signal,
    SuspectQueue,
    after_death,
)
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, DeadlineExceeded, ErrorCode, Poisoned, Unavailable, WorkerLost
from actors.values.requests import InferRequest
from actors.values.specs import Retry
from actors.values.tensors import Tensor
from tests.support.examples import examples
from tests.support.ports import waiting_request as make_request

SEGV = Signal(Signals.SIGSEGV)
KILL = Signal(Signals.SIGKILL)


def make_requests(n):
    return tuple(make_request(str(at)) for at in range(n))


def death(
    reason,
    *executing,
    waiting=(),
    retry=Retry.ALWAYS,
    alone=False,
    instance="add_0",
    culprit=None,
    known=None,
    suspects=True,
):
    return after_death(
        reason,
        executing,
        waiting,
        retry=retry,
        alone=alone,
        instance=instance,
        culprit=culprit,
        known=known or {},
        suspects=suspects,
    )


def refusals(aftermath):
    return {request: type(error) for request, error in aftermath.refuse}


def refusal(aftermath):
    """Return the only request that is refused, with the code and text of its error."""
    ((request, error),) = aftermath.refuse
    return request, error.code, error.message


# Reasons

REASONS = [
    (ModelError(), "model_error", True, "an error of the model"),
    (ModelError("no device"), "model_error", True, "an error of the model: no device"),
    (SEGV, "signal_11", True, "signal 11 (SIGSEGV)"),
    (Signal(Signals.SIGABRT), "signal_6", True, "signal 6 (SIGABRT)"),
    (Signal(Signals.SIGBUS), "signal_7", True, "signal 7 (SIGBUS)"),
    (Signal(Signals.SIGFPE), "signal_8", True, "signal 8 (SIGFPE)"),
    (Signal(Signals.SIGILL), "signal_4", True, "signal 4 (SIGILL)"),
    (Signal(Signals.SIGTRAP), "signal_5", True, "signal 5 (SIGTRAP)"),
    (Signal(Signals.SIGSYS), "signal_31", True, "signal 31 (SIGSYS)"),
    (KILL, "signal_9", False, "signal 9 (SIGKILL)"),
    (Signal(Signals.SIGTERM), "signal_15", False, "signal 15 (SIGTERM)"),
    (Signal(63), "signal_63", False, "signal 63"),
    (Oom(), "oom", True, "lack of memory"),
    (Hang(2.5), "hang", True, "a hang: not done within 2.5 s"),
    (ProtocolError("bad kind 9"), "protocol_error", True, "a protocol error: bad kind 9"),
    (Exit(1), "exit_1", True, "exit with code 1"),
    (Exit(0), "exit_0", True, "exit with code 0"),
    (NotStarted("no such file"), "start_failed", False, "a failed start: no such file"),
]


@pytest.mark.parametrize(("reason", "label", "blames", "text"), REASONS)
def test_each_reason_has_a_label_a_verdict_and_words(reason, label, blames, text):
    assert (reason.label, reason.blames_request, str(reason)) == (label, blames, text)


# What a death does to each request


def test_waiting_requests_go_back_in_order_and_are_not_blamed():
    waiting = make_requests(3)
    assert death(SEGV, waiting=waiting) == Aftermath(requeue=waiting)
    assert all(request.alone_deaths == request.unexplained_deaths == 0 for request in waiting)


@pytest.mark.parametrize(("n", "sizes"), [(2, [1, 1]), (3, [2, 1]), (8, [4, 4]), (9, [5, 4])])
def test_a_batch_that_killed_its_worker_is_halved(n, sizes):
    batch, waiting = make_requests(n), make_requests(2)
    aftermath = death(SEGV, batch, waiting=waiting)
    assert [len(group) for group in aftermath.suspects] == sizes
    assert tuple(chain.from_iterable(aftermath.suspects)) == batch
    assert aftermath.requeue == waiting
    assert (aftermath.refuse, aftermath.quarantine) == ((), ())


def test_a_request_that_killed_alone_once_gets_another_chance():
    (request,) = make_requests(1)
    assert death(SEGV, [request]) == Aftermath(suspects=((request,),))
    assert request.alone_deaths == 1


def test_a_request_that_killed_alone_twice_is_refused_and_quarantined():
    request = make_request("r1")
    death(SEGV, [request], alone=True)
    aftermath = death(Oom(), [request], alone=True)
    assert refusal(aftermath) == (
        request,
        ErrorCode.POISONED,
        "[request id: r1] this request killed a worker of model 'add' 2 times while nothing else ran in it, the last time "
        "by lack of memory. It and its like are refused for a while; find out what in these inputs the model can't take",
    )
    assert aftermath.quarantine == (request,)
    assert aftermath.suspects == aftermath.requeue == ()


def test_a_single_request_beside_another_lane_was_not_alone():
    one, two, three = make_requests(3)
    aftermath = death(SEGV, [one], [two, three])
    assert aftermath.suspects == ((one,), (two,), (three,))
    assert one.alone_deaths == 0


def test_a_request_whose_batchmates_have_gone_was_not_alone_either():
    gone, answered, left = make_requests(3)
    gone.cancelled = True
    answered.answered = True
    aftermath = death(SEGV, [gone, answered, left])
    assert aftermath == Aftermath(suspects=((left,),), cancelled=(gone,))
    assert left.alone_deaths == 0


def test_a_model_that_may_not_run_twice_gives_unavailable():
    request = make_request("r1")
    waiting = make_requests(2)
    aftermath = death(SEGV, [request], waiting=waiting, retry=Retry.NEVER)
    assert refusal(aftermath) == (
        request,
        ErrorCode.UNAVAILABLE,
        "[request id: r1] instance 'add_0' of model 'add' died of signal 11 (SIGSEGV) while it ran this request. The model "
        "is not run twice on one request (tritium.retry); send it again if you may",
    )
    assert aftermath.requeue == waiting
    assert request.alone_deaths == 0


# The same inputs again


def test_what_executed_is_accused_where_it_may_not_run_twice():
    batch, beside, waiting = make_requests(2), make_requests(1), make_requests(2)
    aftermath = death(SEGV, batch, beside, waiting=waiting, retry=Retry.NEVER)
    assert aftermath.accused == (*batch, *beside)
    assert aftermath.quarantine == ()
    assert aftermath.requeue == waiting


@pytest.mark.parametrize("reason", [KILL, NotStarted("no such file"), Hang(1.0, suspended=True)])
def test_nobody_is_accused_of_what_no_request_can_cause(reason):
    (request,) = make_requests(1)
    aftermath = death(reason, [request], retry=Retry.NEVER, known={request: "a"})
    assert (aftermath.accused, aftermath.quarantine) == ((), ())
    assert refusals(aftermath) == {request: WorkerLost}


def test_the_second_death_under_the_same_inputs_convicts():
    request = make_request("r1")
    aftermath = death(SEGV, [request], retry=Retry.NEVER, known={request: "a"})
    assert refusal(aftermath) == (
        request,
        ErrorCode.POISONED,
        "[request id: r1] workers of model 'add' died twice under a request with these inputs, the last time by signal 11 "
        "(SIGSEGV). It and its like are refused for a while; find out what in these inputs the model can't take",
    )
    assert aftermath.quarantine == (request,)


def test_in_company_too_the_only_one_that_was_accused_before_is_convicted():
    poison, mate, twin = make_requests(3)
    aftermath = death(SEGV, [mate, poison, twin], retry=Retry.NEVER, known={poison: "a", twin: "a"})
    assert refusals(aftermath) == {poison: Poisoned, twin: Poisoned, mate: WorkerLost}
    assert aftermath.quarantine == (poison, twin)


def test_of_several_that_were_accused_before_nobody_is_convicted_in_company():
    one, other = make_requests(2)
    aftermath = death(SEGV, [one, other], retry=Retry.NEVER, known={one: "a", other: "b"})
    assert refusals(aftermath) == dict.fromkeys((one, other), WorkerLost)
    assert aftermath.quarantine == ()
    assert aftermath.accused == (one, other)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_second_hang_that_is_not_retried_is_late_again_and_quarantines_nobody(cancelled):
    (request,) = make_requests(1)
    request.cancelled = cancelled
    aftermath = death(Hang(1.0), [request], retry=Retry.NEVER, known={request: "a"})
    assert refusals(aftermath) == ({} if cancelled else {request: DeadlineExceeded})
    assert (aftermath.quarantine, aftermath.accused) == ((), (request,))


def test_a_crash_after_a_hang_that_is_not_retried_is_the_second_death():
    (request,) = make_requests(1)
    assert death(Hang(1.0), [request], retry=Retry.NEVER).accused == (request,)
    aftermath = death(SEGV, [request], retry=Retry.NEVER, known={request: "a"})
    assert refusals(aftermath) == {request: Poisoned}
    assert aftermath.quarantine == (request,)


def test_a_bystander_of_a_known_culprit_is_not_accused():
    bystander, guilty = make_requests(1), make_requests(1)
    aftermath = death(Hang(1.0), bystander, guilty, retry=Retry.NEVER, culprit=1)
    assert aftermath.accused == guilty


def test_a_client_that_leaves_each_time_does_not_get_round_the_second_death():
    request = make_request()
    request.cancelled = True
    for retry in Retry:
        assert death(SEGV, [request], retry=retry).accused == (request,)
        aftermath = death(SEGV, [request], retry=retry, known={request: "a"})
        assert (aftermath.cancelled, aftermath.quarantine) == ((request,), (request,))


def test_a_pure_model_s_request_whose_like_killed_alone_gets_no_second_chance():
    (request,) = make_requests(1)
    aftermath = death(SEGV, [request], known={request: "a"})
    assert refusals(aftermath) == {request: Poisoned}
    assert aftermath.quarantine == (request,)


def clients_that_send_again(values, poison, batch_size, luck=()):
    """Serve one request for each of `values` on a model that may not run twice.

    The clients send again after a 503. Accused requests run by themselves, as in
    `actors.serving.deaths.Deaths.recognise`. Returns what each client got in the end, and the number of deaths.
    """
    accused: set[int] = set()
    quarantined: set[int] = set()
    got: dict[int, Any] = {}
    luck, deaths = iter(luck), 0
    waiting = list(enumerate(values))
    while waiting:
        first = waiting.pop(0)
        if first[1] in quarantined:
            got[first[0]] = Poisoned
            continue
        batch = [first]
        while waiting and len(batch) < batch_size and not {first[1], waiting[0][1]} & accused:
            batch.append(waiting.pop(0))
        made = {make_request(str(client)): (client, value) for client, value in batch}
        killed = next(luck, False)
        if not killed and not any(value in poison for _, value in batch):
            got |= dict.fromkeys((client for client, _ in batch), "answer")
            accused -= {value for _, value in batch}
            continue
        deaths += 1
        known = {request: value for request, (_, value) in made.items() if value in accused}
        aftermath = death(KILL if killed else SEGV, list(made), retry=Retry.NEVER, known=known)
        accused |= {made[request][1] for request in aftermath.accused}
        quarantined |= {made[request][1] for request in aftermath.quarantine}
        for request, error in aftermath.refuse:
            if isinstance(error, Poisoned):
                got[made[request][0]] = Poisoned
            else:
                waiting.append(made[request])
    return got, deaths


@given(
    values=st.lists(st.integers(0, 9), min_size=1, max_size=24),
    poison=st.sets(st.integers(0, 9)),
    batch_size=st.integers(1, 8),
    luck=st.lists(st.booleans(), max_size=10),
)
def test_clients_that_send_again_are_answered_and_each_poison_kills_twice_at_most(
    values, poison, batch_size, luck
):
    got, deaths = clients_that_send_again(values, poison, batch_size, luck)
    assert got == {client: Poisoned if value in poison else "answer" for client, value in enumerate(values)}
    assert deaths <= 2 * len(poison & set(values)) + sum(luck)


# Hangs


def test_a_request_that_hung_by_itself_is_answered_at_once():
    request = make_request("r1")
    aftermath = death(Hang(1.5), [request])
    assert refusal(aftermath) == (
        request,
        ErrorCode.DEADLINE_EXCEEDED,
        "[request id: r1] instance 'add_0' of model 'add' was stopped while it ran this request, for a hang: not done "
        "within 1.5 s (tritium.execution_timeout)",
    )
    assert (aftermath.suspects, aftermath.quarantine) == ((), ())


def test_lanes_beside_a_known_culprit_are_bystanders():
    bystanders, guilty, waiting = make_requests(2), make_requests(1), make_requests(1)
    aftermath = death(Hang(1.0), bystanders, guilty, waiting=waiting, culprit=1)
    assert aftermath.requeue == (*bystanders, *waiting)
    assert refusals(aftermath) == {guilty[0]: DeadlineExceeded}


def test_bystanders_that_may_not_run_twice_are_unavailable_not_late():
    bystanders, guilty = make_requests(2), make_requests(1)
    aftermath = death(Hang(1.0), bystanders, guilty, retry=Retry.NEVER, culprit=1)
    assert refusals(aftermath) == {
        **dict.fromkeys(bystanders, WorkerLost),
        guilty[0]: DeadlineExceeded,
    }


# Deaths that no request can cause


def test_a_batch_goes_back_whole_after_a_death_it_can_not_have_caused():
    batch, waiting = make_requests(3), make_requests(2)
    assert death(KILL, batch, waiting=waiting) == Aftermath(requeue=(*batch, *waiting))
    assert [request.unexplained_deaths for request in batch] == [1, 1, 1]


def test_a_batch_runs_alone_after_three_unexplained_deaths():
    batch = make_requests(2)
    assert death(KILL, batch).requeue == batch
    assert death(KILL, batch).requeue == batch
    assert death(KILL, batch) == Aftermath(suspects=(batch,))


def test_an_unexplained_death_leaves_a_suspect_a_suspect():
    batch = make_requests(2)
    assert death(KILL, batch, alone=True) == Aftermath(suspects=(batch,))


def test_after_six_unexplained_deaths_a_request_is_refused_for_good():
    old, young = make_request("r1"), make_request()
    old.unexplained_deaths = 5
    aftermath = death(KILL, [old, young], alone=True)
    assert refusal(aftermath) == (
        old,
        ErrorCode.UNAVAILABLE,
        "[request id: r1] 6 workers of model 'add' died under this request, the last one ('add_0') of signal 9 (SIGKILL), "
        "and it is not tried again. Something outside the model ends its workers",
    )
    assert aftermath.suspects == ((young,),)
    assert aftermath.quarantine == ()


def test_nothing_is_left_of_a_batch_that_is_refused_whole():
    batch = make_requests(2)
    for request in batch:
        request.unexplained_deaths = 5
    aftermath = death(KILL, batch, alone=True)
    assert refusals(aftermath) == dict.fromkeys(batch, Unavailable)
    assert aftermath.suspects == aftermath.requeue == ()


# In general

reasons = st.sampled_from([reason for reason, *_ in REASONS])


@st.composite
def requests_in_any_state(draw):
    request = make_request()
    request.cancelled = draw(st.booleans())
    request.answered = draw(st.booleans())
    request.alone_deaths = draw(st.integers(0, 1))
    request.unexplained_deaths = draw(st.integers(0, 5))
    return request


batches = st.lists(requests_in_any_state(), max_size=4)


@given(
    reason=reasons,
    executing=st.lists(batches, max_size=3),
    waiting=batches,
    retry=st.sampled_from(Retry),
    alone=st.booleans(),
    culprit=st.sampled_from([None, 0, 2]),
    marks=st.lists(st.sampled_from([None, "a", "b"]), min_size=12, max_size=12),
)
def test_every_request_ends_in_exactly_one_place(reason, executing, waiting, retry, alone, culprit, marks):
    known = {request: mark for request, mark in zip(chain(*executing), marks, strict=False) if mark}
    aftermath = death(
        reason, *executing, waiting=waiting, retry=retry, alone=alone, culprit=culprit, known=known
    )
    placed = [
        *aftermath.requeue,
        *chain.from_iterable(aftermath.suspects),
        *(request for request, _ in aftermath.refuse),
        *aftermath.cancelled,
    ]
    held = [request for request in chain(*executing, waiting) if not request.answered]
    assert len(placed) == len(held)
    assert set(placed) == set(held)
    assert set(aftermath.quarantine) <= {request for request, _ in aftermath.refuse} | set(
        aftermath.cancelled
    )
    assert set(aftermath.accused) <= {request for request in chain(*executing) if not request.answered}
    assert set(aftermath.cancelled) == {request for request in held if request.cancelled}
    assert all(aftermath.suspects)
    if retry is Retry.NEVER:
        assert not aftermath.suspects
        executed = {request for request in chain(*executing) if request in set(held)}
        assert executed <= {request for request, _ in aftermath.refuse} | set(aftermath.cancelled)


def serve(requests, *, kills, reason=SEGV, bad_luck=()):
    """Run one batch to its end on a worker that dies under requests in `kills`, or by `bad_luck`.

    Returns the answers, the number of deaths, and those quarantined.
    """
    answers: dict[InferRequest, Any] = {}
    deaths, quarantined = 0, []
    suspects = SuspectQueue()
    queue, luck = [tuple(requests)], iter(bad_luck)
    while queue or len(suspects):
        alone = not queue
        batch = queue.pop() if queue else suspects.next() or ()
        killed = next(luck, False)
        if not killed and not kills & set(batch):
            answers |= dict.fromkeys(batch, "answer")
            suspects.outcome_ok()
            continue
        deaths += 1
        aftermath = death(KILL if killed else reason, batch, alone=alone)
        if alone:
            suspects.outcome_died(aftermath.suspects)
        else:
            suspects.push_split(aftermath.suspects)
        if aftermath.requeue:
            queue.append(aftermath.requeue)
        answers |= {request: type(error) for request, error in aftermath.refuse}
        quarantined += aftermath.quarantine
    return answers, deaths, quarantined


@given(n=st.integers(1, 64), data=st.data())
def test_one_poison_request_is_found_in_log2_deaths_and_all_batchmates_are_answered(n, data):
    requests = make_requests(n)
    poison = data.draw(st.sampled_from(requests))
    answers, deaths, quarantined = serve(requests, kills={poison})
    assert answers == {**dict.fromkeys(requests, "answer"), poison: Poisoned}
    assert deaths <= math.ceil(math.log2(n)) + 2
    assert quarantined == [poison]


@given(n=st.integers(2, 64), data=st.data())
def test_one_hanging_request_is_found_with_one_death_less(n, data):
    requests = make_requests(n)
    hanging = data.draw(st.sampled_from(requests))
    answers, deaths, quarantined = serve(requests, kills={hanging}, reason=Hang(1.0))
    assert answers == {**dict.fromkeys(requests, "answer"), hanging: DeadlineExceeded}
    assert deaths <= math.ceil(math.log2(n)) + 1
    assert quarantined == [hanging]


@given(n=st.integers(1, 24), data=st.data())
def test_any_number_of_poison_requests_cost_nobody_else_an_answer(n, data):
    requests = make_requests(n)
    poison = data.draw(st.sets(st.sampled_from(requests)))
    answers, deaths, _ = serve(requests, kills=poison)
    assert answers == {request: Poisoned if request in poison else "answer" for request in requests}
    assert deaths <= len(poison) * (math.ceil(math.log2(n)) + 2)


@given(n=st.integers(1, 16), luck=st.lists(st.booleans(), max_size=40), data=st.data())
def test_bad_luck_on_top_never_loops_and_never_convicts_the_innocent(n, luck, data):
    requests = make_requests(n)
    poison = data.draw(st.sampled_from(requests))
    answers, _, quarantined = serve(requests, kills={poison}, bad_luck=luck)
    assert set(answers) == set(requests)
    assert set(quarantined) <= {poison}
    assert all(answer in ("answer", Unavailable) for r, answer in answers.items() if r is not poison)


def test_a_worker_that_is_always_killed_ends_in_a_refusal():
    requests = make_requests(4)
    answers, deaths, quarantined = serve(requests, kills=set(), bad_luck=[True] * 1000)
    assert answers == dict.fromkeys(requests, Unavailable)
    assert (deaths, quarantined) == (6, [])


# The suspects' queue


def test_what_is_no_suspect_is_not_taken_out():
    suspects = SuspectQueue()
    suspects.push_split([(make_request(),)])
    assert not suspects.remove(make_request())
    assert len(suspects) == 1


def test_suspects_keep_their_own_deadlines_and_may_be_cancelled():
    suspects = SuspectQueue()
    lasting, late, gone = make_request(), make_request("r1", deadline=5.0), make_request()
    assert suspects.next_expiry() == math.inf
    suspects.push_split([(lasting, late), (gone,)])
    assert suspects.next_expiry() == 5.0
    assert suspects.expire(4.9) == []
    gone.cancelled = True
    assert suspects.next_expiry() == -math.inf
    (late_entry, gone_entry) = suspects.expire(5.0)
    assert late_entry[0] is late
    assert late_entry[1].code is ErrorCode.DEADLINE_EXCEEDED
    assert late_entry[1].message == (
        "[request id: r1] the request's own deadline passed while it waited to run again: a worker of model 'add' had died "
        "under the batch it was in"
    )
    assert gone_entry[0] is gone
    assert isinstance(gone_entry[1], Cancelled)
    assert suspects.drain() == [lasting]
    assert suspects.drain() == []


class SuspectsNeverGetLost(RuleBasedStateMachine):
    """However suspects are pushed, split, removed and finished, each is in one place; newer ones go first."""

    def __init__(self):
        super().__init__()
        self.suspects = SuspectQueue()
        self.stack = []  # groups, the next one last
        self.running: tuple[InferRequest, ...] = ()

    @rule(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3))
    def push(self, sizes):
        groups = [make_requests(n) for n in sizes]
        self.suspects.push_split(groups)
        self.stack += [group for group in reversed(groups) if group]

    @rule()
    def begin(self):
        group = self.suspects.next()
        if self.running or not self.stack:
            assert group is None
        else:
            self.running = self.stack.pop()
            assert group == self.running

    @rule()
    def finish(self):
        self.suspects.outcome_ok()
        self.running = ()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def die(self, data):
        """Some requests may have had their answers before the others of their batch."""
        for request in self.running:
            request.answered = data.draw(st.booleans())
        aftermath = death(SEGV, self.running, alone=True)
        kept = [*chain.from_iterable(aftermath.suspects), *(request for request, _ in aftermath.refuse)]
        owed = [request for request in self.running if not request.answered]
        assert sorted(map(id, kept)) == sorted(map(id, owed))
        self.suspects.outcome_died(aftermath.suspects)
        self.stack += reversed(aftermath.suspects)
        self.running = ()

    @precondition(lambda self: self.stack)
    @rule(data=st.data())
    def remove(self, data):
        request = data.draw(st.sampled_from([*chain.from_iterable(self.stack)]))
        assert self.suspects.remove(request)
        kept = [tuple(other for other in group if other is not request) for group in self.stack]
        self.stack = [group for group in kept if group]

    @invariant()
    def the_queue_agrees(self):
        waiting = [*chain.from_iterable(reversed(self.stack))]
        assert list(self.suspects) == waiting
        assert len(self.suspects) == len(waiting)
        assert self.suspects.running == self.running


TestSuspectsNeverGetLost = SuspectsNeverGetLost.TestCase
TestSuspectsNeverGetLost.settings = settings(
    max_examples=examples(200), stateful_step_count=30, deadline=None
)


# Quarantine


def tensor(name="A", data=b"abcd", datatype=DataType.INT8, shape=None):
    return Tensor(name, datatype, shape or (len(data),), data)


def carrying(*inputs):
    return make_request(inputs=inputs)


@pytest.fixture
def quarantine():
    return Quarantine(60.0)


def test_a_quarantined_request_is_recognised_when_sent_again(quarantine):
    quarantine.add(carrying(tensor("A"), tensor("B")), 0.0)
    assert quarantine
    assert quarantine.match(
        carrying(tensor("B", memoryview(b"abcd"), shape=[4]), tensor("A", bytearray(b"abcd"), shape=[4])),
        1.0,
    )


LONG = bytes(1000)
ALTERED = bytes(100) + b"x" + bytes(899)  # where no sample looks


@pytest.mark.parametrize(
    ("poison", "innocent"),
    [
        ([tensor()], []),
        ([tensor()], [tensor(), tensor("B")]),
        ([tensor()], [tensor("B")]),
        ([tensor()], [tensor(data=b"abce")]),
        ([tensor()], [tensor(data=b"abcde")]),
        ([tensor()], [tensor(shape=(2, 2))]),
        ([tensor()], [tensor(datatype=DataType.UINT8)]),
        ([tensor(data=LONG)], [tensor(data=ALTERED)]),
    ],
)
def test_a_different_request_passes(quarantine, poison, innocent):
    quarantine.add(carrying(*poison), 0.0)
    assert not quarantine.match(carrying(*innocent), 0.0)
    assert quarantine.match(carrying(*poison), 0.0)


def test_two_that_look_alike_leave_quarantine_one_by_one(quarantine):
    first, second = carrying(tensor(data=LONG)), carrying(tensor(data=ALTERED))
    quarantine.add(first, 0.0)
    quarantine.add(second, 30.0)
    assert quarantine.match(first, 40.0)
    assert not quarantine.match(first, 70.0)
    assert quarantine.match(second, 70.0)


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 20)), max_size=30))
@example(steps=[*((at, True, 0) for at in range(4)), (0, False, 0), (1, False, 0)])
@example(steps=[(0, True, 0), (0, True, 20), (0, False, 20)])
def test_quarantine_remembers_exactly_the_latest_and_unexpired(steps):
    quarantine = Quarantine(30.0, capacity=3)
    requests = [carrying(tensor(data=bytes([at % 2, at]))) for at in range(6)]
    expiries: dict[int, float] = {}
    now = 0.0
    for at, add, passing in steps:
        now += passing
        expiries = {other: expires for other, expires in expiries.items() if expires > now}
        if add:
            expiries.pop(at, None)
            expiries[at] = now + 30.0
            quarantine.add(requests[at], now)
            while len(expiries) > 3:
                del expiries[next(iter(expiries))]
        assert quarantine.match(requests[at], now) == (at in expiries)
        assert len(quarantine) == len(expiries)


def test_a_fingerprint_is_the_same_for_equal_inputs_and_can_be_forgotten(quarantine):
    mark = fingerprint_of(carrying(tensor("A"), tensor("B")))
    assert mark == fingerprint_of(carrying(tensor("B"), tensor("A")))
    quarantine.add(carrying(tensor("A"), tensor("B")), 1.0, mark)
    again = carrying(tensor("B"), tensor("A"))
    assert quarantine.match(again, 1.0)
    assert again.fingerprint == mark
    assert not quarantine.match(carrying(tensor("B")), 1.0)
    assert quarantine.holds(mark, 1.0)
    assert quarantine.added_at == 1.0
    quarantine.discard(mark)
    quarantine.discard(mark)
    assert not quarantine.holds(mark, 1.0)
    assert not quarantine


# Requests whose deaths others look into


@pytest.mark.parametrize("reason", [SEGV, Hang(1.0), KILL, Hang(1.0, suspended=True)])
def test_what_others_look_into_is_lost_and_suspected_of_nothing(reason):
    one, two, waiting = make_requests(3)
    gone = make_request("gone")
    gone.cancelled = True
    aftermath = death(
        reason, [one], [two, gone], waiting=[waiting], known={one: "a"}, culprit=0, suspects=False
    )
    assert [(request, type(error)) for request, error in aftermath.refuse] == [
        (one, WorkerLost),
        (two, WorkerLost),
    ]
    assert {error.blamed for _, error in aftermath.refuse} == {reason.blames_request}
    assert (aftermath.requeue, aftermath.cancelled) == ((waiting,), (gone,))
    assert (aftermath.suspects, aftermath.quarantine, aftermath.hung, aftermath.accused) == ((), (), (), ())
