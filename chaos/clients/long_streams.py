"""Long streams of grpcio, as a program: what a real client does over one connection, at full speed.

    python -m chaos.clients.long_streams PORT SECONDS LEAST ECHO STREAM

Streams to a model of the kind `echo` and to one of the kind `stream` go on for SECONDS seconds, and until
each has had `LEAST` answers. One more client makes unary calls and pings meanwhile. Prints a list of
`chaos.clients.real_grpc.Report` as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import grpc

from chaos.clients.grpc_messages import encode
from chaos.clients.real_grpc import ALONE, INFER, STREAM, Ledger, Report, pinging
from chaos.record.records import Invoke
from chaos.wires.http import LOOPBACK
from protocols.kserve.proto import grpc_service_pb2 as pb

IN_FLIGHT: Final = 4
PARTS: Final = 20
MOST_ANSWERS: Final = 500
"""The most answers a second on each stream.

This is more than twice the pace at which real clients were once taken for a flood. It still does not overload
a small machine, where the requests of all other clients would be late.
"""
PING_SECONDS: Final = 0.25
PATIENCE: Final = 20.0
"""Seconds beyond its time that a client waits for answers, on a busy machine."""

_PACE: Final = 0.02  # seconds between two unary calls
# Seconds by which a client that came late may hurry afterwards.
_CATCHES_UP: Final = 0.1


class Clients:
    """The three clients of one server, and how long they go on."""

    def __init__(self, port: int, seconds: float, least: int, echo: str, stream: str) -> None:
        self._target = f"{LOOPBACK}:{port}"
        self._until = time.monotonic() + seconds
        self._least = least
        self._echo = echo
        self._stream = stream
        self._random = random.Random(port)
        self._numbers = iter(range(1, 1 << 60))
        self._lock = threading.Lock()

    def run(self) -> Sequence[Report]:
        """Return what became of all requests."""
        jobs: list[tuple[Report, Callable[[Report], None]]] = [
            (Report("echo"), lambda report: self._streams(report, self._echo, parts=1)),
            (Report("stream"), lambda report: self._streams(report, self._stream, parts=PARTS)),
            (Report("unary"), self._calls),
        ]
        threads = [threading.Thread(target=_guarded, args=(job, report)) for report, job in jobs]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return [report for report, _ in jobs]

    def _streams(self, report: Report, model: str, *, parts: int) -> None:
        ledger = Ledger(report)
        with grpc.insecure_channel(self._target, options=(ALONE,)) as channel:
            method = channel.stream_stream(
                STREAM,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelStreamInferResponse.FromString,
            )
            asking = self._requests(ledger, model, parts)
            try:
                for message in method(asking, timeout=self._left + PATIENCE):
                    ledger.came(message.infer_response, message.error_message)
            finally:
                ledger.settle()

    def _requests(self, ledger: Ledger, model: str, parts: int) -> Iterator[pb.ModelInferRequest]:
        due = time.monotonic()
        while self._left > 0 or ledger.report.answers < self._least:
            if not ledger.wait_fewer(IN_FLIGHT, PATIENCE) or ledger.report.troubles:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - _CATCHES_UP) + parts / MOST_ANSWERS
            invoke = self._invoke(model, parts)
            ledger.ask(invoke)
            yield encode(invoke)

    def _calls(self, report: Report) -> None:
        ledger = Ledger(report)
        with grpc.insecure_channel(self._target, options=pinging(PING_SECONDS)) as channel:
            method = channel.unary_unary(
                INFER,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            while self._left > 0:
                invoke = self._invoke(self._echo, 1)
                ledger.ask(invoke)
                ledger.came(method(encode(invoke), timeout=PATIENCE))
                time.sleep(_PACE)
        ledger.settle()

    @property
    def _left(self) -> float:
        return self._until - time.monotonic()

    def _invoke(self, model: str, parts: int) -> Invoke:
        with self._lock:
            number, value = next(self._numbers), self._random.randint(1, 100_000)
        return Invoke(
            t=time.monotonic(),
            n=-number,
            id=f"fault-{os.getpid()}-{number}",
            model=model,
            protocol="grpc",
            phase="standard",
            value=value,
            parts=parts,
        )


def _guarded(job: Callable[[Report], None], report: Report) -> None:
    try:
        job(report)
    except grpc.RpcError as error:
        report.trouble(f"the call was ended: {error.code().name} {error.details()}")


def main(words: Sequence[str]) -> list[dict[str, Any]]:
    """Run the program that the module describes."""
    port, seconds, least, echo, stream = words
    return [asdict(each) for each in Clients(int(port), float(seconds), int(least), echo, stream).run()]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
