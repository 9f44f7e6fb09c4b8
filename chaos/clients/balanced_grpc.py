"""Clients of grpcio behind a balancer, as a program.

    python -m chaos.clients.balanced_grpc PORT SECONDS

The clients call as long as grpc.health.v1 says SERVING, and stop as soon as it does not. The balancer asks on
a fresh connection every `LOOK` seconds.

Prints an empty line when the first calls have been answered. Prints a list of
`chaos.clients.real_grpc.Report` as JSON when the server is out of rotation, or after SECONDS seconds.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import grpc

from chaos.clients.grpc_messages import encode
from chaos.clients.real_grpc import ALONE, HEALTH, INFER, Ledger, Report
from chaos.record.records import Invoke
from chaos.wires.http import LOOPBACK
from protocols.kserve.proto import grpc_service_pb2 as pb
from protocols.kserve.proto import health_pb2

CLIENTS: Final = 4
LOOK: Final = 0.1
PATIENCE: Final = 30.0
"""Seconds that a call waits for its answer."""

_PACE: Final = 0.01


class Rotation:
    """Whether the server is to get requests, as one thread finds out for all clients."""

    def __init__(self, target: str, seconds: float) -> None:
        self._target = target
        self._out = threading.Event()
        self._until = time.monotonic() + seconds

    @property
    def open(self) -> bool:
        """Whether the server is in rotation."""
        return not self._out.is_set()

    def watch(self) -> None:
        """Look until the server is out of rotation."""
        while self._serving() and time.monotonic() < self._until:
            time.sleep(LOOK)
        self._out.set()

    def _serving(self) -> bool:
        with grpc.insecure_channel(self._target, options=(ALONE,)) as channel:
            check = channel.unary_unary(
                HEALTH,
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            try:
                answer = check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _call(target: str, rotation: Rotation, report: Report, under_way: threading.Semaphore) -> None:
    ledger = Ledger(report)
    with grpc.insecure_channel(target, options=(ALONE,)) as channel:
        method = channel.unary_unary(
            INFER,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        for number in itertools.count(1):
            if not rotation.open:
                break
            invoke = _invoke(report.name, number)
            ledger.ask(invoke)
            try:
                ledger.came(method(encode(invoke), timeout=PATIENCE))
            except grpc.RpcError as error:
                ledger.fail(invoke, f"{error.code().name} {error.details()}")
            if number == 1:
                under_way.release()
            time.sleep(_PACE)
    ledger.settle()


def _invoke(client: str, number: int) -> Invoke:
    return Invoke(
        t=time.monotonic(),
        n=-number,
        id=f"balanced-{os.getpid()}-{client}-{number}",
        model="echo",
        protocol="grpc",
        phase="ending",
        value=number,
    )


def main(words: Sequence[str]) -> list[dict[str, Any]]:
    """Run the program that the module describes."""
    port, seconds = words
    target = f"{LOOPBACK}:{port}"
    rotation = Rotation(target, float(seconds))
    reports = [Report(f"grpc-{number}") for number in range(CLIENTS)]
    under_way = threading.Semaphore(0)
    threads = [threading.Thread(target=_call, args=(target, rotation, each, under_way)) for each in reports]
    for each in threads:
        each.start()
    for _ in threads:
        under_way.acquire()
    print(flush=True)
    rotation.watch()
    for each in threads:
        each.join()
    return [asdict(each) for each in reports]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
