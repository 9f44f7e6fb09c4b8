"""`tritium events`: what happens in a running server, as it happens.

The server answers `GET /v2/tritium/events` with server-sent events. Each has an id, by which this command
comes back after a loss and misses nothing that the server still keeps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from actors.values.events import LEVELS
from engine.cli.client import Client, ServerRefused, ServerUnavailable, add_server_options, client_for
from engine.cli.logs_text import LineWriter
from engine.observability.reading.formats import Line, parse
from engine.observability.reading.selecting import NoTime, moment

_PATH: Final = "/v2/tritium/events"
_SILENCE: Final = 45.0
"""Seconds without a sign of life after which a connection counts as lost: three of the server's signs."""

_AGAIN: Final = 1.0
"""Seconds between attempts to come back."""

_BUSY: Final = 503


def events(argv: Sequence[str]) -> int:
    """Show events; return the process's exit status."""
    options = events_parser().parse_args(argv)
    try:
        since = -math.inf if options.since is None else moment(options.since, now=_now())
        following = Following(client_for(options, os.environ), _query(options), live=options.follow)
        _show(options, following.records(), since)
    except (ServerUnavailable, NoTime) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def events_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium events",
        description="""\
Show what happened in a running server: decisions of supervisors, deaths of
workers, loads and their failures, rollbacks, quarantines. Without --follow, show
what the server still keeps, and end. The log has the same, and each request
besides: `tritium logs` reads it.""",
        epilog="""\
examples:
  tritium events --level warning --since 1h
                                     what went wrong in the last hour
  tritium events --follow --model resnet
                                     what happens to a model, from now on
  tritium events --follow --event 'child_*' --event restarts_exhausted
                                     what supervisors decide
  tritium events --follow --json --after 3f2a9c1d-41
                                     everything behind an event, for a program: each
                                     line has the id to come back with

After a loss of the connection --follow comes back by itself, with the id of the
last event. Where the server has dropped events meanwhile, or was started anew,
the event events_missed says so.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_server_options(parser)
    wanted = parser.add_argument_group(
        "which events", "all that are given must fit; of one that is given more than once, any"
    )
    for flag, explanation in (
        ("--model", "about this model; * and ? are wildcards"),
        ("--event", "with this name, such as worker_exited or 'worker_*'"),
    ):
        wanted.add_argument(flag, action="append", default=[], metavar="NAME", help=explanation)
    wanted.add_argument("--level", choices=LEVELS, default="", help="at least as severe")
    begin = wanted.add_mutually_exclusive_group()
    begin.add_argument(
        "--since",
        metavar="TIME",
        help="not before TIME: 2026-11-21T01:57:53Z, 01:57 (UTC, today) or 5m (ago)",
    )
    begin.add_argument("--after", metavar="ID", help="behind the event with this id; 0: all that are kept")
    form = parser.add_argument_group("form")
    form.add_argument("--follow", action="store_true", help="go on with what happens, until interrupted")
    form.add_argument("--json", action="store_true", help="one JSON object a line, each with its id")
    return parser


def _query(options: argparse.Namespace) -> Sequence[tuple[str, str]]:
    """Return the fields that say which events are wanted, and from where on."""
    fields = [("model", each) for each in options.model] + [("event", each) for each in options.event]
    if options.level:
        fields.append(("level", options.level))
    if options.after is not None:
        fields.append(("after", options.after))
    elif options.since is not None or not options.follow:
        fields.append(("after", "0"))
    if not options.follow:
        fields.append(("follow", "false"))
    return fields


@dataclass(frozen=True, slots=True)
class Record:
    """One event as it came: its id, empty for what the server says of the stream itself, and its JSON."""

    id: str
    text: str


@dataclass(slots=True)
class _Block:
    """The lines of one server-sent event, up to now."""

    data: list[str] = field(default_factory=list)
    id: str = ""


class Following:
    """The stream of a server, over as many connections as it takes. `pause` waits between two of them."""

    def __init__(
        self,
        client: Client,
        query: Sequence[tuple[str, str]],
        *,
        live: bool,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._path = f"{_PATH}?{urlencode(query)}" if query else _PATH
        self._live = live
        self._pause = pause
        self._last = ""
        self._lost = False

    def records(self) -> Iterator[Record]:
        """Yield events; unless `live`, until there are no more. Raises ServerUnavailable.

        Once the server has answered, `live` tries again for ever, unless the server says that there is no
        use in it.
        """
        while True:
            try:
                yield from self._connection()
                reason = "the server ended the stream"
            except ServerRefused as error:
                if not (self._last and self._live and error.status == _BUSY):
                    raise
                reason = str(error)
            except ServerUnavailable as error:
                if not (self._last and self._live):
                    raise
                reason = str(error)
            if not self._live:
                return
            if not self._lost:
                self._lost = True
                sys.stderr.write(f"{reason}; coming back after event {self._last}\n")
            sys.stdout.flush()
            self._pause(_AGAIN)

    def _connection(self) -> Iterator[Record]:
        headers = {"Accept": "text/event-stream"}
        if self._last:
            headers["Last-Event-ID"] = self._last
        block = _Block()
        lines = self._client.lines(
            self._path, api="statistics", wanted="events", headers=headers, within=_SILENCE
        )
        for line in lines:
            if line:
                _take(block, line.decode("utf-8", "replace"))
                continue
            self._lost = False
            self._last = block.id or self._last
            if block.data:
                yield Record(block.id, "\n".join(block.data))
            block = _Block()


def _take(block: _Block, line: str) -> None:
    """Take one line of an event. Fields that mean nothing here are passed over, as the standard says."""
    name, _, value = line.partition(":")
    value = value.removeprefix(" ")
    if name == "data":
        block.data.append(value)
    elif name == "id":
        block.id = value


def _show(options: argparse.Namespace, records: Iterator[Record], since: float) -> None:
    writer = LineWriter()
    for record in records:
        line = _line(record)
        if line is None or line.time < since:
            continue
        if options.json:
            said = {"id": record.id, **line.as_dict()} if record.id else line.as_dict()
            sys.stdout.write(json.dumps(said) + "\n")
        else:
            writer.write(line)
        if options.follow:
            sys.stdout.flush()


def _line(record: Record) -> Line | None:
    """Return an event as a line of the log. What has no time is said of the stream, and now."""
    line = parse(record.text)
    if line is not None or record.id:
        return line
    try:
        said = json.loads(record.text)
        level, event = said.pop("level"), said.pop("event")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Line(time=_now(), level=str(level), event=str(event), keys=said)


def _now() -> float:
    return datetime.now(UTC).timestamp()
