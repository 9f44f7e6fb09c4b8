"""The decisions: which exits restart, which siblings restart too, and when the budget is used up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.supervision.restart import (
    Crashed,
    Death,
    DeathRecord,
    Escalated,
    FailedToStart,
    GiveUp,
    Killed,
    Normal,
    RestartAfter,
    RestartWindow,
    RetryHalfOpen,
    Stopped,
    affected,
    is_abnormal,
    judge,
    wants_restart,
)
from actors.supervision.spec import (
    Backoff,
    ChildSpec,
    Intensity,
    OnExhausted,
    Restart,
    Strategy,
)

BOOM = ValueError("boom")
NORMAL = [Normal(), Stopped()]
ABNORMAL = [
    Killed(),
    Crashed(BOOM),
    FailedToStart(BOOM),
    Escalated(supervisor="s", offender="s/a", reason=Crashed(BOOM)),
]


@pytest.mark.parametrize("reason", NORMAL + ABNORMAL, ids=lambda r: r.name)
def test_a_restart_type_says_after_which_exits_a_child_is_restarted(reason):
    assert wants_restart(Restart.PERMANENT, reason)
    assert wants_restart(Restart.TRANSIENT, reason) is is_abnormal(reason) is (reason in ABNORMAL)
    assert not wants_restart(Restart.TEMPORARY, reason)


async def run(ctx):
    """Do nothing."""


def test_reasons_read_as_sentences_for_people():
    assert [str(r) for r in [*NORMAL, *ABNORMAL]] == [
        "normal",
        "shutdown",
        "killed",
        "crashed: ValueError('boom')",
        "start failed: ValueError('boom')",
        "escalated: 's/a' exhausted its restarts (crashed: ValueError('boom'))",
    ]


@pytest.mark.parametrize(
    ("strategy", "group"),
    [(Strategy.ONE_FOR_ONE, "b"), (Strategy.ONE_FOR_ALL, "abcd"), (Strategy.REST_FOR_ONE, "bcd")],
)
def test_a_strategy_names_the_group_in_start_order(strategy, group):
    assert affected(strategy, ["a", "b", "c", "d"], "b") == tuple(group)


def test_a_stranger_has_no_group():
    with pytest.raises(ValueError, match="'x' is not a child here; the children are 'a'"):
        affected(Strategy.ONE_FOR_ALL, ["a"], "x")


names = st.lists(st.text("abcdef", min_size=1), min_size=1, unique=True)


@given(order=names, data=st.data(), strategy=st.sampled_from(Strategy))
def test_a_group_holds_the_failed_child_and_keeps_the_start_order(order, data, strategy):
    failed = data.draw(st.sampled_from(order))
    group = affected(strategy, order, failed)
    assert failed in group
    assert list(group) == [name for name in order if name in group]


@given(order=names, data=st.data())
def test_the_rest_for_one_group_is_the_failed_child_and_all_started_after_it(order, data):
    failed = data.draw(st.sampled_from(order))
    group = affected(Strategy.REST_FOR_ONE, order, failed)
    assert group[0] == failed
    assert [*order[: order.index(failed)], *group] == order


def window(restarts, period, *times):
    result = RestartWindow(Intensity(restarts, period))
    for time in times:
        result = result.add(time)
    return result


@pytest.mark.parametrize(
    ("restarts", "times", "exceeded"),
    [
        (3, (0.0, 1.0, 2.0), False),
        (3, (0.0, 1.0, 2.0, 3.0), True),
        (0, (0.0,), True),
        (3, (0.0, 1.0, 2.0, 5.5), False),
        (1, (0.0, 5.0), True),
    ],
    ids=["exactly the intensity", "one more", "of zero", "the window slides", "exactly one period old"],
)
def test_more_restarts_than_the_intensity_within_a_period_are_too_many(restarts, times, exceeded):
    assert window(restarts, 5.0, *times).exceeded is exceeded


times = st.lists(st.floats(0, 1000), max_size=30).map(sorted)


@given(times=times, restarts=st.integers(0, 5), period=st.floats(0.1, 100))
def test_a_window_is_exceeded_exactly_if_too_many_restarts_lie_within_a_period_of_the_last(
    times, restarts, period
):
    recent = [t for t in times if t >= times[-1] - period]
    assert window(restarts, period, *times).exceeded is (len(recent) > restarts)


@given(times=times, period=st.floats(0.1, 100))
def test_a_window_forgets_what_is_older_than_its_period(times, period):
    kept = window(3, period, *times).times
    assert all(t >= kept[-1] - period for t in kept)
    assert list(kept) == times[len(times) - len(kept) :]


PLAIN = Backoff(initial=0.1, jitter=0.0)


def die(health, shared, now, *, uptime=0.0, progressed=False, on_exhausted=OnExhausted.ESCALATE):
    death = Death(now=now, uptime=uptime, progressed=progressed, sample=0.0)
    return judge(health, shared, death, on_exhausted=on_exhausted, backoff=PLAIN)


def die_often(health, shared, deaths, **options):
    """The actions for deaths at the given times, health and window carried along."""
    actions = []
    for now in deaths:
        verdict = die(health, shared, now, **options)
        actions.append(verdict.action)
        health, shared = verdict.record, verdict.shared
    return actions


def budgeted(restarts=2, period=30.0):
    return DeathRecord(window=RestartWindow(Intensity(restarts, period)))


SHARED = RestartWindow(Intensity(3, 5.0))


def test_a_child_without_a_budget_charges_its_supervisor():
    assert die_often(DeathRecord(), SHARED, [0.0, 0.1, 0.2, 0.3]) == [
        RestartAfter(0.0),
        RestartAfter(0.1),
        RestartAfter(0.2),
        GiveUp(),
    ]


def test_a_child_with_a_budget_leaves_its_supervisors_alone():
    verdict = die(budgeted(), SHARED, 0.0)
    assert verdict.shared is SHARED
    assert verdict.record.window.times == (0.0,)


def test_a_used_up_budget_escalates_by_default():
    assert die_often(budgeted(), SHARED, [0.0, 1.0, 2.0])[-1] == GiveUp()


def test_an_exhausted_child_may_be_retried_half_open_at_the_cap():
    actions = die_often(budgeted(), SHARED, [0.0, 1.0, 2.0, 100.0], on_exhausted=OnExhausted.RETRY_AT_CAP)
    # The last death finds an empty window: only progress or a long life closes the circuit again.
    assert actions[2:] == [RetryHalfOpen(30.0), RetryHalfOpen(30.0, again=True)]


def test_a_budget_used_up_anew_after_a_recovery_is_news():
    health = DeathRecord.of(ChildSpec("x", start=run, intensity=Intensity(0, 30.0)))
    actions: list[Any] = []
    for at, uptime in ((0.0, 0.0), (1.0, 0.0), (100.0, 60.0), (101.0, 0.0)):
        death = Death(now=at, uptime=uptime, progressed=False, sample=0.0)
        verdict = judge(health, SHARED, death, on_exhausted=OnExhausted.RETRY_AT_CAP, backoff=Backoff())
        health = verdict.record
        actions.append(verdict.action)
    assert [action.again for action in actions] == [False, True, False, True]


@pytest.mark.parametrize("recovery", [{"progressed": True}, {"uptime": 30.0}])
def test_an_exhausted_child_recovers_by_progress_or_a_long_life(recovery):
    health = DeathRecord(window=RestartWindow(Intensity(2, 30.0)), attempt=7, exhausted=True)
    verdict = die(health, SHARED, 100.0, on_exhausted=OnExhausted.RETRY_AT_CAP, **recovery)
    assert verdict.action == RestartAfter(0.0)
    assert not verdict.record.exhausted


def test_deaths_with_progress_are_not_charged_to_a_childs_own_budget():
    assert set(die_often(budgeted(), SHARED, [0.0, 0.1, 0.2, 0.3, 0.4], progressed=True)) == {
        RestartAfter(0.0)
    }


def test_progress_does_not_spare_the_supervisors_window():
    assert die_often(DeathRecord(), SHARED, [0.0, 0.1, 0.2, 0.3], progressed=True)[-1] == GiveUp()


def test_a_life_longer_than_the_period_starts_the_backoff_afresh():
    verdict = die(DeathRecord(attempt=6), SHARED, 100.0, uptime=5.0)
    assert verdict.action == RestartAfter(0.0)
    assert verdict.record.attempt == 1


def test_a_new_child_has_the_budget_of_its_spec():
    intensity = Intensity(5, 30.0)
    assert DeathRecord.of(ChildSpec("a", run, intensity=intensity)).window == RestartWindow(intensity)
    assert DeathRecord.of(ChildSpec("a", run)).window is None


@given(
    gaps=st.lists(st.floats(0, 20), max_size=40),
    progressed=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_a_half_open_child_never_takes_its_supervisor_down(gaps, progressed):
    health, shared, now = budgeted(), SHARED, 0.0
    for gap, progress in zip(gaps, progressed, strict=False):
        now += gap
        verdict = die(
            health, shared, now, uptime=gap, progressed=progress, on_exhausted=OnExhausted.RETRY_AT_CAP
        )
        assert not isinstance(verdict.action, GiveUp)
        assert verdict.shared is SHARED
        assert verdict.record.exhausted is isinstance(verdict.action, RetryHalfOpen)
        health, shared = verdict.record, verdict.shared
