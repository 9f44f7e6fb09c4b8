"""Requests that come at their times, whatever became of those before them, and what was seen of each."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.subjects import Subject, infer_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: when it was sent and answered, in seconds of `time.monotonic`, and what came."""

    number: int
    begin: float
    end: float
    status: int
    attempts: int = 1
    version: str = "1"

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin

    @property
    def failed(self) -> bool:
        """Whether it has no good answer."""
        return self.status != 200


def ask(subject: Subject, model: str, number: int, **parameters: object) -> Asked:
    """Send one request of a number, on a connection of its own. A connection that breaks is status 0."""
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [number]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters})
    connection = subject.connect()
    begin = time.monotonic()
    try:
        connection.request("POST", infer_path(model), body)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read() or b"{}")
        status = response.status
        if status == 200 and answer["outputs"][0]["data"] != [2.0 * number]:
            status = 0
    except (OSError, http.client.HTTPException):
        answer, status = {}, 0
    finally:
        connection.close()
    return Asked(
        number=number,
        begin=begin,
        end=time.monotonic(),
        status=status,
        attempts=int(answer.get("parameters", {}).get("attempts", 1)),
        version=answer.get("model_version", ""),
    )


def paced(
    send: Callable[[int], Asked],
    rate: float,
    seconds: float,
    *,
    meanwhile: Iterable[tuple[float, Callable[[], None]]] = (),
) -> Sequence[Asked]:
    """Send `rate` requests a second for some seconds, and return them in their order.

    `send` gets the number of its request. `meanwhile` has what else is done, and after how many seconds.
    """
    start = time.monotonic()
    with ThreadPoolExecutor(64) as pool:
        others = [pool.submit(_later, start + at, do) for at, do in meanwhile]
        futures = []
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
            futures.append(pool.submit(send, number))
        for other in others:
            other.result()
        return [future.result() for future in futures]


def _later(at: float, do: Callable[[], None]) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
    do()
