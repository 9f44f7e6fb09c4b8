"""Durations of requests by bucket: against the plain rule, and what costs nothing to count."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.durations import DEFAULT_BOUNDS, Durations
from actors.serving.statistics import Histogram, LatencySummaries, ModelStatistics

MS = 1_000_000
NS = st.integers(0, 120_000) | st.integers(0, 120_000 * MS)
PHASES = ("queue", "compute_input", "infer", "output", "first_response", "request")


def phases(durations):
    return {phase: getattr(durations, phase) for phase in PHASES}


def bucketed(durations, values):
    counts = [0] * (len(durations.bounds) + 1)
    for ns in values:
        counts[bisect_left(durations.bounds, ns / 1e9)] += 1
    return counts


@given(
    st.lists(st.tuples(NS, NS)),
    st.lists(st.tuples(NS, NS, NS)),
    st.lists(st.tuples(st.integers(1, 9), NS, NS, NS)),
)
def test_each_phase_counts_as_the_plain_rule_does(answered, streamed, computed):
    durations = Durations()
    for queue, total in answered:
        durations.answered(queue, total)
    for queue, first, total in streamed:
        durations.first_part(first)
        durations.streamed(queue, total)
    for requests, *times in computed:
        durations.computed(requests, *times)
    executed = [[ns for n, *times in computed for ns in [times[phase]] * n] for phase in range(3)]
    queues, wholes = [q for q, _ in answered], [t for _, t in answered]
    assert phases(durations) == {
        "queue": bucketed(durations, [*queues, *(q for q, _, _ in streamed)]),
        "compute_input": bucketed(durations, executed[0]),
        "infer": bucketed(durations, executed[1]),
        "output": bucketed(durations, executed[2]),
        "first_response": bucketed(durations, [*wholes, *(f for _, f, _ in streamed)]),
        "request": bucketed(durations, [*wholes, *(t for *_, t in streamed)]),
    }


@pytest.mark.parametrize(
    ("ns", "bucket"), [(0, 0), (MS, 0), (MS + 1, 1), (60_000 * MS, 14), (60_000 * MS + 1, 15)]
)
def test_a_duration_lies_in_the_first_bucket_whose_bound_is_not_below_it(ns, bucket):
    durations = Durations()
    durations.answered(0, ns)
    assert durations.request.index(1) == bucket


@pytest.mark.parametrize("bounds", [(), (0.0, 1.0), (2.0, 1.0), (1.0, 1.0), (-1.0,)])
def test_bounds_must_be_positive_and_ascend(bounds):
    with pytest.raises(ValueError, match="must be positive and ascend"):
        Durations(bounds)


def test_bounds_begin_with_a_millisecond():
    assert DEFAULT_BOUNDS[0] == 0.001
    assert Durations().bounds == tuple(DEFAULT_BOUNDS)


def test_a_model_counts_its_requests_in_them():
    statistics = ModelStatistics(durations=Durations((0.001, 0.01)))
    statistics.succeeded(1, 500_000, 0, 2 * MS, 0, 3 * MS)
    statistics.computed(1, 0, 2 * MS, 0)
    statistics.first_part(2 * MS)
    statistics.succeeded(1, 0, 0, 40 * MS, 0, 40 * MS, streamed=True)
    statistics.computed(1, 0, 40 * MS, 0)
    statistics.cache_hit(0, 10, 20)
    assert phases(statistics.durations) == {
        "queue": [3, 0, 0],
        "compute_input": [2, 0, 0],
        "infer": [0, 1, 1],
        "output": [2, 0, 0],
        "first_response": [1, 2, 0],
        "request": [1, 1, 1],
    }


def test_a_model_without_them_counts_the_rest():
    statistics = ModelStatistics()
    statistics.succeeded(1, 0, 0, 0, 0, MS)
    statistics.computed(1, 0, 0, 0)
    statistics.first_part(1)
    statistics.cache_hit(0, 0, 0)
    assert (statistics.durations, statistics.success_count) == (None, 2)


COUNTS = (
    "success_count",
    "inference_count",
    "success_ns",
    "queue_ns",
    "compute_input_ns",
    "compute_infer_ns",
    "compute_output_ns",
)
SUMMARIES = ("request", "queue", "compute_input", "compute_infer", "compute_output")


@pytest.mark.parametrize("all_kinds", [True, False])
@given(
    requests=st.lists(st.tuples(st.integers(1, 4), NS), min_size=1, max_size=6), times=st.tuples(NS, NS, NS)
)
def test_requests_of_one_batch_are_counted_as_one_by_one(all_kinds, requests, times):
    def made():
        if not all_kinds:
            return ModelStatistics()
        summaries, histogram = LatencySummaries({0.5: 0.05}), Histogram((1.0, 50.0))
        return ModelStatistics(summaries=summaries, first_response=histogram, durations=Durations())

    together, single = made(), made()
    together.batch_succeeded(sum(rows for rows, _ in requests), [ns for _, ns in requests], *times)
    for rows, total in requests:
        single.succeeded(rows, max(0, total - sum(times)), *times, total)
    single.computed(len(requests), *times)
    for name in COUNTS:
        assert getattr(together, name) == getattr(single, name)
    if all_kinds:
        assert phases(together.durations) == phases(single.durations)
        assert together.first_response.counts == single.first_response.counts
        for name in SUMMARIES:
            ours, theirs = (getattr(each.summaries, name).quantiles() for each in (together, single))
            assert ours == theirs
