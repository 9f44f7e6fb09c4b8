"""Models that take several memories: which are evicted where one of them is short."""

from hypothesis import given
from hypothesis import strategies as st

from actors.residency.policy import KeptBy, Newcomer, Place, Plan, Resident, plan, plan_places
from actors.values.specs import ModelKey

NOW = 100.0


def resident(name, nbytes=10, hold=KeptBy.NOTHING, **options):
    return Resident(key=ModelKey(name), nbytes=nbytes, hold=hold, **options)


def newcomer(name="new", expected=10):
    return Newcomer(key=ModelKey(name), expected=expected, least=expected)


def place(name, newcomers, *residents, budget=100):
    return Place(name=name, budget=budget, residents=residents, newcomers=newcomers)


def decide(*places):
    return plan_places(places, now=NOW)


def names(keys):
    return sorted(key.name for key in keys)


def test_a_model_is_loaded_once_it_fits_everywhere():
    main = place("", [newcomer("a"), newcomer("b")])
    assert names(decide(main, place("GPU 0", [newcomer("a")])).start) == ["a", "b"]
    busy = place("GPU 0", [newcomer("a")], resident("long", 100, KeptBy.LONG_REQUEST))
    decided = decide(main, busy)
    assert (names(decided.start), decided.waiting) == (["b"], True)


def test_what_is_in_the_way_anywhere_is_evicted():
    main = place("", [newcomer("a", 60)], resident("old", 50, last_used=1.0), resident("other", 10))
    gpu = place("GPU 0", [newcomer("a", 60)], resident("there", 50, last_used=9.0))
    decided = decide(main, gpu)
    assert names(decided.evict) == ["old", "other", "there"] or names(decided.evict) == ["old", "there"]
    assert decided.start == ()


def test_a_model_that_leaves_one_memory_is_not_put_to_sleep_for_another():
    main = place("", [newcomer("a", 60)], resident("old", 50, rests=0))
    gpu = place("GPU 0", [newcomer("a", 60)], resident("old", 50))
    decided = decide(main, gpu)
    assert (names(decided.evict), names(decided.sleep)) == (["old"], [])
    alone = decide(main, place("GPU 0", []))
    assert (names(alone.evict), names(alone.sleep)) == ([], ["old"])


def test_a_refusal_names_the_gpu_and_costs_no_other_its_place():
    main = place("", [newcomer("huge", 10), newcomer("a", 10)], resident("old", 90))
    gpu = place("GPU 1", [newcomer("huge", 200)])
    decided = decide(main, gpu)
    assert decided.refuse == {ModelKey("huge"): "does not fit: needs 200 B, budget 100 B, pinned 0 B (GPU 1)"}
    assert names(decided.start) == ["a"]
    assert decided.evict == {}  # for the refused one there would have had to be


SIZES = st.integers(0, 60)
HOLDS = st.sampled_from([KeptBy.NOTHING, KeptBy.REQUESTS, KeptBy.CHANGE, KeptBy.FOR_GOOD])
NEWCOMERS = st.lists(SIZES, max_size=4)
RESIDENTS = st.lists(st.tuples(SIZES, HOLDS, st.booleans()), max_size=5)


def described(name, sizes, residents):
    return place(
        name,
        [newcomer(f"n{number}", size) for number, size in enumerate(sizes)],
        *(
            resident(f"r{number}", size, hold, leaving=leaving, last_used=float(number))
            for number, (size, hold, leaving) in enumerate(residents)
        ),
    )


@given(NEWCOMERS, RESIDENTS)
def test_one_memory_alone_is_planned_as_ever(sizes, residents):
    only = described("", sizes, residents)
    alone = plan(only.newcomers, only.residents, budget=100, now=NOW)
    assert set(decide(only).refuse) == set(alone.refuse)
    if not alone.refuse:
        assert decide(only) == alone


@given(NEWCOMERS, RESIDENTS, NEWCOMERS, st.lists(SIZES, min_size=5, max_size=5))
def test_no_memory_is_filled_beyond_its_budget(sizes, residents, on_gpu, there):
    on_the_gpu = [(size, *how) for size, (_, *how) in zip(there, residents, strict=False)]
    places = described("", sizes, residents), described("GPU 0", on_gpu, on_the_gpu)
    decided = decide(*places)
    assert not set(decided.start) & set(decided.refuse)
    for each in places:
        present = sum(one.nbytes for one in each.residents)
        joining = sum(one.expected for one in each.newcomers if one.key in decided.start)
        assert not joining or present + joining <= each.budget
        kept = {one.key for one in each.residents if one.hold is KeptBy.FOR_GOOD}
        assert not kept & set(decided.evict)


def test_nothing_to_plan_is_no_plan():
    assert decide(place("", []), place("GPU 0", [])) == Plan()
