"""A server with some models under a load that rises and falls; now and then a request kills its worker."""

from __future__ import annotations

import http.client
import json
import math
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.support.operators import Served, serving, write_model

_PERIOD: Final = 24.0  # of the load's waves, seconds
_POISON: Final = 1e9
_CLIENTS: Final = 6
_REGION: Final = 64 * 1024  # bytes
_IN_MEMORY: Final = 4 * 4  # bytes of a row

_CODE: Final = """
import os, signal, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        rows = sum(len(request.inputs()[0].as_numpy()) for request in requests)
        time.sleep({base} + {row} * rows)
        if any(request.inputs()[0].as_numpy().max() >= 1e9 for request in requests):
            os.kill(os.getpid(), signal.SIGSEGV)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() * 2)])
            for request in requests
        ]
"""
_CONFIG: Final = """
backend: "python"
max_batch_size: 16
input [ { name: "X", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 4 ] } ]
"""
_MODELS: Final = {
    "detector": ("0.004", "0.001", "dynamic_batching { max_queue_delay_microseconds: 4000 }"),
    "ranker": ("0.002", "0.0005", "instance_group [ { count: 2 } ] dynamic_batching { }"),
    "lookup": ("0.003", "0.0002", "response_cache { enable: true }"),
}


def write_models(repository: Path) -> None:
    """Write the models; the ranker has two versions."""
    for name, (base, row, more) in _MODELS.items():
        code = _CODE.format(base=base, row=row)
        config = _CONFIG + more
        if name == "ranker":
            config += "\nversion_policy { all { } }"
        write_model(repository, name, code=code, config=config)
    second = repository / "ranker" / "2"
    second.mkdir()
    (second / "model.py").write_text(_CODE.format(base="0.001", row="0.0004"))


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Run the server, with a cache and a plan for the traffic of the ranker."""
    write_models(folder / "models")
    flags = (
        f"--model-repository={folder / 'models'}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--cache-config=local,size=16777216",
        "--allow-client-shm=true",
        "--metrics-address=127.0.0.1",
    )
    with serving(folder / "server", *flags) as server:
        server.wait_ready()
        plan = {"weights": {"1": 80, "2": 20}}
        status = _post(server.address(), "/v2/tritium/models/ranker/traffic", plan)
        if status != 200:
            raise RuntimeError(f"the plan of the ranker's traffic was answered {status}")
        yield server


def _post(address: str, path: str, document: object) -> int:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("POST", path, json.dumps(document))
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@dataclass(slots=True)
class Load:
    """Clients that ask until they are told to stop. `answers` counts what they got, by status."""

    address: str
    stop: threading.Event = field(default_factory=threading.Event)
    answers: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Ask around the block."""
        threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(_CLIENTS)]
        threads.append(threading.Thread(target=self._ask_by_memory))
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()

    def _ask(self, number: int) -> None:
        random = Random(number)
        connection = http.client.HTTPConnection(self.address, timeout=30)
        began = time.monotonic()
        poisoned = 0
        try:
            while not self.stop.is_set():
                since = time.monotonic() - began
                # A wave of its own for each client, and never quite nothing.
                wish = 1 + math.sin(2 * math.pi * (since / _PERIOD + number / _CLIENTS / 2))
                dies = number == 0 and since > 8 * (poisoned + 1)
                poisoned += dies
                model = "detector" if dies else ("detector", "ranker", "lookup")[random.randrange(3)]
                self._count(self._infer(connection, model, random, dies=dies))
                self.stop.wait(0.08 - 0.035 * wish)
        finally:
            connection.close()

    def _ask_by_memory(self) -> None:
        """Ask with inputs and outputs in shared memory."""
        name = f"tritium-board-{os.getpid()}"
        file = Path("/dev/shm") / name
        file.write_bytes(struct.pack("4f", 1.0, 2.0, 3.0, 4.0).ljust(_REGION, b"\0"))
        region = {"key": f"/{name}", "offset": 0, "byte_size": _REGION}
        at = f"/v2/systemsharedmemory/region/{name}"
        place = {"shared_memory_region": name, "shared_memory_byte_size": _IN_MEMORY}
        inputs = [{"name": "X", "datatype": "FP32", "shape": [1, 4], "parameters": place}]
        outputs = [{"name": "Y", "parameters": {**place, "shared_memory_offset": _REGION // 2}}]
        document = {"inputs": inputs, "outputs": outputs}
        try:
            self._count(_post(self.address, f"{at}/register", region))
            while not self.stop.wait(0.1):
                self._count(_post(self.address, "/v2/models/ranker/infer", document))
        finally:
            file.unlink()

    def _infer(
        self, connection: http.client.HTTPConnection, model: str, random: Random, *, dies: bool
    ) -> int:
        rows = 1 if dies else random.randint(1, 4)
        values: Sequence[float] = (
            [_POISON + random.random()] * 4 if dies else [float(random.randrange(40))] * 4
        )
        tensor = {"name": "X", "datatype": "FP32", "shape": [rows, 4], "data": [values] * rows}
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}))
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def _count(self, status: int) -> None:
        with self._lock:
            self.answers[status] = self.answers.get(status, 0) + 1
