"""Reports: everything that an operator wants to know is in them, and nothing from elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chaos.checker.goals import Goal, read_verdict, write_verdict
from chaos.checker.judge import Judgement
from chaos.record.records import Fail, Ok, Sample, Unknown
from chaos.report.files import write_reports
from chaos.report.markdown import markdown
from chaos.report.page import page
from chaos.report.svg import Axis, line
from chaos.report.words import figure, limit, reached, seconds
from tests.chaos.made_runs import MadeRun, made_run

BEHAVIOURS = {
    "worker_sigkill": "at most the batch in hand fails, within 100 ms",
    "hang": "DEADLINE_EXCEEDED for the one that hangs",
    "crash_scheduler": "nobody notices",
}
VOID = {"meta"}


class Balanced(HTMLParser):
    """Raises AssertionError for a page whose elements are not closed as they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)


def drawings(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def of_class(drawing: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in drawing.iter() if name in each.get("class", "").split()]


def title(element: ElementTree.Element) -> str:
    return next(each.text or "" for each in element if each.tag.endswith("title"))


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
    for text in (markdown(judgement, BEHAVIOURS), page(judgement, BEHAVIOURS)):
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
    for text in (markdown(judgement, BEHAVIOURS), page(judgement, BEHAVIOURS)):
        assert "MISSED" in text
        assert invoke.id in text
        assert "12345" in text
        assert "1 of" in text


def test_evidence_beyond_the_first_is_counted(run: MadeRun) -> None:
    for _, ok in run.pairs(Ok, model="echo")[:14]:
        run.swap(ok, replace(ok, values=(-1,)))
    assert "and 4 more" in markdown(run.judged(), BEHAVIOURS)


def test_a_run_without_fault_or_miss_says_so(judgement: Judgement) -> None:
    assert "No goal missed" in markdown(judgement, BEHAVIOURS)
    assert "MISSED" not in page(judgement, BEHAVIOURS)


def test_a_fault_that_nobody_describes_is_told_as_that(judgement: Judgement) -> None:
    assert "not in the catalogue" in markdown(judgement, {})


def test_the_page_needs_nothing_from_elsewhere(judgement: Judgement) -> None:
    html = page(judgement, BEHAVIOURS)
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    assert parser.seen.isdisjoint({"script", "link", "img", "iframe", "object"})
    without_namespaces = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|url\(|@import|src=|href=", without_namespaces)
    assert "prefers-color-scheme: dark" in html


def test_the_timeline_has_each_fault_with_what_it_was(judgement: Judgement) -> None:
    drawing = drawings(page(judgement, BEHAVIOURS))[0]
    titles = [title(each) for each in of_class(drawing, "fault")]
    assert len(titles) == len(judgement.blows)
    assert any("SIGKILL to worker" in each and "may be felt by: echo" in each for each in titles)


def test_faults_at_the_same_time_lie_below_each_other(run: MadeRun) -> None:
    first, healed = run.faults[0], run.faults[1]
    for n in (6, 7):
        run.faults += [replace(first, n=n), replace(healed, n=n)]  # type: ignore[call-arg]
    drawing = drawings(page(run.judged(), BEHAVIOURS))[0]
    same = [each for each in of_class(drawing, "fault") if "SIGKILL" in title(each) and "echo" in title(each)]
    assert len({each.get("y") for each in same}) == 3


def test_every_second_tells_its_rates_and_latencies(judgement: Judgement) -> None:
    drawing = drawings(page(judgement, BEHAVIOURS))[0]
    hovers = [title(each) for each in of_class(drawing, "hover")]
    lanes = 3 + len(judgement.timeline.models)
    assert len(hovers) == lanes * judgement.timeline.bins
    assert re.search(
        r"all models, 3 s: \d+ sent, \d+ good, \d+ errors, \d+ without an answer\np50 .*, p99 ", hovers[3]
    )


def test_each_model_has_a_lane_shaded_where_a_fault_may_be_felt(judgement: Judgement) -> None:
    drawing = drawings(page(judgement, BEHAVIOURS))[0]
    labels = [each.text for each in of_class(drawing, "label")]
    assert labels == sorted(judgement.timeline.models)
    bands = [title(each) for each in of_class(drawing, "band")]
    assert sum("echo: worker_sigkill" in each for each in bands) == 1


def test_errors_without_excuse_are_marked(run: MadeRun) -> None:
    _, ok = run.any_good(phase="calm")
    run.swap(ok, Fail(t=ok.t, n=ok.n, code="INTERNAL", message=""))
    drawing = drawings(page(run.judged(), BEHAVIOURS))[0]
    assert ["INTERNAL, and no excuse" in title(each) for each in of_class(drawing, "unexcused")] == [True]


def test_requests_without_an_answer_are_drawn_apart_from_errors(run: MadeRun) -> None:
    _, ok = run.any_good(phase="calm")
    run.swap(ok, Unknown(t=ok.t, n=ok.n, reason="reset"))
    drawing = drawings(page(run.judged(), BEHAVIOURS))[0]
    assert len(of_class(drawing, "silent")) == 2  # among all, and in its model's lane


def test_what_the_server_takes_is_drawn_with_its_trend(judgement: Judgement) -> None:
    drawing = drawings(page(judgement, BEHAVIOURS))[1]
    assert [title(each).rpartition(": ")[2] for each in of_class(drawing, "trend")].count(
        "does not grow"
    ) >= 4


def test_a_record_without_samples_or_requests_is_a_report_all_the_same(run: MadeRun) -> None:
    run.samples.clear()
    run.history.clear()
    run.journal.clear()
    run.faults.clear()
    judgement = run.judged()
    assert "MISSED" in markdown(judgement, {})
    assert len(drawings(page(judgement, {}))) == 1


def test_a_fault_that_was_never_healed_is_drawn_to_the_end(run: MadeRun) -> None:
    run.faults.pop()
    drawing = drawings(page(run.judged(), BEHAVIOURS))[0]
    assert any("not healed" in title(each) for each in of_class(drawing, "trouble"))


def test_what_a_server_says_is_never_markup(run: MadeRun) -> None:
    _, ok = run.any_good(phase="calm")
    nasty = "<script>alert(1)</script> | a cell & `code`"
    run.swap(ok, Fail(t=ok.t, n=ok.n, code="INTERNAL", message=nasty))
    judgement = run.judged()
    assert "<script>" not in page(judgement, BEHAVIOURS)
    assert "<script>" not in markdown(judgement, {"hang": nasty})
    rows = markdown(judgement, {"hang": nasty}).splitlines()
    assert next(row for row in rows if row.startswith("| hang |")).count(" | ") == 3


@pytest.mark.slow
def test_a_long_run_is_drawn_in_wider_bins() -> None:
    run = made_run(seconds=1500.0, rate=1.0)
    run.samples = [
        Sample(t=each.t, rss=1, workers_rss=1, descriptors=1, threads=1, children=1, phase="calm")
        for each in run.samples[::100]
    ]
    timeline = run.judged().timeline
    assert (timeline.width, timeline.bins) == (3.0, 500)
    assert sum(timeline.all.good) == len([each for each in run.history if each.kind == "ok"])


def test_both_reports_are_written_into_the_folder(judgement: Judgement, tmp_path: Path) -> None:
    write_reports(tmp_path, judgement, BEHAVIOURS)
    assert (tmp_path / "report.md").read_text().startswith("# Chaos run, seed 1")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_a_verdict_is_read_as_it_was_written(run: MadeRun, tmp_path: Path) -> None:
    run.journal = [each for each in run.journal if each.pid != run.workers["echo"][0]]
    run.any_good()
    verdict = run.judged().verdict
    write_verdict(tmp_path, verdict)
    assert read_verdict(tmp_path) == verdict


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.0042, "s", "4.2 ms"),
        (0.25, "s", "250 ms"),
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


def test_an_axis_has_round_numbers_and_keeps_what_is_beyond_its_ends_at_them() -> None:
    axis = Axis(low=0, high=100, start=100, stop=0)
    assert list(axis.ticks()) == [0, 50, 100]
    assert (axis.at(0), axis.at(100), axis.at(1000)) == (100, 0, 0)
    logarithmic = Axis(low=0.001, high=1, start=0, stop=90, logarithmic=True)
    assert logarithmic.at(0.1) == pytest.approx(60)
    assert list(logarithmic.ticks()) == pytest.approx([0.001, 0.01, 0.1, 1])


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    assert line([(0, 1), (1, 2), None, (3, 4)]) == "M0 1L1 2M3 4"


def test_a_duration_under_a_tenth_of_a_second_keeps_a_decimal() -> None:
    assert [seconds(each) for each in (0.05, 0.1, 0.9999, 61)] == ["50.0 ms", "100 ms", "1.00 s", "61.00 s"]
