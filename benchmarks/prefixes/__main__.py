"""`python -m benchmarks.prefixes`: what is saved of prompts where they go to the engine that knows them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from benchmarks.prefixes.chats import Failed, Load, Told, converse
from benchmarks.prefixes.serving import AT_RANDOM
from benchmarks.subjects import CHECKOUT, NotStarted, Subject, running, wait_ready
from benchmarks.terminal import Terminal
from chaos.subject.ports import free_ports
from examples.llm.tiny_model import make

_DESCRIPTION: Final = """\
Serve a tiny model with transformers in two instances, each with a cache of its own, and have conversations
over the OpenAI API. Measured are the tokens of prompts that engines had in their caches: with the server's
own choice of engines, with a name for each session as well, and where an engine is chosen at random."""

_MODEL: Final = "chat"
_WAYS: Final = {"random": (True, False), "chosen": (False, False), "chosen, with sessions": (False, True)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefixes", description=_DESCRIPTION)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="the tiny model, if it was made before")
    parser.add_argument("--engines", type=int, default=2, help="instances (default: 2)")
    parser.add_argument("--blocks", type=int, default=300, help="of 32 tokens, of each cache (default: 300)")
    parser.add_argument("--sessions", type=int, default=24, help="conversations (default: 24)")
    parser.add_argument("--turns", type=int, default=6, help="turns of each (default: 6)")
    parser.add_argument("--clients", type=int, default=4, help="turns at a time (default: 4)")
    parser.add_argument("--seed", type=int, default=1, help="of texts, orders and choices (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    return parser


def _write_repository(scratch: Path, weights: Path, engines: int, blocks: int) -> None:
    folder = scratch / "models" / _MODEL / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(
        'backend: "transformers"\n'
        f"instance_group [{{ kind: KIND_CPU count: {engines} }}]\n"
        'parameters { key: "tritium.threads" value { string_value: "1" } }\n'
    )
    (folder / "model.json").write_text(
        json.dumps({"model": str(weights), "num_blocks": blocks, "block_size": 32})
    )


@contextmanager
def _served(scratch: Path, weights: Path, seed: int | None) -> Iterator[int]:
    """Serve the model; yields the port of the OpenAI API. With a `seed`, engines are chosen at random."""
    http, openai = free_ports(2)
    command = [sys.executable, "-m", "benchmarks.prefixes.serving"]
    if seed is not None:
        command = [_ENV, f"{AT_RANDOM}={seed}", *command]
    command += [f"--model-repository={scratch / 'models'}", "--http-address=127.0.0.1"]
    command += [f"--http-port={http}", f"--openai-port={openai}", "--allow-grpc=false"]
    command += ["--allow-metrics=false", f"--backend-config=transformers,folders={weights}"]
    log = scratch / "server.log"
    with running(command, cwd=CHECKOUT, log=log) as child:
        wait_ready(Subject(label="server", host="127.0.0.1", port=http, pid=child.pid), child, log)
        yield openai


_ENV: Final = "/usr/bin/env"


def _report(found: dict[str, Told]) -> None:
    least = found["random"].cached or 1
    print(f"{'engine':24}{'prompts':>12}{'cached':>12}{'computed':>12}{'saved / random':>18}")
    for label, told in found.items():
        print(
            f"{label:24}{told.prompt:12}{told.cached:12}{told.prompt - told.cached:12}"
            f"{told.cached / least:18.2f}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit code."""
    given = _parser().parse_args(argv)
    load = Load(sessions=given.sessions, turns=given.turns, clients=given.clients, seed=given.seed)
    found: dict[str, Told] = {}
    try:
        with Terminal() as terminal, tempfile.TemporaryDirectory(prefix="tritium-benchmarks-") as directory:
            scratch = Path(directory)
            weights = given.model
            if weights is None:
                terminal.step("making the model")
                weights = scratch / "weights"
                make(weights)
            _write_repository(scratch, weights.resolve(), given.engines, given.blocks)
            for label, (at_random, header) in _WAYS.items():
                terminal.step(label)
                with _served(scratch, weights.resolve(), given.seed if at_random else None) as port:
                    found[label] = converse(port, _MODEL, replace(load, header=header))
    except (NotStarted, Failed, OSError, ValueError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    _report(found)
    if given.json is not None:
        given.json.write_text(json.dumps({label: asdict(told) for label, told in found.items()}) + os.linesep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
