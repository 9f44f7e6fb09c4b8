"""The harness's own load client for gRPC: what h2load can't do, from one thread, in a process of its own.

h2load sends the same headers again and again, never sends more than one message a stream, and looks at the
status of HTTP only. This client varies headers, sends streams, and looks at the status of every answer. It
prints one line of JSON:

    python -m benchmarks.grpc.load --port 8001 --way stream --connections 4 --streams 8 --seconds 3 \\
        --messages FILE --path /inference.GRPCInferenceService/ModelStreamInfer
"""

from __future__ import annotations

import argparse
import gc
import json
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.grpc import blocks
from benchmarks.grpc.payloads import framed, unpacked
from benchmarks.grpc.scenarios import Way
from benchmarks.grpc.wire import Connection, ScriptConnection, StreamConnection, Surprise, UnaryConnection
from benchmarks.results import percentile

_RECEIVE: Final = 1 << 20
_AT_ONCE: Final = 512  # buffers of one system call, half of what Linux takes
_PATIENCE: Final = 5.0  # for the answers to what is under way when the time is up


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to do.

    `messages` are protobuf messages: one list of them, or one for each of the calls under way.
    """

    host: str
    port: int
    path: str
    way: Way
    connections: int
    streams: int
    seconds: float
    messages: Sequence[Sequence[bytes]]


@dataclass(slots=True)
class Outcome:
    """The outcome of a load. Answers that came after the time was up are judged, and not counted."""

    requests: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    answered: int = 0  # with those that came too late to count
    unanswered: int = 0
    answer_bytes: int = 0

    def as_json(self) -> dict[str, object]:
        """Return what `benchmarks.grpc.clients` reads."""
        ordered = sorted(self.latencies)
        return {
            "requests": self.requests,
            "seconds": self.seconds,
            "p50": percentile(ordered, 50) if ordered else None,
            "p99": percentile(ordered, 99) if ordered else None,
            "answered": self.answered,
            "unanswered": self.unanswered,
            "refused": sum(self.failures.values()),
            "why": self.failures.most_common(1)[0][0] if self.failures else "",
            "answer_bytes": self.answer_bytes,
        }


class _Link:
    """A connection and its socket."""

    def __init__(self, job: Job, headers: blocks.Headers, number: int) -> None:
        self.socket = socket.create_connection((job.host, job.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.wire = _wire(job, blocks.of(job.way, headers), number)

    def write(self) -> bool:
        """Write what the kernel takes; return whether anything is left."""
        output = self.wire.output
        if len(output) > 1 and sum(map(len, output)) < _RECEIVE:
            output[:] = [b"".join(output)]
        while output:
            try:
                sent = self.socket.sendmsg(output[:_AT_ONCE])
            except BlockingIOError:
                return True
            whole = 0
            while whole < len(output) and sent >= len(output[whole]):
                sent -= len(output[whole])
                whole += 1
            del output[:whole]
            if sent:
                output[0] = memoryview(output[0])[sent:]
        return False


def _wire(job: Job, headers: Iterator[bytes], number: int) -> Connection:
    """Return the wire of a job's connection `number`, counted from 0."""
    if job.way is Way.SCRIPT:
        first = number * job.streams
        scripts = job.messages[first : first + job.streams]
        return ScriptConnection(headers, [[framed(message) for message in script] for script in scripts])
    kind = StreamConnection if job.way is Way.STREAM else UnaryConnection
    return kind(headers, framed(job.messages[0][0]), job.streams)


class Load:
    """Drives all connections from one selector."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._selector = selectors.DefaultSelector()
        headers = blocks.request_headers(f"{job.host}:{job.port}", job.path)
        self._links = [_Link(job, headers, number) for number in range(job.connections)]
        self._blocked: set[_Link] = set()
        for link in self._links:
            self._selector.register(link.socket, selectors.EVENT_READ, link)

    def run(self) -> Outcome:
        """Load the server for the job's time. Raises Surprise, and OSError if a connection breaks."""
        clock = time.perf_counter
        began = clock()
        until = began + self._job.seconds
        for link in self._links:
            link.wire.fill(clock())
            self._write(link)
        while (now := clock()) < until:
            self._turn(until - now, refill=True)
        outcome = Outcome(seconds=now - began)
        for link in self._links:
            outcome.requests += len(link.wire.latencies)
            outcome.latencies += link.wire.latencies
        self._drain(clock() + _PATIENCE)
        for link in self._links:
            outcome.failures += link.wire.failures
            outcome.answered += len(link.wire.latencies)
            outcome.unanswered += link.wire.outstanding
            outcome.answer_bytes += link.wire.answer_bytes
            link.socket.close()
        return outcome

    def _turn(self, timeout: float, *, refill: bool) -> None:
        clock = time.perf_counter
        for key, mask in self._selector.select(timeout):
            link: _Link = key.data
            if mask & selectors.EVENT_READ:
                data = link.socket.recv(_RECEIVE)
                if not data:
                    raise Surprise("the server closed the connection")
                now = clock()
                link.wire.receive(data, now)
                if refill:
                    link.wire.fill(now)
            if link.wire.output:
                self._write(link)

    def _write(self, link: _Link) -> None:
        """Write, and watch for room exactly while something is left to write."""
        left = link.write()
        if left != (link in self._blocked):
            self._blocked ^= {link}
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0)
            self._selector.modify(link.socket, events, link)

    def _drain(self, until: float) -> None:
        for link in self._links:
            link.wire.end()
            self._write(link)
        while not all(link.wire.finished for link in self._links):
            if (now := time.perf_counter()) >= until:
                return
            self._turn(until - now, refill=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, load, print.

    Returns 1 if that failed, with the reason on standard error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc.load", description="Load a gRPC server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True, help="/package.Service/Method")
    parser.add_argument("--way", type=Way, choices=list(Way), default=Way.UNARY)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument(
        "--streams", type=int, default=1, help="calls, or requests of a stream, on each connection"
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--messages",
        type=Path,
        required=True,
        help="file with messages, see `benchmarks.grpc.payloads.packed`",
    )
    given = vars(parser.parse_args(argv))
    messages = unpacked(given.pop("messages").read_bytes())
    gc.disable()
    try:
        outcome = Load(Job(messages=messages, **given)).run()
    except (Surprise, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(outcome.as_json(), allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
