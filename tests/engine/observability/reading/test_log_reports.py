"""Reports from the lines: one request's stages, lives and outages, rates, slowest requests, a summary."""

from typing import Any

import pytest

from engine.observability.reading.counting import rates, summary
from engine.observability.reading.requests import ended, slowest
from engine.observability.reading.timeline import timeline
from engine.observability.reading.tracing import trace
from tests.engine.observability.reading.written import NOON, line

WHERE = "models/m/1/instances/0"


def finished(at, outcome="completed", *, total=1_000, request_id="", model="m", **keys):
    """A canonical line; times in microseconds."""
    return line(
        f"request_{outcome}",
        at,
        request_id=request_id,
        model=model,
        version=1,
        outcome=outcome,
        total_us=total,
        **keys,
    )


def died(at, reason="signal_9", actor=WHERE, **keys):
    return line("worker_exited", at, "warning", actor=actor, reason=reason, **keys)


def served(at, actor=WHERE, **keys):
    return line("worker_ready", at, actor=actor, **keys)


# -- where time went


def test_the_parts_of_a_requests_time_are_all_of_it():
    keys = {"compute_input_us": 100, "compute_infer_us": 2_000, "compute_output_us": 300}
    told: Any = ended(finished(1, total=10_000, queue_us=6_000, earlier_us=4_000, attempts=2, **keys))
    assert told.spent.as_dict() == {
        "queue": 2.0,
        "earlier": 4.0,
        "compute_input": 0.1,
        "compute_infer": 2.0,
        "compute_output": 0.3,
        "rest": 1.6,
    }


def test_a_line_of_an_older_server_has_less_to_tell_and_nonsense_counts_as_nothing():
    old: Any = ended(finished(1, total=5_000, queue_us=1_000, compute_infer_us=3_000))
    assert (old.attempts, old.instance, old.serial, old.name) == (0, "", 0, "?")
    assert old.spent.rest == pytest.approx(0.001)
    assert getattr(ended(finished(1, total="many", queue_us=None, pid=[1])), "total", None) == 0
    assert ended(line("worker_exited")) is None


def test_the_slowest_come_first():
    lines = [finished(n, total=total, request_id=f"r{total}") for n, total in enumerate((5, 9, 1, 7))]
    assert [each.id for each in slowest(lines, 2)] == ["r9", "r7"]


# -- one request


def test_stages_that_have_no_line_are_figured_out_from_the_last_one():
    course = {"serial": 3, "instance": "m_0", "pid": 7, "batch": 2, "batch_requests": 4, "queue_us": 400_000}
    traced = trace(
        [finished(1, total=1_000_000, request_id="r1", **course), finished(2, request_id="r2")], "r1"
    )
    assert [(each.what, round(each.time - NOON, 6), each.figured) for each in traced.stages] == [
        ("accepted", 0.0, True),
        ("executing", 0.4, True),
        ("completed", 1.0, False),
    ]
    assert traced.stages[1].detail == "pid 7, batch 2 of 4 requests"


def test_stages_that_have_lines_are_not_figured_out_as_well():
    lines = [
        line("request_accepted", 0, model="m", request_id="r1", serial=3, queued=5),
        line("batch_dispatched", 0.4, instance="m_0", pid=7, batch=2, requests=["r1", "r0"]),
        died(0.5, pid=7, executing=["r1", "r0"]),
        line("batch_bisected", 0.5, actor=WHERE, halves=[["r1"], ["r0"]]),
        line("batch_dispatched", 0.7, instance="m_0", pid=8, batch=1, requests=["r1"], alone=True),
        line("batch_dispatched", 0.8, instance="m_0", pid=8, batch=2, requests=["r0"], alone=True),
        finished(1, total=1_000_000, request_id="r1", serial=3, batch=1, attempts=2),
    ]
    traced = trace(lines, "r1")
    assert [each.what for each in traced.stages] == [
        *("accepted", "dispatched", "worker_exited", "batch_bisected", "dispatched", "completed"),
    ]
    assert not any(each.figured for each in traced.stages)
    assert traced.stages[4].detail == "pid 8, batch 1 of 1 request, alone"
    assert "2 attempts" in traced.stages[-1].detail


def test_what_was_done_for_a_request_is_found_through_its_parents_however_deep():
    lines = [
        finished(1, model="leaf", serial=3, parent=2, relation="call"),
        finished(1, model="stranger", serial=9, parent=8, relation="step"),
        finished(2, model="step", serial=2, parent=1, parent_id="r1", relation="step"),
        finished(3, model="whole", serial=1, request_id="r1"),
    ]
    assert [each.model for each in trace(lines, "r1").ends] == ["whole", "leaf", "step"]
    assert [each.model for each in trace(lines, "#1").ends] == ["whole", "leaf", "step"]


def test_nothing_is_known_of_a_request_that_no_line_names():
    assert trace([served(1)], "r1").as_dict() == {"request": "r1", "ends": [], "stages": []}


# -- lives


def test_an_instance_is_away_from_its_death_until_it_serves_again():
    lines = [
        *(served(0), died(10, pid=7, detail="signal 9 (SIGKILL)")),
        *(line("worker_started", 10.1, actor=WHERE, pid=8), served(10.5, pid=8)),
    ]
    [outage] = timeline(lines).outages
    assert (outage.who, outage.model, outage.pid, outage.reason) == (WHERE, "m", 7, "signal_9")
    assert outage.seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("lines", "outages"),
    [
        pytest.param(
            [died(1, "oom"), died(2, "signal_11"), served(4)],
            [("oom", 2, 3.0)],
            id="deaths on the way back belong to the same outage",
        ),
        pytest.param([died(1)], [("signal_9", 1, None)], id="one that has not come back is still away"),
        pytest.param(
            [served(0), line("worker_exited", 1, actor=WHERE, reason="stopped")],
            [],
            id="a worker that was asked to stop leaves none",
        ),
        pytest.param(
            [died(1), line("server_stopped", 2), served(100)],
            [("signal_9", 1, None)],
            id="the next server's instances end no outage of the last one",
        ),
    ],
)
def test_an_outage_has_its_deaths_and_its_end(lines, outages):
    found = timeline(lines).outages
    assert [(each.reason, each.deaths, each.as_dict()["seconds"]) for each in found] == outages


def test_a_model_is_away_while_it_is_unavailable_and_not_when_it_was_unloaded():
    lines = [
        line("model_unavailable", 1, "error", model="m", version=2, reason="all instances keep dying"),
        line("model_ready", 4, model="m", version=2),
        line("model_unavailable", 5, model="m", version=2, reason="unloaded"),
    ]
    [outage] = timeline(lines).outages
    assert (outage.who, outage.reason, outage.seconds) == (
        "m/2",
        "all instances keep dying",
        pytest.approx(3),
    )


def test_a_timeline_leaves_out_requests_and_what_models_print():
    lines = [
        served(1),
        finished(2),
        line("worker_output", 3, actor=WHERE, line="hello"),
        line("fault_injected", 4),
    ]
    assert [each.event for each in timeline(lines).events] == ["worker_ready", "fault_injected"]


# -- how many


def test_requests_are_counted_by_interval_and_model():
    lines = [
        *(
            finished(1, total=2_000),
            finished(2, total=4_000, attempts=2),
            finished(9, "rejected", code="UNAVAILABLE"),
        ),
        *(finished(3, "cancelled", model="n"), finished(11), finished(4, "failed")),
    ]
    first, other, later = rates(lines, 10.0)
    assert (first.begin, first.model, first.tally.requests, first.tally.completed) == (NOON, "m", 4, 2)
    assert first.tally.errors == {"UNAVAILABLE": 1, "failed": 1}
    assert (first.tally.retried, first.tally.quantile(0.5), first.tally.quantile(1.0)) == (1, 0.002, 0.004)
    assert (other.model, other.tally.cancelled, other.tally.errors.total()) == ("n", 1, 0)
    assert (later.begin, later.tally.requests) == (NOON + 10, 1)
    assert first.as_dict()["rate"] == 0.4


def test_a_summary_counts_everything_once():
    whole = summary(
        [served(0), died(1), served(2), finished(3), finished(4, "failed", code="INTERNAL"), died(5, "oom")]
    )
    assert (whole.lines, whole.began, whole.ended) == (6, NOON, NOON + 5)
    assert whole.deaths == {("m", "signal_9"): 1, ("m", "oom"): 1}
    assert whole.models["m"].errors == {"INTERNAL": 1}
    assert whole.events["worker_ready"] == 2
    assert len(whole.outages) == 2
    assert whole.as_dict()["deaths"][0] == {"model": "m", "reason": "signal_9", "count": 1}


def test_a_summary_of_nothing_is_all_zeros():
    whole = summary([])
    assert (whole.lines, whole.began, whole.ended) == (0, 0.0, 0.0)
