"""Batches of requests that are alike, taken from among others: `actors.serving.policy.batching`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.batching import (
    AHEAD,
    BATCH_BYTES,
    LOOKED_AT,
    BatchPolicy,
    Dispatch,
    Grouping,
    Wait,
    grouping_for,
)
from actors.serving.policy.queueing import RequestQueue
from actors.values.datatypes import DataType
from actors.values.padding import Buckets, Padded
from actors.values.specs import Direct, DynamicBatching, Fairness, InputSpec, QueueBounds, Slo
from tests.support.model_doubles import make_spec
from tests.support.ports import waiting_request

PADDED = (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,), padded=Padded({1: Buckets((4, 8))})),)


def requests_of(*keys_and_rows):
    return [waiting_request(rows=rows, batch_key=key) for key, rows in keys_and_rows]


def choose(requests, *, limit=4, preferred=(), delay=0.0, age=0.0):
    policy = BatchPolicy(
        max_batch_size=limit, preferred_batch_sizes=frozenset(preferred), max_queue_delay=delay
    )
    return Grouping(policy).choose(requests, oldest=100.0, now=100.0 + age)


def test_the_first_takes_those_that_are_like_it_along():
    a, b, c, d = requests_of(("x", 1), ("y", 1), ("x", 2), ("x", 2))
    assert choose([a, b, c, d]) == [a, c]
    assert choose([b, c, d]) == [b]


def test_a_full_batch_goes_before_one_that_waits_for_more():
    a, b, c = requests_of(("x", 1), ("y", 3), ("y", 1))
    assert choose([a, b, c], delay=1.0) == [b, c]
    assert choose([a, b, c], delay=1.0, age=1.0) == [a]
    assert choose([a, b], delay=1.0, age=0.5) == Wait(101.0)
    assert choose([a, *requests_of(("y", 2))], delay=1.0, preferred=(2,))[0].batch_key == "y"


def test_no_more_is_chosen_than_may_be_copied_at_once():
    requests = [waiting_request(rows=1, nbytes=BATCH_BYTES) for _ in range(2)]
    assert choose(requests) == requests[:1]


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 5)), min_size=1, max_size=30),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_what_is_chosen_is_what_its_kind_alone_would_be(kinds, delay, age):
    requests = requests_of(*kinds)
    policy = BatchPolicy(max_batch_size=5, max_queue_delay=delay)
    chosen = Grouping(policy).choose(requests, oldest=0.0, now=age)
    first = [each for each in requests if each.batch_key == requests[0].batch_key]
    alone = policy.decide(first, oldest=0.0, now=age)
    if isinstance(alone, Dispatch):
        assert chosen == first[: alone.requests]
    elif isinstance(chosen, Wait):
        assert chosen == alone
        for key in "xyz":
            assert sum(each.rows or 1 for each in requests if each.batch_key == key) < 5
    else:
        alike = [each for each in requests if each.batch_key == chosen[0].batch_key]
        assert chosen == alike[: len(chosen)]
        assert alike[0].batch_key != first[0].batch_key


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=20))
def test_every_request_leaves_the_queue_once_and_those_of_a_kind_in_order(keys):
    queue = RequestQueue(DynamicBatching(), QueueBounds())
    requests = requests_of(*[(key, 1) for key in keys])
    for at, request in enumerate(requests):
        queue.push(request, float(at))
    grouping = Grouping(BatchPolicy(max_batch_size=3))
    left = []
    while len(queue):
        oldest = queue.head(1)[0]
        chosen = grouping.choose(queue.head(grouping.max_rows), oldest=queue.oldest_enqueued, now=99.0)
        assert isinstance(chosen, list)
        assert oldest in chosen
        assert queue.pick(chosen) == chosen
        left += chosen
    assert queue.nbytes == 0
    assert queue.oldest_enqueued == math.inf
    for key in "xyz":
        assert [each for each in left if each.batch_key == key] == [
            each for each in requests if each.batch_key == key
        ]


def test_it_looks_at_several_batches_of_requests():
    looked_at = [Grouping(BatchPolicy(max_batch_size=size)).max_rows for size in (6, 512, 4096)]
    assert looked_at == [6 * AHEAD, LOOKED_AT, 4096]


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": ()},
        {"scheduling": Direct()},
        {"scheduling": DynamicBatching(preserve_ordering=True)},
        {"scheduling": DynamicBatching(priority_levels=2, default_priority_level=1)},
        {"fairness": Fairness()},
        {"slo": Slo()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_where_the_order_means_something_batches_are_prefixes(changes):
    padded = {"inputs": PADDED, "scheduling": DynamicBatching()}
    assert grouping_for(make_spec(**padded)) is not None
    assert grouping_for(make_spec(**{**padded, **changes})) is None
