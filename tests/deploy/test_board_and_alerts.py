"""The board and the alert rules: what they ask for exists, and Prometheus's own tool takes them."""

import json
import shutil
import subprocess
from collections import Counter

import pytest

from actors.values.events import LOGGED_ONLY, Event
from tests.house.board.declared import families
from tests.house.board.panels import ROOT, board, expressions, filled_in, panels, rules
from tests.house.board.promql import family_of, labels_in, metrics_in

PROMETHEUS = ROOT / "deploy" / "prometheus"
FAMILIES = families() | {"up"}
TRITON_BOARDS = {
    # What the panels of boards read that NVIDIA publishes with Triton and its tutorials, and by which labels.
    "active servers": ("nv_inference_count", ()),
    "share of requests by pod": ("nv_inference_count", ()),
    "cumulative requests, successful": ("nv_inference_request_success", ()),
    "cumulative requests, failed": ("nv_inference_request_failure", ()),
    "compute time by model": ("nv_inference_compute_infer_duration_us", ("model",)),
    "queue time by server": ("nv_inference_queue_duration_us", ()),
    "requests a second, successful": ("nv_inference_request_success", ()),
    "requests a second, failed": ("nv_inference_request_failure", ()),
    "input time of a request": ("nv_inference_compute_input_duration_us", ()),
    "output time of a request": ("nv_inference_compute_output_duration_us", ()),
    "average duration of a request": ("nv_inference_request_duration_us", ()),
    "queue to compute, by which servers are scaled": ("nv_inference_compute_infer_duration_us", ()),
}
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool here (Debian: prometheus)"
)
EVERY = [*expressions(), *((rule["alert"], rule["expr"]) for rule in rules())]
IDS = [where for where, _ in EVERY]


@pytest.mark.parametrize(("_where", "expression"), EVERY, ids=IDS)
def test_every_expression_reads_metrics_that_exist(_where, expression):
    read = metrics_in(expression)
    assert read
    assert {name for name in read if family_of(name, FAMILIES) is None} == set()


@pytest.mark.parametrize(("metric", "labels"), TRITON_BOARDS.values(), ids=TRITON_BOARDS)
def test_the_panels_of_tritons_own_boards_read_what_this_server_has(metric, labels):
    assert metric in FAMILIES
    assert set(labels) <= {"model", "version", "gpu_uuid"}


def test_the_board_is_whole():
    document = board()
    every = [panel for panel in panels() if panel.targets]
    titles = Counter(panel.title for panel in every)
    assert [title for title, count in titles.items() if count > 1] == []
    assert len({each["id"] for each in document["panels"]}) == len(document["panels"])
    assert all(panel.x >= 0 and panel.x + panel.width <= 24 for panel in panels())
    taken = [
        (x, y)
        for panel in panels()
        for x in range(panel.x, panel.x + panel.width)
        for y in range(panel.y, panel.y + panel.height)
    ]
    assert len(taken) == len(set(taken))  # no panel lies on another
    sources = {json.dumps(each.get("datasource")) for each in document["panels"] if each["type"] != "row"}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}


def test_every_panel_follows_the_variables_of_the_board():
    for panel in panels():
        for target in panel.targets:
            assert "$instance" in target.expression, panel.title
            assert "$" not in filled_in(target.expression), panel.title


def test_the_events_that_alerts_and_the_board_name_are_in_the_stream():
    streamed = {event.value for event in Event if event not in LOGGED_ONLY}
    named = {
        name
        for _, expression in EVERY
        if "tritium_events_total" in expression and 'event="' in expression
        for name in expression.partition('event="')[2].partition('"')[0].split("|")
    }
    assert named
    assert named <= streamed


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert f"`{rule['alert']}`" in page


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ("up", {"up"}, set()),
        ("rate(a_total[5m]) / 2e3", {"a_total"}, set()),
        ("rate(a_total[$__rate_interval])", {"a_total"}, set()),
        ('sum by (x, y) (a{l="b c", m=~"d|e"}) > 1', {"a"}, {"x", "y", "l", "m"}),
        ("a / ignoring(pod) group_left sum(b) # c", {"a", "b"}, {"pod"}),
        ("a and on (x) b unless c or d offset 5m", {"a", "b", "c", "d"}, {"x"}),
        ("histogram_quantile(0.99, sum by (le) (rate(h_bucket[1m]))) > bool 1", {"h_bucket"}, {"le"}),
        ("triton:queue_compute:ratio - time()", {"triton:queue_compute:ratio"}, set()),
        ("sum(a)by(x)", {"a"}, {"x"}),
        ("-Inf < a", {"a"}, set()),
    ],
)
def test_metrics_and_labels_are_found_in_expressions(expression, metrics, labels):
    assert metrics_in(expression) == metrics
    assert labels_in(expression) == labels


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("h", "h"),
        ("h_bucket", "h"),
        ("h_sum", "h"),
        ("h_count", "h"),
        ("c_count", "c_count"),
        ("x_sum", None),
    ],
)
def test_a_series_belongs_to_a_family(name, family):
    assert family_of(name, frozenset({"h", "c_count"})) == family


def run(*words, cwd=PROMETHEUS):
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@promtool
@pytest.mark.system
def test_promtool_takes_the_rules_and_the_configuration():
    assert run("promtool", "check", "rules", "--lint-fatal", "alerts.yml")[0] == 0
    assert run("promtool", "check", "config", "--lint-fatal", "prometheus.yml")[0] == 0


@promtool
@pytest.mark.system
@pytest.mark.slow
def test_promtool_finds_that_the_rules_raise_what_they_should():
    status, said = run("promtool", "test", "rules", "alerts_test.yml")
    assert status == 0, said


@promtool
@pytest.mark.system
def test_promtool_takes_every_expression_of_the_board(tmp_path):
    every = [{"record": f"panel:{number}", "expr": each} for number, (_, each) in enumerate(EVERY)]
    (tmp_path / "board.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": every}]}))
    status, said = run("promtool", "check", "rules", "board.yml", cwd=tmp_path)
    assert status == 0, said
    assert f"{len(EVERY)} rules found" in said
