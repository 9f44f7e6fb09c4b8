"""Medians, ratios, tables, Markdown and JSON, from figures made up for the purpose."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import report
from benchmarks.report import BEGIN, END, Table
from benchmarks.results import Cell, Load, Measured, Memory, Report, Sample, Skipped, Timings, percentile

ADD = Cell("add", "Add", 16, "wrk")
BIG = Cell("big", "Big | tensors", 1, "wrk")


def _measured(cell, subject, *rates, p50=0.001, errors=0, cpu=None):
    loads = [
        Load(requests=100, seconds=1.0, rate=rate, p50=p50, p99=p50 * 2, errors=errors, refused=0)
        for rate in rates
    ]
    return Measured(cell, subject, [Sample(load, cpu) for load in loads])


def _report(*cells, yardstick=True, **more):
    defaults = {
        "machine": [("processor", "a chip")],
        "options": [],
        "transfers": [],
        "timings": [],
        "memory": [],
    }
    subjects = list(dict.fromkeys(each.subject for each in cells)) or ["yardstick"]
    given = {"skipped": [], "subjects": subjects} | defaults | more
    return Report(against_yardstick=yardstick, cells=cells, **given)


def _column(table, name):
    return [row[table.columns.index(name)] for row in table.rows]


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(1, 100))
def test_a_percentile_is_one_of_the_values_and_enough_lie_at_or_below_it(values, percent):
    found = percentile(sorted(values), percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 * (1 - 1e-12)


def test_figures_are_medians_over_rounds_and_failures_are_summed():
    measured = _measured(ADD, "tritium", 100, 300, 200, errors=2)
    assert measured.rate == 200
    assert measured.failures == 6


def test_the_table_sets_the_server_against_the_yardstick():
    found = _report(_measured(ADD, "yardstick", 40_000), _measured(ADD, "tritium", 10_000, cpu=0.01))
    (table,) = report.tables(found)
    assert _column(table, "req/s") == ["10,000"]
    assert _column(table, "bare req/s") == ["40,000"]
    assert _column(table, "of bare") == ["0.25×"]
    assert _column(table, "CPU µs/req") == ["100"]
    assert _column(table, "p50 ÷ copies") == ["–"]


def test_over_grpc_the_server_is_set_against_each_reference():
    cell = Cell("grpc", "Unary", 8, "own", "grpc", 16)
    cells = [
        _measured(ADD, "yardstick", 1),
        _measured(ADD, "tritium", 1),
        _measured(cell, "bare", 90_000),
        _measured(cell, "grpclib", 5_000),
        _measured(cell, "tritium", 30_000),
    ]
    found = _report(*cells, references=["grpclib", "grpcio", "bare"], subjects=["yardstick", "tritium"])
    http, grpc = report.tables(found)
    assert _column(http, "scenario") == ["Add"]
    assert (_column(grpc, "conc."), _column(grpc, "client")) == (["8×16"], ["own"])
    assert (_column(grpc, "grpclib req/s"), _column(grpc, "÷ grpclib")) == (["5,000"], ["6.00×"])
    assert (_column(grpc, "grpcio req/s"), _column(grpc, "÷ grpcio")) == (["–"], ["–"])
    assert _column(grpc, "÷ bare") == ["0.33×"]
    assert report.as_json(found)["cells"][4]["rate_of_references"] == {
        "grpclib": 6.0,
        "bare": 30_000 / 90_000,
    }


def test_a_large_tensor_is_set_against_copies_and_loopback():
    transfers = [("big", Timings("transfer", "copies", "memory", [0.002, 0.002]))]
    cells = _measured(BIG, "yardstick", 200), _measured(BIG, "tritium", 100, p50=0.005)
    table = report.tables(_report(*cells, transfers=transfers))[0]
    assert _column(table, "p50 ÷ copies") == ["2.50×"]


def test_side_by_side_every_server_is_set_against_the_first():
    table = report.tables(
        _report(_measured(ADD, "a", 100), _measured(ADD, "b", 150, p50=0.0005), yardstick=False)
    )[0]
    assert _column(table, "server") == ["a", "b"]
    assert _column(table, "req/s ÷ a") == ["1.00×", "1.50×"]
    assert _column(table, "p50 ÷ a") == ["1.00×", "0.50×"]
    assert _column(table, "p99 ÷ a") == ["1.00×", "0.50×"]


def test_the_load_client_is_a_column_only_where_there_are_two():
    second = Cell("add", "Add", 16, "h2load")
    one = _report(_measured(ADD, "yardstick", 1), _measured(ADD, "tritium", 1))
    two = _report(*one.cells, _measured(second, "yardstick", 1), _measured(second, "tritium", 1))
    assert "client" not in report.tables(one)[0].columns
    assert _column(report.tables(two)[0], "client") == ["wrk", "h2load"]


def test_every_row_is_as_long_as_the_columns():
    found = _report(
        _measured(ADD, "yardstick", 1),
        _measured(ADD, "tritium", 1),
        timings=[Timings("startup", "start", "tritium", [1.0])],
        memory=[Memory("tritium", 2**20, [2**20, 2**20])],
        skipped=[Skipped("digits", "all", "no\nmodel")],
    )
    tables = report.tables(found)
    assert [table.title for table in tables] == ["Load", "Times", "Resident memory, idle", "Not measured"]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_where_a_table_has_a_median_the_99th_percentile_stands_beside_it():
    grpc = Cell("grpc-unary", "Add", 1, "h2load", "grpc")
    alone = _report(
        _measured(ADD, "yardstick", 1),
        _measured(ADD, "tritium", 1),
        _measured(grpc, "tritium", 1),
        timings=[Timings("startup", "start", "tritium", [1.0])],
    )
    compared = _report(_measured(ADD, "a", 1), _measured(ADD, "b", 1), yardstick=False)
    tables = [*report.tables(alone), *report.tables(compared)]
    assert len(tables) == 4
    for table in tables:
        columns = list(table.columns)
        place = columns.index("p50 ms")
        assert columns[place + 1] == "p99 ms"
        assert all(row[place + 1] not in ("", report.NOTHING) for row in table.rows)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59e-6, "0.059"), (0.00931, "9.31"), (0.0237, "23.7"), (1.204, "1,204"), (math.nan, "–")],
)
def test_durations_are_written_in_milliseconds(seconds, text):
    assert report.milliseconds(seconds) == text


def test_plain_columns_line_up():
    text = report.plain(Table("T", ["what", "n"], [["a", "1"], ["longer", "1,000"]]))
    assert text.splitlines() == ["T", "what        n", "a           1", "longer  1,000"]


def test_markdown_escapes_what_would_split_a_cell():
    text = report.markdown(_report(_measured(BIG, "yardstick", 1), _measured(BIG, "tritium", 1)))
    assert "- processor: a chip" in text
    assert "Big \\| tensors" in text
    assert "| --- | ---: |" in text


def test_a_section_replaces_what_stood_between_the_markers():
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = report.fill(document, "new\n")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert report.fill(once, "new\n") == once


@pytest.mark.parametrize("document", ["", BEGIN, END, f"{END} {BEGIN}"])
def test_a_document_without_both_markers_in_order_is_refused(document):
    with pytest.raises(ValueError, match="benchmarks:begin"):
        report.fill(document, "new")


def test_json_holds_every_round_and_no_nan():
    found = _report(
        _measured(ADD, "yardstick", 200),
        _measured(ADD, "tritium", 100, 100, p50=math.nan),
        transfers=[("big", Timings("transfer", "copies", "memory", []))],
        memory=[Memory("tritium", 1, [])],
    )
    read = json.loads(json.dumps(report.as_json(found), allow_nan=False))
    assert read["cells"][1]["rate_of_baseline"] == 0.5
    assert read["cells"][1]["p50"] is None
    assert len(read["cells"][1]["rounds"]) == 2
    assert read["transfers"][0]["p50"] is None
