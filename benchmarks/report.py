"""Turns a `Report` into tables, Markdown and JSON. Pure: the same report always reads the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.results import Attack, Cell, Measured, Report, Timings

BEGIN: Final = "<!-- benchmarks:begin -->"
END: Final = "<!-- benchmarks:end -->"
NOTHING: Final = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """A title, and rows of text of one length.

    The first `words` columns read left to right; the others are figures.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


def count(value: float) -> str:
    """Write a rate or a number: `18,202`, and one decimal below a hundred."""
    if math.isnan(value):
        return NOTHING
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def milliseconds(seconds: float) -> str:
    """Write a duration in milliseconds with three significant digits or more: `0.0590`, `9.31`, `1,204`."""
    value = seconds * 1e3
    if math.isnan(value):
        return NOTHING
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{decimals}f}"


def microseconds(seconds: float | None) -> str:
    """Write a CPU time in microseconds."""
    return NOTHING if seconds is None else f"{seconds * 1e6:,.0f}"


def mebibytes(size: int) -> str:
    """Write a size in MiB."""
    return f"{size / 2**20:,.1f}"


def ratio(value: float, base: float) -> str:
    """Write how many times `base` a value is: `0.46×`."""
    if math.isnan(value) or math.isnan(base) or base <= 0:
        return NOTHING
    return f"{value / base:.2f}×"


def _copies(report: Report, cell: Cell) -> Timings | None:
    if cell.concurrency * cell.streams != 1:
        return None
    return next((timings for scenario, timings in report.transfers if scenario == cell.scenario), None)


def _figures(each: Measured) -> list[str]:
    return [
        count(each.rate),
        milliseconds(each.p50),
        milliseconds(each.p99),
        count(each.failures),
        microseconds(each.cpu_per_request),
    ]


_FIGURES: Final = ("req/s", "p50 ms", "p99 ms", "failed", "CPU µs/req")


def _cell(cell: Cell, *, clients: bool) -> list[str]:
    return [cell.title, *([cell.client] if clients else []), cell.at]


def _against_yardstick(report: Report, *, clients: bool) -> Table:
    """One row a cell: the server's figures, the bare responder's rate, and the ratio of the two."""
    baseline, *servers = report.subjects

    def row(cell: Cell, each: Measured) -> list[str]:
        bare, copies = report.measured(cell, baseline), _copies(report, cell)
        compared = [count(bare.rate), ratio(each.rate, bare.rate)] if bare else [NOTHING, NOTHING]
        compared.append(ratio(each.p50, copies.p50) if copies else NOTHING)
        return [*_cell(cell, clients=clients), *_figures(each), *compared]

    found = ((cell, report.measured(cell, server)) for cell in _rows(report, "http") for server in servers)
    rows = [row(cell, each) for cell, each in found if each is not None]
    columns = ["scenario", *(["client"] if clients else []), "conc.", *_FIGURES]
    return Table("Load", [*columns, "bare req/s", "of bare", "p50 ÷ copies"], rows, words=2 if clients else 1)


def _against_references(report: Report) -> Table:
    """One row a gRPC cell: the server's figures, and each reference's rate with the server's ratio to it."""

    def row(cell: Cell, each: Measured) -> list[str]:
        compared = []
        for reference in report.references:
            beside = report.measured(cell, reference)
            compared += [count(beside.rate), ratio(each.rate, beside.rate)] if beside else [NOTHING, NOTHING]
        copies = _copies(report, cell)
        compared.append(ratio(each.p50, copies.p50) if copies else NOTHING)
        return [*_cell(cell, clients=True), *_figures(each), *compared]

    _, *servers = report.subjects
    found = ((cell, report.measured(cell, server)) for cell in _rows(report, "grpc") for server in servers)
    rows = [row(cell, each) for cell, each in found if each is not None]
    beside = [column for each in report.references for column in (f"{each} req/s", f"÷ {each}")]
    columns = ["scenario", "client", "conc.", *_FIGURES, *beside, "p50 ÷ copies"]
    return Table("Load over gRPC", columns, rows, words=2)


def _rows(report: Report, protocol: str) -> Sequence[Cell]:
    return [cell for cell in report.rows if cell.protocol == protocol]


def _side_by_side(report: Report, *, clients: bool) -> Table:
    """One row a cell and server; the last columns refer to the first server."""
    baseline = report.subjects[0]

    def row(cell: Cell, each: Measured) -> list[str]:
        title, *rest = _cell(cell, clients=clients)
        first = report.measured(cell, baseline)
        compared = [NOTHING] * 3
        if first:
            pairs = (each.rate, first.rate), (each.p50, first.p50), (each.p99, first.p99)
            compared = [ratio(mine, other) for mine, other in pairs]
        return [title, each.subject, *rest, *_figures(each), *compared]

    found = ((cell, report.measured(cell, subject)) for cell in report.rows for subject in report.subjects)
    rows = [row(cell, each) for cell, each in found if each is not None]
    columns = ["scenario", "server", *(["client"] if clients else []), "conc.", *_FIGURES]
    words = 3 if clients else 2
    columns += [f"{figure} ÷ {baseline}" for figure in ("req/s", "p50", "p99")]
    return Table("Load, side by side", columns, rows, words)


def _timings(report: Report) -> Table:
    everything = [*(timings for _, timings in report.transfers), *report.timings]
    rows = [
        [each.title, each.subject, count(len(each.seconds)), milliseconds(each.p50), milliseconds(each.p99)]
        for each in everything
    ]
    return Table("Times", ["what", "of", "times", "p50 ms", "p99 ms"], rows, words=2)


def _memory(report: Report) -> Table:
    rows = [
        [each.subject, mebibytes(each.server), str(len(each.workers)), mebibytes(sum(each.workers))]
        for each in report.memory
    ]
    return Table("Resident memory, idle", ["of", "server MiB", "workers", "workers MiB, summed"], rows)


def _attacks(report: Report) -> Table:
    rows = [
        [
            each.name,
            each.answer,
            mebibytes(each.size),
            milliseconds(each.turn),
            mebibytes(each.memory),
            mebibytes(each.allowed),
            milliseconds(each.beside_p50),
            milliseconds(each.beside),
            ratio(each.beside, each.beside_sink),
        ]
        for each in report.attacks
    ]
    columns = ["input", "answer", "MiB sent", "longest turn ms", "memory MiB", "allowed MiB"]
    return Table("Hostile inputs", [*columns, "neighbour p50 ms", "p99 ms", "÷ beside a sink"], rows, words=2)


def _skipped(report: Report) -> Table:
    rows = [[each.what, each.subject, " ".join(each.reason.split())] for each in report.skipped]
    return Table("Not measured", ["what", "of", "why"], rows, words=3)


def tables(report: Report) -> Sequence[Table]:
    """Return the tables that have rows."""
    if report.against_yardstick:
        clients = len({cell.client for cell in _rows(report, "http")}) > 1
        load = [_against_yardstick(report, clients=clients), _against_references(report)]
    else:
        load = [_side_by_side(report, clients=len({cell.client for cell in report.rows}) > 1)]
    every = [*load, _timings(report), _memory(report), _attacks(report), _skipped(report)]
    return [table for table in every if table.rows]


def plain(table: Table) -> str:
    """Lay a table out in columns of spaces."""
    lines = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = [
            text.ljust(width) if index < table.words else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([table.title, *map(line, lines)])


def _markdown_table(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---" if index < table.words else "---:" for index in range(len(table.columns))]
    return "\n".join([f"### {table.title}", "", line(table.columns), line(rule), *map(line, table.rows)])


def markdown_tables(found: Sequence[Table]) -> str:
    """Lay tables out in Markdown, one below the other."""
    return "\n\n".join(map(_markdown_table, found))


def markdown(report: Report) -> str:
    """Return the section that goes between the markers of docs/benchmarks/figures.md."""
    facts = [f"- {label}: {text}" for label, text in (*report.machine, *report.options)]
    return "\n".join(facts) + "\n\n" + markdown_tables(tables(report)) + "\n"


def fill(document: str, section: str) -> str:
    """Put `section` between the markers of a document.

    Raises ValueError if it has no markers, or has them out of order.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document does not hold {BEGIN} and, after it, {END}")
    return f"{before}{BEGIN}\n\n{section.strip()}\n\n{END}{after}"


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value  # JSON has no NaN


def _timings_json(each: Timings) -> dict[str, Any]:
    return {
        "what": each.what,
        "subject": each.subject,
        "p50": _number(each.p50),
        "p99": _number(each.p99),
        "seconds": list(each.seconds),
    }


def _attack_json(each: Attack) -> dict[str, Any]:
    return {
        "name": each.name,
        "size": each.size,
        "answer": each.answer,
        "turn": each.turn,
        "memory": each.memory,
        "allowed": each.allowed,
        "beside_p50": _number(each.beside_p50),
        "beside": _number(each.beside),
        "beside_sink": _number(each.beside_sink),
    }


def _cell_json(report: Report, each: Measured) -> dict[str, Any]:
    base = report.measured(each.cell, report.subjects[0])
    copies = _copies(report, each.cell)
    return {
        "scenario": each.cell.scenario,
        "protocol": each.cell.protocol,
        "concurrency": each.cell.concurrency,
        "streams": each.cell.streams,
        "client": each.cell.client,
        "subject": each.subject,
        "rate": _number(each.rate),
        "p50": _number(each.p50),
        "p99": _number(each.p99),
        "failures": each.failures,
        "cpu_per_request": each.cpu_per_request,
        "rate_of_baseline": _number(each.rate / base.rate) if base and base.rate else None,
        "rate_of_references": {
            name: _number(each.rate / beside.rate)
            for name in report.references
            if (beside := report.measured(each.cell, name)) and beside.rate
        },
        "p50_of_baseline": _number(each.p50 / base.p50) if base and base.p50 else None,
        "p50_of_copies": _number(each.p50 / copies.p50) if copies else None,
        "rounds": [
            {
                "requests": sample.load.requests,
                "seconds": sample.load.seconds,
                "rate": sample.load.rate,
                "p50": _number(sample.load.p50),
                "p99": _number(sample.load.p99),
                "errors": sample.load.errors,
                "refused": sample.load.refused,
                "cpu": sample.cpu,
            }
            for sample in each.samples
        ],
    }


def as_json(report: Report) -> dict[str, Any]:
    """Return everything, JSON-ready. Times are seconds, sizes bytes; a figure that does not exist is null."""
    return {
        "schema": 1,
        "baseline": report.subjects[0],
        "subjects": list(report.subjects),
        "references": list(report.references),
        "machine": dict(report.machine),
        "options": dict(report.options),
        "cells": [_cell_json(report, each) for each in report.cells],
        "transfers": [{"scenario": scenario} | _timings_json(each) for scenario, each in report.transfers],
        "timings": [_timings_json(each) for each in report.timings],
        "memory": [
            {"subject": each.subject, "server": each.server, "workers": list(each.workers)}
            for each in report.memory
        ],
        "attacks": [_attack_json(each) for each in report.attacks],
        "skipped": [
            {"what": each.what, "subject": each.subject, "reason": each.reason} for each in report.skipped
        ],
    }
