"""Which environments get a spare worker, and when."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from engine.processes.spare_plan import FIRST_PAUSE, LINGER, LONGEST_PAUSE, QUIET, End, SparePlan, Start, Wait


def decisions(plan, now):
    """Return all decisions that are due now, in order."""
    made = []
    while not isinstance(decision := plan.decide(now), Wait):
        made.append(decision)
    return made


def test_the_first_spare_waits_until_starts_are_quiet():
    plan = SparePlan[str](1)
    plan.launched("a", 10.0, spare=False)
    assert plan.decide(10.0) == Wait(10.0 + QUIET)
    plan.launched("a", 10.5, spare=False)
    assert plan.decide(10.0 + QUIET) == Wait(10.5 + QUIET)
    assert decisions(plan, 10.5 + QUIET) == [Start("a")]
    assert plan.decide(20.0) == Wait(math.inf)


def test_a_spare_that_was_used_is_replaced_at_once():
    plan = SparePlan[str](1)
    plan.launched("a", 0.0, spare=False)
    assert decisions(plan, QUIET) == [Start("a")]
    plan.launched("a", 5.0, spare=True)
    assert decisions(plan, 5.0) == [Start("a")]


def test_the_keys_used_last_have_the_spares():
    plan = SparePlan[str](2)
    for key in "abc":
        plan.launched(key, 0.0, spare=False)
    assert decisions(plan, QUIET) == [Start("c"), Start("b")]
    plan.launched("a", 5.0, spare=False)
    assert decisions(plan, 5.0 + QUIET) == [End("b"), Start("a")]


def test_a_key_with_workers_goes_before_one_whose_workers_have_ended():
    plan = SparePlan[str](1)
    plan.launched("a", 0.0, spare=False)
    plan.launched("b", 1.0, spare=False)
    plan.ended("b", 2.0)
    assert decisions(plan, 3.0) == [Start("a")]


def test_a_key_that_nobody_uses_keeps_its_spare_for_a_while_and_then_none():
    plan = SparePlan[str](1)
    plan.launched("a", 0.0, spare=False)
    assert decisions(plan, QUIET) == [Start("a")]
    plan.ended("a", 10.0)
    assert plan.decide(10.0) == Wait(10.0 + LINGER)
    assert decisions(plan, 10.0 + LINGER) == [End("a")]
    assert plan.decide(10.0 + LINGER) == Wait(math.inf)


def test_an_instance_that_is_started_again_in_time_finds_its_spare():
    plan = SparePlan[str](1)
    plan.launched("a", 0.0, spare=False)
    assert decisions(plan, QUIET) == [Start("a")]
    plan.ended("a", 10.0)
    plan.launched("a", 30.0, spare=True)
    assert decisions(plan, 30.0 + LINGER) == [Start("a")]


def test_spares_that_die_one_after_the_other_are_tried_more_and_more_seldom():
    plan = SparePlan[str](1)
    plan.launched("a", 0.0, spare=False)
    now, pauses = QUIET, []
    for _ in range(12):
        assert decisions(plan, now) == [Start("a")]
        plan.lost("a", now)
        wait = plan.decide(now)
        assert isinstance(wait, Wait)
        pauses.append(wait.until - now)
        now = wait.until
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_spare_that_was_of_use_ends_the_distrust():
    plan = SparePlan[str](1)
    plan.launched("a", 0.0, spare=False)
    assert decisions(plan, 10.0) == [Start("a")]
    plan.lost("a", 10.0)
    assert decisions(plan, 20.0) == [Start("a")]
    plan.launched("a", 30.0, spare=True)
    assert decisions(plan, 30.0) == [Start("a")]
    plan.lost("a", 40.0)
    assert plan.decide(40.0) == Wait(40.0 + FIRST_PAUSE)


def test_after_a_crash_of_who_keeps_them_they_are_started_anew():
    plan = SparePlan[str](1)
    plan.launched("a", 0.0, spare=False)
    assert decisions(plan, QUIET) == [Start("a")]
    plan.reset()
    assert decisions(plan, QUIET) == [Start("a")]


class Model:
    """The spares, as reported to the plan."""

    def __init__(self, limit):
        self.plan, self.limit = SparePlan[str](limit), limit
        self.held, self.workers, self.now = set(), {}, 0.0

    def settle(self):
        for _ in range(100):
            match self.plan.decide(self.now):
                case Start(key=key):
                    assert key not in self.held
                    self.held.add(key)
                case End(key=key):
                    self.held.remove(key)
                case Wait(until=until):
                    assert until > self.now
                    break
        else:
            raise AssertionError("it never comes to rest")
        assert len(self.held) <= self.limit


@given(
    st.integers(0, 3),
    st.lists(
        st.tuples(
            st.sampled_from(["launch", "end", "lose", "pass"]), st.sampled_from("abcd"), st.floats(0, 70)
        ),
        max_size=40,
    ),
)
def test_there_are_never_too_many_and_none_that_nobody_uses(limit, steps):
    model = Model(limit)
    for step, key, seconds in steps:
        model.now += seconds
        if step == "launch":
            spare = key in model.held
            model.held.discard(key)
            model.workers[key] = model.workers.get(key, 0) + 1
            model.plan.launched(key, model.now, spare=spare)
        elif step == "end" and model.workers.get(key):
            model.workers[key] -= 1
            model.plan.ended(key, model.now)
        elif step == "lose" and key in model.held:
            model.held.remove(key)
            model.plan.lost(key, model.now)
        model.settle()
    model.now += LINGER + LONGEST_PAUSE + QUIET
    model.settle()
    used = {key for key, count in model.workers.items() if count}
    assert model.held <= used
    assert len(model.held) == min(limit, len(used))
