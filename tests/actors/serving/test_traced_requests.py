"""What serving notes on the span of a traced request, on a clock that jumps."""

import pytest
import trio

from actors.serving.deaths import settle
from actors.serving.policy.retries import Aftermath
from actors.serving.ports import BatchObserver, Observers
from actors.serving.standing import Status
from actors.tracing.observer import SpanObserver
from actors.values.errors import ErrorCode, Unavailable
from actors.values.specs import DynamicBatching
from actors.wire.batch_frames import Answer, Result
from tests.support.model_doubles import Stage, make_request
from tests.support.traced import Book, names

BATCHING = DynamicBatching(preferred_batch_sizes=(4,), max_queue_delay=0.5)


class Traced:
    """A model whose requests are traced."""

    def __init__(self, nursery, **changes):
        self.model = Stage(nursery, spans=SpanObserver(), **changes)
        self.book = Book(self.model.start)
        self.model.state.instances[0].pid = 77

    async def send(self, rows=1, **options):
        request = self.model.request(rows, **options)
        self.trace = self.book.trace()
        self.trace.open(request, trio.current_time())
        await self.model.state.submit(request)
        await self.model.settled()
        return request

    def sent(self, request):
        """The frontend is done: return the value of the request's span."""
        request.span.trace.sent(trio.current_time())
        return self.book.finished[-1].requests[0]

    @property
    def told(self):
        return self.model.state.observers.told


@pytest.fixture
def traced(nursery):
    return lambda **changes: Traced(nursery, **changes)


async def test_a_span_tells_the_batch_and_its_times(traced, autojump_clock):
    world = traced(scheduling=BATCHING)
    first = await world.send(id="r1")
    await world.model.send(rows=2)
    await trio.sleep(1)
    world.model.worker.finish()
    value = world.sent(first)
    assert (value.model_name, value.model_version, value.rows, value.parts) == ("model", 1, 1, 1)
    assert value.moments == (("REQUEST_START", 0), ("QUEUE_START", 0), ("REQUEST_END", 1_000_000))
    (run,) = value.executions
    assert (run.instance, run.pid, run.requests, run.rows, run.outcome) == ("model_0_0", 77, 2, 3, "finished")
    assert run.dispatched_ns == 500_000
    assert run.dispatched_ns <= run.started_ns <= run.input_end_ns <= run.output_start_ns <= run.ended_ns
    assert run.ended_ns == 1_000_000


async def test_a_workers_durations_are_believed_as_far_as_they_can_be_true(traced, autojump_clock):
    world = traced()
    request = await world.send()
    await trio.sleep(2)
    batch = next(iter(world.model.worker.outstanding.values()))
    forever = int(60e9)
    SpanObserver().finished(batch, Result(batch.id, 0, 1, (forever, forever, int(1e9))))
    run = request.span.executions[0]
    start = world.model.start
    assert [run.started - start, run.input_end - start, run.output_start - start] == [0, 0, 1]


@pytest.mark.parametrize(
    ("told", "times"),
    [
        (101.5, [0.5, 0.6, 0.8, 1.1]),  # the worker began half a second after the batch was handed to it
        (100.9, [1.4, 1.5, 1.7, 2.0]),  # before that: an earlier batch, or a lie
        (103.5, [1.4, 1.5, 1.7, 2.0]),  # in the future
        (102.7, [1.4, 1.5, 1.7, 2.0]),  # too late for the phases that it tells of
        (0.0, [1.4, 1.5, 1.7, 2.0]),  # it did not say
    ],
)
async def test_a_worker_says_when_it_began(traced, autojump_clock, told, times):
    world = traced()
    request = await world.send()
    await trio.sleep(2)
    (batch,) = world.model.worker.outstanding.values()
    batch.slot.begun_ns = int(told * 1e9)
    observer = SpanObserver(lambda: 103.0)  # now: two seconds after the batch was handed over
    observer.finished(batch, Result(batch.id, 0, 1, (int(1e8), int(2e8), int(3e8))))
    run = request.span.executions[0]
    start = world.model.start
    phases = (run.started, run.input_end, run.output_start, run.ended)
    assert [round(at - start, 6) for at in phases] == times


async def test_a_death_began_when_the_worker_says(traced, autojump_clock):
    world = traced()
    request = await world.send()
    await trio.sleep(2)
    (batch,) = world.model.worker.outstanding.values()
    batch.slot.begun_ns = int(101.5 * 1e9)
    SpanObserver(lambda: 103.0).died(batch, "signal 9")
    assert round(request.span.executions[0].started - world.model.start, 6) == 0.5


async def test_observers_are_told_of_batches_only_while_a_traced_request_is_in_flight(traced, autojump_clock):
    world = traced()
    assert world.told == ()
    first = await world.send()
    second = await world.send()
    assert len(world.told) == 1
    await world.model.finished()
    assert len(world.told) == 1
    await world.model.finished()
    assert world.told == ()
    assert world.sent(first).compute is not None
    assert world.sent(second).compute is not None


async def test_without_an_observer_of_spans_requests_are_served_alike(nursery, autojump_clock):
    model = Stage(nursery)
    request = make_request()
    Book().trace().open(request, 0.0)
    await model.state.submit(request)
    await model.settled()
    await model.finished()
    assert request.answered
    assert request.span.executions == []


async def test_an_error_is_told_with_its_code(traced, autojump_clock):
    world = traced()
    request = await world.send()
    await world.model.finished(answers=[Answer(code=ErrorCode.INTERNAL, message="broken")])
    value = world.sent(request)
    assert value.error == "Internal: broken"
    assert value.parts == 0


async def test_a_request_that_is_refused_has_no_version(traced, autojump_clock):
    world = traced()
    world.model.state.standing.become(Status.UNAVAILABLE, "gone")
    with pytest.raises(Unavailable):
        await world.send()
    world.trace.sent(trio.current_time())
    (value,) = world.book.finished[0].requests
    assert (value.model_version, names(value.moments)) == (-1, ["REQUEST_START", "REQUEST_END"])
    assert world.told == ()


async def test_a_death_ends_an_execution_and_another_answers(traced, autojump_clock):
    world = traced()
    request = await world.send()
    await trio.sleep(1)
    worker = world.model.worker
    (batch,) = worker.outstanding.values()
    for observer in world.told:
        observer.died(batch, "signal 9")
    worker.disown()
    settle(world.model.state, worker.instance, Aftermath(requeue=(request,)))
    await world.model.settled()
    await trio.sleep(1)
    await world.model.finished()
    value = world.sent(request)
    assert [(each.outcome, each.reason) for each in value.executions] == [
        ("died", "signal 9"),
        ("finished", ""),
    ]
    assert value.executions[0].started_ns == 0
    assert value.executions[0].ended_ns == 1_000_000
    assert value.compute is value.executions[1]


async def test_a_batch_that_is_taken_back_has_not_run(traced, autojump_clock):
    world = traced(capacity=2)
    worker = world.model.worker
    first, second = await world.send(), await world.send()
    waiting = worker.holding(second)
    assert world.model.state.dispatcher.take_back(worker.instance, waiting)
    await world.model.settled()
    await world.model.finished()
    await world.model.finished()
    assert [each.outcome for each in world.sent(first).executions] == ["finished"]
    assert [each.outcome for each in world.sent(second).executions] == ["taken back", "finished"]


async def test_a_batch_that_could_not_be_sent_has_not_run(traced, autojump_clock):
    world = traced()
    request = await world.send()
    worker = world.model.worker
    (batch,) = worker.outstanding.values()
    worker.outstanding.clear()
    world.model.state.dispatcher.unsent(worker.instance, batch, OSError("no memory"))
    value = world.sent(request)
    assert [each.outcome for each in value.executions] == ["taken back"]
    assert value.error.startswith("Unavailable: ")


async def test_an_instance_that_crashed_leaves_executions_that_died(traced, autojump_clock):
    world = traced()
    request = await world.send()
    worker = world.model.worker
    worker.instance.held.outstanding.update(worker.outstanding)
    (batch,) = worker.outstanding.values()
    batch.state = type(batch.state).SENT
    world.model.state.dispatcher.reclaim(worker.instance)
    value = world.sent(request)
    assert [(each.outcome, each.reason) for each in value.executions] == [("died", "has crashed")]


async def test_an_answer_in_parts_computes_from_its_batchs_start_to_its_last_part(traced, autojump_clock):
    world = traced()
    request = await world.send()
    observer = SpanObserver()
    (batch,) = world.model.worker.outstanding.values()
    for final in (False, False, True):
        await trio.sleep(1)
        observer.part(batch, request, final=final)
    observer.finished(batch, Result(batch.id, 0, 1, (1, 2, 3), answers=[Answer(open=True)]))
    run = request.span.executions[0]
    start = world.model.start
    assert [each - start for each in (run.started, run.input_end, run.output_start, run.ended)] == [
        0,
        0,
        1,
        3,
    ]
    observer.part(batch, request, final=True)
    assert run.ended - start == 3


async def test_an_open_answer_is_not_over_with_its_batch(traced, autojump_clock):
    world = traced()
    request = await world.send()
    (batch,) = world.model.worker.outstanding.values()
    SpanObserver().finished(batch, Result(batch.id, 0, 1, (1, 2, 3), answers=[Answer(open=True)]))
    assert request.span.execution is not None


async def test_requests_without_spans_are_passed_over(traced, autojump_clock):
    world = traced()
    request = await world.model.sent()
    observer = SpanObserver()
    (batch,) = world.model.worker.outstanding.values()
    observer.dispatched(batch, world.model.worker.instance)
    observer.part(batch, request, final=True)
    observer.died(batch, "x")
    observer.taken_back(batch)
    observer.finished(batch, Result(batch.id, 0, 1, (1, 2, 3)))
    assert request.span is None


def test_the_observer_of_spans_comes_behind_the_others():
    always, spans = BatchObserver(), BatchObserver()
    observers = Observers((always,), spans)
    observers.traced()
    observers.traced()
    assert observers.told == (always, spans)
    observers.untraced()
    assert observers.told == (always, spans)
    observers.untraced()
    assert observers.told == (always,)
