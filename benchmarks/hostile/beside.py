"""Well-meaning clients beside a crowd: they infer and ask for health, and say how long that took.

    python -m benchmarks.hostile.beside --http 8000 --grpc 8001

Each of four asks again and again, with a short pause: one infers over an HTTP connection that it keeps, one
over gRPC; one asks for health over a new HTTP connection each time, one over a new gRPC connection. Each line
on standard input is answered by a line of JSON: the longest times since the last line, in seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.grpc.payloads import SERVICE
from benchmarks.hostile.attacker import OverGrpc, OverHttp
from benchmarks.hostile.inputs import Hostile, infer_path
from protocols.kserve.proto import grpc_service_pb2 as pb

_PAUSE: Final = 0.01  # seconds between an answer and the next question
_ASKED: Final = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'


def _message(model: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype="FP32", shape=[4])
    request.raw_input_contents.append(bytes(16))
    return request.SerializeToString()


def _questions(http: int, grpc: int, model: str) -> Mapping[str, Callable[[], Callable[[], str]]]:
    """Return, for each client, what makes a connection that asks its question."""
    infer = Hostile(name="infer", body=lambda: _ASKED, path=infer_path(model))
    live = Hostile(name="live", body=lambda: b"", path="/v2/health/live", method="GET")
    call = Hostile(name="call", body=lambda: _message(model), path=f"{SERVICE}ModelInfer", grpc=True)
    health = Hostile(name="health", body=lambda: b"", path=f"{SERVICE}ServerLive", grpc=True)
    return {
        "HTTP infer": lambda: OverHttp(http, infer, _ASKED).send,
        "HTTP health, new connection": lambda: OverHttp(http, live, b"").send,
        "gRPC infer": lambda: OverGrpc(grpc, call, _message(model)).send,
        "gRPC health, new connection": lambda: OverGrpc(grpc, health, b"").send,
    }


class Client:
    """Asks one question for ever."""

    def __init__(self, name: str, connected: Callable[[], Callable[[], str]]) -> None:
        self._connected = connected
        self._fresh = "new" in name
        self._lock = threading.Lock()
        self._longest = 0.0
        self._asked = 0
        self._failed = 0
        self._began = time.perf_counter()

    def run(self) -> None:
        """Ask until the process ends."""
        ask = self._connected()
        while True:
            if self._fresh:
                ask = self._connected()
            self._began = time.perf_counter()
            try:
                good = ask() in {"OK", "HTTP/1.1 200 OK"}
            except OSError:
                good = False
                ask = self._connected()
            took = time.perf_counter() - self._began
            with self._lock:
                self._longest = max(self._longest, took)
                self._asked += 1
                self._failed += not good
            time.sleep(_PAUSE)

    def tell(self) -> dict[str, float]:
        """Return the longest time since this was last asked, and how many answers came."""
        with self._lock:
            told = {"longest": self._longest, "asked": self._asked, "failed": self._failed}
            self._longest, self._asked, self._failed = 0.0, 0, 0
        return told


def main() -> None:
    """Ask, and tell when told to."""
    parser = argparse.ArgumentParser()
    for name in ("--http", "--grpc"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--model", required=True)
    given = parser.parse_args()
    questions = _questions(given.http, given.grpc, given.model)
    clients = {name: Client(name, connected) for name, connected in questions.items()}
    for client in clients.values():
        threading.Thread(target=client.run, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps({name: client.tell() for name, client in clients.items()}), flush=True)


if __name__ == "__main__":
    main()
