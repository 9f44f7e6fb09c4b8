"""Smaller batches after memory was short on a GPU, and larger ones again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.batching import BatchPolicy, DirectPolicy
from actors.serving.policy.gpus.easing import FIRST, LONGEST, Easing


def test_batches_are_as_configured_until_memory_is_short():
    easing = Easing(64)
    assert (easing.eased, easing.limit(1e9), easing.shortages) == (False, 64, 0)
    policy = BatchPolicy(max_batch_size=64)
    assert easing.policy(policy, 0.0) is policy


def test_batches_are_half_as_large_and_grow_back():
    easing = Easing(64)
    assert easing.short(40, 100.0)
    assert [easing.limit(100.0 + FIRST * each) for each in (0, 0.9, 1, 2, 3)] == [20, 20, 40, 64, 64]
    assert not easing.eased


def test_many_steps_may_have_passed_since_the_last_look():
    easing = Easing(64)
    easing.short(2, 0.0)
    assert easing.limit(1e6) == 64


def test_a_batch_that_was_under_way_says_nothing_new():
    easing = Easing(64)
    assert easing.short(64, 0.0)
    assert not easing.short(64, 1.0)
    assert easing.limit(FIRST) == 64
    assert easing.shortages == 2


def test_it_takes_longer_if_memory_is_short_again():
    easing = Easing(64)
    easing.short(64, 0.0)
    assert easing.short(32, 1.0)
    assert easing.limit(1.0 + FIRST) == 16
    assert easing.limit(1.0 + 2 * FIRST) == 32
    for each in range(20):
        easing.short(32, 100.0 + each)
        easing.short(16, 100.0 + each)
    easing.short(1, 200.0)
    assert easing.limit(200.0 + LONGEST) > 1


def test_one_row_is_the_least():
    easing = Easing(8)
    assert easing.short(1, 0.0)
    assert easing.limit(0.0) == 1
    assert not easing.short(1, 0.0)


def test_a_smaller_policy_has_the_preferred_sizes_that_fit():
    easing = Easing(8)
    easing.short(8, 0.0)
    policy = BatchPolicy(max_batch_size=8, preferred_batch_sizes=frozenset({2, 4, 6}), max_queue_delay=1.0)
    smaller = easing.policy(policy, 0.0)
    assert smaller == BatchPolicy(
        max_batch_size=4, preferred_batch_sizes=frozenset({2, 4}), max_queue_delay=1.0
    )
    tuned = BatchPolicy(max_batch_size=3)  # a promised latency wants even less
    assert easing.policy(tuned, 0.0) is tuned
    assert easing.policy(DirectPolicy(), 0.0) == DirectPolicy()


@given(
    st.integers(1, 512),
    st.lists(st.tuples(st.floats(0.0, 50.0), st.one_of(st.none(), st.integers(1, 512))), max_size=30),
)
def test_a_limit_is_within_bounds_and_ends(most, steps):
    easing, now = Easing(most), 0.0
    for pause, rows in steps:
        now += pause
        if rows is None:
            before = easing.rows
            assert easing.limit(now) >= before  # by time alone it only grows
        elif easing.short(min(rows, most), now):
            assert easing.rows == max(1, min(rows, most) // 2)
        assert 1 <= easing.limit(now) <= most
    assert easing.limit(now + 10 * LONGEST + 1) == most


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_batch_of_hardly_any_rows_leaves_one(rows):
    easing = Easing(8)
    easing.short(rows, 0.0)
    assert easing.limit(0.0) == 1
