"""`actors.serving.policy.slo`: what is refused, when that ends, and how batches are tuned.

The tests tell the time.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.batching import BatchPolicy, DirectPolicy, Dispatch, Wait
from actors.serving.policy.slo import FAMILIES, LONGEST_RETRY, PROBE_AFTER, Admission, Controller, TunedPolicy
from actors.values.errors import Unavailable
from actors.values.families import once
from actors.values.specs import Slo
from tests.support.ports import waiting_request

CONFIGURED = BatchPolicy(max_batch_size=16, preferred_batch_sizes=frozenset({4, 16}), max_queue_delay=0.016)


def make_request(now=0.0, **options):
    return waiting_request("r1", accepted_at=now, **options)


def admits(admission, now, *, ahead=0.0, patience=math.inf, deadline=math.inf):
    try:
        admission.admit(make_request(now, deadline=deadline), ahead=ahead, patience=patience, now=now)
    except Unavailable as refusal:
        return refusal
    return None


def busy(slo, *, rate=100.0, service=0.1, until=10.0):
    """Return an admission after `rate` answers a second in batches that take `service` seconds."""
    admission = Admission(slo, CONFIGURED)
    for n in range(1, 21):
        admission.dispatched(50)
        size = round(rate * service)
        admission.returned(size, size, service, [], until - (20 - n) * service)
    return admission


# Refusing


def test_nothing_is_refused_while_nothing_is_known():
    admission = Admission(Slo(p99=0.05), CONFIGURED)
    assert admits(admission, 0.0, ahead=10_000, deadline=0.001) is None


def test_what_an_idle_model_answers_says_nothing_of_what_it_could():
    admission = Admission(Slo(p99=0.5), CONFIGURED)
    for n in range(10):
        admission.dispatched(0)
        admission.returned(1, 1, 0.01, [0.01], float(n))
    assert admits(admission, 9.5, ahead=1000) is None


def test_a_request_whose_deadline_comes_before_its_turn_is_refused():
    admission = busy(Slo())
    assert admits(admission, 10.0, ahead=20, deadline=10.4) is None
    refusal = admits(admission, 10.0, ahead=50, deadline=10.4)
    assert refusal.message == (
        "[request id: r1] model 'add' can't answer in time: about 0.600 s are needed, and the request's own deadline is "
        "0.400 s away; try again in 1 s"
    )
    assert refusal.retry_after == 1.0
    assert admission.sample(0).refused == {"deadline": 1, "timeout": 0, "p99": 0}


def test_a_request_that_is_late_already_is_left_to_the_queue():
    assert admits(busy(Slo()), 10.0, ahead=50, deadline=9.0) is None


def test_a_request_that_its_queue_policy_would_refuse_later_is_refused_now():
    admission = busy(Slo())
    assert admits(admission, 10.0, ahead=20, patience=0.3) is None
    refusal = admits(admission, 10.0, ahead=50, patience=0.3)
    assert "about 0.500 s would pass in the queue, whose timeout is 0.300 s" in refusal.message


def test_what_would_break_the_promise_is_refused_until_the_queue_is_clearly_shorter():
    admission = busy(Slo(p99=1.0))
    assert admits(admission, 10.0, ahead=85) is None
    refusal = admits(admission, 10.0, ahead=200)
    assert "about 2.100 s are needed, and it promises 1.000 s" in refusal.message
    assert refusal.retry_after == 2.0
    assert admission.sample(200).refusing
    assert admits(admission, 10.0, ahead=85) is not None  # it would be in time, but only just
    assert admits(admission, 10.0, ahead=60) is None
    assert admits(admission, 10.0, ahead=85) is None


def test_time_that_a_request_has_already_spent_counts():
    admission = busy(Slo(p99=1.0))
    request = make_request(9.0)
    with pytest.raises(Unavailable):
        admission.admit(request, ahead=20, patience=math.inf, now=10.0)


def test_nobody_is_refused_for_the_promise_where_nobody_waits():
    admission = busy(Slo(p99=0.05))  # a batch alone takes longer than that
    assert admits(admission, 10.0, ahead=5) is not None
    assert admits(admission, 10.0, ahead=0) is None


def test_a_model_that_does_not_refuse_only_measures():
    admission = busy(Slo(p99=0.05, refuse=False))
    assert admits(admission, 10.0, ahead=1000, deadline=10.01) is None


def test_the_servers_own_requests_are_never_refused():
    request = make_request(10.0, deadline=10.01)
    request.synthetic = True
    busy(Slo()).admit(request, ahead=1000, patience=0.0, now=10.0)


def test_nobody_is_sent_away_for_longer_than_a_minute():
    assert admits(busy(Slo(p99=1.0)), 10.0, ahead=1e6).retry_after == LONGEST_RETRY


def test_what_no_answer_has_confirmed_lets_one_request_in_now_and_then():
    admission = busy(Slo())
    slow = admits(admission, 10.0, deadline=10.01)
    assert slow is not None
    later = 10.0 + PROBE_AFTER
    assert admits(admission, later, deadline=later + 0.01) is None
    assert admits(admission, later, deadline=later + 0.01) is not None
    admission.dispatched(0)
    for n in range(60):
        admission.returned(1, 1, 0.001, [], later + 0.001 * n)
    assert admits(admission, later + 0.1, deadline=later + 0.2) is None


@given(
    st.lists(
        st.tuples(st.floats(0.0001, 10.0), st.integers(1, 64), st.integers(0, 1000)), min_size=1, max_size=50
    ),
    st.floats(0.001, 5.0),
)
def test_refusing_never_lasts(batches, p99):
    admission = Admission(Slo(p99=p99), CONFIGURED)
    now = 0.0
    for service, size, waiting in batches:
        now += service
        admission.dispatched(waiting)
        admission.returned(size, size, service, [service] * size, now)
        admits(admission, now, ahead=waiting)
    assert admits(admission, now, ahead=0) is None
    now += 1.1 * PROBE_AFTER
    assert admits(admission, now, ahead=10**6, deadline=now + 1e-6) is None


# Tuning


@pytest.fixture
def controller():
    return Controller(0.05, CONFIGURED)


def feed(controller, latency, *, batches=20, size=16, service=0.001, now=0.0):
    for n in range(batches):
        controller.batch(size, service, [latency] * 10, now + n * 0.01)


def test_batches_begin_as_they_are_configured(controller):
    assert controller.policy is CONFIGURED
    feed(controller, 0.01)
    assert controller.policy is CONFIGURED
    assert controller.measured == 0.01


def test_what_is_set_now_can_be_read():
    admission = Admission(Slo(p99=0.05, tune=True), CONFIGURED)
    assert isinstance(admission.policy, TunedPolicy)
    assert admission.policy.present == CONFIGURED


def test_answers_that_come_late_halve_the_delay_and_then_it_comes_back_step_by_step(controller):
    feed(controller, 0.06, batches=10)
    assert controller.policy.max_queue_delay == pytest.approx(0.008)
    assert controller.policy.max_batch_size == 16
    feed(controller, 0.01, batches=20)
    assert controller.policy.max_queue_delay == pytest.approx(0.010)
    feed(controller, 0.06, batches=100)
    assert controller.policy.max_queue_delay == 0.0
    feed(controller, 0.01, batches=400)
    assert controller.policy == CONFIGURED


def test_batches_that_take_too_long_by_themselves_become_smaller(controller):
    feed(controller, 0.06, batches=10, service=0.03)
    assert controller.policy.max_batch_size == 12
    assert controller.policy.preferred_batch_sizes == {4}
    feed(controller, 0.06, batches=1000, service=0.03)
    assert controller.policy.max_batch_size == 1
    assert controller.policy.preferred_batch_sizes == frozenset()
    feed(controller, 0.01, batches=400)
    assert controller.policy == CONFIGURED


def test_batches_grow_only_where_larger_ones_would_be_formed(controller):
    feed(controller, 0.06, batches=10, service=0.03)
    feed(controller, 0.01, batches=100, size=2)
    assert controller.policy.max_batch_size == 12


def test_one_answer_in_a_hundred_may_come_late(controller):
    for _ in range(10):
        controller.batch(16, 0.001, [0.06] + [0.01] * 99, 0.0)
    assert controller.policy == CONFIGURED


def test_few_answers_are_looked_at_after_a_while(controller):
    controller.batch(4, 0.001, [0.06] * 5, 0.0)
    controller.batch(4, 0.001, [0.06] * 5, 0.5)
    assert controller.policy == CONFIGURED
    controller.batch(4, 0.001, [0.06], 1.0)
    assert controller.policy != CONFIGURED


def test_late_answers_make_admission_stricter_within_bounds(controller):
    feed(controller, 0.06, batches=10)
    assert controller.strictness == pytest.approx(0.9)
    feed(controller, 0.06, batches=1000)
    assert controller.strictness == pytest.approx(0.3)
    feed(controller, 0.045, batches=1000)
    assert controller.strictness == 1.0
    assert controller.policy.max_queue_delay == 0.0  # nothing to spare for it


def test_the_scheduler_is_given_the_policy_of_now():
    admission = Admission(Slo(p99=0.05), CONFIGURED)
    requests = [make_request() for _ in range(3)]
    assert admission.policy.max_rows == 16
    assert admission.policy.decide(requests, oldest=0.0, now=0.001) == Wait(0.016)
    for n in range(100):
        admission.returned(10, 10, 0.03, [0.06] * 10, n * 0.01)
    assert admission.policy.max_rows == 1
    assert admission.policy.decide(requests, oldest=0.0, now=0.001) == Dispatch(1)
    assert (admission.sample(0).delay, admission.sample(0).size) == (0.0, 1)


@pytest.mark.parametrize(
    ("slo", "policy"),
    [(Slo(), CONFIGURED), (Slo(p99=0.05, tune=False), CONFIGURED), (Slo(p99=0.05), DirectPolicy())],
)
def test_without_anything_to_tune_batches_are_formed_as_configured(slo, policy):
    admission = Admission(slo, policy)
    assert admission.policy is policy
    sample = admission.sample(0)
    assert (sample.delay, sample.size) == (None, None)
    assert sample.document()["rate"] is None


def test_where_a_queue_has_built_up_batches_do_not_shrink(controller):
    feed(controller, 0.06, batches=20, service=0.03)
    smaller = controller.policy.max_batch_size
    for n in range(10):
        controller.batch(16, 0.03, [0.06] * 10, 10 + n * 0.01, crowded=True)
    assert controller.policy.max_batch_size == smaller + 1


def test_what_a_model_has_not_measured_has_no_series():
    sample = Admission(Slo(p99=0.5, tune=False), CONFIGURED).sample(0)
    known = {block.name: [each.value for each in block.series] for block in once(FAMILIES, sample)}
    assert math.isnan(sample.measured)
    assert known["tritium_slo_p99_seconds"] == [0.5]
    assert known["tritium_slo_measured_p99_seconds"] == []
    assert known["tritium_slo_delay_seconds"] == []
    assert known["tritium_slo_refusing"] == [0]
    assert known["tritium_slo_refused_total"] == [0, 0, 0]


def test_a_limit_that_does_not_exist_is_no_number():
    sample = Admission(Slo(), CONFIGURED).sample(0)
    assert sample.limit == math.inf
    assert sample.document()["limit"] is None
