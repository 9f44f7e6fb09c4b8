"""Engines that sleep, in virtual time: what waits for them, what wakes them, and what they do meanwhile."""

import math

import pytest
import trio

from actors.generation.slumber import AGAIN_AFTER
from actors.serving.standing import Status
from actors.values.errors import DeadlineExceeded, Unavailable
from actors.values.generation.asking import TOKENIZE, Ask
from actors.values.generation.sleeping import SLEEP_CHANGES, SleepState
from actors.values.specs import LanguageServing
from tests.actors.generation.conftest import finish_of, generated, text_of
from tests.support.generation_doubles import DrowsyEngine

ASLEEP, AWAKE, FALLING, WAKING = SleepState.ASLEEP, SleepState.AWAKE, SleepState.FALLING, SleepState.WAKING
SERVING = LanguageServing(sleep=1)


@pytest.fixture
async def drowsy(begin):
    """A version whose engine sleeps and wakes at once."""

    async def drowsy(**options):
        world = await begin(engine=DrowsyEngine(**options), serving=SERVING)
        world.engine.ring = world.state.doorbell.ring
        world.changes = []
        world.slumber = world.generator.slumber
        world.slumber.on_change = lambda: world.changes.append(world.slumber.state)
        return world

    return drowsy


@pytest.fixture
async def world(drowsy):
    return await drowsy()


async def asleep(world, level=1, patience=math.inf):
    world.slumber.fall_asleep(level, trio.current_time() + patience)
    await world.settled()
    assert world.slumber.state is ASLEEP


async def test_an_idle_engine_falls_asleep_and_the_version_stays_ready(world, autojump_clock):
    await asleep(world, level=2)
    assert world.engine.alive["model_0"].told == [{"sleep": 2}]
    assert world.state.status is Status.READY
    assert world.changes == [FALLING, ASLEEP]
    assert world.slumber.wanted_since is None
    assert world.told["sleep"] == "asleep"


async def test_a_request_waits_says_since_when_and_is_answered_once_it_wakes(world, autojump_clock):
    await asleep(world)
    await trio.sleep(3.0)
    request = world.ask("abc")
    await world.settled()
    assert world.slumber.wanted_since == trio.current_time()
    assert not world.engine.held
    await trio.sleep(5.0)
    world.slumber.wake()
    await world.settled()
    assert world.slumber.state is AWAKE
    assert world.slumber.wanted_since is None
    await world.says(world.run, "xyz", finish="stop")
    assert text_of(request) == "xyz"
    assert world.engine.alive["model_0"].told == [{"sleep": 1}, {"wake": True}]


async def test_how_long_it_took_to_wake_is_known(drowsy, autojump_clock):
    world = await drowsy(at_once=False)
    worker = world.engine.alive["model_0"]
    world.slumber.fall_asleep(1, math.inf)
    await world.settled()
    assert world.slumber.state is FALLING
    worker.obeys()
    await world.settled()
    world.slumber.wake()
    await world.settled()
    assert world.slumber.state is WAKING
    await trio.sleep(4.0)
    worker.obeys()
    await world.settled()
    assert world.slumber.state is AWAKE
    assert (world.slumber.wake_seconds, world.slumber.awake_since) == (4.0, trio.current_time())


async def test_what_the_engine_has_is_answered_first_and_what_comes_then_waits(world, autojump_clock):
    first = world.ask("abc")
    await world.settled()
    world.slumber.fall_asleep(1, math.inf)
    second = world.ask("def")
    await world.settled()
    assert world.slumber.state is FALLING
    assert world.slumber.wanted_since is not None
    await world.says(world.run, "x", finish="stop")
    assert finish_of(first) == [("stop", "")]
    assert world.slumber.state is ASLEEP
    world.slumber.wake()
    await world.settled()
    await world.says(world.run, "y", finish="stop")
    assert text_of(second) == "y"


async def test_one_that_has_work_for_too_long_goes_on_as_before(world, autojump_clock):
    world.ask("abc")
    await world.settled()
    world.slumber.fall_asleep(1, trio.current_time() + 5.0)
    world.ask("def")
    await trio.sleep(4.0)
    assert len(world.engine.held) == 1
    await trio.sleep(1.5)
    assert world.slumber.state is AWAKE
    assert "still had work" in world.slumber.trouble
    assert len(world.engine.held) == 2
    assert world.engine.alive["model_0"].told == []


async def test_one_that_refuses_goes_on_as_before_and_those_that_sleep_are_woken(drowsy, autojump_clock):
    world = await drowsy(instances=2, at_once=False)
    first, second = world.engine.alive.values()
    world.slumber.fall_asleep(1, math.inf)
    await world.settled()
    first.obeys()
    second.refuses()
    await world.settled()
    assert world.slumber.state is WAKING
    assert world.slumber.trouble == "it has streams"
    assert world.slumber.told == [("model_0", "awake"), ("model_1", "awake")]
    await trio.sleep(AGAIN_AFTER)
    await world.settled()
    first.obeys()
    await world.settled()
    assert world.slumber.state is AWAKE
    assert [each["sleep_state"] for each in (vars(first), vars(second))] == [AWAKE, AWAKE]


async def test_it_is_woken_while_it_falls_asleep(drowsy, autojump_clock):
    world = await drowsy(at_once=False)
    worker = world.engine.alive["model_0"]
    world.slumber.fall_asleep(1, math.inf)
    await world.settled()
    request = world.ask("abc")
    world.slumber.wake()
    await world.settled()
    assert (world.slumber.state, worker.told) == (WAKING, [{"sleep": 1}])
    worker.obeys()
    await world.settled()
    assert worker.told == [{"sleep": 1}, {"wake": True}]
    worker.obeys()
    await world.settled()
    await world.says(world.run, "x", finish="stop")
    assert text_of(request) == "x"


async def test_a_deadline_passes_and_a_client_leaves_while_it_sleeps(world, autojump_clock):
    await asleep(world)
    late = world.ask("abc", deadline=2.0)
    gone = world.ask("abc")
    await world.settled()
    world.state.cancel(gone)
    await trio.sleep(3.0)
    (error,) = generated(late)
    assert isinstance(error, DeadlineExceeded)
    assert world.slumber.wanted_since is None, "nothing waits any more"
    assert world.slumber.state is ASLEEP
    assert not world.state.in_flight


async def test_what_waits_keeps_the_bounds_of_the_queue(world, autojump_clock):
    await asleep(world)
    requests = [world.ask(f"a{number}") for number in range(40)]
    await world.settled()
    assert len(world.state.queue) == 40 - len(world.generator.line)
    world.slumber.wake()
    await world.settled()
    while world.engine.held:
        await world.says(world.engine.held[0], "x", finish="stop")
    assert [text_of(request) for request in requests] == ["x"] * 40


async def test_texts_are_made_tokens_without_waking_it(world, autojump_clock):
    await asleep(world)
    request = world.submit(Ask(TOKENIZE, prompts=("abc",)))
    await world.settled()
    assert [*generated(request)[0].ids] == [*map(ord, "abc")]
    assert (world.slumber.state, world.slumber.wanted_since) == (ASLEEP, None)


async def test_what_waits_is_told_where_it_can_not_wake(world, autojump_clock):
    await asleep(world)
    requests = [world.ask("abc") for _ in range(30)]
    await world.settled()
    world.slumber.refuse("does not fit")
    await world.settled()
    for request in requests:
        (error,) = generated(request)
        assert isinstance(error, Unavailable)
        assert error.message.endswith("model 'model' does not fit")
    assert world.slumber.wanted_since is None
    assert not world.state.in_flight


async def test_one_that_dies_asleep_is_put_to_sleep_again(world, autojump_clock):
    await asleep(world)
    world.engine.loses()
    await trio.sleep(2.0)
    assert world.slumber.state is ASLEEP
    world.engine.starts()
    await world.settled()
    assert world.engine.alive["model_0"].told == [{"sleep": 1}]
    assert world.slumber.state is ASLEEP


async def test_one_that_comes_up_where_work_waits_takes_it(drowsy, autojump_clock):
    world = await drowsy(instances=2)
    await asleep(world)
    world.engine.loses("model_0")
    request = world.ask("abc")
    await world.settled()
    world.engine.starts("model_0")
    await world.settled()
    assert world.slumber.state is AWAKE
    assert world.engine.alive["model_0"].told == []
    assert world.engine.alive["model_1"].told[-1] == {"wake": True}
    await world.says(world.run, "x", finish="stop")
    assert text_of(request) == "x"


@pytest.mark.parametrize("when", [FALLING, WAKING])
async def test_one_that_dies_under_its_order_counts_no_more(drowsy, autojump_clock, when):
    world = await drowsy(at_once=False)
    world.slumber.fall_asleep(1, math.inf)
    await world.settled()
    if when is WAKING:
        world.engine.alive["model_0"].obeys()
        await world.settled()
        world.slumber.wake()
        await world.settled()
    world.engine.loses()
    await world.settled()
    assert world.slumber.state is (ASLEEP if when is FALLING else AWAKE)
    world.engine.starts()
    await world.settled()
    assert world.slumber.state is (ASLEEP if when is FALLING else AWAKE)
    assert world.engine.alive["model_0"].told == ([{"sleep": 1}] if when is FALLING else [])


async def test_an_engine_that_can_not_be_told_is_told_later(world, autojump_clock):
    worker = world.engine.alive["model_0"]
    worker.full = True
    world.slumber.fall_asleep(1, math.inf)
    await trio.sleep(3 * AGAIN_AFTER)
    assert world.slumber.state is FALLING
    worker.full = False
    await trio.sleep(AGAIN_AFTER)
    await world.settled()
    assert world.slumber.state is ASLEEP


async def test_what_its_cache_had_is_forgotten(world, autojump_clock):
    world.engine.told = {"cache": {"block_size": 2, "blocks": 100}}
    world.ask("abcdefgh")
    await world.settled()
    await world.says(world.run, "x", finish="stop")
    assert [each.known for each in world.generator.line.loads] == [4]
    await asleep(world)
    assert world.generator.line.loads == []
    world.slumber.wake()
    await world.settled()
    world.ask("abcdefgh")
    await world.settled()
    (route,) = world.generator.line.routes
    assert (route.looked_up, route.found) == (16, 0)


async def test_answers_that_moved_are_gone_on_with_before_it_sleeps(world, autojump_clock):
    """The engine dies under an answer while it is to fall asleep: the next one says the rest first."""
    request = world.ask("abc", max_tokens=10)
    await world.settled()
    await world.says(world.run, "xy")
    world.slumber.fall_asleep(1, math.inf)
    await world.settled()
    world.engine.dies()
    world.engine.loses()
    world.engine.starts()
    await world.settled()
    assert world.slumber.state is FALLING
    await world.says(world.run, "z", finish="stop")
    assert text_of(request) == "xyz"
    assert world.slumber.state is ASLEEP


async def test_it_is_awake_when_a_caller_waited_for_that(world, autojump_clock):
    await asleep(world)
    done = trio.Event()

    async def wait():
        await world.slumber.wait_awake()
        done.set()

    world.nursery.start_soon(wait)
    await world.settled()
    assert world.slumber.wanted_since is not None
    world.slumber.wake()
    await done.wait()
    await world.slumber.wait_awake()
    await world.settled()
    assert world.slumber.state is AWAKE


async def test_a_caller_is_told_where_it_can_not_wake(world, autojump_clock):
    await asleep(world)
    troubles = []

    async def wait():
        try:
            await world.slumber.wait_awake()
        except Unavailable as error:
            troubles.append(error.message)

    world.nursery.start_soon(wait)
    await world.settled()
    world.slumber.refuse("does not fit")
    await world.settled()
    assert troubles == ["model 'model' does not fit"]
    assert world.slumber.wanted_since is None


async def test_orders_have_no_place_in_what_is_counted(world, autojump_clock):
    await asleep(world)
    world.slumber.wake()
    await world.settled()
    counts = world.generator.sample().counts
    assert (counts.prompt_tokens, counts.generated_tokens) == (0, 0)
    assert world.generator.sample().sleep_states == [("model_0", "awake")]


async def test_metrics_name_how_deep_it_sleeps(world, autojump_clock):
    await asleep(world, level=2)
    assert world.generator.sample().sleep_states == [("model_0", "discard_all")]


def test_each_way_of_a_state_leads_to_another_one():
    assert set(SLEEP_CHANGES) == set(SleepState)
    assert all(state not in ways for state, ways in SLEEP_CHANGES.items())
