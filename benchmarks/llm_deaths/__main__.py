"""`python -m benchmarks.llm_deaths`: streams of `openai` clients, and engines that are killed under them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Final

import trio

from benchmarks.llm_deaths import picture, session
from benchmarks.llm_deaths.findings import Found, Kill, Right, Stream, goals, table
from benchmarks.llm_deaths.session import Load
from benchmarks.llm_deaths.subject import ENGINES, Served
from benchmarks.terminal import Terminal
from chaos.subject.server import ServerFailed

_DESCRIPTION: Final = """\
Serve a language model to clients of the `openai` package, kill an engine every few seconds, and compare each
text with the one that comes without a kill. Measured are how long engines take to start, how long streams
take to their first event, and how long each stream pauses at a death.

The fake engine says a text that its prompt chooses, a token a step. Real engines serve the model of
`python examples/llm/tiny_model.py FOLDER`, in float32 and by greedy choice. Their texts have to be equal up
to the first token whose logarithmic probability is less than 0.01 over that of the next best."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.llm_deaths",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=ENGINES, default="fake", help="what computes (default: fake)")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="of transformers and vllm: the tiny model"
    )
    parser.add_argument("--environment", type=Path, metavar="FOLDER", help="of vllm: where it is installed")
    parser.add_argument("--instances", type=int, default=1, help="engines, killed by turns (default: 1)")
    parser.add_argument("--streams", type=int, default=16, help="clients that stream (default: 16)")
    parser.add_argument("--whole", type=int, default=0, help="clients that do not (default: 0)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds from kill to kill (default: 5)")
    parser.add_argument("--signal", default="KILL", help="KILL, SEGV, TERM, … (default: KILL)")
    parser.add_argument(
        "--pace", type=float, default=0.02, help="seconds of a step of the fake engine (0.02)"
    )
    parser.add_argument("--tokens", type=int, default=250, help="of an answer of the fake engine (250)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all that was seen there, as JSON")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the streams at the first kill, as SVG"
    )
    parser.add_argument("--of", type=Path, metavar="FILE", help="read a record in place of a run")
    return parser


def _checked(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[Served, Load]:
    if given.engine != "fake" and (given.model is None or not given.model.is_dir()):
        parser.error(f"--engine {given.engine} needs --model: python examples/llm/tiny_model.py FOLDER")
    if given.engine == "vllm" and given.environment is None:
        parser.error("--engine vllm needs --environment, a folder in which vLLM is installed")
    try:
        number = Signals[f"SIG{given.signal.upper().removeprefix('SIG')}"]
    except KeyError:
        parser.error(f"--signal {given.signal}: there is no such signal")
    served = Served(
        engine=given.engine,
        instances=given.instances,
        pace=given.pace,
        tokens=given.tokens,
        folder=given.model and given.model.absolute(),
        environment=given.environment and given.environment.absolute(),
    )
    load = Load(
        streams=given.streams, whole=given.whole, seconds=given.seconds, every=given.every, signal=number
    )
    return served, load


def _run(served: Served, load: Load) -> Found:
    """Do a run. Raises ServerFailed, session.Ended and OSError."""
    failures: list[Exception] = []
    found: list[Found] = []
    with Terminal() as terminal, tempfile.TemporaryDirectory(prefix="tritium-benchmarks-") as scratch:
        try:
            found.append(trio.run(partial(session.run, served, load, Path(scratch), terminal.result)))
        except* (ServerFailed, session.Ended, OSError) as group:
            failures += group.exceptions
    if failures:
        raise failures[0]
    return found[0]


def _written(found: Found) -> str:
    return json.dumps(
        {
            "streams": [asdict(each) for each in found.streams],
            "kills": [asdict(each) for each in found.kills],
            "rights": {number: asdict(right) for number, right in found.rights.items()},
        },
        ensure_ascii=False,
    )


def _read(text: str) -> Found:
    told = json.loads(text)
    return Found(
        [Stream(**{**each, "texts": [(at, text) for at, text in each["texts"]]}) for each in told["streams"]],
        [Kill(**each) for each in told["kills"]],
        {int(number): Right(**right) for number, right in told["rights"].items()},
    )


def report(found: Found, seconds: float) -> bool:
    """Print what was found; return whether no text was wrong and no stream ended but by the rule."""
    for label, text in table(found, seconds):
        print(f"{label:42} {text}")
    for label, pause, allowed in goals(found):
        print(f"{f'pause p50 where {label}':42} {pause:.3f} s, of at most {allowed:.3f} s")
    for stream in found.wrong[:3]:
        right = found.rights[stream.prompt]
        print(f"wrong, of prompt {stream.prompt}: {stream.tokens} tokens for {right.tokens}, {stream.text!r}")
    return not found.wrong and not found.beyond_the_rule


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit status: 1 if a stream was not as it must be."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        found = _read(given.of.read_text()) if given.of is not None else _run(*_checked(parser, given))
    except (ServerFailed, session.Ended, OSError, ValueError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    if given.record is not None:
        given.record.write_text(_written(found))
    if given.picture is not None:
        given.picture.write_text(picture.drawn(found))
    return 0 if report(found, given.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
