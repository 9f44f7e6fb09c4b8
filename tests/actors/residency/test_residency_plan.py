"""Which models are evicted for which, and which wait (`actors.residency.policy`)."""

import math

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from actors.residency.policy import (
    SHORTEST_TURN,
    UNKNOWN_OVERHEAD,
    KeptBy,
    Newcomer,
    Plan,
    Resident,
    estimate,
    plan,
    size,
    turn,
)
from actors.values.specs import ModelKey

NOW = 100.0


def resident(name, nbytes=10, hold=KeptBy.NOTHING, **options):
    return Resident(key=ModelKey(name), nbytes=nbytes, hold=hold, **options)


def newcomer(name="new", expected=10, least=None):
    return Newcomer(key=ModelKey(name), expected=expected, least=expected if least is None else least)


def decide(newcomers, *residents, budget=100):
    return plan(newcomers, residents, budget=budget, now=NOW)


def names(keys):
    return [key.name for key in keys]


def test_what_fits_is_loaded_at_once_and_several_side_by_side():
    decided = decide([newcomer("a", 30), newcomer("b", 30)], resident("old", 40))
    assert names(decided.start) == ["a", "b"]
    assert decided.evict == {}


def test_the_least_recently_used_ones_go_first_and_no_more_than_needed():
    decided = decide(
        [newcomer("new", 35)],
        resident("second", 20, last_used=2.0),
        resident("third", 20, last_used=3.0),
        resident("first", 20, last_used=1.0),
        resident("fourth", 40, last_used=4.0),
    )
    assert decided == Plan(evict=dict.fromkeys((ModelKey("first"), ModelKey("second")), ModelKey("new")))


def test_a_load_begins_when_what_is_evicted_for_it_has_gone():
    leaving = resident("first", 40, leaving=True)
    assert decide([newcomer("new", 40)], leaving, resident("other", 60)) == Plan()
    assert names(decide([newcomer("new", 40)], resident("other", 60)).start) == ["new"]


def test_an_eviction_under_way_is_not_repeated_for_the_same_need():
    leaving = resident("first", 40, leaving=True)
    decided = decide([newcomer("new", 40)], leaving, resident("second", 60, last_used=1.0))
    assert decided.evict == {}


@pytest.mark.parametrize("hold", [KeptBy.LONG_REQUEST, KeptBy.CHANGE])
def test_a_newcomer_waits_for_what_is_held(hold):
    decided = decide([newcomer("new", 50)], resident("held", 100, hold, turn_ends=0.0))
    assert decided == Plan(waiting=True)


def test_a_model_in_steady_use_keeps_its_place_until_its_turn_ends():
    busy = resident("busy", 100, KeptBy.REQUESTS, turn_ends=NOW + 3)
    assert decide([newcomer()], busy) == Plan(waiting=True, look_at=NOW + 3)
    over = resident("busy", 100, KeptBy.REQUESTS, turn_ends=NOW)
    assert names(decide([newcomer()], over).evict) == ["busy"]


def test_of_those_in_steady_use_the_one_whose_turn_ended_first_goes_first():
    decided = decide(
        [newcomer("new", 10)],
        resident("late", 50, KeptBy.REQUESTS, turn_ends=NOW - 1),
        resident("early", 50, KeptBy.REQUESTS, turn_ends=NOW - 2),
    )
    assert names(decided.evict) == ["early"]


def test_what_can_never_fit_is_refused_with_the_figures():
    pinned = resident("pinned", 3 * 2**30, KeptBy.FOR_GOOD)
    decided = decide([newcomer("big", 6 * 2**30), newcomer("small", 2**30)], pinned, budget=8 * 2**30)
    assert decided.refuse == {ModelKey("big"): "does not fit: needs 6.0 GiB, budget 8.0 GiB, pinned 3.0 GiB"}
    assert names(decided.start) == ["small"]


def test_a_model_that_had_grown_beyond_the_budget_is_loaded_into_all_there_is():
    decided = decide([newcomer("grown", 300, least=50)], resident("idle", 10))
    assert names(decided.evict) == ["idle"]
    assert names(decide([newcomer("grown", 300, least=50)]).start) == ["grown"]


def test_one_that_waits_for_something_soon_over_is_not_overtaken():
    loading = resident("loading", 90, KeptBy.CHANGE)
    decided = decide([newcomer("big", 50), newcomer("small", 5)], loading)
    assert decided.start == ()
    idle = resident("idle", 5)
    decided = decide(
        [newcomer("big", 50), newcomer("small", 10)], resident("loading", 90, KeptBy.CHANGE), idle
    )
    assert decided.evict == {}


def test_one_that_waits_for_a_long_request_holds_up_nobody():
    working = resident("working", 90, KeptBy.LONG_REQUEST)
    decided = decide([newcomer("big", 50), newcomer("small", 5)], working)
    assert names(decided.start) == ["small"]
    assert decided.waiting


def test_models_that_have_grown_over_the_budget_make_way_idle_ones_first():
    decided = decide([], resident("old", 40, last_used=1.0), resident("new", 80, last_used=2.0))
    assert decided.evict == {ModelKey("old"): None}
    decided = decide([], resident("pinned", 80, KeptBy.FOR_GOOD), resident("only", 10), budget=50)
    assert decided.evict == {ModelKey("only"): None}


def test_one_of_which_nothing_is_measured_is_left_where_it_is():
    decided = decide([newcomer("new", 50)], resident("thread", 0), resident("idle", 60, last_used=9.0))
    assert names(decided.evict) == ["idle"]


def test_a_turn_lasts_as_long_as_the_load_took_and_five_seconds_at_least():
    assert turn(0.2) == SHORTEST_TURN
    assert turn(60.0) == 60.0


def test_an_estimate_is_files_and_measured_overhead_for_each_worker_of_each_version():
    assert estimate([(1000, 2), (10, 1)], [100.0, 300.0]) == 2 * 1200 + 210
    assert estimate([(1000, 1)], []) == 1000 + UNKNOWN_OVERHEAD
    assert estimate([(1000, 0)], []) == 0  # on threads of the server


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 * 2**30, "5.0 GiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_sizes_are_told_in_units_people_read(nbytes, text):
    assert size(nbytes) == text


# -- whatever the case is


@st.composite
def situations(draw):
    sizes = st.integers(0, 60)
    times = st.floats(0, 200, allow_nan=False)
    residents = [
        Resident(
            key=ModelKey(f"r{index}"),
            nbytes=draw(sizes),
            hold=draw(st.sampled_from([each for each in KeptBy if each is not KeptBy.WANTED])),
            last_used=draw(times),
            turn_ends=draw(times),
            leaving=draw(st.booleans()) and draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 8)))
    ]
    newcomers = []
    for index in range(draw(st.integers(0, 5))):
        expected = draw(sizes)
        newcomers.append(newcomer(f"n{index}", expected, draw(st.integers(0, expected))))
    return newcomers, residents, draw(st.integers(1, 150))


@given(situations())
def test_nobody_is_evicted_who_may_not_be(situation):
    newcomers, residents, budget = situation
    decided = plan(newcomers, residents, budget=budget, now=NOW)
    by_key = {each.key: each for each in residents}
    for key in decided.evict:
        each = by_key[key]
        assert not each.leaving
        assert each.hold is KeptBy.NOTHING or (each.hold is KeptBy.REQUESTS and each.turn_ends <= NOW)


@given(situations())
def test_idle_ones_go_before_those_in_use_and_in_the_order_of_their_last_use(situation):
    newcomers, residents, budget = situation
    decided = plan(newcomers, residents, budget=budget, now=NOW)
    stays = [each for each in residents if not each.leaving and each.nbytes and each.key not in decided.evict]
    for each in residents:
        if each.key not in decided.evict:
            continue
        if each.hold is KeptBy.REQUESTS:
            event("one in use was evicted")
            assert all(other.hold is not KeptBy.NOTHING for other in stays)
        else:
            assert all(
                other.hold is not KeptBy.NOTHING or other.last_used >= each.last_used for other in stays
            )


@given(situations())
def test_what_begins_to_load_fits_beside_everything_that_takes_memory(situation):
    newcomers, residents, budget = situation
    decided = plan(newcomers, residents, budget=budget, now=NOW)
    kept = sum(each.nbytes for each in residents if each.hold is KeptBy.FOR_GOOD and not each.leaving)
    begun = sum(min(each.expected, budget - kept) for each in newcomers if each.key in decided.start)
    if decided.start:
        assert sum(each.nbytes for each in residents) + begun <= budget


@given(situations())
def test_every_newcomer_is_begun_refused_or_waits_for_something_that_will_end(situation):
    newcomers, residents, budget = situation
    decided = plan(newcomers, residents, budget=budget, now=NOW)
    kept = sum(each.nbytes for each in residents if each.hold is KeptBy.FOR_GOOD and not each.leaving)
    for each in newcomers:
        assert (each.key in decided.refuse) == (each.least > budget - kept)
        assert not (each.key in decided.refuse and each.key in decided.start)
    left = [each for each in newcomers if each.key not in decided.refuse and each.key not in decided.start]
    if left:
        ends = [each for each in residents if each.hold is not KeptBy.FOR_GOOD or each.leaving]
        assert decided.evict or ends or decided.start
    if decided.look_at < math.inf:
        assert decided.look_at > NOW
        assert decided.waiting


@given(situations())
def test_once_the_evicted_have_gone_the_first_newcomer_begins_or_waits_for_somebody_who_is_held(situation):
    newcomers, residents, budget = situation
    admissible = [
        each
        for each in newcomers
        if each.key not in plan(newcomers, residents, budget=budget, now=NOW).refuse
    ]
    if not admissible:
        return
    first = admissible[0]
    staying = list(residents)
    for _ in range(len(residents) + 2):
        decided = plan(newcomers, staying, budget=budget, now=NOW)
        if first.key in decided.start:
            event("begun")
            return
        gone = [each for each in staying if each.leaving or each.key in decided.evict]
        if not gone:
            break
        staying = [each for each in staying if each not in gone]
    event("waits")
    assert any(
        each.hold in {KeptBy.LONG_REQUEST, KeptBy.CHANGE}
        or (each.hold is KeptBy.REQUESTS and each.turn_ends > NOW)
        for each in staying
        if each.nbytes
    )
