"""Which requests a setting samples, and which W3C contexts force that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.tracing.policy.contexts import MOST_STATE, context_of
from actors.tracing.policy.sampling import Sampler
from actors.values.tracing.settings import OPENTELEMETRY, TENSORS, TIMESTAMPS, TraceSetting


def sampler(**changes):
    return Sampler(TraceSetting(**{"levels": (TIMESTAMPS,), "file": "t", "rate": 3, **changes}))


def test_every_rate_th_request_is_sampled():
    each = sampler()
    assert [each.take() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_no_more_than_the_count_are_sampled():
    each = sampler(rate=2, count=2)
    assert sum(each.take() for _ in range(20)) == 2
    assert each.left == 0
    assert each.exhausted


@pytest.mark.parametrize("changes", [{"levels": ()}, {"rate": 0}, {"file": ""}, {"count": 0}])
def test_an_invalid_or_exhausted_setting_samples_nothing(changes):
    each = sampler(**{"rate": 1, **changes})
    assert each.exhausted
    assert not any(each.take() for _ in range(3))


def test_a_context_forces_sampling_whatever_the_rate_and_count_in_the_mode_opentelemetry():
    each = sampler(mode=OPENTELEMETRY, rate=0, count=0)
    assert not each.exhausted
    assert [each.take(forced=True), each.take()] == [True, False]
    assert not sampler(mode=OPENTELEMETRY, levels=()).take(forced=True)


def test_a_forced_request_that_comes_once_more_counts_for_neither():
    each = sampler(mode=OPENTELEMETRY, count=2)
    each.take(forced=True)
    each.forget(sampled=True, forced=True)
    assert (each.seen, each.sampled, each.left) == (0, 0, 2)


def test_a_context_forces_nothing_in_tritons_mode():
    each = sampler(rate=2)
    assert [each.take(forced=True), each.take(forced=True)] == [False, True]


def test_tensors_are_kept_in_tritons_mode_alone():
    assert sampler(levels=(TIMESTAMPS, TENSORS)).keeps_tensors
    assert not sampler(levels=(TENSORS,), mode=OPENTELEMETRY).keeps_tensors


def test_it_is_settled_once_each_trace_has_ended_or_is_lost():
    each = sampler(rate=1, count=2)
    each.take()
    each.take()
    assert not each.settled
    each.collected += 1
    each.lost += 1
    assert each.settled


@given(st.integers(1, 5), st.integers(-1, 4), st.lists(st.sampled_from(["ask", "ask again"]), max_size=40))
def test_a_request_that_is_put_twice_counts_once(rate, count, asked):
    """What samples with repeated questions is what samples without them."""
    once, again = sampler(rate=rate, count=count), sampler(rate=rate, count=count)
    for how in asked:
        wanted = once.take()
        if how == "ask again":
            again.forget(sampled=again.take())
        assert again.take() == wanted
        assert (again.seen, again.sampled, again.left) == (once.seen, once.sampled, once.left)


def test_a_request_that_was_not_counted_can_come_once_more():
    exhausted = sampler(rate=1, count=0)
    assert not exhausted.take()
    exhausted.forget()
    assert (exhausted.seen, exhausted.run()) == (0, 0)


@given(st.integers(1, 6), st.integers(-1, 3), st.integers(0, 40))
def test_requests_may_be_counted_in_runs(rate, count, requests):
    """What is sampled is the same whether each request is asked about, or only those behind a run."""
    each, runs = sampler(rate=rate, count=count), sampler(rate=rate, count=count)
    skip, told = 0, []
    for _ in range(requests):
        if skip:
            skip -= 1
            told.append(False)
            continue
        told.append(runs.take())
        skip = runs.run()
    assert told == [each.take() for _ in range(requests)]


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_valid_context_is_read():
    context = context_of(f" 00-{TRACE}-{SPAN}-01 ", "congo=t61")
    assert context is not None
    assert (context.trace_id, context.span_id, context.flags) == (int(TRACE, 16), int(SPAN, 16), 1)
    assert context.state == "congo=t61"


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        "00-" + "٣" * 32 + f"-{SPAN}-01",
    ],
)
def test_an_invalid_context_is_none(parent):
    assert context_of(parent) is None


def test_of_a_later_version_the_known_part_is_read():
    context = context_of(f"cc-{TRACE}-{SPAN}-01-what-the-future-holds")
    assert context is not None
    assert context.span_id == int(SPAN, 16)


def test_a_state_that_is_too_long_is_dropped():
    context = context_of(f"00-{TRACE}-{SPAN}-00", "x" * (MOST_STATE + 1))
    assert context is not None
    assert context.state == ""


@pytest.mark.parametrize("state", ["rojo=00f067aa0ba902b7", "a=1,b=2 , c@vendor=3", "a=1,,b=2", "0t@v=x y"])
def test_a_state_goes_along_as_it_is(state):
    context = context_of(f"00-{TRACE}-{SPAN}-01", state)
    assert context is not None
    assert context.state == state


@pytest.mark.parametrize(
    "state",
    ["nonsense", "A=1", "a=1\r\nx: y", "a=ü", "a=1,a=2", "a=", ",".join(f"k{n}=v" for n in range(33))],
)
def test_a_state_that_breaks_the_rules_is_left_out(state):
    """It costs itself, and not the parent beside it."""
    context = context_of(f"00-{TRACE}-{SPAN}-01", state)
    assert context is not None
    assert context.state == ""
