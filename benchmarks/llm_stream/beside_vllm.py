"""vLLM's own server, and ours with vLLM as its engine, under the same load.

    python -m benchmarks.llm_stream.beside_vllm ENVIRONMENT MODEL

Both serve the same model folder from the same environment, with the same arguments of the engine, in
alternating rounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.llm_stream import session
from benchmarks.llm_stream.session import Failed, Load, Served
from benchmarks.llm_stream.timing import Timing
from benchmarks.subjects import CHECKOUT, NotStarted, Subject, running, wait_ready
from chaos.subject.ports import free_ports
from engine.cli.llm.folder import write_repository

MODEL: Final = "tiny"
LOADS: Final = (Load(1, 100), Load(8, 100), Load(32, 100))
ARGUMENTS: Final[Mapping[str, object]] = {"enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 64}
_VARIABLES: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # both engines compute on one thread, and leave a core to all else
}
_ONE_THREAD: Final = """parameters { key: "tritium.threads" value { string_value: "1" } }
"""
_PATIENCE: Final = 180.0
_REST: Final = 0.5  # seconds


@contextmanager
def vllm_alone(environment: Path, folder: Path, scratch: Path) -> Iterator[Served]:
    """Run vLLM's server. Raises NotStarted."""
    [port] = free_ports(1)
    command = [str(environment / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    command += [f"--model={folder}", f"--served-model-name={MODEL}", "--host=127.0.0.1", f"--port={port}"]
    command += ["--enforce-eager", "--max-model-len=1024", "--max-num-seqs=64"]
    log = scratch / "vllm.log"
    with running(command, cwd=scratch, log=log, grace=10.0) as child:
        subject = Subject(label="vLLM", host="127.0.0.1", port=port, pid=child.pid)
        until = time.monotonic() + _PATIENCE
        while not _answers(subject):
            if child.poll() is not None or time.monotonic() > until:
                raise NotStarted(f"vLLM's server has not come up:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield Served(subject, port)


def _answers(subject: Subject) -> bool:
    try:
        return subject.get("/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def ours(environment: Path, folder: Path, scratch: Path) -> Iterator[Served]:
    """Run the server of this checkout with the same engine. Raises NotStarted."""
    directory = write_repository(
        folder, scratch / "models", name=MODEL, backend="vllm", environment=str(environment)
    )
    with (directory / "config.pbtxt").open("a") as config:
        config.write(_ONE_THREAD)
    (directory / "1" / "model.json").write_text(json.dumps({"model": str(folder), **ARGUMENTS}))
    http_port, openai = free_ports(2)
    command = [sys.executable, "-m", "engine", "serve", f"--model-repository={scratch / 'models'}"]
    command += ["--http-address=127.0.0.1", f"--http-port={http_port}", f"--openai-port={openai}"]
    command += ["--allow-grpc=false", "--allow-metrics=false"]
    log = scratch / "tritium.log"
    with running(command, cwd=CHECKOUT, log=log) as child:
        subject = Subject(label="Tritium", host="127.0.0.1", port=http_port, pid=child.pid)
        wait_ready(subject, child, log)
        yield Served(subject, openai)


def measure(given: argparse.Namespace, scratch: Path) -> Mapping[Load, Sequence[tuple[Timing, Timing]]]:
    """Take all rounds: for each load, vLLM's timings and ours. Raises NotStarted and Failed."""
    os.environ.update(_VARIABLES)
    taken: dict[Load, list[tuple[Timing, Timing]]] = {each: [] for each in LOADS}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(start(given.environment, given.model, scratch))
            for start in (vllm_alone, ours)
        ]
        for server in servers:
            session.load(server, MODEL, LOADS[-1], 1.0)
        for turn in range(given.rounds):
            for asked in LOADS:
                pair = [_loaded(server, asked, given.seconds) for server in servers[:: -1 if turn % 2 else 1]]
                theirs, own = pair[:: -1 if turn % 2 else 1]
                taken[asked].append((theirs, own))
    return taken


def _loaded(server: Served, asked: Load, seconds: float) -> Timing:
    """Take one timing, once the streams that the last client has left are over in whichever server."""
    time.sleep(_REST)
    return session.load(server, MODEL, asked, seconds)


def report(taken: Mapping[Load, Sequence[tuple[Timing, Timing]]]) -> None:
    """Print the medians, and those of the ratios of neighbouring rounds."""
    print(
        f"{'streams':>7} {'tokens/s':>18} {'ratio':>6} {'first token, ms':>18} {'ratio':>6} {'more, ms':>8}"
    )
    for asked, pairs in taken.items():
        rates = [median(each.rate for each in side) for side in zip(*pairs, strict=True)]
        firsts = [median(each.first_p50 for each in side) * 1e3 for side in zip(*pairs, strict=True)]
        rate = median(own.rate / theirs.rate for theirs, own in pairs)
        first = median(own.first_p50 / theirs.first_p50 for theirs, own in pairs)
        more = median(own.first_p50 - theirs.first_p50 for theirs, own in pairs) * 1e3
        print(
            f"{asked.streams:7} {rates[0]:8,.0f}, {rates[1]:8,.0f} {rate:6.2f}"
            f" {firsts[0]:8.1f}, {firsts[1]:8.1f} {first:6.2f} {more:8.1f}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_stream.beside_vllm")
    parser.add_argument("environment", type=Path, help="a directory with an environment that has vLLM")
    parser.add_argument("model", type=Path, help="a folder with a model that both serve")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, medians reported (default: 5)")
    given = parser.parse_args(argv)
    given.environment, given.model = given.environment.absolute(), given.model.absolute()
    try:
        with tempfile.TemporaryDirectory(prefix="tritium-benchmarks-") as directory:
            report(measure(given, Path(directory)))
    except (NotStarted, Failed) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
