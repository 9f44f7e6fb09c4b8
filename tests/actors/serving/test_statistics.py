"""What a model's counters say after some traffic (contract observability.md sections 1.8 and 2)."""

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.statistics import FailureReason, Histogram, LatencySummaries, ModelStatistics
from tests.support.cores import python_only


def succeed(statistics, rows=1):
    statistics.succeeded(rows, queue_ns=10, compute_input_ns=20, infer_ns=30, output_ns=40, total_ns=200)


def execute(statistics, rows=1, at_ms=1_700_000_000_000):
    statistics.batch_executed(rows, input_ns=2, infer_ns=3, output_ns=4, at_ms=at_ms)


def counts(statistics):
    return (statistics.success_count, statistics.inference_count, statistics.execution_count)


@pytest.fixture
def statistics():
    return ModelStatistics()


@pytest.mark.parametrize(
    ("requests", "batches", "expected"),
    [
        ([8], [8], (1, 8, 1)),
        ([1, 8], [1, 8], (2, 9, 2)),
        ([1, 8], [9], (2, 9, 1)),
    ],
    ids=["a request of eight rows", "two requests executed apart", "two requests in one batch"],
)
def test_successes_are_requests_inferences_rows_and_executions_batches(
    statistics, requests, batches, expected
):
    for rows in batches:
        execute(statistics, rows=rows)
    for rows in requests:
        succeed(statistics, rows=rows)
    assert counts(statistics) == expected


def test_a_cache_hit_is_a_success_without_inference_or_execution(statistics):
    statistics.cache_hit(queue_ns=1, lookup_ns=2, total_ns=5)
    stats: Any = statistics.as_model_stats("m", 1)["inference_stats"]
    assert counts(statistics) == (1, 0, 0)
    assert stats["success"] == {"count": 1, "ns": 5}
    assert stats["cache_hit"] == {"count": 1, "ns": 2}
    assert stats["compute_infer"] == {"count": 0, "ns": 0}


def test_a_cache_miss_adds_its_time_to_the_request(statistics):
    succeed(statistics)
    statistics.cache_miss(7)
    stats: Any = statistics.as_model_stats("m", 1)["inference_stats"]
    assert stats["cache_miss"] == {"count": 1, "ns": 7}
    assert stats["success"] == {"count": 1, "ns": 207}


def test_a_failed_request_that_reached_the_backend_is_a_failure_and_an_execution(statistics):
    execute(statistics)
    statistics.failed(FailureReason.BACKEND, 99)
    assert counts(statistics) == (0, 0, 1)
    stats: Any = statistics.as_model_stats("m", 1)["inference_stats"]
    assert stats["fail"] == {"count": 1, "ns": 99}


def test_failures_of_all_reasons_add_up(statistics):
    for reason in FailureReason:
        statistics.failed(reason, 1)
    assert statistics.failure_count == 4
    assert set(statistics.failures.values()) == {1}


def test_the_statistics_element_has_exactly_the_contracts_members(statistics):
    execute(statistics, rows=2, at_ms=123)
    succeed(statistics, rows=2)
    assert statistics.as_model_stats("add", 3) == {
        "name": "add",
        "version": "3",
        "last_inference": 123,
        "inference_count": 2,
        "execution_count": 1,
        "inference_stats": {
            "success": {"count": 1, "ns": 200},
            "fail": {"count": 0, "ns": 0},
            "queue": {"count": 1, "ns": 10},
            "compute_input": {"count": 1, "ns": 20},
            "compute_infer": {"count": 1, "ns": 30},
            "compute_output": {"count": 1, "ns": 40},
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": 2,
                "compute_input": {"count": 1, "ns": 2},
                "compute_infer": {"count": 1, "ns": 3},
                "compute_output": {"count": 1, "ns": 4},
            }
        ],
        "memory_usage": [],
    }


def test_a_model_that_never_ran_has_no_last_inference():
    element = ModelStatistics().as_model_stats("m", 1)
    assert element["last_inference"] == 0
    assert element["batch_stats"] == []


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2**40)), max_size=30))
def test_batch_statistics_add_up_to_the_executions(batches):
    statistics = ModelStatistics()
    for rows, ns in batches:
        statistics.batch_executed(rows, ns, ns, ns, 1)
    element: Any = statistics.as_model_stats("m", 1)
    json.dumps(element)
    sizes = [entry["batch_size"] for entry in element["batch_stats"]]
    assert sizes == sorted({rows for rows, _ in batches})
    assert sum(entry["compute_infer"]["count"] for entry in element["batch_stats"]) == len(batches)
    assert sum(entry["compute_infer"]["ns"] for entry in element["batch_stats"]) == sum(
        ns for _, ns in batches
    )


def test_containment_counts_are_plain_attributes_that_start_at_zero(statistics):
    statistics.deaths["oom"] += 1
    statistics.restarts += 1
    assert statistics.deaths == {"oom": 1}
    for name in ("pending", "quarantined", "bisected", "retried", "abandoned_threads", "reply_violations"):
        assert getattr(statistics, name) == 0


def test_latencies_are_observed_only_where_asked_for():
    summaries, first_response = LatencySummaries({0.5: 0.05}), Histogram((0.1, 1.0))
    statistics = ModelStatistics(summaries=summaries, first_response=first_response)
    statistics.succeeded(1, 1_000, 2_000, 3_000, 4_000, 500_000)
    execute(statistics)
    assert summaries.request.quantiles() == {0.5: 500}
    assert summaries.queue.quantiles() == {0.5: 1}
    assert summaries.compute_output.quantiles() == {0.5: 4}
    assert first_response.counts == [0, 1, 0]
    assert first_response.total == pytest.approx(0.5)


@pytest.mark.parametrize("asked_for", [True, False])
def test_the_first_part_of_an_answer_is_a_first_response_and_its_end_is_none(asked_for):
    first_response = Histogram((0.1, 1.0))
    statistics = ModelStatistics(first_response=first_response if asked_for else None)
    statistics.first_part(500_000)
    statistics.succeeded(1, 1, 1, 1, 1, 9_000_000, streamed=True)
    assert first_response.counts == [0, int(asked_for), 0]


def test_a_histogram_counts_a_value_on_a_bound_within_it():
    histogram = Histogram()
    for value in (100, 100.5, 5001):
        histogram.observe(value)
    assert histogram.counts == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("bounds", [(), (2, 1), (1, 1)])
def test_histogram_bounds_must_ascend(bounds):
    with pytest.raises(ValueError, match="must ascend"):
        Histogram(bounds)


def test_summaries_forget_when_batches_say_that_time_has_passed():
    summaries = LatencySummaries({0.5: 0.05})
    statistics = ModelStatistics(summaries=summaries)
    execute(statistics, at_ms=1_000)
    succeed(statistics)
    execute(statistics, at_ms=1_000 + 601_000)
    assert math.isnan(summaries.request.quantiles()[0.5])
    assert summaries.request.total_count == 1


@python_only
@pytest.mark.slow
def test_counting_a_request_calls_nothing(statistics):
    """A guard against a lock, a label look-up or a log line slipping into the hot path."""
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if "call" in event else None)
    try:
        statistics.succeeded(1, 1, 1, 1, 1, 1)
    finally:
        sys.setprofile(None)
    assert [name for name in called if name != "test_counting_a_request_calls_nothing"] == ["succeeded"]


def test_hits_are_no_proof_that_the_model_works(statistics):
    statistics.succeeded(1, 0, 0, 0, 0, 0)
    statistics.cache_hit(0, 0, 0, 17)
    assert (statistics.success_count, statistics.computed_count, statistics.last_hit_ms) == (2, 1, 17)
    assert statistics.last_inference_ms == 0


def test_answers_from_a_cache_are_in_the_latencies_too():
    summaries, first_response = LatencySummaries({0.5: 0.05}), Histogram((0.1, 1.0))
    statistics = ModelStatistics(summaries=summaries, first_response=first_response)
    statistics.cache_hit(queue_ns=1_000, lookup_ns=2_000, total_ns=500_000)
    statistics.cache_miss(7_000)
    assert summaries.request.quantiles() == {0.5: 500}
    assert (summaries.cache_hit.total, summaries.cache_miss.total) == (2, 7)
    assert first_response.counts == [0, 1, 0]


def test_a_lane_s_rate_is_of_the_time_that_it_executes(statistics):
    assert statistics.lane_rate == 0.0
    succeed(statistics)
    statistics.batch_executed(1, 0, 500_000_000, 0, 1)
    assert statistics.lane_rate == 2.0


def test_a_version_shows_what_its_engine_has_counted_of_workers():
    engine, version = ModelStatistics(), ModelStatistics()
    engine.restarts = 1
    engine.quarantined, engine.abandoned_threads = 3, 4
    engine.recycled["memory"], engine.deaths["oom"] = 2, 5
    version.take_over(engine)
    assert (version.restarts, version.quarantined, version.abandoned_threads) == (1, 3, 4)
    assert (version.recycled, version.deaths) == ({"memory": 2}, {"oom": 5})
