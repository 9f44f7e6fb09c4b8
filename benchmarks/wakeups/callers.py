"""Clients that make one call at a time, over HTTP and over gRPC, and note when each began and ended."""

from __future__ import annotations

import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from benchmarks.grpc import blocks
from benchmarks.grpc import payloads as grpc_payloads
from benchmarks.grpc.judge import method
from benchmarks.grpc.scenarios import Asked, Way
from benchmarks.grpc.wire import UnaryConnection
from benchmarks.payloads import WrongAnswer, build
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.subjects import Subject, infer_path
from benchmarks.wakeups.timeline import Call

SCENARIO: Final[Scenario] = next(each for each in SCENARIOS if each.name == "onnx-binary")
_RECEIVE: Final = 1 << 18
_HEAD_END: Final = b"\r\n\r\n"


class Caller(ABC):
    """One connection. Its clock is `time.perf_counter_ns`, which is CLOCK_MONOTONIC."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=30.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @abstractmethod
    def call(self) -> Call:
        """Make one call. Raises WrongAnswer."""

    def calls(self, seconds: float) -> list[Call]:
        """Make one call after the other for so long."""
        until = time.perf_counter() + seconds
        made = []
        while time.perf_counter() < until:
            made.append(self.call())
        return made

    def _more(self) -> bytes:
        data = self._socket.recv(_RECEIVE)
        if not data:
            raise WrongAnswer("the server closed the connection")
        return data


class HttpCaller(Caller):
    """Asks over HTTP/1.1. All answers must have the length of the first, which is read to its end."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        request, _ = build(SCENARIO)
        head = [f"POST {infer_path(SCENARIO.model)} HTTP/1.1", f"Host: {host}:{port}"]
        head += [f"{name}: {value}" for name, value in request.headers.items()]
        head += [f"Content-Length: {len(request.body)}", "", ""]
        self._request = "\r\n".join(head).encode() + request.body

    def call(self) -> Call:
        """See `Caller`."""
        sent = time.perf_counter_ns()
        self._socket.sendall(self._request)
        answer = self._more()
        while (length := whole_length(answer)) is None or len(answer) < length:
            answer += self._more()
        received = time.perf_counter_ns()
        if not answer.startswith(b"HTTP/1.1 200 ") or len(answer) != length:
            raise WrongAnswer(f"{SCENARIO.model}: {answer[:300]!r}")
        return Call(sent, received)


def whole_length(answer: bytes) -> int | None:
    """Return how long an answer over HTTP is with its head; None where the head is not all here."""
    end = answer.find(_HEAD_END)
    if end < 0:
        return None
    length = re.search(rb"\r\ncontent-length: *(\d+)", answer[:end], re.IGNORECASE)
    return end + len(_HEAD_END) + (int(length[1]) if length else 0)


class GrpcCaller(Caller):
    """Makes unary calls."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        assert SCENARIO.inputs is not None
        message = grpc_payloads.encode(Asked(SCENARIO.model), SCENARIO.inputs()).SerializeToString()
        headers = blocks.request_headers(f"{host}:{port}", method(Way.UNARY))
        self._wire = UnaryConnection(blocks.repeated(headers), grpc_payloads.framed(message), 1)

    def call(self) -> Call:
        """See `Caller`."""
        wire = self._wire
        sent = time.perf_counter_ns()
        wire.fill(0.0)
        while wire.outstanding:
            if wire.output:
                self._socket.sendall(b"".join(wire.output))
                wire.output.clear()
            wire.receive(self._more(), 0.0)
        received = time.perf_counter_ns()
        if wire.failures:
            raise WrongAnswer(f"{SCENARIO.model}: {next(iter(wire.failures))}")
        return Call(sent, received)


CALLERS: Final[Mapping[str, type[Caller]]] = {"HTTP": HttpCaller, "gRPC": GrpcCaller}


@contextmanager
def caller(protocol: str, subject: Subject) -> Iterator[Caller]:
    """Connect to a server."""
    port = subject.port if protocol == "HTTP" else subject.grpc_port
    assert port is not None
    made = CALLERS[protocol](subject.host, port)
    try:
        yield made
    finally:
        made.close()
