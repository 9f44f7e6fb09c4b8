"""The board on a server under load: its queries, by a real Prometheus, and the picture made of them."""

import xml.etree.ElementTree as ET

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.house.board.__main__ import draw
from tests.house.board.chart import Line, drawn, nice, spelt
from tests.house.board.load import served
from tests.house.board.panels import Panel, panels
from tests.house.board.prometheus import is_installed
from tests.house.board.promql import labels_in, metrics_in

SVG = "{http://www.w3.org/2000/svg}"
ADDED = {"instance", "job"}
"""Labels that Prometheus adds by itself."""


@pytest.mark.system
@pytest.mark.slow
def test_the_labels_that_the_board_uses_are_those_of_a_scrape(tmp_path):
    with served(tmp_path) as server:
        status, _, body = server.get("/metrics", service="Metrics Service")
    assert status == 200
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            # The parser gives counters the suffix that Triton's lack.
            for name in (sample.name, sample.name.removesuffix("_total")):
                labels.setdefault(name, set()).update(sample.labels)
    checked = 0
    for panel in panels():
        for target in panel.targets:
            read = metrics_in(target.expression) & labels.keys()
            for name in read:
                checked += 1
                missing = labels_in(target.expression) - labels[name] - ADDED
                assert not missing, f"{panel.title}: {name} has no {missing}"
    assert checked > 40


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="there is no prometheus here (Debian: prometheus)")
def test_the_panels_show_a_server_under_load(tmp_path):
    lines = draw(9.0, tmp_path / "board.svg")
    latest = {title: {line.name: line.points[-1][1] for line in found} for title, found in lines.items()}
    assert list(latest["Ready servers"].values()) == [1]
    assert {"detector", "ranker", "lookup"} == set(latest["Requests answered, by model"])
    assert max(value for _, value in lines["Requests answered, by model"][0].points) > 0
    assert latest["Share of requests, by version"] == {"ranker 1": 0.8, "ranker 2": 0.2}
    assert latest["Instances, by state"]["serving"] == 6
    assert max(value for line in lines["Mean batch size"] for _, value in line.points) >= 1
    assert any(value > 0 for line in lines["Restarts of instances, by model"] for _, value in line.points)
    assert {"request", "queue", "infer"} <= set(latest["p99, by phase"])
    assert latest["Regions"]["system"] == 1
    assert max(value for line in lines["Bytes read and written"] for _, value in line.points) > 0
    assert "worker_exited" in {line.name for line in lines["Events"]}
    root = ET.parse(tmp_path / "board.svg").getroot()
    shown = {text.text for text in root.iter(f"{SVG}text")}
    assert {"Tritium", "Latency", "Mean batch size", "detector"} <= shown


def panel(title="A", kind="timeseries", **options):
    place = {"x": 0, "y": 1, "width": 8, "height": 7}
    return Panel(title=title, kind=kind, **{"unit": "s", "stacked": False, "targets": (), **place, **options})


HEADING = panel("Row", "row", y=0, width=24, height=1)


def picture(*given, lines, seconds=10.0):
    return ET.fromstring(drawn([HEADING, *given], lines, seconds, "Said."))


def texts(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def test_a_series_is_a_line_from_the_left_to_the_right_within_its_panel():
    root = picture(panel(), lines={"A": [Line("one", [(0.0, 0.0), (5.0, 2.0), (10.0, 4.0)])]})
    (line,) = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, each.split(","))) for each in line.get("points").split()]
    (frame,) = [each for each in root.iter(f"{SVG}rect") if each.get("rx")]
    left, top = float(frame.get("x")), float(frame.get("y"))
    right, bottom = left + float(frame.get("width")), top + float(frame.get("height"))
    assert all(left < x < right and top < y < bottom for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)  # up is more
    assert {"A", "one", "5 s", "0", "10 s"} <= set(texts(root))


def test_stacked_series_stand_on_each_other():
    lines = [Line("a", [(0.0, 1.0), (1.0, 1.0)]), Line("b", [(0.0, 2.0), (1.0, 2.0)])]
    root = picture(panel(stacked=True), lines={"A": lines}, seconds=1.0)
    first, second = (each.get("points").split() for each in root.iter(f"{SVG}polyline"))
    areas = list(root.iter(f"{SVG}polygon"))
    assert len(areas) == 2
    assert float(second[0].split(",")[1]) < float(first[0].split(",")[1])
    assert set(areas[1].get("points").split()) == {*first, *second}


def test_a_panel_without_data_says_so_and_a_row_without_any_is_named_below():
    other = [panel("GPU", "row", y=8, width=24, height=1), panel("Power", y=9)]
    stat = panel("S", "stat", x=8, unit="percentunit")
    root = picture(panel(), stat, *other, lines={"S": [Line("", [(0.0, 0.5)])]})
    said = texts(root)
    assert ("no data" in said, "50 %" in said, "Power" in said) == (True, True, False)
    assert said[-1] == "Said. Without data in this run: GPU."


def test_a_legend_that_is_too_long_says_how_much_is_left_out():
    lines = [Line(f"a long name of a series {number}", [(0.0, 1.0)]) for number in range(9)]
    assert any(
        text.startswith("and ") and text.endswith(" more")
        for text in texts(picture(panel(), lines={"A": lines}))
    )


def test_names_are_escaped():
    assert "<b>" in texts(picture(panel(), lines={"A": [Line("<b>", [(0.0, 1.0)])]}))


@pytest.mark.parametrize(
    ("most", "binary", "top"),
    [
        (0, False, 1),
        (float("nan"), False, 1),
        (0.9, False, 1),
        (1, False, 1),
        (1.1, False, 2),
        (2.1, False, 2.5),
        (26, False, 50),
        (0.013, False, 0.02),
        (900, True, 1000),
        (1025, True, 2048),
    ],
)
def test_an_axis_ends_at_a_round_number(most, binary, top):
    assert nice(most, binary=binary) == pytest.approx(top)


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0, "s", "0"),
        (1.5, "s", "1.5 s"),
        (0.0333, "s", "33.3 ms"),
        (2e-5, "s", "20 µs"),
        (3 * 2**20, "bytes", "3 MiB"),
        (512, "Bps", "512 B/s"),
        (0.123, "percentunit", "12.3 %"),
        (84, "reqps", "84/s"),
        (250, "watt", "250 W"),
        (1500, "short", "1.5 k"),
        (0.25, "short", "0.25"),
        (float("inf"), "s", "–"),
    ],
)
def test_values_are_spelt_with_their_units(value, unit, said):
    assert spelt(value, unit) == said
