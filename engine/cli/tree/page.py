"""The live page of a server, as lines for a terminal of some size: text and styles, and no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from engine.cli.tree.keys import Key
from engine.cli.tree.reading import Reading
from engine.cli.tree.rows import Row, head, rows
from engine.observability.starting.drawing import columns, fitting, padded, wrapped
from engine.observability.terminals import Ability

_COLUMNS: Final[Mapping[str, int]] = {
    "REQ/S": 7,
    "QUEUE": 8,
    "MEMORY": 10,
    "RESTARTS": 8,
    "INFER": 8,
    "FAIL/S": 7,
    "WORKERS": 7,
}
"""Columns of models with their widths, the most important first: those that fit are shown."""

_STATE: Final = 12
_LEAST_NAME: Final = 16
_MOST_NAME: Final = 48
_GAP: Final = 2
_MOST_COLUMNS: Final = 140
_MARGIN: Final = 2
_SELECTED: Final = "reverse"
_PAGE: Final = 10
_NOTE_LINES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the viewer chose: the key of a row, and the keys of those that are open."""

    selected: str = ""
    opened: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What there is to draw on. `keys`: the viewer has a keyboard."""

    width: int
    height: int
    ability: Ability
    keys: bool = True


def page(
    url: str, before: Reading | None, reading: Reading | None, view: View, screen: Screen, *, lost: str = ""
) -> list[Text]:
    """Return the page's lines: no more, and none longer, than fits.

    `reading` is the last that the server told, and `before` one to reckon rates from. `lost` says why the
    server tells nothing now.
    """
    pen = _Pen(screen)
    top = [pen.line((f"tritium at {url}", "bold")), *_standing(pen, before, reading, lost)]
    if reading is None:
        return top[: screen.height]
    shown = rows(before, reading, view.opened)
    selected = view.selected if screen.keys else ""
    lines: list[Text] = []
    at = 0
    for row in shown:
        if row.key == selected:
            at = len(lines)
        lines += _lines(pen, row, selected=row.key == selected, faded=bool(lost))
    top.append(pen.heading())
    room = max(1, screen.height - len(top) - 1)
    if len(lines) <= room:
        return [*top, *lines, pen.foot()][: screen.height]
    # The selected row is in the middle, unless that would leave room at an end.
    start = max(0, min(at - room // 2, len(lines) - room))
    left = len(lines) - room - start
    return [*top, *lines[start : start + room], pen.foot(above=start, below=left)][: screen.height]


def _standing(pen: _Pen, before: Reading | None, reading: Reading | None, lost: str) -> list[Text]:
    if lost:
        return [pen.line((line, "bold red")) for line in pen.wrapped(lost)]
    if reading is None:
        return [pen.line(("asking the server", "dim"))]
    told = head(before, reading)
    between = [(", ", "")] * (len(told) - 1)
    return [pen.line(*(part for pair in zip(told, [*between, ("", "")], strict=True) for part in pair))]


def _lines(pen: _Pen, row: Row, *, selected: bool, faded: bool) -> Iterator[Text]:
    line = pen.row(row)
    if faded:
        line.stylize("dim")
    if selected:
        line = Text(line.plain, style=_SELECTED, no_wrap=True)
    yield line
    for words, style in row.notes:
        indent = _MARGIN * (row.depth + 2)
        told = pen.wrapped(words, indent)
        if len(told) > _NOTE_LINES and not row.is_open and not row.depth:
            told = [*told[: _NOTE_LINES - 1], " ".join(told[_NOTE_LINES - 1 :])]  # it is cut
        for each in told:
            yield pen.line((" " * indent, ""), (each, "dim" if faded else style))


class _Pen:
    """Makes lines that are as wide as the screen."""

    def __init__(self, screen: Screen) -> None:
        self._width = screen.width
        self._ability = screen.ability
        self._marks = screen.ability.marks
        self._keys = screen.keys
        room = min(self._width, _MOST_COLUMNS) - _MARGIN - _LEAST_NAME - _GAP - _STATE
        self._columns: dict[str, int] = {}
        for name, width in _COLUMNS.items():
            if room < width + _GAP:
                break
            room -= width + _GAP
            self._columns[name] = width
        self._name = min(_MOST_NAME, _LEAST_NAME + room) if self._columns else _LEAST_NAME

    def line(self, *parts: tuple[str, str]) -> Text:
        """Return a line of (words, style), cut where the screen ends."""
        line = Text(no_wrap=True)
        for words, style in parts:
            line.append(self._ability.shown(words), style=style)
        return self._cut(line, self._width)

    def wrapped(self, words: str, indent: int = 0) -> list[str]:
        """Return words as lines that fit behind an indent."""
        return wrapped(self._ability.shown(words), self._width - indent)

    def heading(self) -> Text:
        """Return the columns' names."""
        line = Text(" " * _MARGIN, style="dim", no_wrap=True)
        line.append(self._padded("NAME", self._name) + " " * _GAP + self._padded("STATE", _STATE))
        for name, width in self._columns.items():
            line.append(" " * _GAP + name.rjust(width))
        return self._cut(line, self._width)

    def row(self, row: Row) -> Text:
        """Return a row's own line."""
        mark = (self._marks.opened if row.is_open else self._marks.closed) if row.opens else " "
        line = Text("  " * row.depth + mark + " ", no_wrap=True)
        name = self._padded(row.name, self._name - 2 * row.depth)
        line.append(name, style="" if row.depth else "bold")
        line.append(" " * _GAP)
        line.append(self._padded(row.state, _STATE), style=row.style)
        if row.cells is None:
            line.append(" " * _GAP + self._ability.shown(row.words), style="dim")
            return self._cut(line, self._width)
        for column, width in self._columns.items():
            cell = row.cells.get(column, "")
            alarming = (column == "RESTARTS" and cell not in ("", "0")) or (
                column == "FAIL/S" and cell not in ("", "0.0")
            )
            line.append(" " * _GAP + cell.rjust(width), style="yellow" if alarming else "")
        return self._cut(line, self._width)

    def foot(self, *, above: int = 0, below: int = 0) -> Text:
        """Return the last line: what does not fit, and the keys."""
        left = [f"{above} lines above" if above else "", f"{below} lines below" if below else ""]
        words = "; ".join(each for each in left if each)
        keys = f"q quit  {self._marks.keys}  a all" if self._keys else "Ctrl-C ends this"
        return self._cut(
            Text("   ".join(each for each in (keys, words) if each), style="dim", no_wrap=True),
            self._width,
        )

    def _padded(self, words: str, width: int) -> str:
        return padded(self._ability.shown(words), width, self._marks.cut)

    def _cut(self, line: Text, width: int) -> Text:
        mark = self._marks.cut
        if columns(line.plain) <= width:
            return line
        cut = line[: len(fitting(line.plain, width, mark)) - len(mark)]
        cut.append(mark)
        cut.no_wrap = True
        return cut


# -- what keys do


def chosen(view: View, key: Key, shown: Sequence[Row]) -> View:
    """Return the view after a key."""
    keys = [row.key for row in shown]
    if not keys:
        return view
    at = keys.index(view.selected) if view.selected in keys else -1
    match key:
        case Key.UP | Key.DOWN | Key.PAGE_UP | Key.PAGE_DOWN | Key.FIRST | Key.LAST:
            return replace(view, selected=keys[_moved(key, at, len(keys))])
        case Key.ALL:
            everything = frozenset(row.key for row in shown if row.opens)
            return replace(
                view, opened=frozenset() if everything <= view.opened else view.opened | everything
            )
        case Key.OPEN | Key.CLOSE | Key.TURN if at >= 0:
            return _turned(view, key, shown, at)
        case _:
            return view


def _moved(key: Key, at: int, count: int) -> int:
    steps = {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -_PAGE, Key.PAGE_DOWN: _PAGE}
    if key is Key.FIRST or (at < 0 and key is not Key.LAST):
        return 0
    return count - 1 if key is Key.LAST else max(0, min(count - 1, at + steps[key]))


def _turned(view: View, key: Key, shown: Sequence[Row], at: int) -> View:
    row = shown[at]
    if key is Key.CLOSE and row.depth:
        above = next(each for each in reversed(shown[:at]) if not each.depth)
        return replace(view, selected=above.key, opened=view.opened - {above.key})
    if not row.opens:
        return view
    opens = key is Key.OPEN or (key is Key.TURN and not row.is_open)
    return replace(view, opened=view.opened | {row.key} if opens else view.opened - {row.key})
