"""`tritium audit`: what a server's audit log says, and whether it is whole. The reading is `engine.audit`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from engine.audit.reading import Census, read, with_older
from engine.audit.records import OUTCOMES, Entry
from engine.audit.selecting import Chain, Told, Wanted, told
from engine.cli.periods import add_period, period
from engine.observability.reading.reading import STDIN, LogUnreadable, open_log
from engine.observability.reading.selecting import NoTime
from engine.observability.text import aligned
from engine.settings.forms import size_text

_DESCRIPTION: Final = """\
Show what an audit log says: who changed what is served, from where, and with which outcome; who
was denied what; which keys and rules changed. FILE is what `tritium serve --audit-log=FILE` wrote.
The older files beside it (FILE.1, FILE.2.gz, ...) are read before it; `-` is standard input.

A change has two records: one before it is carried out, and one with its outcome. They are one line
here. Its outcome is `asked` where the log has no second record: the change is under way, or the
server ended meanwhile. Lines that are no records are passed over, and counted.
"""

_EPILOG: Final = """\
outcomes: asked, done, failed (the server tried), abandoned (the client left before the outcome),
denied. Repeated denials are one record with their count.

--verify follows the digest that each record has of the line before it. A line that was changed,
taken out or put in shows, through all files. What was cut off at the end does not: keep the number
and the digest that it prints, elsewhere. Who may write the file can make a new chain; a copy of the
lines on another machine is what tells then.

exit status: 0, or 1 where the log can't be read, has damaged lines, or --verify finds a break; 2
for a command line that makes no sense.

examples:
  tritium audit audit.jsonl
  tritium audit audit.jsonl --since 1d --action 'model_*' --identity ci
                                     what ci did with models since yesterday
  tritium audit audit.jsonl --outcome denied --since 1h
                                     who is turned away, why, and how often
  tritium audit audit.jsonl --model 'resnet*' --json | jq .facts.files
                                     sizes and digests of the files that came with its loads
  tritium audit audit.jsonl --verify
"""

_HEADINGS: Final = ("time", "identity", "from", "via", "action", "model", "outcome", "about")
_SHOWN_BREAKS: Final = 20
_LONGEST_CELL: Final = 160


def audit(argv: Sequence[str]) -> int:
    """Read audit logs and show what was asked for; return the process's exit status."""
    options = audit_parser().parse_args(argv)
    census = Census()
    files = [each for path in options.files for each in ([STDIN] if path == STDIN else with_older(path))]
    try:
        found = read(files, census, open_log)
        if options.verify:
            whole = _verified(found)
        else:
            _show(options, (entry for entry, _ in found))
            whole = True
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or files[0]} can't be read: {error.strerror or error}\n")
        return 1
    except (LogUnreadable, NoTime) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0 if _told_damage(census) and whole else 1


def audit_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium audit",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="an audit log, or - for standard input")
    wanted = parser.add_argument_group(
        "which actions", "all that are given must fit; of one that is given more than once, any"
    )
    for flag, metavar, explanation in (
        ("--identity", "NAME", "of this identity, such as ci or model:pipeline; * and ? are wildcards"),
        ("--action", "NAME", "such as model_load, model_unload, traffic, files_reloaded, key_new; of denials"
         " also actions of rules, such as inference"),
        ("--model", "NAME", "about this model; * and ? are wildcards"),
        ("--address", "ADDRESS", "from this address; * and ? are wildcards"),
    ):  # fmt: skip
        wanted.add_argument(flag, action="append", default=[], metavar=metavar, help=explanation)
    wanted.add_argument(
        "--outcome", action="append", default=[], choices=OUTCOMES, help="with this outcome; see below"
    )
    add_period(wanted)
    form = parser.add_argument_group("form")
    form.add_argument("--json", action="store_true", help="the records as they were written, one a line")
    form.add_argument(
        "--verify", action="store_true", help="show no records: say whether each follows the one before it"
    )
    return parser


def _wanted(options: argparse.Namespace) -> Wanted:
    """Raises NoTime."""
    since, until = period(options)
    return Wanted(
        identities=options.identity,
        actions=options.action,
        outcomes=options.outcome,
        models=options.model,
        addresses=options.address,
        since=since,
        until=until,
    )


def _show(options: argparse.Namespace, entries: Iterator[Entry]) -> None:
    found = filter(_wanted(options).wants, told(entries))
    if options.json:
        for each in found:
            sys.stdout.write("".join(f"{entry.line.decode('ascii', 'replace')}\n" for entry in each.entries))
        return
    rows = [_HEADINGS, *map(_row, found)]
    sys.stdout.write(aligned(rows) if len(rows) > 1 else "no records fit\n")


def _row(it: Told) -> Sequence[str]:
    record, end = it.first.record, it.end
    facts = {**record.facts, **end.facts}
    return (
        f"{datetime.fromtimestamp(record.time, UTC):%Y-%m-%d %H:%M:%S}",
        record.identity or "-",
        record.address or "-",
        record.via or "-",
        record.action,
        record.model or "-",
        it.outcome,
        _cell(", ".join(filter(None, (end.reason, *(f"{name}: {_shown(facts[name])}" for name in facts))))),
    )


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(map(_shown, value))
    if isinstance(value, dict):
        return " ".join(f"{name} ({_size(each)})" for name, each in value.items())
    return str(value)


def _size(value: object) -> str:
    size = value.get("bytes") if isinstance(value, dict) else None
    return json.dumps(value) if size is None else size_text(size)


def _cell(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 3]}..."


def _verified(found: Iterator[tuple[Entry, str]]) -> bool:
    """Say whether the chain is whole."""
    chain = Chain()
    for entry, place in found:
        chain.add(entry, place)
    for each in chain.breaks[:_SHOWN_BREAKS]:
        sys.stdout.write(f"broken: {each}\n")
    if len(chain.breaks) > _SHOWN_BREAKS:
        sys.stdout.write(f"and {len(chain.breaks) - _SHOWN_BREAKS} more\n")
    if not chain.records:
        sys.stdout.write("no records\n")
        return True
    verdict = f"broken in {len(chain.breaks)} places" if chain.breaks else "whole"
    sys.stdout.write(
        f"{chain.records} records, {chain.first} to {chain.number}: {verdict}\nlast digest: {chain.digest}\n"
    )
    return not chain.breaks


def _told_damage(census: Census) -> bool:
    """Say which lines are no records; return whether there are none."""
    for path, lines in sorted(census.damaged.items()):
        where = ", ".join(map(str, lines[:10])) + (", ..." if len(lines) > 10 else "")
        noun = "line is no record" if len(lines) == 1 else "lines are no records"
        sys.stderr.write(f"{path}: {len(lines)} {noun} (number {where})\n")
    if census.damaged and not census.records:
        sys.stderr.write("error: there is no record of an audit log in it (`tritium logs` reads logs)\n")
    return not census.damaged
