"""Reports: everything that an operator wants to know is in them, and nothing from elsewhere."""

import re
from dataclasses import replace

import pytest

from chaos.checker.goals import Goal
from chaos.checker.judge import Judgement
from chaos.record.records import Fail, Ok
from chaos.report.markdown import markdown
from chaos.report.words import figure, limit, reached
from tests.chaos.made_runs import MadeRun, made_run

BEHAVIOURS = {
    "worker_sigkill": "at most the batch in hand fails, within 100 ms",
    "hang": "DEADLINE_EXCEEDED for the one that hangs",
    "crash_scheduler": "nobody notices",
}


@pytest.fixture(name="run")
def a_run() -> MadeRun:
    return made_run(seconds=20.0, rate=20.0)


@pytest.fixture(name="judgement")
def a_judgement(run: MadeRun) -> Judgement:
    return run.judged()


def test_each_goal_stands_beside_its_figure(judgement: Judgement) -> None:
    text = markdown(judgement, BEHAVIOURS)
    for goal in judgement.verdict.goals:
        name = goal.name.replace("_", "\\_")
        row = f"| {name} | {limit(goal)} | {figure(goal.figure, goal.unit)} | {reached(goal)} |"
        assert row in text


def test_each_fault_has_its_count_and_its_expected_behaviour_beside_what_was_seen(
    judgement: Judgement,
) -> None:
    text = markdown(judgement, BEHAVIOURS)
    assert (
        "| worker\\_sigkill | 2 | at most the batch in hand fails, within 100 ms"
        " | excused: 2 × UNAVAILABLE; good answer after 200 ms; 2 of 2 log lines |" in text
    )


def test_the_run_can_be_repeated_from_what_its_report_says(judgement: Judgement) -> None:
    text = markdown(judgement, BEHAVIOURS)
    assert "python -m chaos --minutes 10 --seed 1" in text
    assert "2 cores, 8 GiB" in text
    assert "0.1.0" in text


def test_phases_and_models_have_their_rates(judgement: Judgement) -> None:
    text = markdown(judgement, BEHAVIOURS)
    for name in ("calm", "standard", "overload", "recovery", "echo", "counter", "stream"):
        assert re.search(rf"^\| {name} \| .*[\d.]+ \|", text, re.MULTILINE)


def test_a_missed_goal_is_told_with_the_story_of_the_request(run: MadeRun) -> None:
    invoke, ok = run.any_good(model="echo")
    run.swap(ok, replace(ok, values=(12345,)))
    judgement = run.judged()
    text = markdown(judgement, BEHAVIOURS)
    assert "MISSED" in text
    assert invoke.id in text
    assert "12345" in text
    assert "1 of" in text
    assert "not in the catalogue" in markdown(judgement, {})


def test_evidence_beyond_the_first_is_counted(run: MadeRun) -> None:
    for _, ok in run.pairs(Ok, model="echo")[:14]:
        run.swap(ok, replace(ok, values=(-1,)))
    assert "and 4 more" in markdown(run.judged(), BEHAVIOURS)


def test_a_record_without_samples_or_requests_is_a_report_all_the_same(run: MadeRun) -> None:
    run.samples.clear()
    run.history.clear()
    run.journal.clear()
    run.faults.clear()
    judgement = run.judged()
    assert "MISSED" in markdown(judgement, {})


def test_what_a_server_says_is_never_markup(run: MadeRun) -> None:
    _, ok = run.any_good(phase="calm")
    nasty = "<script>alert(1)</script> | a cell & `code`"
    run.swap(ok, Fail(t=ok.t, n=ok.n, code="INTERNAL", message=nasty))
    judgement = run.judged()
    assert "<script>" not in markdown(judgement, {"hang": nasty})
    rows = markdown(judgement, {"hang": nasty}).splitlines()
    assert next(row for row in rows if row.startswith("| hang |")).count(" | ") == 3


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.0042, "s", "4.2 ms"),
        (0.25, "s", "250 ms"),
        (0.05, "s", "50.0 ms"),
        (0.1, "s", "100 ms"),
        (0.9999, "s", "1.00 s"),
        (1.5, "s", "1.50 s"),
        (float("inf"), "s", "never"),
        (3.0, "", "3"),
        (0.834, "×", "0.83 ×"),
        (1234.5, "MiB/h", "1,234.50 MiB/h"),
        (None, "s", "not measured"),
    ],
)
def test_figures_are_written_in_their_unit(value: float | None, unit: str, words: str) -> None:
    assert figure(value, unit) == words


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({"figure": 1.0}, True),
        ({"figure": 1.1}, False),
        ({"figure": None}, None),
        ({"figure": float("nan")}, False),
        ({"figure": float("inf")}, False),
        ({"figure": 0.9, "sense": "at least"}, False),
        ({"figure": 1.0, "sense": "at least"}, True),
    ],
)
def test_a_goal_is_reached_up_to_its_limit(given: dict, passed: bool | None) -> None:
    assert Goal(name="x", about="", limit=1.0, **given).passed is passed
