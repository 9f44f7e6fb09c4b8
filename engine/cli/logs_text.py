"""What `tritium logs` shows: lines, and reports as pages of aligned columns; with colours on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.observability.reading.counting import Interval, Summary
from engine.observability.reading.formats import Line, stamp
from engine.observability.reading.requests import Ended
from engine.observability.reading.timeline import Timeline
from engine.observability.reading.tracing import Trace
from engine.observability.text import aligned, duration, printable

LEVEL_STYLES: Final = {
    "debug": "dim",
    "info": "",
    "warning": "yellow",
    "error": "red",
    "critical": "bold red",
}

_CALLSITE: Final = frozenset({"filename", "lineno"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A heading and rows of cells, the first of which are the columns' names.

    `styles` are of the rows after it, for rich. Without rows there is `otherwise`, in words.
    """

    title: str
    rows: Sequence[Sequence[str]] = ()
    styles: Sequence[str] = ()
    otherwise: str = ""


def write_pages(pages: Sequence[Page]) -> None:
    """Write pages to standard output."""
    if sys.stdout.isatty():
        _draw(pages)
    else:
        sys.stdout.write("\n".join(_plain(page) for page in pages))


def _plain(page: Page) -> str:
    body = aligned(page.rows) if len(page.rows) > 1 else f"{page.otherwise}\n" if page.otherwise else ""
    return f"{printable(page.title)}\n{body}" if page.title else body


def _draw(pages: Sequence[Page]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for page in pages:
        if page.title:
            console.print(Text(printable(page.title), style="bold"))
        if len(page.rows) > 1:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
            for name in page.rows[0]:
                table.add_column(name, overflow="fold")
            styles = page.styles or [""] * len(page.rows)
            for row, style in zip(page.rows[1:], styles, strict=False):
                table.add_row(*(Text(printable(cell)) for cell in row), style=style)
            console.print(table)
        elif page.otherwise:
            console.print(Text(page.otherwise, style="dim"))
        console.print()


class LineWriter:
    """Writes one line after the other."""

    def __init__(self) -> None:
        self._console: Any = None
        if sys.stdout.isatty():
            from rich.console import Console

            self._console = Console(highlight=False)

    def write(self, line: Line) -> None:
        """Write `line` as text: time, level, event, keys. A traceback follows on lines of its own."""
        head = f"{stamp(line.time)}  {line.level:<8}{line.event:<20}"
        said = keys_text(line.keys)
        below = "".join(f"    {printable(row)}\n" for row in _traceback(line))
        if self._console is None:
            sys.stdout.write(f"{printable(head)}  {said}".rstrip() + f"\n{below}")
            return
        from rich.text import Text

        style = LEVEL_STYLES.get(line.level, "")
        text = Text.assemble((printable(head), style or "bold"), "  ", said)
        self._console.print(text, soft_wrap=True)
        if below:
            self._console.print(Text(below.rstrip("\n"), style="dim"), soft_wrap=True)


def keys_text(keys: Mapping[str, Any]) -> str:
    """Return keys as `name=value` words, without the source location; values with blanks are quoted."""
    left_out = _CALLSITE | {"exception"}
    return " ".join(f"{printable(str(name))}={_value(keys[name])}" for name in keys if name not in left_out)


def _value(value: object) -> str:
    if not isinstance(value, str):
        return printable(json.dumps(value, ensure_ascii=False))
    quoted = not value or any(character in value for character in ' "=\n')
    return printable(json.dumps(value, ensure_ascii=False) if quoted else value)


def _traceback(line: Line) -> Sequence[str]:
    exception = line.keys.get("exception")
    return exception.splitlines() if isinstance(exception, str) else ()


# -- reports


def trace_page(traced: Trace) -> Sequence[Page]:
    """Return the stages of a request, and where its time went."""
    if not traced.stages:
        found = (
            "no line names it. Does the server log requests (--log-requests=true), and is this the request's id"
            " or the server's number for it (#12)?"
        )
        return [Page(title=f"request {traced.request}", otherwise=found)]
    first = traced.stages[0].time
    rows = [("", "at", "stage", "where", "detail")]
    for stage in traced.stages:
        mark = "~" if stage.figured else ""
        rows.append((mark, f"{(stage.time - first) * 1e3:+.1f} ms", stage.what, stage.where, stage.detail))
    title = f"request {traced.request}, from {stamp(first)}"
    pages = [Page(title=title, rows=rows)]
    if any(stage.figured for stage in traced.stages):
        note = "~ has no line: it follows from the times in the last one. With --log-verbose=1 the server logs each stage."
        pages.append(Page(title="", otherwise=note))
    if traced.ends:
        pages.append(_spent_page("where its time went, in ms", traced.ends))
    return pages


def timeline_page(lives: Timeline) -> Sequence[Page]:
    """Return what happened, and the outages."""
    rows = [("time", "level", "event", "whose", "detail")]
    styles = []
    for line in lives.events:
        whose = str(line.keys.get("actor") or line.keys.get("model") or "")
        detail = {
            name: value for name, value in line.keys.items() if name not in ("actor", "model", "instance")
        }
        rows.append((stamp(line.time), line.level, line.event, whose, keys_text(detail)))
        styles.append(LEVEL_STYLES.get(line.level, ""))
    return [
        Page(title="timeline", rows=rows, styles=styles, otherwise="nothing came or went"),
        _outages_page(lives.outages),
    ]


def _outages_page(outages: Sequence[Any]) -> Page:
    rows = [("began", "away for", "who", "pid", "deaths", "reason", "detail")]
    for each in outages:
        away = "still away" if each.seconds is None else _seconds(each.seconds)
        pid = str(each.pid or "")
        rows.append((stamp(each.began), away, each.who, pid, str(each.deaths), each.reason, each.detail))
    return Page(title="outages", rows=rows, otherwise="none")


def rates_page(intervals: Sequence[Interval]) -> Sequence[Page]:
    """Return requests and errors by interval and model."""
    rows = [("from", "model", "requests", "per s", "errors", "cancelled", "p50 ms", "p99 ms", "which errors")]
    styles = []
    for each in intervals:
        tally = each.tally
        rows.append(
            (
                stamp(each.begin)[:19] + "Z",
                each.model,
                str(tally.requests),
                f"{tally.requests / each.seconds:.1f}",
                str(tally.errors.total()),
                str(tally.cancelled),
                f"{tally.quantile(0.5) * 1e3:.1f}",
                f"{tally.quantile(0.99) * 1e3:.1f}",
                _errors(tally.errors),
            )
        )
        styles.append("red" if tally.errors else "")
    length = f" by {intervals[0].seconds:g} s" if intervals else ""
    return [Page(title=f"requests{length}", rows=rows, styles=styles, otherwise=_NO_REQUESTS)]


def slowest_page(found: Sequence[Ended]) -> Sequence[Page]:
    """Return the slowest requests, and where their time went."""
    return [_spent_page("slowest requests, times in ms", found)]


def _spent_page(title: str, found: Sequence[Ended]) -> Page:
    rows: list[Sequence[str]] = [_SPENT_COLUMNS]
    for each in found:
        spent = each.spent
        times = (each.total, spent.queue, spent.earlier, spent.compute_input, spent.compute_infer)
        batch = f"{each.batch} ({each.batch_requests})" if each.batch else ""
        rows.append(
            (
                stamp(each.line.time),
                each.name,
                each.model,
                each.outcome,
                *(f"{seconds * 1e3:.1f}" for seconds in (*times, spent.compute_output, spent.rest)),
                each.instance,
                str(each.pid or ""),
                batch,
                str(each.attempts or ""),
                each.relation and f"{each.relation} of #{each.line.keys.get('parent')}",
            )
        )
    return Page(title=title, rows=rows, otherwise=_NO_REQUESTS)


def summary_page(whole: Summary) -> Sequence[Page]:
    """Return a log on one page."""
    if not whole.lines:
        return [Page(title="summary", otherwise="not a line")]
    title = (
        f"{whole.lines} lines over {duration(whole.ended - whole.began)}, from {stamp(whole.began)}"
        f" to {stamp(whole.ended)}"
    )
    levels = ", ".join(f"{count} {level}" for level, count in whole.levels.items())
    models: list[Sequence[str]] = [
        ("model", "requests", "completed", "errors", "cancelled", "retried", "p50 ms", "p99 ms", "max ms")
    ]
    for name, tally in whole.models.items():
        counts = (tally.requests, tally.completed, tally.errors.total(), tally.cancelled, tally.retried)
        quantiles = (f"{tally.quantile(q) * 1e3:.1f}" for q in (0.5, 0.99, 1.0))
        models.append((name, *map(str, counts), *quantiles))
    events = [("event", "lines"), *((name, str(count)) for name, count in whole.events.items())]
    deaths = [("model", "died of", "times")]
    deaths += [(model, reason, str(count)) for (model, reason), count in whole.deaths.items()]
    return [
        Page(title=title, otherwise=levels),
        Page(title="requests", rows=models, otherwise=_NO_REQUESTS),
        Page(title="deaths of workers", rows=deaths, otherwise="none"),
        _outages_page(whole.outages),
        Page(title="events", rows=events),
    ]


_SPENT_COLUMNS: Final = (
    *(
        "ended",
        "request",
        "model",
        "outcome",
        "total",
        "queue",
        "earlier",
        "input",
        "infer",
        "output",
        "rest",
    ),
    *("instance", "pid", "batch", "attempts", "of"),
)
_NO_REQUESTS: Final = "none; the server logs requests with --log-requests=true"


def _errors(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in errors.items())


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else duration(seconds)
