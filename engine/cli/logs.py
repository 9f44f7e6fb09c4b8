"""`tritium logs`: what the JSON lines of a server's log say, live or from archives.

The reading is `engine.observability.reading`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from actors.values.events import LEVELS
from engine.cli.logs_text import (
    LineWriter,
    Page,
    rates_page,
    slowest_page,
    summary_page,
    timeline_page,
    trace_page,
    write_pages,
)
from engine.cli.periods import add_period, period
from engine.observability.reading.counting import rates, summary
from engine.observability.reading.following import PAUSE, follow
from engine.observability.reading.formats import Line
from engine.observability.reading.reading import STDIN, Census, LogUnreadable, is_archive, read
from engine.observability.reading.requests import slowest
from engine.observability.reading.selecting import NoTime, Selection, span
from engine.observability.reading.timeline import timeline
from engine.observability.reading.tracing import trace
from engine.settings.re2 import compiled


def logs(argv: Sequence[str]) -> int:
    """Read logs and show what was asked for; return the process's exit status."""
    parser = logs_parser()
    options = parser.parse_args(argv)
    census = Census()
    try:
        lines = _lines(parser, options, census, _selection(options))
        if _reports(options):
            _report(options, lines)
        else:
            _show(options, lines)
    except (LogUnreadable, NoTime) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return _told(census)


# -- flags


def logs_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium logs",
        description="""\
Show what a server's log says. FILE is what `tritium serve` wrote, in any
--log-format (json tells most): its --log-file, or its stdout; several files
are merged by time. Archives (.gz, .bz2, .xz; .zst with Python 3.14) are read as they are,
`-` is standard input. What is no line of the log is passed over and counted.

Requests are in the log where the server has --log-requests=true; each stage of
them has a line of its own with --log-verbose=1 besides.""",
        epilog="""\
examples:
  tritium logs server.log --level warning --since 10m
                                     what went wrong in the last ten minutes
  tritium logs stdout.log stderr.log --follow --model resnet
                                     what happens to a model, as it happens
  tritium logs server.log --trace r7
                                     one request through every stage
  tritium logs server.log --timeline --instance models/resnet/1/instances/0
                                     its lives: starts, deaths, reasons, outages
  tritium logs server.log.2.gz server.log.1 server.log --rates --interval 1m
                                     requests and errors, minute by minute
  tritium logs server.log --slowest --top 5 --model 'res*'
                                     and where their time went
  tritium logs server.log --summary --json | jq .deaths
  journalctl -u tritium -o cat | tritium logs - --grep 'out of memory|oom'
""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a log, an archive, or - for standard input")
    _add_filters(parser)
    _add_reports(parser)
    form = parser.add_argument_group("form")
    form.add_argument(
        "--follow",
        action="store_true",
        help="show lines as they are written, through rotation; from now on, or from --since",
    )
    form.add_argument(
        "--json", action="store_true", help="lines as they were written; of a report, one JSON document"
    )
    return parser


def _add_filters(parser: argparse.ArgumentParser) -> None:
    wanted = parser.add_argument_group(
        "which lines", "all that are given must fit; of one that is given more than once, any"
    )
    for flags, metavar, explanation in (
        (("--model",), "NAME", "about this model; * and ? are wildcards"),
        (("--instance", "--actor"), "NAME", "about this instance, such as resnet_0, or part of the tree"),
        (("--event",), "NAME", "with this name, such as worker_exited or 'worker_*'"),
    ):
        wanted.add_argument(*flags, action="append", default=[], metavar=metavar, help=explanation)
    wanted.add_argument("--level", choices=LEVELS, default="", help="at least as severe")
    add_period(wanted)
    wanted.add_argument(
        "--request", metavar="ID", default="", help="that name this request; #12 is the server's own number"
    )
    wanted.add_argument(
        "--grep", metavar="REGEX", type=_pattern, help="whose text, as event key=value ..., has a match"
    )


def _add_reports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a report instead of lines")
    reports = group.add_mutually_exclusive_group()
    reports.add_argument(
        "--trace", metavar="ID", help="one request through every stage, and what was done for it"
    )
    reports.add_argument(
        "--timeline",
        action="store_true",
        help="starts, exits, reasons and restarts of instances and models, and how long each was away",
    )
    reports.add_argument("--rates", action="store_true", help="requests and errors by model and interval")
    reports.add_argument(
        "--slowest", action="store_true", help="the slowest requests, and where their time went"
    )
    reports.add_argument("--summary", action="store_true", help="the whole log on one page")
    group.add_argument("--interval", metavar="TIME", type=_interval, help="of --rates: 10s, 1m, 1h [10s]")
    group.add_argument("--top", metavar="N", type=_positive, help="of --slowest: how many [10]")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return compiled(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _interval(text: str) -> float:
    try:
        seconds = span(text)
    except NoTime as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds <= 0:
        raise argparse.ArgumentTypeError("an interval is longer than 0 s")
    return seconds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def _selection(options: argparse.Namespace) -> Selection:
    """Raises NoTime."""
    since, until = period(options)
    return Selection(
        models=options.model,
        instances=options.instance,
        events=options.event,
        level=options.level,
        since=since,
        until=until,
        request=options.request,
        grep=options.grep,
    )


def _reports(options: argparse.Namespace) -> bool:
    return options.trace is not None or any(
        getattr(options, name) for name in ("timeline", "rates", "slowest", "summary")
    )


# -- lines


def _lines(
    parser: argparse.ArgumentParser, options: argparse.Namespace, census: Census, selection: Selection
) -> Iterator[Line]:
    """Return the lines that are wanted. Ends the process if the flags don't go together."""
    if options.interval is not None and not options.rates:
        parser.error("--interval belongs to --rates")
    if options.top is not None and not options.slowest:
        parser.error("--top belongs to --slowest")
    if options.files.count(STDIN) > 1:
        parser.error("standard input can be read once: give - once")
    if not options.follow:
        return filter(selection.wants, read(options.files, census=census))
    if _reports(options):
        parser.error("--follow shows lines; a report needs a log that ends here: leave --follow out")
    fixed = [each for each in options.files if each == STDIN or is_archive(each)]
    if fixed:
        parser.error(
            f"--follow takes files that grow, and '{fixed[0]}' is none (a pipe is followed without it)"
        )
    lines = follow(options.files, census=census, from_end=options.since is None, pause=_pause)
    return filter(selection.wants, lines)


def _pause() -> bool:
    sys.stdout.flush()
    time.sleep(PAUSE)
    return True


def _show(options: argparse.Namespace, lines: Iterator[Line]) -> None:
    if options.json:
        for line in lines:
            sys.stdout.write(json.dumps(line.as_dict()) + "\n")
        return
    writer = LineWriter()
    for line in lines:
        writer.write(line)


def _told(census: Census) -> int:
    """Say what could not be read; return the exit status."""
    for path in census.truncated:
        sys.stderr.write(f"{path} is cut off: what is missing could not be read\n")
    if census.broken:
        where = ", ".join(f"{count} in {path}" for path, count in sorted(census.broken.items()))
        sys.stderr.write(f"skipped lines that are not log records: {where}\n")
    if census.broken and not census.lines:
        sys.stderr.write(
            "error: there is no line of a server's log in it; --log-format=json is the form that tells most\n"
        )
        return 1
    return 0


# -- reports


def _report(options: argparse.Namespace, lines: Iterator[Line]) -> None:
    document, pages = _made(options, lines)
    if options.json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        write_pages(pages)


def _made(options: argparse.Namespace, lines: Iterator[Line]) -> tuple[Any, Sequence[Page]]:
    """Return a report as JSON values, and as pages."""
    if options.trace is not None:
        traced = trace(lines, options.trace)
        return traced.as_dict(), trace_page(traced)
    if options.timeline:
        lives = timeline(lines)
        return lives.as_dict(), timeline_page(lives)
    if options.rates:
        intervals = rates(lines, options.interval or 10.0)
        return [each.as_dict() for each in intervals], rates_page(intervals)
    if options.slowest:
        found = slowest(lines, options.top or 10)
        return [each.as_dict() for each in found], slowest_page(found)
    whole = summary(lines)
    return whole.as_dict(), summary_page(whole)
