"""`python -m benchmarks.llm_stream`: streams over the OpenAI API, beside their engine alone."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.llm_stream import session
from benchmarks.llm_stream.session import Failed, Found
from benchmarks.subjects import CHECKOUT, NotStarted, parse_target, prepared
from benchmarks.terminal import Terminal

_DESCRIPTION: Final = """\
Serve an engine that takes 20 ms a step, with a real tokenizer, and read streams of it over the OpenAI API.
Measured are the CPU time of the server for an event, how much later than in the engine alone the first token
comes, the 99th percentile of the times between tokens beside the engine's own, and what an open stream
weighs.
Several directories are measured in turn."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_stream", description=_DESCRIPTION)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=(
        "directories with the source, or git revisions, that have this benchmark (default: this checkout)"
    ))  # fmt: skip
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, medians reported (default: 5)")
    parser.add_argument("--no-weight", action="store_true", help="leave out what streams weigh, some 20 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round there")
    return parser


def measure(given: argparse.Namespace, terminal: Terminal, scratch: Path) -> Sequence[Found]:
    """Take all rounds. Raises NotStarted and Failed."""
    targets = [parse_target(text) for text in given.targets or [str(CHECKOUT)]]
    session.write_models(scratch)
    with ExitStack() as stack:
        sources = [stack.enter_context(prepared(target, scratch)) for target in targets]
        found = [Found(source.label) for source in sources]
        directories = [source.directory or CHECKOUT for source in sources]
        with ExitStack() as serving:
            servers = [
                serving.enter_context(session.served(each.label, directory, scratch, "paced"))
                for each, directory in zip(found, directories, strict=True)
            ]
            for server in servers:  # the first requests load what the others find
                session.load(server, "paced", session.FIRST, 0.5)
            for turn in range(given.rounds):
                for each, server in zip(found, servers, strict=True):
                    for asked, seconds in ((session.FIRST, given.seconds / 2), (session.MANY, given.seconds)):
                        terminal.step(f"round {turn + 1}, {each.label}, {asked.streams} streams")
                        each.rounds.append(session.take_round(server, asked, seconds))
        if not given.no_weight:
            for each, directory in zip(found, directories, strict=True):
                terminal.step(f"open streams, {each.label}")
                with session.served(each.label, directory, scratch, "bulk") as server:
                    each.weights.append(session.weigh(server))
    return found


def report(found: Sequence[Found]) -> None:
    """Print the medians, side by side."""
    columns = [session.medians(each) for each in found]
    print(" " * 42, *(f"{each.label[-24:]:>24}" for each in found))
    for row in zip(*columns, strict=True):
        print(f"{row[0][0]:42}", *(f"{value:24.2f}" for _, value in row))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit code."""
    given = _parser().parse_args(argv)
    try:
        with Terminal() as terminal, tempfile.TemporaryDirectory(prefix="tritium-benchmarks-") as directory:
            found = measure(given, terminal, Path(directory))
    except (NotStarted, Failed, ValueError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    report(found)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(each) for each in found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
