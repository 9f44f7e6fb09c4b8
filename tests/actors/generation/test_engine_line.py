"""What waits for room in an engine, and which engine it comes to."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from actors.generation import engine_line, generation
from actors.generation.assigning import Assigner
from actors.generation.engine import EngineVersion, engine_spec
from actors.generation.engine_line import WINDOW
from actors.generation.families import FAMILIES
from actors.generation.policy.placement import MOST_PASSED, Route
from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.values.errors import Cancelled, Internal, Unavailable
from actors.values.families import Labels, blocks
from actors.values.generation.asking import EMBED, TEXT, Ask, Sampling
from actors.values.specs import InstanceSpec, LanguageServing
from engine.observability.metrics import Exposition
from tests.actors.generation.conftest import finish_of, generated, text_of
from tests.support.generation_doubles import SeveralEngines
from tests.support.model_doubles import FakeWorker, make_request, make_spec

CACHED = {"cached": 0}


def loads(world):
    return {each.name: each[1:4] for each in world.generator.line.loads}


def is_empty(world):
    return not len(world.generator.line) and all(each == (0, 0, 0) for each in loads(world).values())


async def test_what_an_engine_has_no_room_for_waits_and_then_nothing_more_leaves_the_queue(
    begin, autojump_clock
):
    world = await begin(engine=SeveralEngines("a", blocks=4))
    requests = [world.ask(f"{at:08}", max_tokens=8) for at in range(2)]
    await world.settled()
    requests += [world.ask(f"{at:08}", max_tokens=8) for at in range(2, 30)]
    await world.settled()
    assert world.engine.held_by("a") == ["00000000"]
    assert len(world.generator.line) == WINDOW
    assert len(world.state.queue) == 30 - 1 - WINDOW
    assert loads(world) == {"a": (1, 8, 2)}
    await world.says(world.run, "12345", facts=CACHED)
    assert loads(world) == {"a": (1, 0, 4)}
    for at, request in enumerate(requests):
        assert world.engine.held_by("a") == [f"{at:08}"]
        await world.says(world.run, "x", finish="stop")
        assert text_of(request)[-1] == "x"
    assert is_empty(world)


async def test_a_short_prompt_does_not_wait_behind_a_long_one_and_the_long_one_not_for_ever(
    begin, autojump_clock
):
    world = await begin(engine=SeveralEngines("a"), serving=LanguageServing(queued_prompt_tokens=20))
    world.ask("x" * 20)
    await world.settled()
    world.ask("l" * 20)
    shorts = [world.ask(f"short{at}") for at in range(MOST_PASSED + 2)]
    await world.settled()
    done = 0
    while not any("lll" in prompt for prompt in world.engine.held_by("a")):
        run = world.engine.held[0]
        done += "short" in world.engine.prompt(run)
        await world.says(run, "x", finish="stop", facts=CACHED)
    assert 0 < done <= MOST_PASSED
    assert not all(each.reply.final for each in shorts)


async def test_what_lost_its_engine_goes_ahead_of_what_is_new(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("ab"), serving=LanguageServing(queued_prompt_tokens=20))
    first, second = world.ask("a" * 15), world.ask("b" * 15)
    await world.settled()
    assert [world.engine.held_by(each) for each in "ab"] == [["a" * 15], ["b" * 15]]
    await world.says(world.engine.held[0], "one ", facts=CACHED)
    new = world.ask("new")
    newer = world.ask("n" * 18)
    await world.settled()
    assert world.engine.held_by("a") == ["a" * 15, "new"]
    world.engine.loses("a")
    await world.settled()
    assert world.engine.held_by("b") == ["b" * 15]  # what it has queued leaves no room
    await world.says(world.engine.held[0], "x", facts=CACHED, finish="stop")
    assert world.engine.held_by("b") == ["a" * 15 + "one "]
    await world.says(world.run, "two", facts=CACHED, finish="stop")
    assert text_of(first) == "one two"
    assert world.engine.held_by("b") == ["new"]
    await world.says(world.run, "x", facts=CACHED, finish="stop")
    await world.says(world.run, "x", facts=CACHED, finish="stop")
    assert [text_of(each) for each in (second, new, newer)] == ["x"] * 3
    assert is_empty(world)


async def test_runs_wait_for_an_engine_that_comes_or_are_told_that_none_will(begin, autojump_clock):
    world = await begin(engine=SeveralEngines(""))
    request = world.ask("hello")
    await world.settled()
    assert len(world.generator.line) == 1
    world.engine.names.append("a")
    world.generator.line.look()
    await world.settled()
    await world.says(world.run, "x", finish="stop")
    assert finish_of(request) == [("stop", "")]
    world.engine.names.clear()
    several = world.submit(Ask(TEXT, prompts=("hello",), sampling=Sampling(n=3)))
    await world.settled()
    world.engine.down = Unavailable("they keep dying")
    world.generator.line.look()
    await world.settled()
    assert generated(several) == [world.engine.down]
    assert is_empty(world)


async def test_a_client_that_leaves_waits_no_more(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("a", blocks=4))
    first, second = (world.ask(each * 8, max_tokens=8) for each in "ab")
    await world.settled()
    world.state.cancel(second)
    await world.settled()
    assert len(world.generator.line) == 0
    assert isinstance(generated(second)[-1], Cancelled)
    world.state.cancel(first)
    await world.settled()
    assert is_empty(world)
    assert world.generator.line.loads[0].known == 0  # it was never computed


async def test_an_engine_need_not_say_what_it_had_cached(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("a"), serving=LanguageServing(queued_prompt_tokens=5))
    for prompt in ("hello", "hello there"):
        request = world.ask(prompt)
        await world.settled()
        await world.says(world.engine.held[-1], "x")
        assert text_of(request) == "x"
    assert loads(world) == {"a": (2, 0, 2 + 3 - 1)}
    assert world.generator.line.loads[0].known == 2


async def test_embeddings_are_queued_and_hold_nothing(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("a"))
    world.submit(Ask(EMBED, prompts=("hello",)))
    await world.settled()
    assert loads(world) == {"a": (1, 5, 0)}
    world.engine.embeds(world.run, [1.0])
    await world.settled()
    assert is_empty(world)


async def turn(world, request, engine):
    """Let an engine answer the only run that there is, and say which it was."""
    await world.settled()
    assert world.engine.held_by(engine)
    await world.says(world.run, "12345678", facts={"cached": 1000})  # all that it is thought to know
    await world.says(world.run, "90", finish="stop")
    assert text_of(request) == "1234567890"


async def test_a_conversation_goes_on_where_its_beginning_is(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("ab", blocks=100))
    await turn(world, world.ask("one conversation, "), "a")
    await turn(world, world.ask("another conversation, "), "b")
    for _ in range(2):
        await turn(world, world.ask("one conversation, 1234567890 and on"), "a")
        await turn(world, world.ask("another conversation, 1234567890 and on"), "b")
    found = {each.route: each[1:] for each in world.generator.line.routes}
    assert found["load"] == (2, 40, 0)
    runs, tokens, known = found["prefix"]
    assert (runs, tokens) == (4, 148)
    assert 24 + 32 <= known <= 148 - 4
    told = blocks(FAMILIES, [(Labels({"model": "m"}), world.generator.sample())])
    text = Exposition(lambda: told).text()
    assert 'tritium_llm_routed_runs_total{model="m",route="prefix"} 4' in text
    assert 'tritium_llm_engine_known_blocks{engine="a",model="m"}' in text


async def test_a_session_s_name_is_a_hint(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("ab"))
    for prompt in ("hello", "there"):
        request = world.ask(prompt)
        request.affinity = "s"
        await world.settled()
        await world.says(world.engine.held[-1], "x", facts=CACHED)
    assert [each.route for each in world.generator.line.routes] == [Route.SESSION.value, Route.LOAD.value]
    assert len(world.engine.held_by("a")) == 2


async def test_salted_prompts_share_only_with_their_own(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("a"))
    for salt in ("", "s", "s", ""):
        request = world.submit(Ask(TEXT, prompts=("0123456789abcdef",), cache_salt=salt))
        await turn(world, request, "a")
    (route,) = world.generator.line.routes
    assert route == ("only", 4, 64, 30)


async def test_long_prompts_are_hashed_in_turns(begin, autojump_clock, monkeypatch):
    monkeypatch.setattr(engine_line, "MOST_BLOCKS", 3)
    world = await begin(engine=SeveralEngines("a"))
    requests = [world.ask(f"{at}" * 16) for at in range(5)]
    await world.settled()
    for request in requests:
        await world.says(world.engine.held[0], "x", facts=CACHED)
        await world.says(world.engine.held[0], "y", finish="stop")
        assert text_of(request) == "xy"
    assert is_empty(world)


async def test_many_choices_are_given_away_in_turns(begin, autojump_clock, monkeypatch):
    monkeypatch.setattr(engine_line, "PLACED_AT_ONCE", 1)
    world = await begin(engine=SeveralEngines("a"))
    request = world.submit(Ask(TEXT, prompts=("hello",), sampling=Sampling(n=20)))
    await world.settled()
    assert len(world.engine.held) == 20
    world.state.cancel(request)
    await world.settled()
    assert is_empty(world)


async def test_the_tree_shows_what_each_engine_has(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("ab"))
    for each in ("hello", "there"):
        world.ask(each)
    await world.settled_until(1.5)
    shown = {"runs": 1, "queued_prompt_tokens": 5, "blocks": 2}
    assert world.told["engines"] == {"a": shown, "b": shown}
    assert world.told["in_line"] == 0


class Served:
    """A version of engines with instances that a test holds, and the scheduler that gives them runs."""

    def __init__(self, count=2, **options):
        specs = tuple(InstanceSpec(name=f"e_{at}") for at in range(count))
        self.state = ModelState(
            engine_spec(make_spec(instances=specs, **options)),
            statistics=ModelStatistics(),
            on_status=lambda state: None,
            wall_clock=lambda: 0,
        )
        self.state.standing.become(Status.READY)
        self.engine = EngineVersion(self.state)
        self.assigner: Any = None
        for at in range(count):
            self.starts(at)

    def starts(self, at):
        instance = self.state.instances[at]
        worker: Any = FakeWorker(self.state, instance, capacity=2)
        worker.reports = SimpleNamespace(facts={"cache": {"block_size": 4, "blocks": 100}})
        instance.worker = worker
        return worker

    def given(self, at):
        worker: Any = self.state.instances[at].worker
        return [request for batch in worker.outstanding.values() for request in batch.requests]


@pytest.fixture
async def served(begin, autojump_clock):
    made = Served()
    world = await begin(engine=made.engine)
    made.assigner = Assigner(made.state, world.generator.line)
    made.state.doorbell.take_turn = made.assigner.turn_at_once
    return world, made


async def test_a_run_comes_to_the_instance_that_was_chosen(served):
    world, made = served
    for at in range(4):
        world.ask(f"{at}" * 8)
        await world.settled()
        made.assigner.turn(world.generator.now())
    for at in (0, 1):
        keys = [request.reply.seat.account.key for request in made.given(at)]
        assert keys == [made.state.instances[at].worker] * 2


async def test_a_run_whose_instance_is_gone_comes_to_another(served):
    world, made = served
    world.ask("hello")
    await world.settled()
    (run,) = made.given(0)
    for each in made.state.instances:
        worker: Any = each.worker
        worker.stopped = True  # it begins with nothing
    made.state.dispatcher.withdraw(made.state.instances[0])
    made.state.instances[0].worker = None
    made.assigner.turn(world.generator.now())
    assert made.given(1) == [run]
    assert loads(world) == {"e_1": (1, 5, 2)}
    made.state.dispatcher.withdraw(made.state.instances[1])
    made.state.instances[1].worker = None
    made.assigner.turn(world.generator.now())
    assert loads(world) == {}
    made.starts(0)
    made.assigner.turn(world.generator.now())
    assert made.given(0) == [run]


async def test_what_no_generation_has_sent_goes_to_any_instance(served):
    _, made = served
    request = make_request()
    request.inputs = ()
    made.state.queue.push(request, trio.current_time())
    made.assigner.turn(trio.current_time())
    assert made.given(0) == [request]


async def test_what_lost_its_engine_goes_on_as_soon_as_there_is_room(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("ab"), serving=LanguageServing(queued_prompt_tokens=20))
    requests = []
    for each in "123":
        requests.append(world.ask(each * 15))
        await world.settled()
        world.engine.names = ["a"]
        world.generator.line.look()
        await world.settled()
        if world.engine.held:
            await world.says(world.engine.held[-1], "x", facts=CACHED)
    world.engine.names = ["a", "b"]
    world.generator.line.look()
    await world.settled()
    requests.append(world.ask("4" * 15))
    await world.settled()
    assert len(world.engine.held_by("a")) == 3
    assert world.engine.held_by("b") == ["4" * 15]
    world.engine.loses("a")
    await world.settled()
    assert world.engine.held_by("b") == ["4" * 15]
    now = trio.current_time()
    for number in range(1, 4):
        await world.says(world.engine.held[-1], "y", facts=CACHED)
        assert len(world.engine.held_by("b")) == number + 1
    assert trio.current_time() == now, "it has not waited for the next look"


class Coming(SeveralEngines):
    """An engine that is there once a few runs wait."""

    waiting = 0

    @property
    def engines(self):
        if self.waiting > 4:
            self.names = ["a"]
        return super().engines


async def test_an_engine_that_comes_as_a_run_gets_in_line_has_the_queue_looked_at(begin, autojump_clock):
    world = await begin(engine=Coming(""))
    world.ask("first")
    await world.settled()
    line, submit = world.generator.line, world.generator.line.submit

    def counted(run):
        world.engine.waiting = len(line) + 1
        submit(run)

    line.submit = counted
    for at in range(2 * WINDOW):
        world.ask(f"{at:08}")
    await world.settled()
    assert len(world.engine.held_by("a")) == 1 + 2 * WINDOW


async def test_a_run_that_an_engine_could_not_be_given_for_a_bug_has_ended(begin, autojump_clock):
    world = await begin(engine=SeveralEngines(""))
    request = world.ask("hello")
    await world.settled()
    world.engine.names.append("a")
    world.engine.refusal = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        world.generator.turn(world.generator.now())
    world.engine.refusal = None
    await world.settled()
    assert isinstance(generated(request)[-1], Internal)
    assert is_empty(world)


async def test_what_an_engine_is_asked_is_made_when_it_is_to_have_it(begin, autojump_clock, monkeypatch):
    made = []

    def make(*args):
        made.append(make_one(*args))
        return made[-1]

    make_one = generation._engine_request
    monkeypatch.setattr(generation, "_engine_request", make)
    world = await begin(engine=SeveralEngines("a", blocks=8))
    request = world.submit(Ask(TEXT, prompts=("hello",), sampling=Sampling(n=100, max_tokens=8)))
    await world.settled()
    assert 0 < len(world.engine.held) == len(made) < 10
    assert {each.accepted_at for each in made} == {trio.current_time()}
    world.state.cancel(request)
    await world.settled()
    assert is_empty(world)
    assert len(made) < 10


async def test_where_new_requests_are_refused_without_an_engine_answers_still_go_on(begin, autojump_clock):
    world = await begin(engine=SeveralEngines("a"))
    world.engine.down, world.engine.down_for_new = Unavailable("it is unhealthy"), True
    begun, other = world.ask("hello"), world.ask("there")
    await world.settled()
    for run in list(world.engine.held):
        await world.says(run, "one ", facts=CACHED)
    world.engine.loses("a")
    await world.settled()
    new = world.ask("new")
    await world.settled()
    assert generated(new) == [world.engine.down]
    assert not begun.reply.final
    world.engine.names.append("a")
    world.generator.line.look()
    await world.settled()
    for run in list(world.engine.held):
        await world.says(run, "two", facts=CACHED, finish="stop")
    assert [text_of(each) for each in (begun, other)] == ["one two"] * 2
    assert is_empty(world)


async def test_an_unhealthy_engine_refuses_what_is_new_alone(served):
    _, made = served
    engine = EngineVersion(made.state, checked=True)
    engine.check(resumed=False)
    for each in made.state.instances:
        each.worker = None
    engine.check(resumed=True)
    with pytest.raises(Unavailable, match="unhealthy"):
        engine.check(resumed=False)
    for each in made.state.instances:
        each.exhausted = True
    with pytest.raises(Unavailable, match="keep dying"):
        engine.check(resumed=True)
