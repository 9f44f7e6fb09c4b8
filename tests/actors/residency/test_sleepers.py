"""Models that are put to sleep for each other, in virtual time: what residency makes of them."""

import pytest
import trio

from actors.catalog.catalog import ControlMode
from actors.residency.policy import SHORTEST_TURN
from actors.residency.residency import MEASURE_SECONDS
from actors.residency.sleepers import NOT_AGAIN_SECONDS
from actors.values.errors import Unavailable
from actors.values.generation.sleeping import SleepState
from actors.values.specs import ModelKey
from tests.support.residency_doubles import UNIT, Den, on_demand


@pytest.fixture
def begin(nursery):
    """Begin with some models that sleep, each of which takes a quarter of a unit then."""

    async def begun(*names, budget, rests=UNIT // 4, **options):
        den = Den(nursery, *map(on_demand, names), budget=int(budget * UNIT), **options)
        den.farm.rests = dict.fromkeys(names, rests)
        return await den.begin()

    yield begun
    nursery.cancel_scope.cancel()


@pytest.fixture
async def den(begin):
    """Two models, and room for one that is awake and one that sleeps."""
    return await begin("a", "b", budget=1.25)


async def test_models_that_take_turns_sleep_and_are_never_evicted(den, autojump_clock):
    for name in "ababab":
        assert (await den.ask(name)).model_name == name
    assert den.evicted == []
    assert den.slept == ["a", "b", "a", "b", "a"]
    assert den.farm.most <= 2 * UNIT  # the first load of all, before sleep has been measured
    assert [den.sample(name).counters.loads for name in "ab"] == [1, 1]
    assert [den.residents.models[ModelKey(name)].awakenings for name in "ab"] == [2, 2]
    assert den.info["asleep"] == ["a"]


async def test_what_one_gives_up_is_told_though_it_has_just_woken(den, autojump_clock):
    """What was measured last is then what it took asleep."""
    for name in "ab":
        await den.ask(name)
        await trio.sleep(MEASURE_SECONDS)
    den.memory.seconds = 1.5
    for name in "abab":
        await den.ask(name)
    await trio.sleep(MEASURE_SECONDS)
    assert [line["freed_bytes"] / UNIT for line in den.log.of("model_slept")] == [0.75] * 5


async def test_what_is_awake_fits_in_the_budget_beside_those_that_sleep(den, autojump_clock):
    most = 0
    for _ in range(4):
        for name in "ab":
            await den.ask(name)
            most = max(most, den.farm.taken)
    assert most <= 1.25 * UNIT


async def test_how_long_it_took_counts_from_the_request(den, autojump_clock):
    await den.ask("a")
    await den.ask("b")
    began = trio.current_time()
    await den.ask("a")
    seconds = den.residents.models[ModelKey("a")].awakening_seconds
    assert seconds == pytest.approx(trio.current_time() - began - 0.1, abs=0.1)
    (woken,) = den.log.of("model_woken")
    assert woken["model"] == "a"
    (slept, *_) = den.log.of("model_slept")
    assert (slept["reason"], slept["freed_bytes"]) == ("memory is needed for 'b'", 3 * UNIT // 4)


async def test_a_sleeper_is_evicted_where_sleep_is_not_enough(begin, autojump_clock):
    den = await begin("a", "b", "c", budget=1.25)
    for name in "abc":
        await den.ask(name)
    assert den.evicted == ["a"]
    assert den.farm.resident == ["b", "c"]
    for name in "abcabc":
        assert (await den.ask(name)).model_name == name


async def test_one_that_gives_too_little_is_evicted_once_that_is_known(begin, autojump_clock):
    den = await begin("a", "b", budget=1.25, rests=UNIT)
    for name in "abab":
        assert (await den.ask(name)).model_name == name
    assert den.slept == ["a", "b"]
    assert den.evicted == ["a", "b", "a"]


async def test_two_in_steady_use_sleep_in_turns(den, autojump_clock):
    """Neither waits for longer than a turn, and what comes to one that falls asleep is not lost."""
    outcomes = []
    for _ in range(300):
        outcomes += [den.asking("a"), den.asking("b")]
        await trio.sleep(0.25)
    await trio.sleep(4 * SHORTEST_TURN)
    assert [outcome for (outcome,) in outcomes] == ["a", "b"] * 300
    assert den.evicted == []
    assert den.slept.count("a") > 3
    assert den.slept.count("b") > 3


async def test_one_that_stays_awake_is_left_alone_for_a_while(den, autojump_clock):
    await den.ask("a")
    den.farm.sleepers["a"].stubborn = True
    outcome = den.asking("b")
    await trio.sleep(31.0)  # of which 30 are those that it may have
    assert den.log.of("model_kept_awake") == [{"model": "a", "reason": "it had work"}]
    assert not outcome
    den.farm.sleepers["a"].stubborn = False
    await trio.sleep(NOT_AGAIN_SECONDS + 2.0)
    assert outcome == ["b"]


async def test_one_that_can_not_wake_is_told_so(begin, autojump_clock):
    den = await begin("a", "b", budget=1.25)
    await den.ask("a")
    await den.ask("b")
    den.farm.nbytes["a"] = 2 * UNIT
    await den.ask("a")
    await trio.sleep(MEASURE_SECONDS)
    await den.ask("b")
    await trio.sleep(2 * MEASURE_SECONDS)
    den.residents.models[ModelKey("a")].least = 2 * UNIT
    request = await den.submit("a")
    answer = await request.reply.wait()
    assert isinstance(answer, Unavailable)
    assert "does not fit: needs 128.0 MiB" in den.farm.sleepers["a"].refused[0]


@pytest.mark.parametrize("how", ["the server ends", "it is unloaded"])
async def test_what_has_been_accepted_is_answered_though_there_is_no_room(begin, autojump_clock, how):
    den = await begin("a", "b", budget=1.25, mode=ControlMode.EXPLICIT)
    await den.ask("a")
    await den.ask("b")
    den.farm.service["b"] = 20.0
    long = den.asking("b")
    await trio.sleep(0.5)
    outcome = den.asking("a")
    await trio.sleep(1.0)
    assert den.farm.sleepers["a"].state is SleepState.ASLEEP
    assert den.sample("a").counters.waiting == 1
    if how == "it is unloaded":
        await den.catalog.unload("a")
    else:
        den.residents.close()
    await trio.sleep(2.0)
    assert (outcome, long) == (["a"], [])


async def test_a_crash_of_the_actor_is_not_noticed(den, autojump_clock):
    await den.ask("a")
    await den.ask("b")
    for name in "abab":
        outcome = den.asking(name)
        await trio.sleep(0.4)
        den.root.kill("residency")
        await trio.sleep(10.0)
        assert outcome == [name]
    assert den.evicted == []
