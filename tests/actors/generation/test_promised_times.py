"""Promised times of a language model: to the first token, and between two. The tests tell the time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.generation.policy.promises import ITL, TTFT, Fit, Promises, Rate
from actors.serving.policy.slo import FAMILIES, LONGEST_RETRY, PROBE_AFTER
from actors.values.errors import Overloaded
from actors.values.families import once
from actors.values.specs import Slo
from tests.support.ports import waiting_request

# What is measured


def test_a_line_goes_through_what_was_measured():
    fit = Fit()
    assert math.isnan(fit.at(3))
    fit.add(4, 0.2)
    assert fit.at(4) == fit.at(1) == fit.at(9) == pytest.approx(0.2)
    for size in (2, 6, 8):
        fit.add(size, 0.05 * size)
    assert fit.at(16) == pytest.approx(0.8)
    assert fit.at(0) == pytest.approx(0.0, abs=1e-9)


def test_more_never_takes_less():
    fit = Fit()
    fit.add(1, 1.0)
    fit.add(3, 0.5)
    assert fit.at(1) == pytest.approx(fit.at(9))


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 100)), min_size=1, max_size=80), st.floats(0, 1e6))
def test_a_line_tells_a_time(measured, size):
    fit = Fit()
    for each in measured:
        fit.add(*each)
    assert math.isfinite(fit.at(size))
    assert fit.at(size) >= 0.0
    assert fit.at(size) <= fit.at(size + 1.0) * (1 + 1e-6) + 1e-9


def test_a_rate_is_that_of_the_last_seconds():
    rate = Rate()
    assert math.isnan(rate.after(0.0))
    rate.add(100, 0.0)
    assert math.isnan(rate.after(0.0))
    for _ in range(100):
        rate.add(10, 1.0)
    assert rate.after(0.0) == pytest.approx(10, rel=0.01)
    assert rate.after(5.0) < 5


# To the first token


def admits(
    promises, now, *, tokens=100, ahead=0.0, patience=math.inf, deadline=math.inf, since=None, choices=1
):
    request = waiting_request("r1", accepted_at=now if since is None else since, deadline=deadline)
    try:
        promises.admit(request, tokens=tokens, choices=choices, ahead=ahead, patience=patience, now=now)
    except Overloaded as refusal:
        return refusal
    return None


def enter(promises, now, *, tokens=100, choices=1, begins=None, since=None):
    """Bring a request as far as to its first token, at `begins`."""
    pace = promises.enters(tokens, now if since is None else since, now)
    promises.taken(pace)
    promises.ready(pace, tokens, now)
    if begins is not None:
        promises.begins(pace, choices, begins)
    return pace


def busy(slo, *, rate=1000.0, until=10.0, **options):
    """Return promises of a model that has begun `rate` tokens of prompts a second; two wait still."""
    promises = Promises(slo, **options)
    count = 20
    paces = [enter(promises, until - 100 / rate * count, since=until) for _ in range(count + 2)]
    for number, pace in enumerate(paces[:count], 1):
        promises.begins(pace, 1, until - 100 / rate * (count - number))
        promises.ends(pace, until)
    return promises


def test_nothing_is_refused_while_nothing_is_known():
    promises = Promises(Slo(ttft=0.05, itl=0.01))
    assert admits(promises, 0.0, ahead=1e6, deadline=0.001) is None


def test_what_is_ahead_is_counted_in_tokens():
    promises = Promises(Slo(ttft=1.0))
    taken = enter(promises, 0.0, tokens=300)
    promises.enters(600, 0.0, 0.0)
    assert promises.ahead(0.0, 0) == 300
    assert promises.ahead(0.5, 0) == 600
    assert promises.ahead(1.0, 2) == 900 + 2 * 450
    promises.begins(taken, 1, 1.0)
    assert promises.ahead(1.0, 0) == 600


def test_a_prompt_counts_as_long_as_it_is_once_that_is_known():
    promises = Promises(Slo(ttft=1.0))
    pace = promises.enters(50, 0.0, 0.0)
    promises.taken(pace)
    promises.taken(pace)
    promises.ready(pace, 700, 0.1)
    assert promises.ahead(0.0, 0) == 700
    promises.ends(pace, 0.2)
    promises.ends(pace, 0.3)
    assert promises.ahead(1.0, 5) == 0


def test_what_would_break_the_promise_is_refused_until_much_less_is_ahead():
    promises = busy(Slo(ttft=1.0))
    assert admits(promises, 10.0, ahead=850) is None
    refusal = admits(promises, 10.0, ahead=2950)
    assert refusal.message == (
        "[request id: r1] model 'add' can't answer in time: the first token would take about 3.050 s,"
        " and it promises 1.000 s; try again in 3 s"
    )
    assert refusal.retry_after == 3.0
    assert promises.sample(0).refusing
    assert admits(promises, 10.0, ahead=850) is not None
    assert admits(promises, 10.0, ahead=600) is None
    assert admits(promises, 10.0, ahead=850) is None
    assert promises.sample(0).refused == {"deadline": 0, "timeout": 0, "ttft": 2, "itl": 0}


def test_where_nothing_begins_more_is_refused():
    promises = busy(Slo(ttft=1.0))
    assert admits(promises, 10.0, ahead=600) is None
    assert admits(promises, 13.0, ahead=600) is not None
    assert admits(promises, 13.0, ahead=30) is None
    assert admits(promises, 1e6, ahead=1).retry_after == LONGEST_RETRY


def test_a_long_prompt_takes_its_own_time():
    promises = Promises(Slo(ttft=1.0))
    for number, tokens in enumerate((100, 1000, 100, 500)):
        pace = enter(promises, float(number), tokens=tokens, begins=number + tokens / 1000)
        promises.ends(pace, number + 1.0)
    enter(promises, 9.0)
    assert admits(promises, 9.0, tokens=900) is None
    assert "about 2.000 s" in admits(promises, 9.0, tokens=2000).message


def test_its_own_deadline_may_come_before_the_first_token():
    promises = busy(Slo())
    assert admits(promises, 10.0, ahead=200, deadline=10.5) is None
    refusal = admits(promises, 10.0, ahead=800, deadline=10.5)
    assert "the first token would take about 0.900 s, and the request's own deadline is 0.500 s away" in (
        refusal.message
    )
    assert admits(promises, 10.0, ahead=800, deadline=9.0) is None  # the queue says so


def test_its_queue_policy_may_end_before_its_turn():
    promises = busy(Slo())
    assert admits(promises, 10.0, ahead=200, patience=0.3) is None
    assert "about 0.500 s would pass in the queue, whose timeout is 0.300 s" in (
        admits(promises, 10.0, ahead=500, patience=0.3).message
    )


def test_time_that_a_request_has_already_spent_counts():
    promises = busy(Slo(ttft=1.0))
    assert admits(promises, 10.0, ahead=400) is None
    assert admits(promises, 10.0, ahead=400, since=9.3) is not None


def test_none_is_refused_for_the_promise_where_none_waits():
    promises = Promises(Slo(ttft=0.01))
    promises.ends(enter(promises, 0.0, begins=5.0), 5.0)
    assert admits(promises, 5.0) is None


def test_a_deadline_is_tried_again_after_a_while():
    promises = Promises(Slo())
    promises.ends(enter(promises, 0.0, begins=5.0), 5.0)
    assert admits(promises, 5.5, deadline=7.0) is not None
    assert admits(promises, 5.0 + PROBE_AFTER, deadline=7.0) is None
    assert admits(promises, 5.1 + PROBE_AFTER, deadline=7.0) is not None


def test_a_model_that_does_not_refuse_only_measures():
    promises = busy(Slo(ttft=0.1, refuse=False))
    assert admits(promises, 10.0, ahead=1e6) is None
    assert promises.sample(0).times[TTFT].expected > 0.0


def test_the_servers_own_requests_are_never_refused():
    request = waiting_request(accepted_at=10.0, deadline=10.01)
    request.synthetic = True
    busy(Slo()).admit(request, tokens=9e9, choices=1, ahead=9e9, patience=0.0, now=10.0)


def test_a_lone_prompt_shows_that_more_can_be_done():
    promises = busy(Slo(), rate=100.0, until=30.0)
    for pace in [promises.enters(10, 30.0, 30.0) for _ in range(2)]:
        promises.ends(pace, 30.0)
    slow = promises.sample(0).prompt_rate
    lone = Promises(Slo())
    lone.ends(enter(lone, 0.0, begins=1.0), 1.0)
    assert math.isnan(lone.sample(0).prompt_rate)
    quick = busy_and_emptied(100.0)
    before = quick.sample(0).prompt_rate
    quick.ends(enter(quick, 40.0, tokens=1000, begins=40.1), 41.0)
    assert quick.sample(0).prompt_rate > before
    assert slow == pytest.approx(100, rel=0.01)


def busy_and_emptied(rate):
    promises = Promises(Slo())
    paces = [enter(promises, 0.0) for _ in range(21)]
    for number, pace in enumerate(paces, 1):
        promises.begins(pace, 1, number * 100 / rate)
        promises.ends(pace, 30.0)
    return promises


def test_waits_that_end_otherwise_leave_no_trace():
    promises = Promises(Slo())
    first, second = (promises.enters(100, 0.0, 0.0) for _ in range(2))
    promises.ends(second, 50.0)
    promises.taken(first)
    promises.ready(first, 100, 50.0)
    promises.begins(first, 1, 50.1)
    assert promises.sample(0).prompt_rate == pytest.approx(
        1000
    )  # the 50 s were those of a queue that is gone


def test_more_is_refused_while_first_tokens_are_late():
    promises = Promises(Slo(ttft=0.5))
    for number in range(10):
        promises.ends(enter(promises, number, begins=number + 0.6), number + 0.7)
    assert promises.limit(TTFT) == pytest.approx(0.45)
    assert promises.sample(0).times[TTFT].measured == pytest.approx(0.6)


# Between tokens


def running(slo, *, step=0.01, until=10.0, count=8, **options):
    """Return promises of a model in which `count` choices run, each step taking `step` times their number."""
    promises = Promises(slo, **options)
    paces = []
    for number in range(1, count + 1):
        paces.append(enter(promises, 0.0, begins=until - 1.0))
        pace = paces[-1]
        promises.goes_on(pace, 16, until - 1.0 + 16 * step * number)
    return promises, paces


def test_streams_are_refused_where_steps_would_take_too_long():
    promises, paces = running(Slo(itl=0.1))
    assert admits(promises, 10.0) is None
    enter(promises, 10.0)
    enter(promises, 10.0)  # they will run beside it
    refusal = admits(promises, 10.0)
    assert "about 0.1100 s would pass between two tokens, and it promises 0.1000 s" in refusal.message
    assert refusal.retry_after == 1.0
    for pace in paces[:3]:
        promises.ends(pace, 11.0)
    assert admits(promises, 11.0) is None


def test_each_choice_runs():
    promises, _ = running(Slo(itl=0.1))
    assert admits(promises, 10.0, choices=2) is None
    assert admits(promises, 10.0, choices=3) is not None


def test_what_generates_nothing_is_not_refused_for_it():
    promises, _ = running(Slo(itl=0.02))
    assert admits(promises, 10.0, choices=0) is None


def test_streams_that_the_queue_keeps_back_do_not_count():
    promises, _ = running(Slo(itl=0.085), most_streams=8)
    assert admits(promises, 10.0) is None
    promises, _ = running(Slo(itl=0.085))
    assert admits(promises, 10.0) is not None


def test_what_the_queue_keeps_back_begins_when_another_ends():
    promises, _ = running(Slo(itl=0.1), most_streams=9)
    for _ in range(5):
        promises.enters(100, 10.0, 10.0)
    assert promises.between(1) == pytest.approx(0.09)  # one more fits, and no two
    promises, _ = running(Slo(itl=0.1), most_streams=8)
    assert promises.between(1) == pytest.approx(0.08)
    assert promises.between(3) == pytest.approx(0.10)


def test_none_is_refused_for_the_promise_where_none_runs():
    promises, paces = running(Slo(itl=0.001))
    assert admits(promises, 10.0) is not None
    for pace in paces:
        promises.ends(pace, 10.0)
    assert admits(promises, 10.0) is None


def test_a_death_of_an_engine_is_no_step():
    promises, (pace, *_) = running(Slo(itl=0.1), count=2)
    before = promises.between(1)
    promises.interrupted(pace)
    promises.goes_on(pace, 16, 1000.0)
    assert promises.between(1) == before
    promises.goes_on(pace, 16, 1000.0 + 16 * 0.02)
    assert promises.between(1) == pytest.approx(before, rel=0.2)


def test_a_death_of_an_engine_is_no_prompt():
    promises = Promises(Slo())
    promises.ends(enter(promises, 0.0, begins=0.5), 1.0)
    pace = enter(promises, 2.0)
    promises.interrupted(pace)
    promises.begins(pace, 1, 60.0)
    assert promises.first_token(100, 0.0, 60.0) == pytest.approx(0.5)


def test_steps_are_measured_without_a_promise():
    promises, (pace, *_) = running(Slo(ttft=1.0), count=1)
    promises.goes_on(pace, 16, 20.0)
    assert promises.between(1) > 0.0
    assert promises.limit(ITL) == math.inf


def test_embeddings_have_no_steps():
    promises = Promises(Slo(itl=0.1))
    pace = enter(promises, 0.0, choices=0, begins=1.0)
    promises.goes_on(pace, 1, 2.0)
    assert promises.between(1) == 0.0


def test_more_is_refused_while_tokens_are_late():
    promises, (pace, *_) = running(Slo(itl=0.05), count=1)
    for number in range(9):
        promises.goes_on(pace, 16, 20.0 + number)
    assert promises.limit(ITL) == pytest.approx(0.045)


# What is told


def test_metrics_tell_what_is_known():
    promises = Promises(Slo(ttft=1.0, itl=0.1))
    names = {block.name: len(block.series) for block in once(FAMILIES, promises.sample(0))}
    assert names["tritium_slo_time_promised_seconds"] == 2
    assert names["tritium_slo_time_limit_seconds"] == 2
    assert names["tritium_slo_time_measured_seconds"] == 0
    assert names["tritium_slo_prompt_rate"] == 0
    assert names["tritium_slo_p99_seconds"] == 0
    assert names["tritium_slo_refused_total"] == 4


def test_the_statistics_endpoint_tells_the_same():
    document = busy(Slo(ttft=1.0)).sample(0).document()
    assert document["prompt_rate"] == pytest.approx(1000, rel=0.01)
    assert document["times"]["ttft"]["promised"] == 1.0
    assert document["times"]["itl"] == {"promised": None, "measured": None, "expected": None, "limit": None}
    assert "p99" not in document
