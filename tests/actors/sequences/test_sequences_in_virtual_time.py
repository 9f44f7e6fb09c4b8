"""A sequence model's state and scheduler on a clock that jumps, with workers that finish on cue."""

import math

import pytest
import trio

from actors.serving.deaths import settle
from actors.serving.instances.batches import BatchState
from actors.serving.intake import STOPPING
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.policy.retries import Aftermath
from actors.serving.standing import Status
from actors.values.datatypes import DataType
from actors.values.errors import (
    Cancelled,
    DeadlineExceeded,
    ErrorCode,
    InvalidArgument,
    Unavailable,
)
from actors.values.events import Event
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START
from actors.values.specs import (
    DirectStrategy,
    InstanceSpec,
    OldestStrategy,
    QueueBounds,
    RateLimit,
    Resource,
    SequenceBatching,
    StateSpec,
)
from actors.values.tensors import Tensor
from actors.wire.batch_frames import Answer
from tests.support.model_doubles import Stage
from tests.support.tasks import outcome_of

START, END = FLAG_SEQUENCE_START, FLAG_SEQUENCE_END
OLDEST = SequenceBatching(strategy=OldestStrategy(), max_idle=1.0)
DIRECT = SequenceBatching(strategy=DirectStrategy(), max_idle=1.0)
STATE = StateSpec(
    input_name="S",
    output_name="S",
    datatype=DataType.FP32,
    dims=(1,),
    initial=Tensor("S", DataType.FP32, (1,), bytes(4)),
)
PAIR = tuple(InstanceSpec(name=f"m_{n}") for n in range(2))
KEPT = SequenceBatching(strategy=OldestStrategy(), states=(STATE,), checkpoint=True)


@pytest.fixture
async def stage(nursery):
    def make(scheduling=OLDEST, **changes):
        return Stage(nursery, scheduling=scheduling, **changes)

    return make


@pytest.fixture
async def model(stage):
    return stage()


@pytest.fixture
async def single(stage):
    """A model with one slot."""
    return stage(max_batch_size=1)


@pytest.fixture
async def pair(stage):
    """A model with two instances of one slot each."""
    return stage(max_batch_size=1, instances=PAIR)


def step(model, sequence=1, flags=0, **options):
    return model.send(correlation_id=sequence, flags=flags, **options)


async def stepped(model, *place, **options):
    """Send one step, and let everything happen that follows at once."""
    request = await step(model, *place, **options)
    await model.settled()
    return request


def real(worker):
    """The requests of each batch, without padding."""
    return [[each for each in requests if not each.padding] for _, requests, _ in worker.sent]


async def test_a_lone_request_is_dispatched_by_its_caller(model, autojump_clock):
    await model.settled()
    request = model.request(correlation_id=1, flags=START)
    model.state.submit_nowait(request)
    assert real(model.worker) == [[request]]


@pytest.mark.parametrize("scheduling", [OLDEST, DIRECT])
async def test_steps_of_a_sequence_are_answered_in_order(stage, autojump_clock, scheduling):
    model = stage(scheduling)
    line = [await step(model, 1, START), await step(model), await step(model, 1, END)]
    for _ in line:
        await model.settled()
        model.worker.finish()
    assert model.arrivals == [each.reply for each in line]
    assert all(each.reply.answered for each in line)
    assert not model.state.in_flight


async def test_padding_is_nobody_s_answer_and_no_statistic(stage, autojump_clock):
    model = stage(DIRECT)
    await step(model, 1, START)
    await stepped(model, 2, START)
    model.worker.finish()
    request = await stepped(model, 2)
    assert [each.padding for each in model.worker.sent[-1][1]] == [True, False]
    model.worker.finish()
    assert request.reply.answered
    assert model.state.statistics.success_count == 3
    assert model.state.statistics.reply_violations == 0


async def test_an_idle_sequence_is_over_on_time(single, autojump_clock):
    await stepped(single, 1, START)
    single.worker.finish()
    waiting = await stepped(single, 2, START)
    assert len(single.worker.sent) == 1
    await trio.sleep(1.0)
    await single.settled()
    assert real(single.worker)[1:] == [[waiting]]
    with pytest.raises(InvalidArgument, match="must specify the START flag"):
        await step(single)


async def test_a_wait_in_the_backlog_ends_on_time(single, autojump_clock):
    await step(single, 1, START)
    late = await step(single, 2, START, timeout=0.25)
    error = await late.reply.wait()
    assert (error.code, error.message) == (
        ErrorCode.UNAVAILABLE,
        "timeout of the corresponding sequence has been expired",
    )
    assert single.now == pytest.approx(0.25)


async def test_cancelling_a_queued_request_cancels_its_sequence_s_others(single, autojump_clock):
    running = await stepped(single, 1, START)
    line = [await step(single), await step(single)]
    other = await step(single, 2, START)
    single.state.cancel(line[0])
    assert all(isinstance(each.reply.error, Cancelled) and not each.reply.error.message for each in line)
    await single.finished()
    assert running.reply.answered
    assert real(single.worker)[-1] == [other]


async def test_a_running_request_that_is_cancelled_is_only_flagged(model, autojump_clock):
    running = await stepped(model, 1, START)
    model.state.cancel(running)
    assert model.worker.cancelled == [running]
    model.worker.finish()
    assert running.reply.answered


@pytest.mark.parametrize("scheduling", [OLDEST, DIRECT, KEPT], ids=["oldest", "direct", "kept"])
async def test_what_a_model_has_not_begun_of_a_sequence_is_cancelled_as_if_it_were_queued(
    stage, autojump_clock, scheduling
):
    model = stage(scheduling)
    model.worker.stopped = True
    left, mate = await step(model, sequence=2, flags=START), await stepped(model, sequence=3, flags=START)
    follows = await step(model, sequence=2)
    sent = real(model.worker)
    assert left in sent[0]
    model.state.cancel(left)
    assert [each.reply.error.code for each in (left, follows)] == [ErrorCode.CANCELLED] * 2
    assert left.attempts == 0
    await model.settled()
    assert real(model.worker)[-1] == [mate]
    model.worker.stopped = False
    await model.finished()
    assert mate.reply.answered
    last = await step(model, sequence=3, flags=END)
    again = await stepped(model, sequence=2, flags=START | END)
    while model.worker.outstanding:
        await model.finished()
    assert last.reply.answered
    assert again.reply.answered


async def test_a_deadline_in_the_queue_ends_the_sequence(single, autojump_clock):
    await stepped(single, 1, START)
    late = await step(single, deadline=trio.current_time() + 0.3)
    behind = await step(single)
    assert isinstance(await late.reply.wait(), DeadlineExceeded)
    assert isinstance(await behind.reply.wait(), Unavailable)
    assert single.now == pytest.approx(0.3)


async def test_a_batch_that_can_not_be_handed_over_leaves_its_slots_usable(model, autojump_clock):
    model.worker.fail_next = OSError("no memory")
    lost = await step(model, 1, START)
    assert isinstance(await lost.reply.wait(), Unavailable)
    again = await stepped(model)
    assert real(model.worker) == [[again]]


async def test_unloading_waits_for_what_is_queued_and_takes_what_goes_on(model, autojump_clock):
    await step(model, 1, START)
    model.state.standing.become(Status.UNLOADING)
    last = await step(model, 1, END)
    with pytest.raises(Unavailable) as caught:
        await step(model, 2, START)
    assert caught.value.message == STOPPING
    drained = outcome_of(model.nursery, model.state.wait_drained)
    for _ in range(2):
        await model.settled()
        assert not drained
        model.worker.finish()
    await model.settled()
    assert drained
    assert last.reply.answered


async def test_a_start_on_a_live_sequence_is_logged(model, autojump_clock):
    await model.settled()
    await step(model, 1, START)
    await stepped(model, 1, START)
    [(event, level, keys)] = model.logged
    assert (event, level, keys["correlation_id"]) == (Event.SEQUENCE_STARTED, "warning", 1)


def die(model, at=0, **aftermath):
    worker = model.workers[at]
    worker.outstanding.clear()
    worker.instance.worker = None
    worker.instance.last_reason = "signal 9"
    settle(model.state, worker.instance, Aftermath(**aftermath))


async def come_back(model, at=0):
    worker = model.workers[at]
    model.state.instance_ready(worker.instance, worker)
    await model.settled()


async def test_a_death_gives_every_request_of_its_sequences_one_error(model, autojump_clock):
    running = await stepped(model, 1, START)
    line = [await step(model), await step(model)]
    die(model, suspects=((running,),))
    for request in (running, *line):
        assert request.reply.parts == [request.reply.error]
        assert isinstance(request.reply.error, Unavailable)
        assert "sequence 1 of model 'model' has ended: its instance 'model_0_0' died of signal 9" in (
            request.reply.error.message
        )
    with pytest.raises(InvalidArgument, match="START flag"):
        await step(model)
    fresh = await step(model, 1, START)
    await come_back(model)
    assert real(model.worker)[-1] == [fresh]
    assert list(model.state.in_flight) == [fresh]


def not_begun(requests):
    """What the instance actor says of requests that its worker had and did not begin; see `after_death`."""
    for request in requests:
        request.attempts -= 1
    return tuple(requests)


async def test_a_sequence_of_which_nothing_has_run_goes_on_in_another_instance(pair, autojump_clock):
    first = await stepped(pair, 1, START)
    line = [first, await step(pair, 1), await step(pair, 1, END)]
    die(pair, 0, requeue=not_begun([first]))
    for request in line:
        await pair.settled()
        assert real(pair.workers[1])[-1] == [request]
        pair.workers[1].finish()
        assert request.reply.error is None
    assert first.attempts == 1
    assert not pair.state.sequences.roll.live


async def test_a_sequence_of_which_nothing_has_run_waits_for_its_only_instance(single, autojump_clock):
    first = await stepped(single, 1, START)
    behind, stranger = await step(single), await step(single, 2, START)
    die(single, requeue=not_begun([first]))
    newcomer = await step(single, 3, START)
    assert not any(each.reply.parts for each in (first, behind, stranger, newcomer))
    await come_back(single)
    for expected in (first, behind):
        await single.settled()
        assert real(single.worker)[-1] == [expected]
        single.worker.finish()
    assert single.state.statistics.retried == 0


async def test_a_start_that_still_waits_for_its_turn_survives_its_instance(single, autojump_clock):
    begun = await stepped(single, 1, START)
    single.worker.finish()
    running = await stepped(single, 1)
    again, behind = await step(single, 1, START), await step(single, 1)
    await single.finished()
    assert begun.reply.answered
    assert running.reply.answered
    assert real(single.worker)[-1] == [again]
    die(single, requeue=not_begun([again]))
    assert again.reply.parts == behind.reply.parts == []
    await come_back(single)
    assert real(single.worker)[-1] == [again]


async def test_a_request_that_goes_on_with_a_sequence_is_not_moved_though_it_has_not_run(
    single, autojump_clock
):
    await stepped(single, 1, START)
    single.worker.finish()
    going_on = await stepped(single)
    die(single, requeue=not_begun([going_on]))
    assert "sequence 1 of model 'model' has ended" in going_on.reply.error.message


async def test_a_start_that_has_run_is_not_run_again(single, autojump_clock):
    started = await stepped(single, 1, START)
    # No request is at fault, but the worker had begun this one.
    die(single, requeue=(started,))
    assert "sequence 1 of model 'model' has ended" in started.reply.error.message


async def test_a_death_leaves_sequences_of_other_instances_alone(pair, autojump_clock):
    first, second = await step(pair, 1, START), await stepped(pair, 2, START)
    die(pair, 0, requeue=(first,))
    behind = await step(pair, 2)
    await pair.finished(pair.workers[1])
    assert second.reply.answered
    assert real(pair.workers[1])[-1] == [behind]


async def test_with_a_checkpoint_sequences_go_on(stage, autojump_clock):
    model = stage(KEPT)
    running = await stepped(model, 1, START)
    behind = await step(model)
    die(model, requeue=(running,))
    await come_back(model)
    assert real(model.worker)[-1] == [running]
    await model.finished()
    assert real(model.worker)[-1] == [behind]
    model.worker.finish()
    assert running.reply.answered
    assert behind.reply.answered


async def test_with_a_checkpoint_suspects_run_again_one_by_one(stage, autojump_clock):
    model = stage(KEPT)
    await stepped(model, 9, START)
    running = [await step(model, n, START) for n in (1, 2)]
    await model.finished()
    die(model, suspects=((running[0],), (running[1],)))
    await come_back(model)
    for request in running:
        await model.settled()
        assert model.worker.sent[-1][1:] == ([request], True)
        model.worker.finish()
    assert all(request.reply.answered for request in running)


async def test_a_suspect_runs_when_no_other_lane_of_its_worker_does(stage, autojump_clock):
    lanes = (InstanceSpec(name="m", lanes=2),)
    model = stage(KEPT, max_batch_size=1, capacity=2, instances=lanes)
    first, second = await step(model, 1, START), await stepped(model, 2, START)
    assert len(model.worker.outstanding) == 2
    die(model, suspects=((first,), (second,)))
    await come_back(model)
    assert real(model.worker)[2:] == [[first]]
    await model.finished()
    assert real(model.worker)[2:] == [[first], [second]]
    behind = await stepped(model, 1)
    assert len(model.worker.outstanding) == 1
    await model.finished()
    assert real(model.worker)[4:] == [[behind]]


async def test_what_may_not_run_twice_is_refused_and_its_sequence_goes_on(stage, autojump_clock):
    model = stage(KEPT)
    running = await stepped(model, 1, START)
    behind = await step(model)
    die(model, refuse=((running, Unavailable("not twice")),))
    await come_back(model)
    assert real(model.worker)[-1] == [behind]


async def test_rescheduled_requests_run_again_until_they_are_answered(stage, autojump_clock):
    model = stage(SequenceBatching(strategy=OldestStrategy(), iterative=True))
    request = await model.send()
    for _ in range(2):
        await model.settled()
        model.worker.finish(answers=[Answer(rescheduled=True)])
    await model.settled()
    assert not request.reply.parts
    model.worker.finish()
    assert request.reply.answered
    assert len(model.worker.sent) == 3
    assert request.reply.parts[0].parameters is None  # it was not run again for a death
    assert model.state.statistics.success_count == 1


async def test_an_iterative_request_whose_client_left_is_not_run_again(stage, autojump_clock):
    model = stage(SequenceBatching(strategy=OldestStrategy(), iterative=True))
    request = await model.sent()
    model.state.cancel(request)
    model.worker.finish(answers=[Answer(rescheduled=True)])
    assert isinstance(request.reply.error, Cancelled)


@pytest.mark.parametrize("scheduling", [OLDEST, None])
async def test_reschedule_is_refused_where_the_model_is_not_iterative(nursery, autojump_clock, scheduling):
    changes = {} if scheduling is None else {"scheduling": scheduling}
    model = Stage(nursery, **changes)
    request = await stepped(model, 1, START)
    model.worker.finish(answers=[Answer(rescheduled=True)])
    assert request.reply.error.code is ErrorCode.INVALID_ARG
    assert request.reply.error.message == (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle"
        " such a flag."
    )


async def test_a_full_backlog_does_not_keep_those_with_slots_from_ending(stage, autojump_clock):
    model = stage(max_batch_size=1, queue_bounds=QueueBounds(requests=1))
    await stepped(model, 1, START)
    await step(model, 2, START)
    stuck = model.sending(correlation_id=3, flags=START)
    await model.settled()
    assert not stuck.reply.admitted
    await step(model, 1, END)
    for _ in range(2):
        await model.finished()
    assert stuck.reply.admitted


async def test_what_is_to_run_again_on_an_instance_that_has_left_is_answered(stage, autojump_clock):
    again = SequenceBatching(strategy=OldestStrategy(), iterative=True)
    model = stage(again, max_batch_size=1, instances=PAIR)
    request = await model.sent()
    model.state.remove_instance(model.worker.instance)
    await model.finished(answers=[Answer(rescheduled=True)])
    assert "has ended with its instance" in request.reply.error.message
    assert real(model.workers[1]) == []
    assert not model.state.in_flight
    assert not model.state.sequences.roll.live


async def test_an_instance_that_leaves_ends_its_sequences(pair, autojump_clock):
    running = await stepped(pair, 1, START)
    behind = await step(pair)
    worker = pair.workers[0]
    pair.state.remove_instance(worker.instance)
    assert "has been taken out of service" in behind.reply.error.message
    worker.finish()
    assert running.reply.answered


async def test_a_direct_batch_waits_for_its_delay(stage, autojump_clock):
    waits = SequenceBatching(strategy=DirectStrategy(max_queue_delay=0.5, minimum_slot_utilization=1.0))
    model = stage(waits)
    await step(model, 1, START)
    await trio.sleep(0.3)
    await step(model, 2, START)
    await trio.sleep(1)
    assert model.worker.times[0] - model.start == pytest.approx(0.5)
    assert model.worker.sizes == [2]


async def test_rate_limited_instances_take_turns(stage, autojump_clock):
    one = RateLimit(resources=(Resource(name="R", count=1, shared=True),))
    instances = tuple(InstanceSpec(name=f"m_{n}", rate_limit=one) for n in range(2))
    model = stage(max_batch_size=1, instances=instances, ready=False)
    model.state.dispatcher.limiter = RateLimiter({})
    model.state.dispatcher.limiter.enter(
        "m", [(each, each.spec) for each in model.state.instances], model.state.doorbell.ring
    )
    for at in range(2):
        await come_back(model, at)
    await step(model, 1, START)
    await stepped(model, 2, START)
    assert [len(worker.sent) for worker in model.workers] == [1, 0]
    model.workers[0].finish()
    model.state.dispatcher.ended(model.workers[0].instance)
    await model.settled()
    assert [len(worker.sent) for worker in model.workers] == [1, 1]
    assert math.isfinite(model.now)


def crash(model):
    """The actor of the first instance crashes before its worker's batches were settled."""
    instance, outstanding = model.worker.instance, model.worker.outstanding
    instance.worker = None
    instance.held.outstanding.update(outstanding)
    model.state.dispatcher.reclaim(instance)


async def test_a_crash_ends_the_sequences_of_its_instance(stage, autojump_clock):
    model = stage(max_batch_size=2, instances=PAIR)
    running = await stepped(model, 1, START)
    next(iter(model.worker.outstanding.values())).become(BatchState.SENT)
    behind = await step(model)
    crash(model)
    for each in (running, behind):
        assert (
            "sequence 1 of model 'model' has ended: its instance 'm_0' has crashed"
            in each.reply.error.message
        )
    assert not model.state.sequences.roll.live


async def test_after_a_crash_a_sequence_that_has_not_begun_goes_on_elsewhere(pair, autojump_clock):
    first = await stepped(pair, 1, START)
    crash(pair)
    await pair.settled()
    assert real(pair.workers[1]) == [[first]]
    assert first.attempts == 1


async def test_after_a_crash_a_request_that_did_not_run_is_answered_if_its_sequence_had_begun(
    pair, autojump_clock
):
    await stepped(pair, 1, START)
    pair.worker.finish()
    second = await stepped(pair)
    crash(pair)
    await pair.settled()
    assert "has ended: its instance 'm_0' has crashed" in second.reply.error.message
    assert real(pair.workers[1]) == []


async def test_after_a_crash_a_sequence_whose_state_is_kept_goes_on_without_what_ran(stage, autojump_clock):
    model = stage(KEPT, instances=PAIR)
    running = await stepped(model, 1, START)
    next(iter(model.worker.outstanding.values())).become(BatchState.SENT)
    behind = await step(model)
    crash(model)
    await model.settled()
    assert running.reply.error.message.endswith("instance 'm_0' has crashed")
    assert real(model.workers[1]) == [[behind]]
