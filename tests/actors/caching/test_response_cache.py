"""The response cache in a model's way, on a clock that jumps: which answer each request gets, which wait."""

import math
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.caching.cache import COPIED_AT_ONCE, HASHED_AT_ONCE, ResponseCache, may_be_kept
from actors.caching.policy.cache import LruCache
from actors.serving.statistics import FailureReason
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, DeadlineExceeded, ErrorCode, Internal, Poisoned, Unavailable
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import (
    DynamicBatching,
    Ensemble,
    InputSpec,
    OutputSpec,
    QueueBounds,
    QueuePolicy,
    SequenceBatching,
    TimeoutAction,
)
from actors.values.tensors import Tensor
from actors.wire.batch_frames import Answer
from tests.support.model_doubles import Context, Stage, TimedPort, make_spec
from tests.support.tasks import outcome_of

SIZE = 1_000_000
FAILED = Answer(code=ErrorCode.INTERNAL, message="no")


class Near:
    """A model whose answers are kept in the server, and how the cache is called from outside."""

    def __init__(self, nursery, *, size=SIZE, far=None, **changes):
        self.logged: list[Any] = []
        self.cache = ResponseCache(
            near=None if far is not None else LruCache(size),
            far=far,
            log=lambda event, **keys: self.logged.append((str(event), keys)),
        )
        self.model = Stage(nursery, stages=[self.cache.of], response_cache=True, **changes)
        nursery.start_soon(self.cache.keep_deadlines, Context())

    @property
    def state(self):
        return self.model.state

    @property
    def worker(self):
        return self.model.worker

    def request(self, value=0.0, *, elements=2, **options):
        return InferRequest(
            model_name="model",
            inputs=[Tensor.from_numpy("INPUT", np.full((1, elements), value, np.float32))],
            reply=TimedPort(),
            accepted_at=trio.current_time(),
            **options,
        )

    async def send(self, value=0.0, **options):
        request = self.request(value, **options)
        await self.state.submit(request)
        await self.model.settled()
        return request

    async def finish(self, **options):
        return await self.model.finished(**options)

    def counts(self):
        stats = self.state.statistics.as_model_stats("model", 1)
        durations = stats["inference_stats"]
        return {
            "success": durations["success"]["count"],
            "hit": durations["cache_hit"]["count"],
            "miss": durations["cache_miss"]["count"],
            "fail": durations["fail"]["count"],
            "inferences": stats["inference_count"],
            "executions": stats["execution_count"],
        }


def value_of(request):
    (part,) = request.reply.parts
    assert isinstance(part, InferResponse), part
    return part.outputs[0].as_numpy().ravel()[0]


ANY_WIDTH = {
    "inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,)),),
    "outputs": (OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(-1,)),),
}


@pytest.fixture
async def near(nursery):
    return lambda **changes: Near(nursery, **changes)


@pytest.fixture
async def at(near):
    return near()


# -- hits and misses


async def test_what_was_answered_before_is_answered_at_once(at, autojump_clock):
    first = await at.send(7.0, id="one")
    await at.finish()
    second = at.request(7.0, id="two")
    at.state.submit_nowait(second)
    assert value_of(first) == value_of(second) == 7.0
    assert (first.reply.parts[0].id, second.reply.parts[0].id) == ("one", "two")
    assert at.worker.sizes == [1]
    assert at.counts() == {"success": 2, "hit": 1, "miss": 1, "fail": 0, "inferences": 1, "executions": 1}
    assert not at.state.in_flight


async def test_other_inputs_are_another_request(at, autojump_clock):
    await at.send(1.0)
    await at.finish()
    other = await at.send(2.0)
    await at.finish()
    assert value_of(other) == 2.0
    assert at.counts()["miss"] == 2


async def test_a_hit_needs_no_room_in_a_full_queue(near, autojump_clock):
    at = near(queue_bounds=QueueBounds(requests=1))
    await at.send(1.0)
    await at.finish()
    for value in (2.0, 3.0):
        await at.send(value)
    with pytest.raises(trio.WouldBlock):
        at.state.submit_nowait(at.request(4.0))
    again = at.request(1.0)
    at.state.submit_nowait(again)
    assert value_of(again) == 1.0


async def test_what_had_to_wait_for_room_finds_what_was_answered_meanwhile(near, nursery, autojump_clock):
    at = near(queue_bounds=QueueBounds(requests=1), capacity=1)
    await at.send(1.0)
    await at.send(2.0)
    late = at.request(3.0)
    nursery.start_soon(at.state.submit, late)
    await at.model.settled()
    equal = at.request(3.0)
    nursery.start_soon(at.state.submit, equal)
    await at.model.settled()
    for _ in range(3):
        await at.finish()
    assert value_of(late) == value_of(equal) == 3.0
    assert at.worker.sizes == [1, 1, 1]


async def test_errors_are_not_kept(at, autojump_clock):
    failed = await at.send(1.0)
    await at.finish(answers=[FAILED])
    assert isinstance(failed.reply.error, Internal)
    await at.send(1.0)
    assert at.worker.sizes == [1, 1]
    assert at.counts()["miss"] == 0


async def test_the_servers_own_requests_are_computed(at, autojump_clock):
    await at.send(1.0)
    await at.finish()
    probe = at.request(1.0)
    probe.synthetic = True
    await at.state.submit(probe)
    await at.model.settled()
    assert at.worker.sizes == [1, 1]


async def test_a_kept_answer_views_no_slot(at, autojump_clock):
    request = at.request(5.0)
    memory = bytearray(request.inputs[0].data)
    request.inputs[0].data = memoryview(memory)
    await at.state.submit(request)
    await at.model.settled()
    batch = await at.finish(borrowed=True)
    assert batch.slot.leases == 1
    request.reply.parts[0].release()
    assert batch.slot.leases == 0
    memory[:] = bytes(8)
    assert value_of(await at.send(5.0)) == 5.0


async def test_an_answer_larger_than_the_cache_is_given_and_not_kept(near, autojump_clock):
    at = near(size=100)
    first, follower = await at.send(1.0), await at.send(1.0)
    await at.finish()
    assert value_of(first) == value_of(follower) == 1.0
    (line,) = [keys for event, keys in at.logged if event == "cache_entry_skipped"]
    assert line["reason"].startswith("Requested byte_size: ")
    assert line["reason"].endswith(" is greater than total cache size: 100")
    await at.send(1.0)
    assert at.worker.sizes == [1, 1]


@pytest.mark.slow
async def test_what_takes_too_long_to_copy_is_not_kept_and_nobody_waits_for_it(near, autojump_clock):
    at = near(size=2**30, outputs=(OutputSpec(name="INPUT", datatype=DataType.UINT8, dims=(-1,)),))
    leader, follower = await at.send(1.0), await at.send(1.0)
    leader.inputs[0].data = bytes(COPIED_AT_ONCE + 1)
    await at.finish()
    assert leader.reply.answered
    assert not follower.reply.parts
    await at.finish()
    assert value_of(follower) == 1.0


def test_what_depends_on_more_than_the_request_is_never_kept():
    assert may_be_kept(make_spec())
    assert may_be_kept(make_spec(scheduling=Ensemble(steps=())))
    assert not may_be_kept(make_spec(decoupled=True))
    assert not may_be_kept(make_spec(scheduling=SequenceBatching()))


# -- single flight


async def test_equal_requests_run_once_and_all_are_answered(near, autojump_clock):
    at = near(capacity=9)
    requests = [await at.send(1.0, id=str(number)) for number in range(4)]
    assert at.worker.sizes == [1]
    await trio.sleep(2)
    await at.finish()
    assert [value_of(each) for each in requests] == [1.0] * 4
    assert [each.reply.parts[0].id for each in requests] == ["0", "1", "2", "3"]
    assert at.counts() == {"success": 4, "hit": 3, "miss": 1, "fail": 0, "inferences": 1, "executions": 1}
    assert at.cache.shared == 3
    waited = at.state.statistics.as_model_stats("m", 1)["inference_stats"]["queue"]["ns"]
    assert waited >= 6e9


async def test_the_next_leads_where_the_leader_fails(near, autojump_clock):
    at = near(capacity=9)
    leader, follower, last = [await at.send(1.0) for _ in range(3)]
    await at.finish(answers=[FAILED])
    assert leader.reply.error is not None
    assert at.worker.sizes == [1, 1]
    await at.finish()
    assert value_of(follower) == value_of(last) == 1.0
    assert at.counts()["fail"] == 1


async def test_inputs_that_fail_do_not_fail_one_after_the_other(near, autojump_clock):
    at = near(capacity=9)
    requests = [await at.send(1.0) for _ in range(6)]
    for _ in range(2):
        await at.finish(answers=[FAILED])
    assert at.worker.sizes == [1] * 6
    assert len([each for each in requests if each.reply.error is not None]) == 2


async def test_a_queued_leader_whose_client_leaves_is_followed_by_the_next(at, autojump_clock):
    await at.send(9.0)
    leader, follower = await at.send(1.0), await at.send(1.0)
    at.state.cancel(leader)
    assert isinstance(leader.reply.error, Cancelled)
    await at.finish()
    await at.finish()
    assert value_of(follower) == 1.0
    assert at.worker.sizes == [1, 1]


async def test_a_running_leader_goes_on_for_the_sake_of_others(at, autojump_clock):
    leader, follower = await at.send(1.0), await at.send(1.0)
    at.state.cancel(leader)
    assert at.worker.cancelled == []
    await at.finish()
    assert value_of(follower) == 1.0


async def test_a_running_leader_that_nobody_follows_is_told_and_not_followed_any_more(near, autojump_clock):
    at = near(capacity=2)
    leader = await at.send(1.0)
    at.state.cancel(leader)
    assert at.worker.cancelled == [leader]
    other = await at.send(1.0)
    assert at.worker.sizes == [1, 1]
    await at.finish()
    assert not other.reply.parts
    await at.finish()
    assert value_of(other) == 1.0


async def test_a_follower_whose_client_leaves_ends_alone(at, autojump_clock):
    leader, follower, last = [await at.send(1.0) for _ in range(3)]
    at.state.cancel(follower)
    assert isinstance(follower.reply.error, Cancelled)
    await at.finish()
    assert value_of(leader) == value_of(last) == 1.0
    assert len(follower.reply.parts) == 1
    assert at.state.statistics.failures[FailureReason.CANCELED] == 1


async def test_each_follower_keeps_its_own_deadline(at, autojump_clock):
    now = trio.current_time()
    await at.send(1.0)
    patient, hasty, hastier = [await at.send(1.0, deadline=now + seconds) for seconds in (9.0, 5.0, 2.0)]
    await trio.sleep(7)
    for request, seconds in ((hasty, 5.0), (hastier, 2.0)):
        assert isinstance(request.reply.error, DeadlineExceeded)
        assert request.reply.at == pytest.approx(now + seconds)
    await at.finish()
    assert value_of(patient) == 1.0
    await trio.sleep(5)
    assert len(patient.reply.parts) == 1


async def test_a_follower_that_leads_in_the_end_has_waited_in_the_queue_all_the_time(near, autojump_clock):
    policy = QueuePolicy(timeout_action=TimeoutAction.REJECT, default_timeout=3.0)
    at = near(scheduling=DynamicBatching(default_queue_policy=policy))
    await at.send(9.0)
    leader = await at.send(1.0)
    await trio.sleep(2)
    follower = await at.send(1.0)
    await trio.sleep(2)
    assert isinstance(leader.reply.error, Unavailable)
    assert leader.reply.at - at.model.start == pytest.approx(3)
    await trio.sleep(5)
    assert isinstance(follower.reply.error, Unavailable)
    assert follower.reply.at - at.model.start == pytest.approx(5)


async def test_followers_beyond_the_bound_run_beside_the_leader(near, autojump_clock):
    at = near(capacity=9, queue_bounds=QueueBounds(requests=2))
    requests = [await at.send(1.0) for _ in range(5)]
    assert at.worker.sizes == [1, 1, 1]
    for _ in range(3):
        await at.finish()
    assert [value_of(each) for each in requests] == [1.0] * 5


async def test_a_leader_that_the_queue_refuses_leads_nobody(near, autojump_clock):
    policy = QueuePolicy(max_queue_size=1)
    at = near(scheduling=DynamicBatching(default_queue_policy=policy))
    await at.send(1.0)
    await at.send(2.0)
    for _ in range(2):
        with pytest.raises(Unavailable, match="maximum queue size"):
            await at.send(3.0)
    for _ in range(2):
        await at.finish()
    third = await at.send(3.0)
    await at.finish()
    assert value_of(third) == 3.0


async def test_what_kills_workers_does_not_kill_one_for_each_follower(at, autojump_clock):
    leader, follower = await at.send(1.0), await at.send(1.0)
    at.state.blame.convict(leader, trio.current_time(), None)
    at.state.outcome.fail(leader, Poisoned("it kills"), FailureReason.BACKEND)
    assert isinstance(follower.reply.error, Poisoned)
    assert at.worker.sizes == [1]


async def test_a_model_that_gives_up_answers_those_who_wait(at, autojump_clock):
    requests = [await at.send(1.0) for _ in range(3)]
    at.state.intake.fail_queued(Unavailable("gone"))
    assert [each.reply.error is not None for each in requests] == [False, True, True]
    at.state.close()
    await at.state.wait_drained()
    assert [len(each.reply.parts) for each in requests] == [1, 1, 1]


async def test_draining_waits_for_followers(at, nursery, autojump_clock):
    await at.send(1.0)
    follower = await at.send(1.0)
    drained = outcome_of(nursery, at.state.wait_drained)
    await at.model.settled()
    assert not drained
    await at.finish()
    assert drained
    assert value_of(follower) == 1.0


# -- keys made elsewhere

WIDE = HASHED_AT_ONCE // 4 + 1


async def test_without_somebody_to_hash_them_large_requests_run(near, autojump_clock):
    at = near(**ANY_WIDTH)
    first, second = [await at.send(1.0, elements=WIDE) for _ in range(2)]
    for _ in range(2):
        await at.finish()
    assert value_of(first) == value_of(second) == 1.0
    assert at.counts()["hit"] == 0


async def test_large_requests_are_hashed_elsewhere_and_found_again(near, nursery):  # threads: a real clock
    at = near(**ANY_WIDTH)
    await nursery.start(lambda task_status: at.cache.hashing.run(Started(task_status)))
    first = at.request(1.0, elements=WIDE)
    await at.state.submit(first)
    assert first in at.state.in_flight
    await at_last(lambda: at.worker.sizes == [1])
    await at.finish()
    second = at.request(1.0, elements=WIDE)
    await at.state.submit(second)
    await second.reply.wait()
    assert value_of(second) == 1.0
    assert at.counts()["hit"] == 1


async def test_who_is_given_up_while_its_key_is_made_is_not_remembered_until_its_deadline(near, nursery):
    at = near(**ANY_WIDTH)
    await nursery.start(lambda task_status: at.cache.hashing.run(Started(task_status)))
    request = at.request(1.0, elements=WIDE, deadline=trio.current_time() + 1000.0)
    await at.state.submit(request)
    assert len(at.cache.deadlines) == 1
    at.state.intake.fail_queued(Unavailable("gone"))
    assert request.reply.error is not None
    assert len(at.cache.deadlines) == 0


async def test_where_the_hasher_dies_who_waits_for_it_runs(near, nursery):
    at = near(**ANY_WIDTH)
    scope = trio.CancelScope()

    async def hashing(task_status):
        with scope:
            await at.cache.hashing.run(Started(task_status))

    await nursery.start(hashing)
    request = at.request(1.0, elements=WIDE)
    await at.state.submit(request)
    scope.cancel()
    await at_last(lambda: at.worker.sizes == [1])
    await at.finish()
    assert value_of(request) == 1.0
    assert at.cache.bugs == 0


class Started(Context):
    def __init__(self, task_status):
        self._task_status = task_status

    def started(self, value=None):
        self._task_status.started(value)


async def at_last(condition):
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110  # a thread brings it about
            await trio.sleep(0.002)


# -- a store that takes its time


class FarDouble:
    """A far store that answers when a test says so."""

    def __init__(self):
        self.asked = []
        self.held = {}
        self.open = True

    def look_up(self, key, found):
        if self.open:
            self.asked.append((key, found))
        return self.open

    def insert(self, key, entry):
        self.held[key] = entry

    def answer(self):
        key, found = self.asked.pop(0)
        found(self.held.get(key))


@pytest.fixture
async def store():
    return FarDouble()


@pytest.fixture
async def behind(near, store):
    """A model whose answers are kept in the far store."""
    return near(far=store)


async def test_a_far_store_is_asked_before_the_model(behind, store, autojump_clock):
    first = await behind.send(1.0)
    assert behind.worker.sizes == []
    store.answer()
    await behind.model.settled()
    await behind.finish()
    second = await behind.send(1.0)
    store.answer()
    assert value_of(first) == value_of(second) == 1.0
    assert behind.worker.sizes == [1]
    assert behind.counts() == {"success": 2, "hit": 1, "miss": 1, "fail": 0, "inferences": 1, "executions": 1}


async def test_a_far_store_that_is_not_asked_costs_nothing(behind, store, autojump_clock):
    store.open = False
    await behind.send(1.0)
    assert behind.worker.sizes == [1]


async def test_one_look_up_is_for_all_who_want_the_same(behind, store, autojump_clock):
    requests = [await behind.send(1.0) for _ in range(3)]
    assert len(store.asked) == 1
    store.answer()
    await behind.model.settled()
    assert behind.worker.sizes == [1]
    await behind.finish()
    assert [value_of(each) for each in requests] == [1.0] * 3


async def test_a_look_up_goes_on_for_the_others_when_its_asker_leaves(behind, store, autojump_clock):
    await behind.send(1.0)
    store.answer()
    await behind.model.settled()
    await behind.finish()
    leader, follower = await behind.send(1.0), await behind.send(1.0)
    behind.state.cancel(leader)
    assert isinstance(leader.reply.error, Cancelled)
    store.answer()
    assert value_of(follower) == 1.0
    assert behind.worker.sizes == [1]


async def test_a_look_up_that_nobody_waits_for_any_more_is_for_nobody(behind, store, autojump_clock):
    asker = await behind.send(1.0, deadline=trio.current_time() + 1)
    await trio.sleep(2)
    assert isinstance(asker.reply.error, DeadlineExceeded)
    store.answer()
    await behind.model.settled()
    assert behind.worker.sizes == []
    assert len(asker.reply.parts) == 1
    assert behind.state.stages[0].waiting == 0


async def test_what_waits_for_look_ups_has_room_in_the_queue(near, store, autojump_clock):
    at = near(far=store, queue_bounds=QueueBounds(requests=2))
    for value in range(4):
        at.state.submit_nowait(at.request(float(value)))
    assert len(store.asked) == 2
    while store.asked:
        store.answer()
    await at.model.settled()
    assert len(at.state.queue) <= 3


async def test_a_model_that_ends_answers_who_waits_for_a_look_up(behind, store, autojump_clock):
    asker = await behind.send(1.0)
    behind.state.intake.fail_queued(Unavailable("gone"))
    assert isinstance(asker.reply.error, Unavailable)
    store.answer()
    await behind.state.wait_drained()
    assert len(asker.reply.parts) == 1


# -- bugs


class Broken(LruCache):
    """A cache with a bug, in one of its methods."""

    def __init__(self, *methods):
        super().__init__(SIZE)
        self.methods = methods

    def lookup(self, key):
        if "lookup" in self.methods:
            raise RuntimeError("a bug")
        return super().lookup(key)

    def insert(self, key, entry):
        if "insert" in self.methods:
            raise RuntimeError("a bug")
        super().insert(key, entry)


@pytest.mark.parametrize("method", ["lookup", "insert"])
async def test_a_bug_in_the_cache_costs_a_miss_and_not_a_request(near, autojump_clock, method):
    at = near(capacity=9)
    at.cache.near = Broken(method)
    requests = [await at.send(1.0) for _ in range(3)]
    while at.worker.outstanding:
        await at.finish()
    assert [value_of(each) for each in requests] == [1.0] * 3
    assert at.cache.bugs >= 1
    assert at.logged[0][0] == "cache_failed"
    assert at.counts()["fail"] == 0


# -- whatever happens


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    far=st.booleans(),
    plan=st.lists(
        st.tuples(
            st.sampled_from(["send", "send", "send", "finish", "fail", "cancel", "sleep", "answer", "close"]),
            st.integers(0, 2),
        ),
        max_size=30,
    ),
)
def test_everybody_is_answered_exactly_once(far, plan):
    trio.run(play, far, plan, clock=trio.testing.MockClock(autojump_threshold=0))


async def play(far, plan):
    async with trio.open_nursery() as nursery:
        store = FarDouble() if far else None
        at = Near(nursery, far=store, capacity=2, queue_bounds=QueueBounds(requests=3))
        sent: list[Any] = []
        for what, number in plan:
            await act(at, store, sent, what, number)
        while store is not None and store.asked:
            store.answer()
        at.state.close()
        await at.model.settled()
        assert [len(each.reply.parts) for each in sent] == [1] * len(sent)
        assert at.state.stages[0].waiting == 0
        assert at.cache.bugs == 0
        assert len(at.cache.deadlines) == 0
        assert not at.state.statistics.reply_violations
        nursery.cancel_scope.cancel()


async def act(at, store, sent, what, number):
    if what == "send":
        deadline = trio.current_time() + 3 if number else math.inf
        request = at.request(float(number), deadline=deadline)
        try:
            at.state.submit_nowait(request)
        except trio.WouldBlock:
            return
        sent.append(request)
    elif what in {"finish", "fail"} and at.worker.outstanding:
        oldest = next(iter(at.worker.outstanding.values())).requests
        at.worker.finish(answers=[FAILED] * len(oldest) if what == "fail" else None)
    elif what == "cancel" and sent:
        at.state.cancel(sent[number % len(sent)])
    elif what == "sleep":
        await trio.sleep(number)
    elif what == "answer" and store is not None and store.asked:
        store.answer()
    elif what == "close":
        at.state.intake.fail_queued(Unavailable("gone"))
    await at.model.settled()
