"""`python -m benchmarks`: reads the command line, starts what is to be measured, and reports."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from benchmarks import clients, report, repository
from benchmarks.grpc.clients import preferred
from benchmarks.grpc.scenarios import GRPC_SCENARIOS
from benchmarks.grpc.subjects import REFERENCES, USUAL
from benchmarks.results import Report
from benchmarks.runner import Plan
from benchmarks.scenarios import OPERATIONS, SCENARIOS
from benchmarks.session import Order, Session
from benchmarks.subjects import (
    CHECKOUT,
    Checkout,
    NotStarted,
    Target,
    parse_target,
)
from benchmarks.terminal import Terminal, show

_DESCRIPTION: Final = """\
Measure the server of this checkout: throughput and latency under load, start-up, idle memory, and recovery from a
killed worker. Everything is started on 127.0.0.1, on free ports, and ended again; nothing else needs to be running.
Each figure over HTTP comes with that of a bare responder (trio and httptools, no work) measured in the same minute, each
over gRPC with those of grpclib's and grpcio's servers doing the same sums, so that machines can be compared."""

_EPILOG: Final = """\
examples:
  python -m benchmarks                                    everything, some eight minutes
  python -m benchmarks --quick --only onnx-binary         one scenario, a second a cell
  python -m benchmarks --only grpc-unary grpc-stream      two scenarios over gRPC, beside the references
  python -m benchmarks --only hostile --hostile gRPC      hostile inputs over gRPC, some 7 s each
  python -m benchmarks --compare HEAD~1 .                 a commit and the working tree, in turn, three rounds
  python -m benchmarks --compare http://127.0.0.1:8000 .  a running server and the working tree
  python -m benchmarks --write-repository /tmp/models     the models, to serve them with something else
  python -m benchmarks --json out.json --markdown docs/benchmarks/figures.md

docs/benchmarks/method.md says what each row means. Ends with 1 if a request failed or something could not be measured, what
needs a GPU on a machine without one excepted."""


_NAMES: Final = [*(each.name for each in (*SCENARIOS, *GRPC_SCENARIOS)), *OPERATIONS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, checked."""

    order: Order
    json: Path | None
    markdown: str | None  # "-": standard output


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise ValueError
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_positive.__name__, _natural.__name__ = "number of seconds", "positive number"  # what argparse calls them


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--only", nargs="+", choices=_NAMES, metavar="NAME", help=f"some of: {', '.join(_NAMES)}"
    )
    what.add_argument("--compare", nargs="+", metavar="TARGET", help=(
        "measure these side by side, in turn, ratios to the first: a git revision, a directory with the source, or the "
        "http://host:port (?grpc=port) of a running server that serves the models of --write-repository"
    ))  # fmt: skip
    what.add_argument(
        "--client",
        choices=["wrk", "h2load", "both"],
        default="wrk",
        help="load client over HTTP (default: wrk)",
    )
    what.add_argument("--grpc-client", choices=["h2load", "own", "both"], help=(
        "load client for unary calls (default: h2load where it is installed); metadata and streams take the own one"
    ))  # fmt: skip
    what.add_argument("--grpc-references", nargs="*", choices=list(REFERENCES), default=USUAL, metavar="NAME", help=(
        f"what is measured beside the server over gRPC, none or some of: {', '.join(REFERENCES)} "
        f"(default: {', '.join(USUAL)})"
    ))  # fmt: skip
    what.add_argument("--list", action="store_true", help="list what can be measured, and end")
    what.add_argument("--write-repository", type=Path, metavar="DIR", help="write the models there, and end")
    how = parser.add_argument_group("how long")
    how.add_argument("--quick", action="store_true", help="1 s a cell, few repetitions: a look, not a figure")
    how.add_argument("--seconds", type=_positive, help="length of a round of a cell (default: 3, quick: 1)")
    how.add_argument(
        "--rounds", type=_natural, help="rounds a cell, medians reported (default: 1, comparing: 3)"
    )
    how.add_argument("--kills", type=_natural, help="how often a worker is killed (default: 20, quick: 5)")
    how.add_argument(
        "--hostile", default="", metavar="TEXT", help="only hostile inputs whose name holds this"
    )
    how.add_argument(
        "--awake",
        action="store_true",
        help="keep a core awake: for one call at a time (docs/benchmarks/core.md)",
    )
    out = parser.add_argument_group("where to")
    out.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    out.add_argument("--markdown", nargs="?", const="-", metavar="FILE", help=(
        "write the tables as Markdown: between the markers of FILE if it has them, else as its content; without FILE "
        "to standard output in place of the tables"
    ))  # fmt: skip
    return parser


def options(argv: Sequence[str] | None = None) -> Options:
    """Read the command line. Ends the process with a message if it asks for something that does not exist."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.list:
        _list()
        parser.exit()
    if given.write_repository is not None:
        _write_repository(parser, given.write_repository)
        parser.exit()
    targets: list[Target] = [Checkout("tritium", CHECKOUT)]
    if given.compare:
        try:
            targets = [parse_target(text) for text in given.compare]
        except ValueError as error:
            parser.error(str(error))
        if len({target.label for target in targets}) != len(targets) or len(targets) < 2:
            parser.error("--compare takes two or more different targets")
    chosen = given.only or [name for name in _NAMES if name != "hostile"]
    scenarios = [each for each in SCENARIOS if each.name in chosen]
    grpc_scenarios = [each for each in GRPC_SCENARIOS if each.name in chosen]
    wanted = ("wrk", "h2load") if given.client == "both" else (given.client,)
    over_grpc = ("h2load", "own") if given.grpc_client == "both" else (given.grpc_client or preferred(),)
    needed = {*(wanted if scenarios else ()), *(over_grpc if grpc_scenarios else ())} - {"own"}
    for reason in filter(None, map(clients.missing, sorted(needed))):
        parser.error(reason)
    order = Order(
        plan=Plan(
            scenarios=scenarios,
            clients=wanted,
            grpc_scenarios=grpc_scenarios,
            grpc_clients=over_grpc,
            grpc_references=tuple(dict.fromkeys(given.grpc_references)),
            seconds=given.seconds or (1.0 if given.quick else 3.0),
            rounds=given.rounds or (3 if given.compare else 1),
        ),
        operations=frozenset(OPERATIONS.keys() & chosen),
        targets=targets,
        comparing=bool(given.compare),
        kills=given.kills or (5 if given.quick else 20),
        hostile=given.hostile,
        awake=given.awake,
    )
    return Options(order=order, json=given.json, markdown=given.markdown)


def _list() -> None:
    for scenario in SCENARIOS:
        print(f"{scenario.name:24} {scenario.title}, at {', '.join(map(str, scenario.concurrencies))}")
    for each in GRPC_SCENARIOS:
        print(f"{each.name:24} gRPC: {each.title}, at {', '.join(map(str, each.shapes))}")
    for name, title in OPERATIONS.items():
        print(f"{name:24} {title}")


def _write_repository(parser: argparse.ArgumentParser, directory: Path) -> None:
    try:
        left_out = repository.write_all(directory)
    except FileExistsError as error:
        parser.error(f"--write-repository: {error.filename} is there already")
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}", file=sys.stderr)
    print(f"wrote {', '.join(sorted(path.name for path in directory.iterdir()))} to {directory}")


def _write(found: Report, asked: Options) -> None:
    if asked.json is not None:
        asked.json.write_text(json.dumps(report.as_json(found), indent=2, allow_nan=False) + "\n")
    match asked.markdown:
        case None:
            show(report.tables(found))
        case "-":
            print(report.markdown(found), end="")
        case name:
            show(report.tables(found))
            path = Path(name)
            document = path.read_text() if path.exists() else ""
            section = report.markdown(found)
            path.write_text(report.fill(document, section) if report.BEGIN in document else section)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that children are stopped as after an interrupt."""

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        del frame
        sys.exit(128 + signum)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return the exit code."""
    asked = options(argv)
    try:
        with _ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="tritium-benchmarks-") as scratch:
            with Terminal() as terminal:
                found = Session(asked.order, terminal, Path(scratch)).run()
    except NotStarted as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    _write(found, asked)
    return 1 if found.failures or any(not each.expected for each in found.skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
