"""Runs the load clients for gRPC, h2load and the harness's own, as child processes.

It reads what they print.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from benchmarks import clients, parsers
from benchmarks.clients import ClientFailed
from benchmarks.grpc.judge import Address
from benchmarks.grpc.payloads import PREFIX_SIZE, framed, packed
from benchmarks.grpc.scenarios import Shape, Way
from benchmarks.parsers import UnreadableOutput
from benchmarks.results import Load

_GRACE: Final = 30.0
_ROOT: Final = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a client sends, where to, and how much of it at a time.

    `messages` are protobuf messages: what each of the calls under way sends, over and over, or one list for
    all of them.
    """

    address: Address
    path: str
    way: Way
    shape: Shape
    messages: Sequence[Sequence[bytes]]
    answer_size: int  # of an answer's message
    metadata: Sequence[tuple[str, str]] = ()  # of each call; h2load's only


class GrpcClient(Protocol):
    """Something that loads a gRPC server for a while."""

    def __call__(self, task: Task, seconds: float) -> Load:
        """Do it. Raises ClientFailed or UnreadableOutput."""


def _answered(load: Load, task: Task) -> Load:
    if not load.requests:
        raise ClientFailed(f"no answer from {task.address}{task.path} in {load.seconds:.1f} s")
    return load


def incomplete(output: str, answer_size: int) -> int:
    """Return how many answers lack their message, by the bytes that h2load counted.

    h2load looks at no status of gRPC. A call that fails has status 200 as well, and no message. Calls under
    way at the end may hide a few.
    """
    done = re.search(r"^requests: .*?(\d+) done,", output, re.MULTILINE)
    data = re.search(r"\((\d+)\) data$", output, re.MULTILINE)
    if done is None or data is None:
        raise UnreadableOutput(f"h2load printed no traffic:\n{output.strip()[-500:]}")
    return max(0, int(done[1]) - int(data[1]) // (PREFIX_SIZE + answer_size))


def h2load(task: Task, seconds: float) -> Load:
    """Load a server from one thread with h2load, which can do `Way.UNARY` only."""
    with tempfile.TemporaryDirectory(prefix="tritium-h2load-") as directory:
        body, log = Path(directory, "body"), Path(directory, "log")
        body.write_bytes(framed(task.messages[0][0]))
        command = ["h2load", "-t1", f"-c{task.shape.connections}", f"-m{task.shape.streams}"]
        command += [f"-D{round(seconds * 1000)}ms", f"--log-file={log}", "-d", str(body)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        command += [argument for name, value in task.metadata for argument in ("-H", f"{name}: {value}")]
        output = clients.finish(
            clients.start([*command, f"http://{task.address}{task.path}"]), "h2load", seconds + _GRACE
        )
        load = _answered(parsers.h2load(output, log.read_text()), task)
    return replace(load, refused=load.refused + incomplete(output, task.answer_size))


def own_output(text: str, answer_size: int) -> Load:
    """Read what `benchmarks.grpc.load` prints.

    An answer without its whole message is refused, whatever its status.
    """
    try:
        found = json.loads(text)
        lacking = found["answered"] - found["answer_bytes"] // (PREFIX_SIZE + answer_size)
        return Load(
            requests=found["requests"],
            seconds=found["seconds"],
            rate=found["requests"] / found["seconds"],
            p50=math.nan if found["p50"] is None else found["p50"],
            p99=math.nan if found["p99"] is None else found["p99"],
            errors=found["unanswered"],
            refused=max(found["refused"], lacking),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableOutput(f"the own client printed no result: {error!r}:\n{text[-500:]}") from error


def own(task: Task, seconds: float) -> Load:
    """Load a server from one thread with `benchmarks.grpc.load`."""
    with tempfile.NamedTemporaryFile(prefix="tritium-messages-") as file:
        file.write(packed(task.messages))
        file.flush()
        command = [sys.executable, "-m", "benchmarks.grpc.load", f"--host={task.address.host}"]
        command += [f"--port={task.address.port}", f"--path={task.path}", f"--way={task.way.value}"]
        command += [f"--connections={task.shape.connections}", f"--streams={task.shape.streams}"]
        command += [f"--seconds={seconds}", f"--messages={file.name}"]
        child = clients.start(command, cwd=_ROOT)
        output = clients.finish(child, "the own client", seconds + _GRACE)
        return _answered(own_output(output, task.answer_size), task)


GRPC_CLIENTS: Final[Mapping[str, GrpcClient]] = {"h2load": h2load, "own": own}


def for_way(way: Way, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the clients that load a row: the wanted ones if h2load can do the row, else the own one."""
    return wanted if way is Way.UNARY else ("own",)


def preferred() -> str:
    """Return the client to use if none was asked for: h2load if it is installed."""
    return "own" if clients.missing("h2load") else "h2load"
