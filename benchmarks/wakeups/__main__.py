"""`python -m benchmarks.wakeups`: what one call at a time takes of a server, and when it takes it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.awake import kept_awake
from benchmarks.payloads import WrongAnswer
from benchmarks.report import markdown_tables
from benchmarks.subjects import CHECKOUT, Checkout, NotStarted, parse_target, prepared
from benchmarks.terminal import show
from benchmarks.wakeups.session import measure, tables

_DESCRIPTION: Final = """\
Call the ONNX add/sub model once at a time, over gRPC and HTTP, and count what one call takes: CPU time of the
server and its worker, how often each slept and was displaced, turns of the server's loop and steps of its
tasks, system calls (where strace is installed), and the time line of a call."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wakeups", description=_DESCRIPTION)
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="git revisions, or directories with the source, measured in turn (default: this checkout)",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round (default: 1)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, medians reported (default: 3)")
    parser.add_argument("--awake", action="store_true", help="keep a core awake meanwhile")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit code."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        targets = [parse_target(text) for text in given.targets] or [Checkout("tritium", CHECKOUT)]
    except ValueError as error:
        parser.error(str(error))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tritium-wakeups-")))
        try:
            sources = [stack.enter_context(prepared(target, scratch)) for target in targets]
            if given.awake:
                print(f"kept awake: {stack.enter_context(kept_awake())}")
            found = measure(sources, seconds=given.seconds, rounds=given.rounds, scratch=scratch)
        except (NotStarted, WrongAnswer, OSError, ValueError) as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 2
    if given.markdown:
        print(markdown_tables(tables(found)))
    else:
        show(tables(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
