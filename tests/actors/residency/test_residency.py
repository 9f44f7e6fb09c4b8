"""Models in memory: loaded by a first request, evicted when memory is short, noticed only as a wait."""

import itertools
from dataclasses import replace

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.catalog.catalog import ControlMode
from actors.residency.dormant import Dormant
from actors.residency.policy import SHORTEST_TURN
from actors.residency.residency import MEASURE_SECONDS, NOT_EVICTED_SECONDS
from actors.serving.standing import Status
from actors.values.errors import Cancelled, TritiumError, Unavailable
from actors.values.specs import ModelKey, Residency
from tests.support.examples import examples
from tests.support.model_doubles import make_request
from tests.support.residency_doubles import UNIT, Den, on_demand
from tests.support.trees import settled


@pytest.fixture
def begin(nursery):
    """Begin with some models on demand, `budget` in units."""

    async def begun(*found, budget=2, **options):
        models = [on_demand(each) if isinstance(each, str) else each for each in found]
        den = Den(nursery, *models, budget=int(budget * UNIT), **options)
        return await den.begin()

    yield begun
    nursery.cancel_scope.cancel()


@pytest.fixture
async def den(begin):
    """One model on demand."""
    return await begin("a")


@pytest.fixture
async def full(begin):
    """Two models on demand, and room for one."""
    return await begin("a", "b", budget=1)


# -- loading


async def test_the_first_request_loads_its_model_and_no_other(begin, autojump_clock):
    den = await begin("a", "b")
    assert isinstance(den.router.resolve("a"), Dormant)
    assert den.farm.resident == []
    assert (await den.ask("a")).model_name == "a"
    assert den.farm.resident == ["a"]
    assert den.router.resolve("a") is den.serving("a")[1]


async def test_the_load_goes_on_when_the_client_has_left(den, autojump_clock):
    request = make_request()
    with trio.move_on_after(0.5):
        await den.router.resolve("a").submit(request)
    await trio.sleep(1)
    assert den.farm.resident == ["a"]
    assert den.sample("a").counters.waiting == 0


async def test_why_a_load_failed_is_told_and_it_is_not_repeated_for_each_request(den, autojump_clock):
    den.farm.fails["a"] = 1
    first, second = den.asking("a"), den.asking("a")
    await trio.sleep(1.5)
    assert {type(error) for error in (*first, *second)} == {Unavailable}
    assert first[0].message.endswith(
        "model 'a' could not be loaded: load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: no;"
    )
    with pytest.raises(Unavailable, match=r"Internal: no; \(tried again in 1 s at the earliest\)$"):
        await den.ask("a")
    assert len(den.farm.started) == 1
    await trio.sleep(1)
    assert (await den.ask("a")).model_name == "a"


async def test_new_files_are_tried_at_once(den, autojump_clock):
    den.farm.fails["a"] = 1
    with pytest.raises(Unavailable):
        await den.ask("a")
    den.source.models["a"] = on_demand("a", content="mended")
    den.catalog.look_at(ModelKey("a"), changed=True)
    await settled()
    assert (await den.ask("a")).model_name == "a"


async def test_a_load_that_an_operator_asked_for_serves_those_who_wait(begin, autojump_clock):
    den = await begin("a", budget=1, mode=ControlMode.EXPLICIT)
    den.farm.seconds["a"] = 3.0
    den.nursery.start_soon(den.catalog.load, "a", {})
    await trio.sleep(1)
    assert (await den.ask("a")).model_name == "a"
    assert len(den.farm.started) == 1


async def test_one_that_is_loaded_and_cannot_serve_is_no_reason_to_load_it_again(den, autojump_clock):
    await den.ask("a")
    den.serving("a")[1].standing.become(Status.UNAVAILABLE, "all instances keep dying")
    with pytest.raises(Unavailable, match="model 'a' is loaded and can't serve: all instances keep dying"):
        await den.ask("a")
    assert len(den.farm.started) == 1


# -- evicting


async def test_a_model_evicted_serves_again_when_it_is_asked_for(full, autojump_clock):
    for name in "abab":
        assert (await full.ask(name)).model_name == name
    assert full.evicted == ["a", "b", "a"]


async def test_memory_is_free_before_it_is_used_again(begin, autojump_clock):
    den = await begin("a", "b", "c")
    den.farm.service = dict.fromkeys("abc", 0.01)
    for name in "abcabcabc":
        await den.ask(name)
    assert den.farm.most == 2 * UNIT


async def test_pinned_ones_are_loaded_on_demand_and_stay(begin, autojump_clock):
    den = await begin(on_demand("pinned", residency=Residency.PINNED), "a", "b")
    assert den.farm.resident == []
    for name in ("pinned", "a", "b", "a", "b"):
        await den.ask(name)
        await trio.sleep(1)
    assert set(den.evicted) == {"a", "b"}
    assert "pinned" in den.farm.resident


async def test_what_can_never_fit_is_refused_with_the_figures(begin, autojump_clock):
    den = await begin(on_demand("always", residency=Residency.ALWAYS), "big", "small")
    den.memory.files["big"] = 3 * UNIT // 2
    await trio.sleep(MEASURE_SECONDS)  # it was measured
    with pytest.raises(
        Unavailable, match=r"model 'big' does not fit: needs 96\.0 MiB, budget 128\.0 MiB, pinned 64\.0 MiB$"
    ):
        await den.ask("big")
    assert (await den.ask("small")).model_name == "small"
    assert den.farm.resident == ["always", "small"]


async def test_nobody_is_refused_for_what_others_were_measured_to_take(begin, autojump_clock):
    den = await begin("code", "a", budget=4)
    den.farm.nbytes["code"] = 3 * UNIT  # none of it in files
    await den.ask("code")
    await trio.sleep(MEASURE_SECONDS)
    den.farm.nbytes["always"] = 2 * UNIT
    den.source.models["always"] = on_demand("always", residency=Residency.ALWAYS)
    den.catalog.look_at(ModelKey("always"), changed=True)
    await trio.sleep(MEASURE_SECONDS)
    assert (await den.ask("a")).model_name == "a"  # thought to take three units, where two can be had
    await trio.sleep(MEASURE_SECONDS)
    assert den.evicted == ["code"]
    assert den.farm.resident == ["a", "always"]


async def test_the_next_load_reckons_with_what_was_measured(begin, autojump_clock):
    den = await begin("big", "a", "b", budget=3)
    den.farm.nbytes["big"] = 2 * UNIT
    for name in ("big", "a", "b"):
        await den.ask(name)
        await trio.sleep(1)
    assert den.evicted == ["big"]
    await den.ask("big")  # it was thought to take one unit at first; now both must go
    assert den.farm.resident == ["b", "big"]
    assert den.farm.most == 3 * UNIT


async def test_models_that_grow_over_the_budget_make_way(begin, autojump_clock):
    den = await begin("a", "b")
    await den.ask("a")
    await trio.sleep(1)
    await den.ask("b")
    den.farm.nbytes["b"] = UNIT + 1
    await trio.sleep(MEASURE_SECONDS + 1)
    assert den.log.of("model_evicted") == [
        {"model": "a", "reason": "memory is over the budget", "freed_bytes": UNIT}
    ]


async def test_new_files_are_estimated_anew(begin, autojump_clock):
    den = await begin("a", mode=ControlMode.EXPLICIT, budget=1)
    await den.catalog.load("a", {})
    den.memory.files["a"] = 5 * UNIT
    den.catalog.look_at(ModelKey("a"), changed=True)
    await den.catalog.evict(ModelKey("a"))
    with pytest.raises(Unavailable, match="does not fit"):
        await den.ask("a")
    den.memory.files["a"] = 0
    den.source.models["a"] = on_demand("a", content="small")
    den.catalog.look_at(ModelKey("a"), changed=True)
    await settled()
    assert (await den.ask("a")).model_name == "a"


async def test_files_that_change_while_they_are_looked_at_are_looked_at_again(den, autojump_clock):
    den.memory.files["a"] = 5 * UNIT
    den.memory.file_seconds = 2.0
    outcome = den.asking("a")
    await trio.sleep(1)
    den.memory.files["a"] = 0
    den.source.models["a"] = on_demand("a", content="small")
    den.catalog.look_at(ModelKey("a"), changed=True)
    await trio.sleep(6)
    assert outcome == ["a"]


# -- models in use


async def test_a_model_that_works_is_left_alone_while_an_idle_one_will_do(begin, autojump_clock):
    den = await begin("a", "b", "c")
    await den.ask("b")
    await den.ask("a")
    den.farm.service["b"] = 100.0
    den.asking("b")
    await trio.sleep(1)
    await den.ask("c")
    assert den.evicted == ["a"]


async def test_who_waits_for_room_gets_it_as_soon_as_a_model_is_idle(full, autojump_clock):
    full.farm.service["a"] = 4.0
    working = full.asking("a")
    await trio.sleep(2)
    began = trio.current_time()
    await full.ask("b")
    assert working == ["a"]
    # the load of a lasted until 1, its request until 5, the load of b until 6
    assert trio.current_time() - began == pytest.approx(4.1)


async def test_a_long_request_is_never_cut_short(full, autojump_clock):
    full.farm.service["a"] = 1000.0
    working = full.asking("a")
    await trio.sleep(20)
    waiting = full.asking("b")
    await trio.sleep(900)
    assert waiting == []
    assert full.evicted == []
    await trio.sleep(100)
    assert (working, waiting) == (["a"], ["b"])


async def test_steady_traffic_to_one_model_does_not_starve_another(begin, autojump_clock):
    den = await begin("hot", "other", budget=1)
    answers = []

    async def client():
        while True:
            answers.append(await den.ask("hot"))

    for _ in range(4):  # it is never idle
        den.nursery.start_soon(client)
    await trio.sleep(3)
    began = trio.current_time()
    assert (await den.ask("other")).model_name == "other"
    assert trio.current_time() - began < SHORTEST_TURN + 2
    before = len(answers)
    await trio.sleep(10)
    assert len(answers) > before + 50  # and it goes on, none of its requests having failed


async def test_two_models_in_steady_use_take_turns_as_long_as_their_loads(full, autojump_clock):
    full.farm.seconds = {"a": 20.0, "b": 20.0}
    answers = {"a": 0, "b": 0}

    async def client(name):
        while True:
            await full.ask(name)
            answers[name] += 1

    for name in "aabb":
        full.nursery.start_soon(client, name)
    await trio.sleep(200)
    assert len(full.farm.started) <= 6  # twenty seconds to load, and twenty to serve
    assert min(answers.values()) > 200


async def test_a_model_just_loaded_first_serves_those_who_had_it_loaded(full, autojump_clock):
    outcomes = [full.asking(name) for name in "ab" * 20]
    await trio.sleep(100)
    assert outcomes == [["a"], ["b"]] * 20
    assert len(full.farm.started) == 2


async def test_one_that_could_not_be_evicted_is_left_alone_for_a_while(full, autojump_clock, monkeypatch):
    await full.ask("a")
    tries = []

    async def evict(key):
        tries.append(trio.current_time())
        if len(tries) == 3:
            raise Unavailable("not now")
        if len(tries) > 3:
            return await evict_for_good(key)
        return False

    evict_for_good = full.catalog.evict
    monkeypatch.setattr(full.catalog, "evict", evict)
    assert (await full.ask("b")).model_name == "b"
    pauses = [later - sooner for sooner, later in itertools.pairwise(tries)]
    assert pauses == [pytest.approx(NOT_EVICTED_SECONDS)] * 3
    assert [keys for keys in full.log.of("model_unloading") if "error" in keys] == [
        {"model": "a", "error": "not now"}
    ]


# -- the actor and its server


async def test_a_crash_of_the_actor_is_not_noticed_by_those_who_wait(begin, autojump_clock):
    den = await begin("a", "b", "c")
    outcomes = [den.asking(name) for name in "abc"]
    for _ in range(3):
        await trio.sleep(0.4)
        den.root.kill("residency")
    await trio.sleep(30)
    assert outcomes == [["a"], ["b"], ["c"]]


async def test_a_load_that_ended_while_there_was_no_actor_serves_those_who_wait(den, autojump_clock):
    outcome = den.asking("a")
    await trio.sleep(0.9)
    den.root.kill("residency")  # the first time it is back at once
    await trio.sleep(0.06)
    den.root.kill("residency")
    await trio.sleep(0.2)
    assert outcome == ["a"]


async def test_nor_is_one_while_the_files_are_looked_at_or_a_model_is_evicted(full, autojump_clock):
    full.farm.service["a"] = 3.0
    working, waiting = full.asking("a"), full.asking("b")
    full.root.kill("residency")
    await trio.sleep(2)
    full.root.kill("residency")
    await trio.sleep(30)
    assert (working, waiting) == (["a"], ["b"])


async def test_nothing_is_evicted_while_the_server_stops(den, autojump_clock):
    await den.ask("a")
    den.residents.close()
    den.farm.nbytes["a"] = 10 * UNIT
    await trio.sleep(3 * MEASURE_SECONDS)
    assert den.farm.resident == ["a"]


async def test_one_that_leaves_while_it_waits_in_the_queue_is_answered_there(den, autojump_clock):
    den.farm.service["a"] = 50.0
    dormant = den.router.resolve("a")
    den.asking("a")
    await trio.sleep(2)
    request = make_request()
    await dormant.submit(request)  # as a frontend does that found the model not loaded
    dormant.cancel(request)
    await settled()
    assert isinstance(request.reply.error, Cancelled)


async def test_memory_is_measured_after_a_load_and_then_now_and_again(den, autojump_clock):
    await trio.sleep(2)
    await den.ask("a")
    await trio.sleep(2 * MEASURE_SECONDS + 1)
    first, *rest = (round(at - den.memory.measured[0], 3) for at in den.memory.measured)
    assert (first, rest) == (0, [3, 3 + MEASURE_SECONDS, 3 + 2 * MEASURE_SECONDS])


async def test_where_measuring_takes_long_it_is_done_less_often(den, autojump_clock):
    den.memory.seconds = 2.0
    await trio.sleep(100)
    at = den.memory.measured
    assert {round(later - sooner) for sooner, later in itertools.pairwise(at[1:])} == {20}


async def test_threads_of_the_server_take_nothing_that_can_be_told(begin, autojump_clock):
    thread = on_demand("thread")
    den = await begin(
        replace(thread, specs=[replace(thread.specs[0], isolation="thread")]), "a", "b", budget=1
    )
    await den.ask("thread")
    await den.ask("a")
    await den.ask("b")
    assert den.evicted == ["a"]


async def test_what_is_known_is_shown_in_the_tree_and_in_the_metrics(begin, autojump_clock):
    den = await begin(on_demand("always", residency=Residency.ALWAYS), "a", "b", budget=2)
    await den.ask("a")
    den.farm.service["a"] = 50.0
    den.asking("a")
    await trio.sleep(1)
    den.asking("b")
    await settled()
    assert den.info == {
        "budget": 2 * UNIT,
        "resident": 2 * UNIT,
        "models": {"a": UNIT, "always": UNIT},
        "waiting": {"b": 1},
        "on_demand": ["a", "b"],
    }
    sample = den.residents.samples()
    assert sample.budget == 2 * UNIT
    assert [(each.key.name, each.resident) for each in sample.models] == [
        ("a", UNIT),
        ("always", UNIT),
        ("b", 0),
    ]
    assert den.sample("always").counters is None
    assert den.sample("b").counters.waiting == 1


# -- whatever is asked for


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(
    units=st.lists(st.integers(0, 2), min_size=2, max_size=7),
    budget=st.integers(3, 6),
    asked=st.lists(
        st.tuples(st.integers(0, 6), st.floats(0, 3), st.sampled_from([0.01, 0.5, 8.0])),
        min_size=1,
        max_size=40,
    ),
)
def test_every_request_is_served_and_memory_never_exceeds_the_budget(units, budget, asked):
    """The estimate is right here: models take a worker's overhead and `units` of files."""
    names = [f"m{index}" for index in range(len(units))]

    async def scenario():
        async with trio.open_nursery() as nursery:
            # Nothing here takes longer than half of that, so a model that works can always be drained.
            models = [on_demand(name, drain_timeout=2000.0) for name in names]
            den = Den(nursery, *models, budget=budget * UNIT)
            for name, files in zip(names, units, strict=True):
                den.memory.files[name] = files * UNIT
                den.farm.nbytes[name] = (1 + files) * UNIT
            await den.begin()
            outcomes = []
            for index, pause, service in asked:
                name = names[index % len(names)]
                den.farm.service[name] = service
                outcomes.append((name, den.asking(name)))
                await trio.sleep(pause)
            await trio.sleep(2000)
            for name, outcome in outcomes:
                assert not isinstance(outcome[0], TritiumError), outcome[0].message
                assert outcome == [name]
            assert den.farm.most <= budget * UNIT
            nursery.cancel_scope.cancel()

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
