"""`actors.serving.policy.batching` against contract scheduling.md section 3.1."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.batching import (
    BATCH_BYTES,
    BatchPolicy,
    DirectPolicy,
    Dispatch,
    Wait,
    affordable,
    policy_for,
)
from actors.values.specs import Direct, DynamicBatching, ModelSpec
from tests.support.ports import waiting_request


def requests_of(*sizes, keys=None):
    return [
        waiting_request(rows=rows, batch_key=key)
        for rows, key in zip(sizes, keys or [None] * len(sizes), strict=True)
    ]


def decide(sizes, *, limit=8, preferred=(), delay=0.0, age=0.0, keys=None):
    policy = BatchPolicy(
        max_batch_size=limit, preferred_batch_sizes=frozenset(preferred), max_queue_delay=delay
    )
    return policy.decide(requests_of(*sizes, keys=keys), oldest=100.0, now=100.0 + age)


@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        # no delay: everything that fits goes
        ([1], {}, Dispatch(1)),
        ([1, 2, 3], {}, Dispatch(3)),
        ([1, 2, 3, 4], {}, Dispatch(3)),
        ([4, 4, 4], {}, Dispatch(2)),
        # a request as large as the maximum is a batch alone
        ([8], {"delay": 1.0}, Dispatch(1)),
        ([8, 1], {"delay": 1.0}, Dispatch(1)),
        ([1, 8], {"delay": 1.0}, Dispatch(1)),
        # a model that does not batch is a model whose maximum is 1
        ([1, 1], {"limit": 1}, Dispatch(1)),
        # no delay, preferring a preferred size if one is hit exactly
        ([1, 1, 1], {"preferred": [2]}, Dispatch(2)),
        ([1, 1, 1], {"preferred": [4]}, Dispatch(3)),
        ([3, 3], {"preferred": [4]}, Dispatch(1)),
        # a part batch waits for its oldest request
        ([1], {"delay": 1.0, "age": 0.25}, Wait(101.0)),
        ([1, 2], {"delay": 1.0}, Wait(101.0)),
        ([1, 2], {"delay": 1.0, "age": 1.0}, Dispatch(2)),
        ([1, 2], {"delay": 1.0, "age": 5.0}, Dispatch(2)),
        # full, or nothing more can join: no wait
        ([4, 4], {"delay": 1.0}, Dispatch(2)),
        ([4, 3, 2], {"delay": 1.0}, Dispatch(2)),
        # a preferred size goes at once, the largest prefix that has one
        ([2, 2], {"delay": 1.0, "preferred": [4]}, Dispatch(2)),
        ([2, 2, 2, 2, 1], {"delay": 1.0, "preferred": [4, 8]}, Dispatch(4)),
        ([2, 2, 1], {"delay": 1.0, "preferred": [4, 8]}, Dispatch(2)),
        ([2, 1], {"delay": 1.0, "preferred": [4]}, Wait(101.0)),
        # the largest preferred size would be passed without having been met
        ([3, 2], {"delay": 1.0, "preferred": [4]}, Dispatch(1)),
        # once the oldest is due, all go regardless of preferred sizes
        ([2, 2, 1], {"delay": 1.0, "age": 1.0, "preferred": [4]}, Dispatch(3)),
        ([3, 2], {"delay": 1.0, "age": 2.0, "preferred": [4]}, Dispatch(2)),
        # the first request of another shape closes the batch
        ([1, 1, 1], {"keys": ["a", "a", "b"]}, Dispatch(2)),
        ([1, 1, 1], {"keys": ["a", "b", "a"], "delay": 1.0}, Dispatch(1)),
        ([1, 1, 1], {"keys": ["a", "a", "b"], "delay": 1.0, "preferred": [1]}, Dispatch(1)),
        # A request without rows still takes a place.
        ([0, 0, 0], {"limit": 2}, Dispatch(2)),
        # nothing waits
        ([], {}, Wait(math.inf)),
    ],
)
def test_a_batch_is_closed_by_the_contracts_rules(sizes, options, expected):
    assert decide(sizes, **options) == expected


def test_a_wait_is_over_at_the_very_time_it_named():
    # Not `now - oldest >= delay`, which rounding can make false at `oldest + delay`.
    policy = BatchPolicy(max_batch_size=8, max_queue_delay=0.1)
    for oldest in (0.1, 0.7, 12345.678, 98765.4321):
        waiting = requests_of(1)
        decision = policy.decide(waiting, oldest=oldest, now=oldest)
        assert isinstance(decision, Wait)
        assert policy.decide(waiting, oldest=oldest, now=decision.until) == Dispatch(1)


def test_the_default_scheduler_sends_requests_one_by_one():
    policy = DirectPolicy()
    assert policy.decide(requests_of(5, 5), oldest=0.0, now=0.0) == Dispatch(1)
    assert policy.decide([], oldest=math.inf, now=0.0) == Wait(math.inf)
    assert policy.max_rows == 1


def spec(scheduling, max_batch_size):
    return ModelSpec(
        name="add",
        version=1,
        platform="",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs=(),
        outputs=(),
        scheduling=scheduling,
        instances=(),
        model_directory=Path("add"),
        version_directory=Path("add/1"),
        artifact="model.onnx",
        config_json=b"{}",
    )


def test_a_model_without_a_scheduler_gets_the_default_one():
    assert policy_for(spec(Direct(), 8)) == DirectPolicy()


def test_a_dynamic_model_gets_its_own_figures():
    policy = policy_for(spec(DynamicBatching(preferred_batch_sizes=(4, 8), max_queue_delay=0.5), 8))
    assert policy == BatchPolicy(
        max_batch_size=8, preferred_batch_sizes=frozenset({4, 8}), max_queue_delay=0.5
    )
    assert policy.max_rows == 8


def test_dynamic_batching_without_a_batch_dimension_means_one_at_a_time():
    assert policy_for(spec(DynamicBatching(), 0)) == BatchPolicy(max_batch_size=1)


queues = st.lists(st.tuples(st.integers(0, 6), st.sampled_from("aab")), min_size=1, max_size=12)
policies = st.builds(
    BatchPolicy,
    max_batch_size=st.integers(6, 12),
    preferred_batch_sizes=st.frozensets(st.integers(1, 6), max_size=3),
    max_queue_delay=st.sampled_from([0.0, 0.5]),
)


@given(queue=queues, policy=policies, age=st.sampled_from([0.0, 0.25, 0.5, 3.0]))
def test_a_batch_is_a_prefix_of_one_shape_within_the_maximum(queue, policy, age):
    waiting = requests_of(*(rows for rows, _ in queue), keys=[key for _, key in queue])
    decision = policy.decide(waiting, oldest=7.0, now=7.0 + age)
    if isinstance(decision, Wait):
        return
    batch = waiting[: decision.requests]
    assert len(batch) == decision.requests >= 1
    assert sum(max(1, request.rows) for request in batch) <= policy.max_batch_size
    assert len({request.batch_key for request in batch}) == 1


@given(queue=queues, policy=policies, age=st.sampled_from([0.0, 0.25, 0.5, 3.0]))
def test_nobody_waits_past_the_delay_or_without_reason(queue, policy, age):
    waiting = requests_of(*(rows for rows, _ in queue), keys=[key for _, key in queue])
    decision = policy.decide(waiting, oldest=7.0, now=7.0 + age)
    if isinstance(decision, Dispatch):
        return
    assert age < policy.max_queue_delay
    assert decision.until == 7.0 + policy.max_queue_delay
    rows = sum(max(1, request.rows) for request in waiting)
    assert rows < max(policy.preferred_batch_sizes, default=policy.max_batch_size)
    assert len({request.batch_key for request in waiting}) == 1


@given(queue=queues, policy=policies)
def test_once_due_the_longest_possible_batch_goes(queue, policy):
    waiting = requests_of(*(rows for rows, _ in queue), keys=[key for _, key in queue])
    decision = policy.decide(waiting, oldest=0.0, now=policy.max_queue_delay)
    if not policy.max_queue_delay:
        return
    assert isinstance(decision, Dispatch)
    batch, rest = waiting[: decision.requests], waiting[decision.requests :]
    if rest and rest[0].batch_key == batch[0].batch_key:
        assert sum(max(1, r.rows) for r in [*batch, rest[0]]) > policy.max_batch_size


@pytest.mark.parametrize(
    ("sizes", "first"),
    [
        ([], 0),
        ([BATCH_BYTES, 0], 2),
        ([BATCH_BYTES, 1], 1),
        ([BATCH_BYTES // 2] * 3, 2),
        ([BATCH_BYTES + 1, 1], 1),
    ],
)
def test_so_many_requests_are_copied_in_one_go_and_at_least_one(sizes, first):
    assert affordable(sizes) == first
