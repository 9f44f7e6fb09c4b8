"""The board as SVG: each panel with the series that its queries gave, where Grafana would put it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.pictures import ink
from tests.house.board.panels import Panel

WIDTH: Final = 1340
_MARGIN: Final = 10
_COLUMN: Final = (WIDTH - 2 * _MARGIN) / 24
_UNIT: Final = 30  # height of one unit of the grid
_GAP: Final = 8
_LEFT, _TOP, _BOTTOM = 52, 30, 44  # of a plot, in its panel
_MOST_NAMED: Final = 6
_COLOURS: Final = (*ink.LANES, ink.RED, ink.GREY)
_LINES: Final = 5
_STEPS: Final = (1, 2, 2.5, 5, 10)
_ROW: Final = "row"
_BINARY: Final = frozenset({"bytes", "Bps"})

_KIB: Final = 1024

Point = tuple[float, float]
"""Seconds since the beginning, and a value."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel."""

    name: str
    points: Sequence[Point]


def drawn(panels: Sequence[Panel], lines: Mapping[str, Sequence[Line]], seconds: float, caption: str) -> str:
    """Return the board as SVG. `lines` are by the panels' titles. Rows without any are named below it."""
    rows = list(_rows(panels))
    shown = [row for row in rows if any(lines.get(panel.title) for panel in row[1:])]
    left_out = [row[0].title for row in rows if row not in shown]
    parts: list[str] = []
    top = 46.0
    for heading, *members in shown:
        parts.append(_heading(heading.title, top))
        above = min(panel.y for panel in members)
        top += 26
        for panel in members:
            x, y = _MARGIN + panel.x * _COLUMN, top + (panel.y - above) * _UNIT
            size = panel.width * _COLUMN - _GAP, panel.height * _UNIT - _GAP
            parts.append(_panel(panel, lines.get(panel.title, ()), (x, y), size, seconds))
        top += (max(panel.y + panel.height for panel in members) - above) * _UNIT + 6
    said = caption + (f" Without data in this run: {', '.join(left_out)}." if left_out else "")
    parts.append(ink.text(_MARGIN, top + 12, said, size=11, fill=ink.GREY))
    head = ink.head(WIDTH, round(top + 26), "The board of a server under load", "python -m tests.house.board")
    title = ink.text(_MARGIN, 26, "Tritium", size=18, bold=True)
    return f"{head}{title}{''.join(parts)}</svg>\n"


def _rows(panels: Sequence[Panel]) -> Iterator[list[Panel]]:
    """Yield each heading with the panels below it."""
    row: list[Panel] = []
    for panel in panels:
        if panel.kind == _ROW and row:
            yield row
            row = []
        row.append(panel)
    yield row


def _heading(title: str, top: float) -> str:
    return ink.text(_MARGIN, top + 14, title, size=13, bold=True, fill=ink.INK)


def _panel(panel: Panel, lines: Sequence[Line], at: Point, size: tuple[float, float], seconds: float) -> str:
    x, y = at
    width, height = size
    frame = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"'
        f' fill="{ink.PAPER}" stroke="{ink.EDGE}"/>\n'
    )
    title = ink.text(x + 10, y + 18, panel.title, size=12)
    if not lines:
        empty = ink.text(
            x + width / 2, y + height / 2 + 8, "no data", size=12, fill=ink.GREY, anchor="middle"
        )
        return frame + title + empty
    if panel.kind == "stat":
        return frame + title + _stat(panel, lines[0], at, size)
    return frame + title + _plot(panel, lines, at, size, seconds)


def _stat(panel: Panel, line: Line, at: Point, size: tuple[float, float]) -> str:
    x, y = at
    width, height = size
    value = spelt(line.points[-1][1], panel.unit)
    return ink.text(x + width / 2, y + height / 2 + 22, value, size=26, fill=_COLOURS[0], anchor="middle")


def _plot(panel: Panel, lines: Sequence[Line], at: Point, size: tuple[float, float], seconds: float) -> str:
    (x, y), (width, height) = at, size
    left, top, right, bottom = x + _LEFT, y + _TOP, x + width - 10, y + height - _BOTTOM
    layers = _stacked(lines) if panel.stacked else [(line, None) for line in lines]
    most = max((value for line, _ in layers for _, value in line.points), default=0.0)
    top_value = nice(most, binary=panel.unit in _BINARY)

    def place(point: Point) -> str:
        when, value = point
        across = left + (right - left) * min(1.0, when / seconds)
        return f"{across:.1f},{bottom - (bottom - top) * min(value, top_value) / top_value:.1f}"

    parts = []
    for step in range(_LINES + 1):
        level = bottom - (bottom - top) * step / _LINES
        parts.append(f'<path d="M{left:.1f} {level:.1f} H{right:.1f}" stroke="{ink.GRID}" fill="none"/>\n')
        label = spelt(top_value * step / _LINES, panel.unit)
        parts.append(ink.text(left - 6, level + 4, label, size=10, fill=ink.GREY, anchor="end"))
    for share in (0.0, 0.5, 1.0):
        across = left + (right - left) * share
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        said = f"{seconds * share:.0f} s"
        parts.append(ink.text(across, bottom + 13, said, size=10, fill=ink.GREY, anchor=anchor))
    for index, (line, below) in enumerate(layers):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(map(place, line.points))
        if below is not None:
            area = " ".join([path, *map(place, reversed(below))])
            parts.append(f'<polygon points="{area}" fill="{colour}" fill-opacity="0.3"/>\n')
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>\n')
    return "".join(parts) + _legend(lines, x + 10, bottom + 30, width - 20)


def _stacked(lines: Sequence[Line]) -> list[tuple[Line, Sequence[Point] | None]]:
    """Return lines on top of each other, each with the upper edge of what is below it."""
    sums: dict[float, float] = {}
    layers: list[tuple[Line, Sequence[Point] | None]] = []
    for line in lines:
        below = [(when, sums.get(when, 0.0)) for when, _ in line.points]
        for when, value in line.points:
            sums[when] = sums.get(when, 0.0) + value
        layers.append((Line(line.name, [(when, sums[when]) for when, _ in line.points]), below))
    return layers


def _legend(lines: Sequence[Line], x: float, y: float, width: float) -> str:
    parts, at = [], x
    for index, line in enumerate(lines):
        more = len(lines) - index
        name = line.name or "value"
        wide = 24 + 6.3 * len(name)
        if (index >= _MOST_NAMED or at + wide > x + width - 60) and more > 1:
            parts.append(ink.text(at, y, f"and {more} more", size=10, fill=ink.GREY))
            break
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<rect x="{at:.1f}" y="{y - 8:.1f}" width="10" height="8" fill="{colour}"/>\n')
        parts.append(ink.text(at + 14, y, name, size=10, fill=ink.INK))
        at += wide
    return "".join(parts)


def nice(most: float, *, binary: bool = False) -> float:
    """Return the top of an axis: a round number, not below `most`; of KiB and their like if `binary`."""
    if most <= 0 or not math.isfinite(most):
        return 1.0
    if binary and most >= _KIB:
        unit = _KIB ** math.floor(math.log(most, _KIB))
        return nice(most / unit) * unit
    magnitude = 10.0 ** math.floor(math.log10(most))
    return next(step * magnitude for step in _STEPS if step * magnitude >= most * (1 - 1e-9))


def spelt(value: float, unit: str) -> str:
    """Return a value as Grafana shows it in this unit, in few characters."""
    if not math.isfinite(value):
        return "–"
    match unit:
        case "s":
            return _scaled(value, ((1, " s"), (1e-3, " ms"), (1e-6, " µs")))
        case "bytes" | "Bps":
            per = "/s" if unit == "Bps" else ""
            names = ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B"))
            return _scaled(value, names) + per
        case "percentunit":
            return f"{value * 100:.3g} %"
        case "reqps":
            return f"{value:.3g}/s"
        case "watt":
            return f"{value:.3g} W"
        case _:
            return _scaled(value, ((1e6, " M"), (1e3, " k"), (1, ""))) if value >= 1 else f"{value:.2g}"


def _scaled(value: float, names: Sequence[tuple[float, str]]) -> str:
    if value == 0:
        return "0"
    size, name = next(((size, name) for size, name in names if abs(value) >= size), names[-1])
    return f"{value / size:.3g}{name}"
