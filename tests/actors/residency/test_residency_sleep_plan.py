"""Which models are put to sleep, which are evicted, and which wake (`actors.residency.policy`)."""

import math

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from actors.residency.policy import KeptBy, Newcomer, Plan, Resident, asleep, plan
from actors.values.specs import ModelKey

NOW = 100.0
NEW = ModelKey("new")


def resident(name, nbytes=40, hold=KeptBy.NOTHING, **options):
    return Resident(key=ModelKey(name), nbytes=nbytes, hold=hold, **options)


def load(name="new", expected=10):
    return Newcomer(key=ModelKey(name), expected=expected, least=expected)


def waking(name, expected, has, least=None):
    return Newcomer(
        key=ModelKey(name), expected=expected, least=expected if least is None else least, has=has
    )


def decide(newcomers, *residents, budget=100):
    return plan(newcomers, residents, budget=budget, now=NOW)


def names(keys):
    return [key.name for key in keys]


def test_idle_ones_are_put_to_sleep_before_any_is_evicted_and_no_more_than_needed():
    decided = decide(
        [load(expected=50)],
        resident("other", 20, last_used=0.0),
        resident("first", 40, last_used=1.0, rests=5),
        resident("second", 20, last_used=2.0, rests=5),
        resident("third", 20, last_used=3.0, rests=5),
    )
    assert decided == Plan(sleep={ModelKey("first"): NEW, ModelKey("second"): NEW})


def test_where_sleep_is_not_enough_the_least_recently_used_ones_are_evicted_sleepers_among_them():
    decided = decide(
        [load(expected=60)],
        resident("sleeper", 10, last_used=1.0),
        resident("awake", 90, last_used=2.0, rests=40),
    )
    assert names(decided.evict) == ["sleeper"]
    assert names(decided.sleep) == ["awake"]
    decided = decide([load(expected=95)], resident("only", 90, rests=40))
    assert (names(decided.evict), names(decided.sleep)) == (["only"], [])


def test_sleep_that_an_eviction_makes_needless_is_left_out():
    decided = decide(
        [load(expected=60)],
        resident("large", 60, last_used=1.0),
        resident("small", 40, last_used=2.0, rests=20),
    )
    assert (names(decided.evict), names(decided.sleep)) == (["large"], [])


def test_one_that_would_give_nothing_back_is_evicted():
    decided = decide([load(expected=10)], resident("all", 100, rests=100))
    assert (names(decided.evict), names(decided.sleep)) == (["all"], [])


def test_one_in_steady_use_is_put_to_sleep_when_its_turn_is_over():
    over = resident("busy", 100, KeptBy.REQUESTS, turn_ends=NOW, rests=10)
    assert names(decide([load()], over).sleep) == ["busy"]
    decided = decide([load()], resident("busy", 100, KeptBy.REQUESTS, turn_ends=NOW + 1, rests=10))
    assert decided == Plan(waiting=True, look_at=NOW + 1)


def test_models_over_the_budget_are_put_to_sleep():
    assert decide([], resident("grown", 120, rests=30)) == Plan(sleep={ModelKey("grown"): None})


def test_a_load_begins_when_memory_has_been_given_back():
    going = [resident("a", 10, KeptBy.CHANGE), resident("a", 60, KeptBy.CHANGE, leaving=True)]
    assert decide([load(expected=60)], *going) == Plan()
    assert names(decide([load(expected=60)], resident("a", 10)).start) == ["new"]


def test_a_sleeper_wakes_for_what_it_needs_beyond_what_it_has():
    sleeper = resident("a", 10, KeptBy.WANTED)
    assert names(decide([waking("a", 50, 10)], sleeper, resident("b", 40)).start) == ["a"]
    decided = decide([waking("a", 50, 10)], sleeper, resident("b", 60, rests=10))
    assert decided.sleep == {ModelKey("b"): ModelKey("a")}


def test_a_wanted_sleeper_is_neither_evicted_nor_waited_for():
    sleeper = resident("a", 60, KeptBy.WANTED)
    decided = decide([load(expected=50), waking("a", 30, 60)], sleeper)
    assert names(decided.start) == ["a"]
    assert decided.evict == {}


def test_one_that_can_never_wake_is_refused_with_what_it_needs_as_a_whole():
    pinned = resident("pinned", 70, KeptBy.FOR_GOOD)
    decided = decide([waking("a", 30, 10)], resident("a", 10, KeptBy.WANTED), pinned)
    assert decided.refuse == {ModelKey("a"): "does not fit: needs 40 B, budget 100 B, pinned 70 B"}


def test_sleepers_in_each_others_way_wake_one_after_the_other():
    both = resident("a", 50, KeptBy.WANTED), resident("b", 50, KeptBy.WANTED)
    decided = decide([waking("a", 40, 50), waking("b", 40, 50)], *both)
    assert names(decided.start) == ["a"], "over the budget, as nothing else would ever change"
    idle = resident("c", 5)
    decided = decide([waking("a", 40, 50), waking("b", 40, 50)], *both, idle, budget=105)
    assert (names(decided.start), names(decided.evict)) == ([], ["c"])
    working = resident("c", 5, KeptBy.LONG_REQUEST)
    decided = decide([waking("a", 40, 50), waking("b", 40, 50)], *both, working, budget=105)
    assert decided == Plan(waiting=True)


def test_the_first_guess_at_what_a_sleeper_takes():
    assert asleep(1, [(1000, 2), (10, 1)]) == 2010
    assert asleep(2, [(1000, 2)]) == 0


@pytest.mark.parametrize(("rests", "frees"), [(None, 0), (10, 30), (40, 0), (50, 0)])
def test_what_sleep_gives_back(rests, frees):
    assert resident("a", 40, rests=rests).frees == frees


# -- a world in which all goes at once


class Model:
    """One model: gone, awake or asleep."""

    def __init__(self, name, awake, rests, thought):
        self.key = ModelKey(name)
        self.sizes = {"gone": 0, "awake": awake, "asleep": rests}
        self.thought = thought  # what it is expected to take asleep, until that is known
        self.stands = "gone"
        self.wanted = False
        self.used = 0.0

    @property
    def nbytes(self):
        return self.sizes[self.stands]

    def resident(self):
        sleeps = self.stands == "asleep"
        return Resident(
            key=self.key,
            nbytes=self.nbytes,
            hold=KeptBy.WANTED if self.wanted and sleeps else KeptBy.NOTHING,
            last_used=self.used,
            rests=None if sleeps or self.sizes["asleep"] is None else self.thought,
        )

    def newcomer(self):
        has = self.nbytes if self.stands == "asleep" else None
        more = self.sizes["awake"] - (has or 0)
        return Newcomer(key=self.key, expected=more, least=more, has=has)


@st.composite
def worlds(draw):
    budget = draw(st.integers(20, 60))
    models = []
    for index in range(draw(st.integers(1, 6))):
        awake = draw(st.integers(1, budget))
        rests = draw(st.one_of(st.none(), st.integers(0, awake)))
        models.append(Model(f"m{index}", awake, rests, draw(st.integers(0, awake))))
    asked = draw(st.lists(st.sets(st.sampled_from(range(len(models))), min_size=1), max_size=8))
    return budget, models, asked


@given(worlds())
def test_all_that_is_asked_for_is_served_within_the_budget(world):
    budget, models, asked = world
    by_key = {each.key: each for each in models}
    line: list[Model] = []
    for now, group in enumerate(asked):
        for model in [models[index] for index in sorted(group)]:
            if model.stands == "awake":
                model.used = now
            elif not model.wanted:
                model.wanted = True
                line.append(model)
        for _ in range(4 * len(models) + 4):
            if not line:
                break
            there = [each.resident() for each in models if each.stands != "gone"]
            newcomers = [each.newcomer() for each in line]
            decided = plan(newcomers, there, budget=budget, now=NOW)
            _check(decided, there, newcomers, budget)
            for key in decided.evict:
                by_key[key].stands = "gone"
            for key in decided.sleep:
                by_key[key].stands = "asleep"
                by_key[key].thought = by_key[key].nbytes  # it is measured
            for key in decided.start:
                by_key[key].stands, by_key[key].wanted, by_key[key].used = "awake", False, now
                line.remove(by_key[key])
        assert not line, "something waits for ever"


def _check(decided, there, newcomers, budget):
    residents = {each.key: each for each in there}
    assert not decided.refuse
    assert not decided.evict.keys() & decided.sleep.keys()
    for key in decided.evict:
        assert residents[key].hold is KeptBy.NOTHING
    for key in decided.sleep:
        assert residents[key].frees
    present = sum(each.nbytes for each in there)
    if decided.evict and not decided.start:
        # All that can be put to sleep would not have been enough for those that they are evicted for.
        event("evicted")
        wanted = max(each.expected for each in newcomers)
        frees = sum(each.frees for each in there if each.hold is KeptBy.NOTHING)
        assert len(newcomers) > 1 or present - frees + wanted > budget
    more = sum(each.expected for each in newcomers if each.key in decided.start)
    if present + more > budget and decided.start:
        event("sleepers were in each other's way")
        assert len(decided.start) == 1
        assert all(each.hold is KeptBy.WANTED for each in there if each.nbytes)
    assert decided.look_at == math.inf
