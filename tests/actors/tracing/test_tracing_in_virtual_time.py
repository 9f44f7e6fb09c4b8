"""Traces of a server: what is sampled, what is written, and what is lost."""

import threading

import pytest
import trio
import trio.testing

from actors.tracing.tracing import AT_ONCE, MOST_WAITING
from actors.values.errors import InvalidArgument
from actors.values.requests import InferRequest
from actors.values.tracing.settings import OPENTELEMETRY, TENSORS, TIMESTAMPS, Given, SettingChange
from tests.support.ports import Port
from tests.support.traced import KeptTraces, names, tracing_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def ask(tracing, model="m", **context):
    request = InferRequest(model_name=model, reply=Port(), accepted_at=0.0)
    if tracing.active:
        tracing.begin(request, trio.current_time(), **context)
    return request


def answer(request):
    """Have a request answered and sent."""
    now = trio.current_time()
    request.span.accept(request, request.model_name, 1, now)
    request.span.end(now)
    request.span.trace.sent(now)


def traced(tracing, count=1):
    for _ in range(count):
        answer(ask(tracing))


class Context:
    """As much of a `ChildContext` as the actor touches."""

    def __init__(self):
        self.told = {}
        self.stopping = self
        self._set = False
        self._asked = trio.Event()
        self._callbacks = []

    async def wait(self):
        await self._asked.wait()

    def started(self):
        pass

    def publish(self, **info):
        self.told.update(info)

    def is_set(self):
        return self._set

    def then(self, callback):
        self._callbacks.append(callback)

    def stop(self):
        self._set = True
        self._asked.set()
        for callback in self._callbacks:
            callback()


async def settled(condition):
    """Wait for what a thread does. Nothing in here counts seconds."""
    while not condition():
        await trio.lowlevel.checkpoint()


async def test_finished_traces_go_to_the_sink(nursery):
    sink = KeptTraces()
    tracing = tracing_of(sink)
    nursery.start_soon(tracing.run, Context())
    traced(tracing, 3)
    await settled(lambda: tracing.written == 3)
    assert [trace.requests[0].id for trace in sink.traces] == [1, 2, 3]
    assert names(sink.traces[0].requests[0].moments) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    nursery.cancel_scope.cancel()


async def test_traces_that_end_within_a_moment_are_written_together(nursery):
    sink = KeptTraces()
    tracing = tracing_of(sink)
    nursery.start_soon(tracing.run, Context())
    traced(tracing)
    await trio.testing.wait_all_tasks_blocked()
    traced(tracing, 2)
    await settled(lambda: tracing.written == 3)
    assert [len(call) for call in sink.calls] == [3]
    nursery.cancel_scope.cancel()


async def test_at_the_end_what_waits_is_written_and_the_sink_closed():
    sink = KeptTraces()
    tracing = tracing_of(sink)
    context = Context()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tracing.run, context)
        await trio.testing.wait_all_tasks_blocked()
        traced(tracing, AT_ONCE + 3)
        context.stop()
    assert len(sink.traces) == AT_ONCE + 3
    assert sink.closed == 1


async def test_where_too_many_wait_traces_are_dropped_and_counted():
    tracing = tracing_of()
    traced(tracing, MOST_WAITING + 5)
    assert tracing.dropped == 5
    assert tracing.sampled == MOST_WAITING + 5


async def test_a_sink_that_waits_holds_up_nothing(nursery):
    sink = KeptTraces()
    sink.gate = threading.Event()
    tracing = tracing_of(sink)
    nursery.start_soon(tracing.run, Context())
    traced(tracing)
    await settled(lambda: tracing._limiter.borrowed_tokens == 1)
    traced(tracing, 2)
    assert tracing.written == 0
    sink.gate.set()
    await settled(lambda: tracing.written == 3)
    nursery.cancel_scope.cancel()


async def test_a_sink_that_fails_costs_the_traces_of_that_call(nursery):
    sink = KeptTraces()
    sink.error = RuntimeError("broken")
    tracing = tracing_of(sink)
    traced(tracing, 2)
    with pytest.raises(RuntimeError, match="broken"):
        await tracing.run(Context())
    assert (tracing.failed, tracing.written) == (2, 0)
    sink.error = None
    nursery.start_soon(tracing.run, Context())
    traced(tracing)
    await settled(lambda: tracing.written == 1)
    nursery.cancel_scope.cancel()


async def test_it_is_active_only_while_something_may_be_traced():
    assert tracing_of().active
    assert not tracing_of(levels=()).active
    assert not tracing_of(file="").active
    counted = tracing_of(count=1)
    ask(counted)
    assert not counted.active
    counted.update("m", SettingChange(count=1))
    assert counted.active


async def test_a_model_may_be_traced_alone():
    tracing = tracing_of(levels=())
    tracing.update("m", SettingChange(levels=(TIMESTAMPS,), rate=2))
    assert [ask(tracing, "m").span is None for _ in range(4)] == [True, False, True, False]
    assert ask(tracing, "other").span is None
    tracing.update("m", SettingChange(levels=Given.CLEAR, rate=Given.CLEAR))
    assert not tracing.active


async def test_a_new_setting_counts_from_its_beginning():
    tracing = tracing_of(rate=3)
    ask(tracing), ask(tracing)
    tracing.update("", SettingChange())
    assert [ask(tracing).span is None for _ in range(3)] == [True, True, False]


async def test_a_refused_change_leaves_everything_as_it_was():
    tracing = tracing_of(rate=2)
    ask(tracing)
    with pytest.raises(InvalidArgument):
        tracing.update("", SettingChange(rate=0))
    assert ask(tracing).span is not None


async def test_the_setting_is_told_in_tritons_words():
    tracing = tracing_of(levels=(TIMESTAMPS, TENSORS), rate=5, count=2)
    assert tracing.describe() == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": "5",
        "trace_count": "2",
        "log_frequency": "0",
        "trace_file": "t.json",
        "trace_mode": "triton",
    }
    for _ in range(5):
        ask(tracing)
    assert tracing.describe("m")["trace_count"] == "1", "what is left of it"
    assert tracing_of(levels=()).describe()["trace_level"] == ["OFF"]


async def test_in_the_mode_opentelemetry_its_options_are_told():
    options = (("url", "c:4318"), ("resource", "a=1"), ("resource", "b=2"))
    tracing = tracing_of(mode=OPENTELEMETRY, options=options, file="")
    assert tracing.describe() == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "1",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": "c:4318",
        "resource": "a=1,b=2",
    }


async def test_a_context_forces_a_trace_and_gives_it_its_id():
    tracing = tracing_of(mode=OPENTELEMETRY, rate=1000)
    assert tracing.reads_context
    span = ask(tracing, parent=PARENT, state="s=1").span
    assert span is not None
    assert span.trace.w3c_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert span.trace.context.state == "s=1"
    assert ask(tracing, parent="nonsense").span is None
    assert not tracing_of().reads_context


async def test_a_request_that_is_put_twice_is_sampled_once():
    tracing = tracing_of(count=1)
    first = ask(tracing)
    trace = first.span.trace
    tracing.forget(first)
    trace.sent(0.0)
    assert (first.span, tracing.sampled, tracing.active) == (None, 0, True)
    assert ask(tracing).span is not None
    other = tracing_of(rate=2)
    unsampled = ask(other)
    other.forget(unsampled)
    assert [ask(other).span is None for _ in range(2)] == [True, False]


@pytest.mark.parametrize("rate", [1, 2, 5])
async def test_what_frontends_skip_is_what_would_not_be_sampled(rate):
    tracing = tracing_of(rate=rate)
    sampled = []
    for _ in range(3 * rate):
        if tracing.skip:
            tracing.skip -= 1
            sampled.append(False)
        else:
            sampled.append(ask(tracing).span is not None)
    assert sampled == ([False] * (rate - 1) + [True]) * 3


async def test_a_request_that_was_skipped_and_is_put_twice_counts_once():
    tracing = tracing_of(rate=3)
    ask(tracing)
    tracing.skip -= 1
    tracing.forget(InferRequest(model_name="m", reply=Port(), accepted_at=0.0))
    assert [ask(tracing).span is None for _ in range(2)] == [True, False]


async def test_a_sampled_request_that_is_put_twice_is_sampled_again_before_any_are_skipped():
    tracing = tracing_of(rate=3)
    requests = [ask(tracing) for _ in range(3)]
    tracing.forget(requests[-1])
    assert [ask(tracing).span is None for _ in range(4)] == [False, True, True, False]


async def test_while_a_model_has_a_setting_of_its_own_none_are_skipped():
    tracing = tracing_of(rate=4)
    ask(tracing)
    assert tracing.skip == 2
    tracing.update("m", SettingChange(rate=2))
    assert tracing.skip == 0
    assert [ask(tracing, "m").span is None for _ in range(2)] == [True, False]
    assert [ask(tracing, "other").span is None for _ in range(3)] == [True, True, False]
    unsampled = ask(tracing, "other")
    tracing.forget(unsampled)
    assert [ask(tracing, "other").span is None for _ in range(4)] == [True, True, True, False]


async def test_a_context_is_looked_at_while_others_are_skipped():
    tracing = tracing_of(mode=OPENTELEMETRY, rate=3)
    ask(tracing)
    assert ask(tracing, parent=PARENT).span is not None
    assert tracing.skip == 1
    assert [ask(tracing).span is None for _ in range(2)] == [True, False]


async def test_the_sink_is_called_when_a_setting_is_replaced(nursery):
    sink = KeptTraces()
    tracing = tracing_of(sink)
    nursery.start_soon(tracing.run, Context())
    await trio.testing.wait_all_tasks_blocked()
    tracing.update("", SettingChange(rate=2))
    await settled(lambda: sink.calls == [[]])
    nursery.cancel_scope.cancel()
