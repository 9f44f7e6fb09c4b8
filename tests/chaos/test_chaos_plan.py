"""The plan of a run is a function of its arguments: every fault comes, and none meets one it excludes."""

import random
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.plan import LONGEST, QUIET, Plan, plan
from tests.support.examples import examples

WEIGHTS = {f"fault_{number:02}": 1.0 + number % 3 for number in range(60)}
SETTINGS: dict[str, Any] = {
    "seed": 1,
    "minutes": 10,
    "rate": 150,
    "faults_per_minute": 12,
    "weights": WEIGHTS,
}

some = settings(max_examples=examples(30))
seeds = st.integers(0, 2**64)
catalogues = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.floats(0.1, 10), min_size=1, max_size=30
)


def planned(**given: Any) -> Plan:
    return plan(**{**SETTINGS, **given})


def pairs_at_once(made: Plan) -> list[tuple[str, str]]:
    return [
        (one.fault, other.fault)
        for one, other in combinations(made.faults, 2)
        if abs(one.at - other.at) <= LONGEST
    ]


@pytest.mark.slow
@given(seed=seeds, weights=catalogues)
@some
def test_the_same_seed_makes_the_same_plan_in_whatever_order_the_catalogue_is(
    seed: int, weights: dict[str, float]
) -> None:
    names = list(weights)
    random.Random(seed).shuffle(names)
    shuffled = {name: weights[name] for name in names}
    assert planned(seed=seed, weights=weights) == planned(seed=seed, weights=shuffled)


@pytest.mark.slow
@given(seed=seeds, weights=catalogues)
@some
def test_every_fault_comes_wherever_there_are_places_for_all(seed: int, weights: dict[str, float]) -> None:
    made = planned(seed=seed, weights=weights, minutes=5)
    assert {each.fault for each in made.faults} == set(weights)


def test_there_are_as_many_faults_a_minute_as_asked_for_in_the_phases_that_have_any() -> None:
    made = planned()
    minutes = (made.phases[1].end - made.phases[1].begin + made.quiet - made.phases[3].begin) / 60
    assert len(made.faults) == pytest.approx(12 * minutes, abs=3)


@pytest.mark.slow
@given(seed=seeds, minutes=st.floats(0.2, 20), rate=st.floats(0.5, 60))
@some
def test_faults_come_in_their_phases_only_and_are_over_before_the_next(
    seed: int, minutes: float, rate: float
) -> None:
    made = planned(seed=seed, minutes=minutes, faults_per_minute=rate)
    standard, recovery = made.phases[1], made.phases[3]
    for each in made.faults:
        in_standard = standard.begin <= each.at <= standard.end - LONGEST
        assert in_standard or recovery.begin <= each.at <= made.quiet - LONGEST
    assert [each.at for each in made.faults] == sorted(each.at for each in made.faults)


def test_the_phases_follow_one_another_to_the_end() -> None:
    made = planned()
    spans = [(each.phase, each.begin, each.end) for each in made.phases]
    assert spans == [
        ("calm", 0, 60),
        ("standard", 60, 360),
        ("overload", 360, 450),
        ("recovery", 450, 600),
    ]
    assert made.quiet == 600 - QUIET
    assert made.seconds == 600


@pytest.mark.slow
@given(seed=seeds)
@some
def test_what_excludes_each_other_never_meets(seed: int) -> None:
    together = frozenset(sorted(WEIGHTS)[:6])
    made = planned(seed=seed, exclusions=[together])
    assert not [pair for pair in pairs_at_once(made) if set(pair) <= together]
    assert {each.fault for each in made.faults} == set(WEIGHTS)


@pytest.mark.slow
@given(seed=seeds, weights=catalogues)
@some
def test_no_fault_meets_itself(seed: int, weights: dict[str, float]) -> None:
    made = planned(seed=seed, weights=weights)
    assert not [pair for pair in pairs_at_once(made) if pair[0] == pair[1]]


@pytest.mark.slow
def test_heavier_faults_come_more_often() -> None:
    counted = Counter(
        each.fault
        for seed in range(30)
        for each in planned(seed=seed, weights={"rare": 1.0, "often": 8.0, "usual": 3.0}).faults
    )
    assert counted["often"] > counted["usual"] > counted["rare"] > 0


def test_a_run_without_faults_has_phases_all_the_same() -> None:
    made = planned(faults_per_minute=0, weights={})
    assert (len(made.phases), made.faults) == (4, [])


@pytest.mark.parametrize("wrong", [{"minutes": 0}, {"rate": -1}, {"faults_per_minute": -1}])
def test_what_makes_no_plan_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="only faults may be none"):
        planned(**wrong)
