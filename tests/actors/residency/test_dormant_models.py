"""What a client meets whose model is not loaded: a wait, an answer, or a reason."""

from typing import Any

import pytest
import trio

from actors.residency.dormant import Dormant, WaitingRoom
from actors.serving.intake import STOPPING
from actors.values.errors import Cancelled, DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from actors.values.marks import ClientMarks
from actors.values.specs import ModelKey, QueueBounds
from actors.values.tensors import Tensor
from actors.values.traffic import TrafficPlan
from tests.support.doubles import ServedDouble
from tests.support.model_doubles import make_request, make_spec
from tests.support.trees import settled


class Model(ServedDouble):
    """Accepts each request, or raises the given error."""

    def __init__(self, *refusals):
        self.spec = make_spec()
        self.marks = None
        self.refusals = list(refusals)
        self.accepted = []
        self.cancelled = []

    async def submit(self, request):
        await trio.lowlevel.checkpoint()
        if self.refusals:
            raise self.refusals.pop(0)
        request.routed_to = self
        self.accepted.append(request)

    def cancel(self, request):
        self.cancelled.append(request)


class Bed:
    """A dormant model; `now_serving` is the model that answers for it once it is loaded."""

    def __init__(self, nursery, **changes):
        self.nursery = nursery
        self.rings = 0
        self.room = WaitingRoom(ModelKey("model"), self._ring)
        self.dormant = Dormant(make_spec(**changes), self.room, self._resolve)
        self.now_serving: Any = self.dormant
        self.asked = []

    def _ring(self):
        self.rings += 1

    def _resolve(self, name, version):
        self.asked.append((name, version))
        if isinstance(self.now_serving, Exception):
            raise self.now_serving
        return self.now_serving

    def load(self, model=None):
        self.now_serving = model or Model()
        self.room.open()
        return self.now_serving

    async def loaded(self, model=None):
        """Load, and let everything happen that follows at once."""
        serving = self.load(model)
        await settled()
        return serving

    async def sent(self, **options):
        """Send, and let everything happen that follows at once."""
        sent = self.sending(**options)
        await settled()
        return sent

    def sending(self, **options):
        """A request in flight; `outcome` becomes None once it is accepted, or the error."""
        request = make_request(**options)
        outcome: list[Any] = []

        async def send():
            try:
                await self.dormant.submit(request)
                outcome.append(None)
            except (Unavailable, Cancelled, DeadlineExceeded, InvalidArgument, NotFound) as error:
                outcome.append(error)

        self.nursery.start_soon(send)
        return request, outcome


@pytest.fixture
async def bed(nursery):
    return Bed(nursery)


async def test_who_can_not_wait_for_a_load_is_told_so_and_wakes_nobody():
    async with trio.open_nursery() as nursery:
        bed = Bed(nursery)
        with pytest.raises(trio.WouldBlock):
            bed.dormant.submit_nowait(make_request())
        assert (bed.rings, bed.room.waiting) == (0, 0)


async def test_requests_wait_for_one_load_and_are_then_submitted_where_it_serves(bed):
    sent = [bed.sending() for _ in range(5)]
    await settled()
    assert bed.room.waiting == 5
    assert bed.rings == 1
    model = await bed.loaded()
    assert {id(request) for request, _ in sent} == {id(request) for request in model.accepted}
    assert all(outcome == [None] for _, outcome in sent)
    assert bed.room.waiting == 0
    assert bed.room.wanted_since is None


async def test_one_that_comes_to_a_model_just_loaded_goes_there_at_once(bed):
    bed.now_serving = model = Model()
    request, outcome = await bed.sent()
    assert outcome == [None]
    assert model.accepted == [request]


async def test_the_version_that_the_client_named_is_the_one_that_answers(nursery):
    bed = Bed(nursery, version=3)
    bed.now_serving = Model()
    bed.sending()
    await bed.sent(requested_version=3)
    assert sorted(bed.asked) == [("model", ""), ("model", "3")]


async def test_a_request_that_contradicts_the_model_wakes_nobody(bed):
    request = make_request()
    request.inputs = [Tensor(name="INPUT", datatype=request.inputs[0].datatype, shape=(1, 3), data=bytes(12))]
    with pytest.raises(InvalidArgument, match="unexpected shape"):
        await bed.dormant.submit(request)
    assert bed.rings == 0


async def test_so_many_requests_may_wait_and_the_next_is_told_what_to_do(nursery):
    bed = Bed(nursery, queue_bounds=QueueBounds(requests=2))
    bed.sending()
    await bed.sent()
    with pytest.raises(
        Unavailable,
        match=r"^\[request id: three\] 2 requests wait already while model 'model' is being loaded; "
        "try again later, or raise the model's 'tritium.queue.max_requests'$",
    ):
        await bed.dormant.submit(make_request(id="three"))
    assert bed.room.waiting == 2


async def test_their_bytes_are_bounded_too_but_a_lone_one_is_let_in(nursery):
    bed = Bed(nursery, queue_bounds=QueueBounds(nbytes=10))
    bed.sending(rows=2)  # 16 bytes
    await settled()
    with pytest.raises(Unavailable, match=r"requests of 16 bytes wait already.*'tritium.queue.max_bytes'"):
        await bed.dormant.submit(make_request())
    await bed.loaded()
    bed.now_serving = bed.dormant
    _, outcome = await bed.sent(rows=2)
    assert outcome == []  # it waits: the first one's bytes have left with it


async def test_the_clients_deadline_ends_its_wait_and_nobody_elses(bed, autojump_clock):
    _, hasty = bed.sending(deadline=trio.current_time() + 2)
    _, patient = bed.sending()
    await trio.sleep(3)
    (error,) = hasty
    assert isinstance(error, DeadlineExceeded)
    assert error.message.endswith("the request's own deadline passed while model 'model' was being loaded")
    assert patient == []
    assert bed.room.wanted_since is not None
    await bed.loaded()
    assert patient == [None]


async def test_a_client_that_leaves_waits_no_longer(bed):
    request, outcome = await bed.sent()
    bed.dormant.cancel(request)
    await settled()
    assert isinstance(outcome[0], Cancelled)
    assert request.cancelled
    assert bed.room.waiting == 0
    assert bed.room.wanted_since is None


async def test_a_task_that_is_cancelled_leaves_nothing_behind(bed):
    with trio.CancelScope() as scope:
        scope.cancel()
        await bed.dormant.submit(make_request())
    assert bed.room.waiting == 0
    assert bed.room.wanted_since is None


async def test_a_client_that_leaves_later_is_told_of_where_its_request_is(bed):
    request, _ = await bed.sent()
    model = await bed.loaded()
    bed.dormant.cancel(request)
    assert model.cancelled == [request]


async def test_a_load_that_fails_is_told_to_all_who_wait_and_not_repeated_for_those_who_come_soon(
    bed, autojump_clock
):
    sent = [bed.sending(id=name) for name in ("a", "b")]
    await settled()
    await settled(bed.room.load_failed, "the weights are not there")
    assert sorted(outcome[0].message for _, outcome in sent) == [
        f"[request id: {name}] model 'model' could not be loaded: the weights are not there" for name in "ab"
    ]
    with pytest.raises(
        Unavailable, match=r"the weights are not there \(tried again in 1 s at the earliest\)$"
    ):
        await bed.dormant.submit(make_request())
    assert bed.rings == 2  # as it was wanted, and when the last had left
    await trio.sleep(1)
    await bed.sent()
    assert bed.room.wanted_since is not None


async def test_each_failure_in_a_row_is_followed_by_a_longer_pause_until_a_load_succeeds(bed, autojump_clock):

    async def pause():
        """How long requests are refused after one more failure."""
        bed.room.load_failed("no")
        began = trio.current_time()
        while True:
            _, outcome = bed.sending()
            await settled()
            if not outcome:
                return trio.current_time() - began
            await trio.sleep(1)

    assert [await pause() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    await bed.loaded()
    bed.now_serving = bed.dormant
    assert await pause() == 1
    bed.room.load_failed("no")
    bed.room.forgive()
    _, outcome = await bed.sent()
    assert outcome == []


async def test_one_that_was_refused_room_may_be_tried_again_at_once(bed):
    _, outcome = await bed.sent(id="x")
    await settled(bed.room.refuse, "does not fit")
    assert outcome[0].message == "[request id: x] model 'model' does not fit"
    await bed.sent()
    assert bed.room.wanted_since is not None


async def test_a_refusal_of_the_model_itself_is_the_clients_answer(bed):
    bed.now_serving = model = Model(Unavailable("Exceeds maximum queue size"))
    with pytest.raises(Unavailable, match=r"^Exceeds maximum queue size$"):
        await bed.dormant.submit(make_request())
    assert model.accepted == []


async def test_one_that_was_evicted_before_it_took_the_request_is_loaded_again(bed):
    request, outcome = await bed.sent()

    class Evicted(Model):
        async def submit(self, request):
            bed.now_serving = bed.dormant
            raise Unavailable(STOPPING)

    await bed.loaded(Evicted())
    assert bed.room.wanted_since is not None
    model = await bed.loaded()
    assert outcome == [None]
    assert model.accepted == [request]


async def test_that_is_not_tried_for_ever(bed):
    _, outcome = bed.sending()
    for _ in range(20):
        await settled()
        bed.room.open()  # the model has gone by the time that the request looks
    assert isinstance(outcome[0], Unavailable)
    assert "was evicted whenever it had been loaded" in outcome[0].message


async def test_a_model_that_has_gone_meanwhile_is_unknown(bed):
    _, outcome = await bed.sent()
    await bed.loaded(NotFound("Request for unknown model: 'model' is not found"))
    assert isinstance(outcome[0], NotFound)


async def test_when_the_server_stops_those_who_wait_are_answered_and_no_more_come_in(bed):
    _, outcome = await bed.sent(id="x")
    await settled(bed.room.close)
    assert outcome[0].message == f"[request id: x] {STOPPING}"
    with pytest.raises(Unavailable, match=STOPPING):
        await bed.dormant.submit(make_request())


async def test_closing_catches_those_who_were_about_to_wait_again(bed):
    _, outcome = await bed.sent()
    bed.room.open()
    await settled(bed.room.close)
    assert STOPPING in outcome[0].message


async def test_wakes_are_timed_from_the_first_request_to_the_end_of_the_load(bed, autojump_clock):
    bed.sending()
    await trio.sleep(2)
    bed.sending()
    await trio.sleep(1)
    bed.load()
    assert (bed.room.wakes, bed.room.wake_seconds) == (1, pytest.approx(3))
    await settled()
    bed.room.open()
    # No request waited this time.
    assert bed.room.wakes == 1


def test_frontends_are_told_of_the_header_that_keeps_clients_with_one_version():
    assert (
        Dormant(make_spec(), WaitingRoom(ModelKey("model"), print), lambda name, version: Model()).marks
        is None
    )
    plan = TrafficPlan(weights={1: 1.0}, sticky_header="x-user")
    dormant = Dormant(
        make_spec(traffic=plan), WaitingRoom(ModelKey("model"), print), lambda name, version: Model()
    )
    assert dormant.marks == ClientMarks(affinity_header="x-user")
