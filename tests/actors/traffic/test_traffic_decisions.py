"""Which version answers, and which loses its share: the pure half of traffic between versions."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from actors.traffic.policy.traffic import (
    Counters,
    Evidence,
    Keep,
    RollBack,
    Shares,
    Window,
    difference,
    judge,
    outputs_differ,
)
from actors.values.datatypes import DataType
from actors.values.specs import InputSpec, OutputSpec
from actors.values.traffic import Rollback
from tests.support.examples import examples
from tests.support.model_doubles import make_spec

KEYS = [f"user-{number}" for number in range(4000)]

versions = st.integers(1, 2**63 - 1)
weights = st.dictionaries(versions, st.floats(0, 1e308), min_size=1, max_size=6)
modest = st.dictionaries(st.integers(1, 9), st.integers(0, 9), min_size=2, max_size=4)
points = st.floats(0, 1, exclude_max=True)


def choices(shares):
    return {key: shares.choose_for(key) for key in KEYS}


# -- shares


@given(weights, st.sets(versions, max_size=3))
def test_shares_add_up_to_one_over_available_versions_that_have_a_weight(weights, unknown):
    available = {*weights, *unknown}
    shares = Shares(weights, available)
    assert sum(shares.by_version.values()) == pytest.approx(1)
    weighted = {version for version, weight in weights.items() if weight > 0}
    assert set(shares.versions) <= (weighted or {max(available)})
    assert shares.lead in shares.versions


@given(weights, points, st.text())
def test_a_version_without_weight_or_that_cannot_serve_is_never_chosen_while_another_is_there(
    weights, point, key
):
    gone = {version for version in weights if version % 3 == 0}
    available = set(weights) - gone
    assume(any(weights[version] > 0 for version in available))
    shares = Shares(weights, available)
    for chosen in (shares.choose(point), shares.choose_for(key)):
        assert chosen in available
        assert weights[chosen] > 0


def test_the_highest_version_answers_where_none_that_is_there_has_a_weight():
    shares = Shares({1: 90, 2: 10, 4: 0}, [3, 4])
    assert shares.by_version == {4: 1.0}
    assert shares.choose(0.999) == shares.choose_for("anybody") == 4


def test_nothing_is_shared_out_over_no_version():
    assert Shares({1: 1}, ()).versions == ()


def test_what_is_left_keeps_its_proportions():
    assert Shares({1: 60, 2: 30, 3: 10}, [1, 2]).by_version == pytest.approx({1: 2 / 3, 2: 1 / 3})


def test_weights_as_large_as_floats_are_do_not_overflow():
    assert Shares({1: 1.7e308, 2: 1.7e308}, [1, 2]).by_version == {1: 0.5, 2: 0.5}


def test_the_version_with_the_largest_share_leads_and_the_higher_of_two():
    assert Shares({1: 90, 2: 10}, [1, 2]).lead == 1
    assert Shares({1: 50, 2: 50}, [1, 2]).lead == 2


def test_a_tenth_of_ten_thousand_requests_meets_the_canary():
    draw = random.Random(7).random
    shares = Shares({1: 90, 2: 10}, [1, 2])
    met = Counter(shares.choose(draw()) for _ in range(10_000))
    assert met[1] + met[2] == 10_000
    assert abs(met[2] - 1000) < 4 * 30  # four standard deviations of a binomial distribution


def test_keys_meet_versions_by_their_shares_too():
    met = Counter(choices(Shares({1: 70, 2: 20, 3: 10}, [1, 2, 3])).values())
    for version, share in ((1, 0.7), (2, 0.2), (3, 0.1)):
        deviation = (len(KEYS) * share * (1 - share)) ** 0.5
        assert abs(met[version] - len(KEYS) * share) < 4 * deviation


@given(modest, st.text())
def test_a_key_meets_the_same_version_every_time(weights, key):
    first, again = Shares(weights, weights), Shares(dict(reversed(weights.items())), weights)
    assert first.choose_for(key) == again.choose_for(key)


def test_a_key_meets_the_same_version_after_a_restart():
    shares = Shares({1: 50, 2: 50}, [1, 2])
    # Recorded values: a change of the hash moves every sticky client of every server.
    assert [shares.choose_for(f"user-{number}") for number in range(12)] == [
        2,
        2,
        2,
        2,
        1,
        2,
        2,
        1,
        2,
        1,
        1,
        2,
    ]


@pytest.mark.parametrize(("leaving", "staying"), [(1, {2, 3}), (2, {1, 3}), (3, {1, 2})])
def test_a_version_that_leaves_gives_up_its_own_keys_and_no_others(leaving, staying):
    weights = {1: 70, 2: 20, 3: 10}
    before, after = choices(Shares(weights, weights)), choices(Shares(weights, staying))
    assert all(after[key] == version for key, version in before.items() if version != leaving)
    assert all(version in staying for version in after.values())


@settings(max_examples=20)
@given(st.integers(1, 99), st.integers(1, 99))
def test_between_two_versions_keys_move_one_way_and_no_more_than_the_difference(before, after):
    first = Shares({1: 100 - before, 2: before}, [1, 2])
    second = Shares({1: 100 - after, 2: after}, [1, 2])
    keys = KEYS[:1000]
    moved = [key for key in keys if first.choose_for(key) != second.choose_for(key)]
    grown = 2 if after > before else 1
    assert all(second.choose_for(key) == grown for key in moved)
    share = abs(after - before) / 100
    assert abs(len(moved) - len(keys) * share) < 5 * (len(keys) * share * (1 - share)) ** 0.5 + 1


@settings(max_examples=examples(50))
@given(modest, st.sampled_from(range(1, 10)), st.integers(1, 9))
def test_a_version_that_alone_gains_weight_gains_keys_and_nobody_else_does(weights, version, more):
    weights = {each: weight + 1 for each, weight in weights.items()}
    assume(version in weights)
    heavier = {**weights, version: weights[version] + more}
    before, after = Shares(weights, weights), Shares(heavier, heavier)
    for key in KEYS[:100]:
        assert after.choose_for(key) in (version, before.choose_for(key))


# -- which versions may share requests


def test_versions_with_the_same_inputs_may_share_requests():
    one = make_spec()
    assert difference(one, make_spec(version=2)) == ""
    opened = make_spec(version=2, inputs=(InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,)),))
    assert difference(one, opened) == ""
    assert outputs_differ(one, opened) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_batch_size": 0}, "version 1 alone has a batch dimension"),
        ({"decoupled": True}, "version 2 alone is decoupled"),
        ({"inputs": ()}, "version 1 alone has input 'INPUT'"),
        (
            {"inputs": (InputSpec(name="INPUT", datatype=DataType.INT8, dims=(2,)),)},
            "input 'INPUT' is FP32[2] in version 1 and INT8[2] in 2",
        ),
        (
            {"inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(2, 1)),)},
            "input 'INPUT' is FP32[2] in version 1 and FP32[2,1] in 2",
        ),
        (
            {"inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(2,), optional=True),)},
            "input 'INPUT' is optional in version 2 alone",
        ),
    ],
)
def test_what_keeps_versions_from_sharing_requests_is_named(changes, words):
    assert difference(make_spec(), make_spec(version=2, **changes)) == words


def test_what_another_version_has_more_is_named_too():
    more = (*make_spec().inputs, InputSpec(name="MASK", datatype=DataType.BOOL, dims=(2,)))
    assert difference(make_spec(), make_spec(version=2, inputs=more)) == "version 2 alone has input 'MASK'"


def test_outputs_of_another_form_are_named():
    other = make_spec(version=2, outputs=(OutputSpec(name="OUTPUT", datatype=DataType.FP16, dims=(2,)),))
    assert outputs_differ(make_spec(), other) == "output 'OUTPUT' is FP32[2] in version 1 and FP16[2] in 2"


# -- windows


def count(successes=0, errors=0, seconds=0.0):
    return Counters(successes=successes, errors=errors, seconds=seconds)


def test_a_window_tells_what_was_counted_within_it():
    window = Window(5.0)
    assert window.recent == count()
    window.add(0.0, count(10, 1, 2.0))
    assert window.recent == count()
    window.add(3.0, count(30, 2, 4.0))
    assert window.recent == count(20, 1, 2.0)
    window.add(6.0, count(50, 5, 9.0))
    assert window.recent == count(40, 4, 7.0)  # since the last note before it began
    window.add(9.0, count(50, 5, 9.0))
    assert window.recent == count(20, 3, 5.0)


@given(st.lists(st.floats(0.001, 3.0), min_size=1, max_size=60), st.floats(0.1, 10))
def test_a_window_reaches_back_as_far_as_it_says_and_hardly_further(steps, length):
    window = Window(length)
    now, told = 0.0, [(0.0, 0)]
    window.add(0.0, count())
    for index, step in enumerate(steps, 1):
        now += step
        told.append((now, index))
        window.add(now, count(successes=index))
    begins = told[len(steps) - window.recent.successes][0]
    best = max((at for at, _ in told if at <= now - length), default=0.0)
    assert best - length / 100 <= begins <= best


def test_counters_without_answers_have_no_rates():
    assert (count().error_rate, count().mean_latency) == (0.0, 0.0)
    assert (count(6, 2, 3.0).error_rate, count(6, 2, 3.0).mean_latency) == (0.25, 0.5)


# -- rollback

RULE = Rollback(max_error_rate=0.1, max_latency=1.0, max_latency_ratio=3.0, min_requests=20, window=5.0)
BOTH = Shares({1: 90, 2: 10}, [1, 2])
FINE = Evidence(count(200, 0, 20.0))


def verdict(canary, main=FINE, *, rule=RULE, shares=BOTH):
    return judge(rule, shares, {1: main, 2: canary})


SLOW_BESIDE = (
    "mean latency 0.4 s over 3 times the 0.1 s of the version with the largest share: 20 requests within 5 s"
)


@pytest.mark.parametrize(
    ("canary", "why"),
    [
        (Evidence(count(95, 5, 10.0)), ""),
        (Evidence(count(15, 5, 1.5)), "error rate 0.25 over 0.1: 5 of 20 answers within 5 s"),
        (Evidence(count(20, 0, 30.0)), "mean latency 1.5 s over 1 s: 20 requests within 5 s"),
        (Evidence(count(20, 0, 8.0)), SLOW_BESIDE),
        (Evidence(count(), [2.0] * 20), "mean latency 2 s over 1 s: 20 requests within 5 s"),
        (Evidence(count(), [0.25] * 40), ""),
        (Evidence(count(0, 19)), ""),
        (Evidence(count(19, 0, 100.0)), ""),
        (Evidence(count(), [9.0] * 19), ""),
    ],
    ids=[
        "it does well",
        "too many errors",
        "too slow",
        "much slower than the main one",
        "it hangs, and answers nothing",
        "requests in hand that are not late yet",
        "too few errors to say something",
        "too few answers",
        "too few in hand",
    ],
)
def test_a_version_loses_its_share_for_what_a_rule_says(canary, why):
    assert verdict(canary) == (RollBack(2, why) if why else Keep())


@pytest.mark.parametrize(
    ("canary", "main", "more"),
    [
        (Evidence(count(20, 0, 8.0)), Evidence(count(19, 0, 1.9)), {}),
        (Evidence(count(10, 90, 500.0)), FINE, {"rule": Rollback(max_latency_ratio=10_000)}),
        (Evidence(count(10, 90, 500.0)), FINE, {"rule": Rollback(max_error_rate=0.95)}),
        (FINE, Evidence(count(0, 100)), {"shares": Shares({1: 90, 2: 10}, [1])}),
        (Evidence(count(19, 0, 1.9)), Evidence(count(50, 50, 5.0)), {}),
    ],
    ids=[
        "too little is known of the main version for the ratio",
        "no rule for errors or latency",
        "no rule for latency",
        "it is the last version",
        "the other has not shown to do better",
    ],
)
def test_a_rule_says_nothing_where(canary, main, more):
    assert verdict(canary, main, **more) == Keep()


def test_the_newcomer_goes_first_where_both_do_badly():
    bad = Evidence(count(50, 50, 5.0))
    assert isinstance(verdict(bad, bad), RollBack)
    assert verdict(bad, bad).version == 2


def test_the_newer_of_two_small_shares_goes_first():
    bad = Evidence(count(50, 50, 5.0))
    shares = Shares({1: 80, 2: 10, 3: 10}, [1, 2, 3])
    found = judge(RULE, shares, {1: FINE, 2: bad, 3: bad})
    assert isinstance(found, RollBack)
    assert found.version == 3


def test_the_main_version_goes_only_where_another_has_shown_to_do_better():
    bad = Evidence(count(50, 50, 5.0))
    assert verdict(Evidence(count(20, 0, 2.0)), bad).version == 1


def test_versions_of_which_nothing_is_known_keep_their_shares():
    assert judge(RULE, BOTH, {}) == Keep()


evidences = st.builds(
    Evidence,
    st.builds(count, st.integers(0, 60), st.integers(0, 60), st.floats(0, 100)),
    st.lists(st.floats(0, 5), max_size=30),
)


@given(modest, st.dictionaries(st.integers(1, 9), evidences), st.integers(1, 40))
def test_whoever_loses_its_share_had_one_and_somebody_else_has_one_too(weights, evidence, least):
    shares = Shares(weights, weights)
    rule = replace(RULE, min_requests=least)
    decision = judge(rule, shares, evidence)
    if isinstance(decision, RollBack):
        assert decision.version in shares.versions
        assert len(shares.versions) > 1
        left = Shares({**weights, decision.version: 0}, weights)
        assert decision.version not in left.versions
        assert evidence[decision.version].recent.answers + len(evidence[decision.version].in_hand) >= least
