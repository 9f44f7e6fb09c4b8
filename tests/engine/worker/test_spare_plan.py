"""Which environments get a spare worker, and when."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.processes.spare_plan import FIRST_PAUSE, LINGER, LONGEST_PAUSE, QUIET, End, SparePlan, Start, Wait


def decisions(plan, now):
    """Return all decisions that are due now, in order."""
    made = []
    while not isinstance(decision := plan.decide(now), Wait):
        made.append(decision)
    return made


def launched(key, *, spare=False):
    return lambda plan, now: plan.launched(key, now, spare=spare)


def ended(key):
    return lambda plan, now: plan.ended(key, now)


def lost(key):
    return lambda plan, now: plan.lost(key, now)


def waits(until):
    """Nothing is decided before `until`."""

    def check(plan, now):
        assert plan.decide(now) == Wait(until)

    return check


def decides(*made):
    def check(plan, now):
        assert decisions(plan, now) == [*made]

    return check


FIRST = [(0.0, launched("a")), (QUIET, decides(Start("a")))]
# (id, how many spares, what happens and what is decided, each at its time)
HISTORIES = [
    ("the first spare waits until starts are quiet", 1,
     [(10.0, launched("a")), (10.0, waits(10.0 + QUIET)), (10.5, launched("a")),
      (10.0 + QUIET, waits(10.5 + QUIET)), (10.5 + QUIET, decides(Start("a"))), (20.0, waits(math.inf))]),
    ("a spare that was used is replaced at once", 1,
     [*FIRST, (5.0, launched("a", spare=True)), (5.0, decides(Start("a")))]),
    ("the keys used last have the spares", 2,
     [*((0.0, launched(key)) for key in "abc"), (QUIET, decides(Start("c"), Start("b"))),
      (5.0, launched("a")), (5.0 + QUIET, decides(End("b"), Start("a")))]),
    ("a key with workers goes before one whose workers have ended", 1,
     [(0.0, launched("a")), (1.0, launched("b")), (2.0, ended("b")), (3.0, decides(Start("a")))]),
    ("a key without workers keeps its spare for a while, and then none", 1,
     [*FIRST, (10.0, ended("a")), (10.0, waits(10.0 + LINGER)), (10.0 + LINGER, decides(End("a"))),
      (10.0 + LINGER, waits(math.inf))]),
    ("an instance that is started again in time finds its spare", 1,
     [*FIRST, (10.0, ended("a")), (30.0, launched("a", spare=True)), (30.0 + LINGER, decides(Start("a")))]),
    ("a spare that was of use ends the distrust", 1,
     [(0.0, launched("a")), (10.0, decides(Start("a"))), (10.0, lost("a")), (20.0, decides(Start("a"))),
      (30.0, launched("a", spare=True)), (30.0, decides(Start("a"))), (40.0, lost("a")),
      (40.0, waits(40.0 + FIRST_PAUSE))]),
    ("after a crash of the spares' actor they are started anew", 1,
     [*FIRST, (QUIET, lambda plan, now: plan.reset()), (QUIET, decides(Start("a")))]),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "history"), [pytest.param(*row[1:], id=row[0]) for row in HISTORIES])
def test_spares_are_started_and_ended_in_their_time(limit, history):
    plan = SparePlan[str](limit)
    for now, step in history:
        step(plan, now)


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
