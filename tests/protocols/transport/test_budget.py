"""Which requests may come on, which have waited for too long, and which are too slow."""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocols.transport.budget import LONGEST_REST, WAIT, ReceiveBudget
from protocols.transport.room import PATIENCE


@dataclass(eq=False)
class Holder:
    name: str = ""
    came: int = 0
    rest: int = 0

    def progress(self):
        return self.came, self.rest


@pytest.fixture
def budget():
    return ReceiveBudget(100)


def holders(*names):
    return [Holder(name) for name in names]


def test_what_fits_is_granted_at_once_and_what_does_not_waits_in_line(budget):
    first, second, third = holders(*"abc")
    assert budget.ask(first, 60, 0.0)
    assert not budget.ask(second, 60, 0.0)
    assert not budget.ask(third, 10, 0.0)  # it would fit, and waits behind the second
    assert (budget.held, budget.waiting) == (60, 2)
    budget.release(first)
    assert budget.admitted(1.0) == [second, third]
    assert (budget.held, budget.waiting) == (70, 0)


def test_a_request_larger_than_the_limit_comes_alone(budget):
    first, large, later = holders(*"abc")
    assert budget.ask(first, 1, 0.0)
    assert not budget.ask(large, 1000, 0.0)
    budget.release(first)
    assert budget.admitted(0.0) == [large]
    assert not budget.ask(later, 1, 0.0)


def test_who_holds_something_goes_before_newcomers(budget):
    first, second, newcomer = holders(*"abc")
    assert budget.ask(first, 50, 0.0)
    assert budget.ask(second, 50, 0.0)
    assert not budget.ask(newcomer, 10, 0.0)
    assert budget.ask(first, 70, 0.0)  # the one that may go beyond the limit
    assert not budget.ask(second, 60, 0.0)
    budget.release(first)
    assert budget.admitted(0.0) == [second, newcomer]


def test_one_grows_beyond_the_limit_at_a_time_so_none_waits_for_ever(budget):
    first, second = holders(*"ab")
    assert budget.ask(first, 50, 0.0)
    assert budget.ask(second, 50, 0.0)
    assert budget.ask(first, 80, 0.0)
    assert not budget.ask(second, 80, 0.0)
    assert budget.ask(first, 200, 0.0)
    budget.release(first)
    assert budget.admitted(0.0) == [second]


def test_another_may_go_beyond_once_the_first_needs_less(budget):
    first, second = holders(*"ab")
    assert budget.ask(first, 50, 0.0)
    assert budget.ask(second, 50, 0.0)
    assert budget.ask(first, 80, 0.0)
    assert not budget.ask(second, 120, 0.0)
    budget.shrink(first, 20)
    assert budget.admitted(0.0) == [second]
    assert (budget.held, budget.holds(first), budget.holds(second)) == (140, 20, 120)


def test_an_urgent_newcomer_goes_before_others(budget):
    first, newcomer, urgent = holders(*"abc")
    assert budget.ask(first, 100, 0.0)
    assert not budget.ask(newcomer, 50, 0.0)
    assert budget.ask(urgent, 50, 0.0, urgent=True)
    another = Holder()
    assert not budget.ask(another, 50, 0.0, urgent=True)
    budget.release(urgent)
    assert budget.admitted(0.0) == [another]


def test_asking_for_less_than_one_has_changes_nothing(budget):
    (holder,) = holders("a")
    assert budget.ask(holder, 50, 0.0)
    assert budget.ask(holder, 20, 0.0)
    assert budget.held == 50


def test_who_waits_can_not_ask_again(budget):
    first, second = holders(*"ab")
    budget.ask(first, 100, 0.0)
    budget.ask(second, 1, 0.0)
    with pytest.raises(ValueError, match="waits already"):
        budget.ask(second, 1, 0.0)


def test_who_leaves_the_line_lets_those_behind_it_in(budget):
    first, large, small = holders(*"abc")
    budget.ask(first, 50, 0.0)
    budget.ask(large, 60, 0.0)
    budget.ask(small, 10, 0.0)
    budget.release(large)
    assert budget.admitted(0.0) == [small]


def test_who_has_waited_for_long_waits_no_longer_and_keeps_what_it_has(budget):
    first, second, newcomer = holders(*"abc")
    budget.ask(first, 50, 0.0)
    budget.ask(second, 50, 0.0)
    budget.ask(first, 70, 0.0)
    assert not budget.ask(second, 60, 1.0)
    assert not budget.ask(newcomer, 60, 2.0)
    assert budget.late(WAIT) == []
    assert budget.late(1.0 + WAIT) == [second]
    assert budget.late(2.0 + WAIT) == [newcomer]
    assert (budget.waiting, budget.holds(second)) == (0, 50)


def test_while_others_wait_the_slow_are_told_to_go_the_largest_first(budget):
    small, large, waiting = Holder("a", came=1, rest=29), Holder("b", came=1, rest=69), Holder("c")
    budget.ask(small, 30, 0.0)
    budget.ask(large, 70, 0.0)
    late = 100.0
    assert budget.behind(late) == ()
    budget.ask(waiting, 50, late)
    assert budget.behind(late) == [large]
    budget.release(large)
    assert budget.admitted(late) == [waiting]
    second = Holder("d")
    budget.ask(second, 60, late)
    waiting.rest = 50
    assert budget.behind(late + PATIENCE / 2) == [small]  # who has just come has time


def test_a_holder_that_keeps_the_pace_or_is_whole_or_waits_itself_is_left_alone(budget):
    quick, whole, grown = Holder("a", came=60, rest=59), Holder("b", came=0, rest=0), Holder("c", rest=1)
    budget.ask(quick, 50, 0.0)
    budget.ask(whole, 30, 0.0)
    budget.ask(grown, 20, 0.0)
    budget.ask(quick, 51, 0.0)
    budget.ask(grown, 40, 0.0)
    assert budget.behind(LONGEST_REST) == []
    quick.rest = 61
    assert budget.behind(LONGEST_REST) == [quick]


def test_the_time_for_which_a_holder_waited_is_not_held_against_it(budget):
    first, second = Holder("a"), Holder("b", came=10, rest=40)
    budget.ask(first, 90, 0.0)
    budget.ask(second, 10, 0.0)
    budget.ask(first, 95, 0.0)
    assert not budget.ask(second, 50, 1.0)
    budget.release(first)
    assert budget.admitted(9.0) == [second]
    budget.ask(Holder(), 100, 9.0)
    assert budget.behind(9.0 + PATIENCE) == []  # 10 bytes in 3 seconds, and not in 11
    assert budget.behind(9.0 + 20) == [second]


class Requests(RuleBasedStateMachine):
    """Requests come, grow, shrink and end in any order."""

    def __init__(self):
        super().__init__()
        self.budget: ReceiveBudget[Holder] = ReceiveBudget(100)
        self.now = 0.0
        self.holding: dict[Holder, int] = {}
        self.waiting: dict[Holder, int] = {}

    @rule(size=st.integers(1, 150), urgent=st.booleans())
    def comes(self, size, urgent):
        self.asks(Holder(), size, urgent=urgent)

    def asks(self, holder, size, *, urgent=False):
        granted = self.budget.ask(holder, size, self.now, urgent=urgent)
        (self.holding if granted else self.waiting)[holder] = size

    @precondition(lambda self: bool(set(self.holding) - set(self.waiting)))
    @rule(data=st.data(), more=st.integers(1, 60))
    def grows(self, data, more):
        holder = data.draw(st.sampled_from([each for each in self.holding if each not in self.waiting]))
        self.asks(holder, self.holding[holder] + more)

    @precondition(lambda self: bool(self.holding))
    @rule(data=st.data())
    def ends(self, data):
        holder = data.draw(st.sampled_from(list(self.holding)))
        del self.holding[holder]
        self.waiting.pop(holder, None)
        self.budget.release(holder)
        self.admit()

    @precondition(lambda self: bool(set(self.holding) - set(self.waiting)))
    @rule(data=st.data())
    def shrinks(self, data):
        holder = data.draw(st.sampled_from([each for each in self.holding if each not in self.waiting]))
        self.holding[holder] = size = data.draw(st.integers(1, self.holding[holder]))
        self.budget.shrink(holder, size)
        self.admit()

    @rule(seconds=st.floats(0, WAIT))
    def time_passes(self, seconds):
        self.now += seconds
        for holder in self.budget.late(self.now):
            del self.waiting[holder]
        self.admit()

    def admit(self):
        for holder in self.budget.admitted(self.now):
            self.holding[holder] = self.waiting.pop(holder)

    @invariant()
    def the_account_is_right(self):
        assert self.budget.held == sum(self.holding.values())
        assert self.budget.waiting == len(self.waiting)

    @invariant()
    def all_are_within_the_limit_but_one_that_came_alone_and_one_that_goes_on(self):
        assert sum(sorted(self.holding.values())[:-2]) <= 100

    @invariant()
    def one_always_comes_on(self):
        """One holder at least does not wait, and comes to its end."""
        if self.waiting:
            assert set(self.holding) - set(self.waiting)


TestRequests = Requests.TestCase
