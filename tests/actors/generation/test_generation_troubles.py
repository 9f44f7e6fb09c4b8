"""What a generator meets now and then: long asks, an engine that starts again, parts that can't be sent."""

import json
from typing import Any

import pytest
import trio

from actors.generation import answering, text_actor
from actors.generation.engine import EngineVersion, engine_spec
from actors.generation.generator import MOST_OPENING
from actors.generation.policy.faces import sampling_of
from actors.generation.policy.merging import merged
from actors.generation.text_line import MOST_DEATHS
from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.serving.statistics import FailureReason, Histogram, ModelStatistics
from actors.values.errors import InvalidArgument, Unavailable
from actors.values.generation.asking import EMBED, TEXT, Ask, Sampling
from actors.values.generation.facts import TextDiffers
from actors.values.generation.pieces import TokenUsage
from actors.values.specs import QueueBounds
from tests.actors.generation.conftest import TextContext, generated, text_of, usage_of
from tests.support.generation_doubles import BusyWorker, FakeTextWorker, FakeTextWorkers
from tests.support.model_doubles import make_spec


def make_engine(**options):
    """A version that queues what it is given, as no instance takes it."""
    state = ModelState(
        engine_spec(make_spec(**options)),
        statistics=ModelStatistics(),
        on_status=lambda state: None,
        wall_clock=lambda: 0,
    )
    state.standing.become(Status.READY)
    instance: Any = state.standing.rotation[0]
    instance.worker = BusyWorker()
    return EngineVersion(state)


def nested(depth):
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


async def test_a_long_schema_reaches_the_engine(begin, autojump_clock):
    world = await begin(engine=make_engine())
    schema = {"enum": ["x" * 40_000]}
    world.submit(Ask(TEXT, prompts=("hello",), sampling=Sampling(grammar={"json": schema})))
    await world.settled()
    (run,) = world.engine.state.in_flight
    assert json.loads(run.inputs[1].as_numpy()[0])["grammar"] == {"json": schema}


async def test_a_text_worker_that_makes_another_text_ends_the_streams_that_had_some(begin, autojump_clock):
    world = await begin()
    old, new = world.ask(), world.ask()
    await world.settled()
    first, second = world.engine.held
    await world.says(first, "one")
    world.workers.made[0].dies()
    await world.settled_after(1.0)
    world.workers.made[1].report(["differs", 1, 0])
    world.workers.made[1].report(["differs", 99, 0])
    await world.settled()
    error = generated(old)[-1]
    assert isinstance(error, TextDiffers)
    assert "another text of choice 0 than was sent" in error.message
    assert world.engine.cancelled == [first]
    await world.says(second, "two", finish="stop")
    assert text_of(new) == "two"


async def test_runs_come_to_the_engine_in_order_as_it_has_room(begin, autojump_clock):
    world = await begin(engine=make_engine(queue_bounds=QueueBounds(requests=1)))
    state = world.engine.state
    requests = [world.ask(each) for each in "abc"]
    await world.settled()
    for request in requests:
        (run,) = state.in_flight
        assert run.reply.parent is request
        state.queue.take(1)  # an instance has begun with it: there is room now
        state.intake.line.call_next()
        del state.in_flight[run]
        await world.settled()


async def test_where_engines_are_checked_nothing_waits_for_the_next_one(begin, autojump_clock):
    engine = EngineVersion(make_engine().state, checked=True)
    instance: Any = engine.state.standing.rotation[0]
    worker, instance.worker = instance.worker, None
    world = await begin(engine=engine)
    request = world.ask("hello")
    await world.settled()
    (error,) = generated(request)
    assert (type(error), error.message) == (Unavailable, "Model is unavailable due to unhealthy vLLM engine")
    with pytest.raises(Unavailable):
        await engine.submit(request)
    instance.worker = worker
    world.ask("hello")
    await world.settled()
    assert len(engine.state.in_flight) == 1


async def test_an_ask_that_cant_be_sent_is_answered_and_hurts_no_other(begin, autojump_clock):
    world = await begin()
    request = world.ask("hello", grammar={"json": {"enum": nested(5000)}})
    other = world.ask("hello")
    await world.settled()
    assert isinstance(generated(request)[-1], InvalidArgument)
    await world.says(world.run, "x", finish="stop")
    assert text_of(other) == "x"
    world.workers.made[-1].dies()
    await world.settled_after(2.0)
    assert len(world.workers.made) == 2


def test_a_schema_that_nests_too_deeply_is_refused():
    with pytest.raises(InvalidArgument, match="nests"):
        sampling_of({"structured_outputs": '{"json": ' + "[" * 5000 + "]" * 5000 + "}"})
    with pytest.raises(InvalidArgument, match="nests"):
        sampling_of({"structured_outputs": {"json": nested(600)}})


async def test_a_worker_that_still_loads_is_ended_when_that_is_asked(begin, autojump_clock):
    world = await begin()
    loading = FakeTextWorker(ready=False)
    context = TextContext({})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(text_actor.run, context, world.generator.texts, FakeTextWorkers(loading))
        await world.settled()
        context.stopping.set()
    assert loading.closed


async def test_a_request_that_text_workers_die_of_is_refused_at_last(begin, autojump_clock):
    world = await begin(workers=[FakeTextWorker(silent=True) for _ in range(MOST_DEATHS)])
    request = world.ask("hello")
    for _ in range(MOST_DEATHS):
        await world.settled_after(2.0)
        world.workers.made[-1].dies()
    await world.settled_after(2.0)
    assert len(world.workers.made) == MOST_DEATHS + 1
    assert isinstance(generated(request)[-1], Unavailable)
    assert not world.generator.texts
    other = world.ask("two")
    await world.settled()
    await world.says(world.run, "x", finish="stop")
    assert text_of(other) == "x"


async def test_the_first_response_is_counted_where_it_is_the_only_one(begin, autojump_clock):
    world = await begin(statistics=ModelStatistics(first_response=Histogram((1000.0, 5000.0))))
    counts = world.state.statistics.first_response.counts
    world.submit(Ask(EMBED, prompts=("hello",)))
    world.ask("hello")
    await world.settled_after(2.0)
    embedding, run = world.engine.held
    world.engine.embeds(embedding, [1.0])
    await world.says(run, "a")
    await world.settled_after(8.0)
    await world.says(run, "b", finish="stop")
    assert counts == [0, 2, 0]


async def test_failures_are_counted_by_what_was_to_blame(begin, autojump_clock):
    world = await begin()
    left, failed = world.ask("a"), world.ask("b")
    await world.settled()
    world.state.cancel(left)
    world.engine.fails(world.run, Unavailable("the engine died"))
    assert failed.reply.final
    failures = world.state.statistics.failures
    assert (failures[FailureReason.CANCELED], failures[FailureReason.BACKEND]) == (1, 1)


async def test_what_waits_for_a_reader_is_not_joined_anew_for_each_piece(begin, autojump_clock, monkeypatch):
    joined = []

    def counting(pieces):
        joined.append(len(pieces))
        return merged(pieces)

    monkeypatch.setattr(answering, "merged", counting)
    world = await begin(context=1000)
    world.ask("hello", n=100)
    await world.settled()
    for _ in range(10):
        for run in world.engine.held:
            world.engine.says(run, "x")
        await world.settled()
    assert sum(joined) < 3 * 1000


async def test_no_more_is_prepared_at_once_than_text_workers_have_use_for(begin, autojump_clock):
    world = await begin(workers=[FakeTextWorker(ready=False)])
    requests = [world.ask("hello") for _ in range(2 * MOST_OPENING)]
    await world.settled()
    assert len(world.generator.texts) == MOST_OPENING
    assert len(world.state.queue) == MOST_OPENING
    world.state.cancel(requests[0])
    await world.settled()
    assert len(world.state.queue) == MOST_OPENING - 1
    world.workers.made[0].report(["ready", {"eos": [0], "vocabulary": 9, "template": True}])
    await world.settled()
    assert len(world.engine.held) == 2 * MOST_OPENING - 1


async def test_cached_tokens_are_those_of_all_prompts_each_counted_once(begin, autojump_clock):
    world = await begin()
    request = world.submit(Ask(TEXT, prompts=("ab", "cde"), sampling=Sampling(n=2)))
    await world.settled()
    for run, cached in zip(list(world.engine.held), (1, 2, 3, 5), strict=True):
        await world.says(run, "x", finish="stop", facts={"cached": cached})
    assert usage_of(request) == TokenUsage(5, 4, cached=1 + 3)
    # The second choice of a prompt finds what the first has computed.
