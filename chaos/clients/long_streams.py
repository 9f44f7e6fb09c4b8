"""Long streams of grpcio, as a program: what a real client does over one connection, at full speed.

    python -m chaos.clients.long_streams PORT SECONDS LEAST ECHO STREAM

Streams to a model of the kind `echo` and to one of the kind `stream` go on for SECONDS seconds, and until
each has had `LEAST` answers. One more client makes unary calls and pings meanwhile. Prints as JSON, for each
client, its name, how many answers it had, and its trouble, if there was any.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from chaos.clients.grpc import Stream, ended, model_infer
from chaos.clients.grpc_messages import encode
from chaos.record.history import End
from chaos.record.records import Invoke, Ok
from chaos.wires.http import LOOPBACK
from chaos.workload.answers import expected

ALONE: Final = ("grpc.use_local_subchannel_pool", 1)
"""Otherwise equal channels of a process share a connection."""

PARTS: Final = 20
MOST_ANSWERS: Final = 500
"""The most answers a second on each stream.

This is more than twice the pace at which real clients were once taken for a flood. It still does not overload
a small machine, where the requests of all other clients would be late.
"""
PING_SECONDS: Final = 0.25
PATIENCE: Final = 20.0
"""Seconds that a call may take, on a busy machine."""

_PACE: Final = 0.02  # seconds between two unary calls


def pinging(seconds: float) -> Sequence[tuple[str, int]]:
    """Return the options of a channel that pings every so many seconds, even when nothing is under way."""
    return (
        ALONE,
        ("grpc.keepalive_time_ms", int(seconds * 1000)),
        ("grpc.keepalive_timeout_ms", 60_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


class Client:
    """One of the three clients of a server: asks one thing after the other, and holds each answer to be right."""

    def __init__(self, name: str, model: str, parts: int, until: float, least: int) -> None:
        self.answers = 0  # parts, each of them
        self.troubles: list[str] = []
        self._name = name
        self._model = model
        self._parts = parts
        self._until = until
        self._least = least
        self._random = random.Random(name)

    def report(self) -> dict[str, Any]:
        """Return what became of its requests."""
        return {"name": self._name, "answers": self.answers, "troubles": self.troubles}

    def ask_all(self, ask: Callable[[Invoke], End], pace: float) -> None:
        """Ask with so many seconds in between, until its time is up and it has had enough answers, or one is wrong."""
        for number in itertools.count(1):
            if self.troubles or (time.monotonic() >= self._until and self.answers >= self._least):
                return
            invoke = self._invoke(number)
            end = ask(invoke)
            right = tuple(expected(invoke))
            if isinstance(end, Ok) and end.values == right:
                self.answers += len(right)
            else:
                self.troubles.append(f"{invoke.id} was due {right}, and got {end}")
            time.sleep(pace)

    def _invoke(self, number: int) -> Invoke:
        return Invoke(
            t=time.monotonic(),
            n=-number,
            id=f"fault-{os.getpid()}-{self._name}-{number}",
            model=self._model,
            protocol="grpc",
            phase="standard",
            value=self._random.randint(1, 100_000),
            parts=self._parts,
        )


def _streamed(client: Client, target: str, parts: int) -> None:
    with grpc.insecure_channel(target, options=(ALONE,)) as channel:
        stream = Stream(channel)
        client.ask_all(stream.answer, parts / MOST_ANSWERS)
        stream.close()


def _called(client: Client, target: str) -> None:
    with grpc.insecure_channel(target, options=pinging(PING_SECONDS)) as channel:
        method = model_infer(channel)
        client.ask_all(lambda invoke: ended(invoke, method.future(encode(invoke), timeout=PATIENCE)), _PACE)


def main(words: Sequence[str]) -> list[dict[str, Any]]:
    """Run the program that the module describes."""
    port, seconds, least, echo, stream = words
    target, until = f"{LOOPBACK}:{port}", time.monotonic() + float(seconds)
    clients = [
        Client("echo", echo, 1, until, int(least)),
        Client("stream", stream, PARTS, until, int(least)),
        Client("unary", echo, 1, until, 1),
    ]
    threads = [
        threading.Thread(target=_streamed, args=(clients[0], target, 1)),
        threading.Thread(target=_streamed, args=(clients[1], target, PARTS)),
        threading.Thread(target=_called, args=(clients[2], target)),
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [each.report() for each in clients]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
