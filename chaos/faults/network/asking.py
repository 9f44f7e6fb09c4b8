"""A request of a fault's own that goes over a socket of its own, and what may come of it.

Such requests are not in the history: the fault that sends them judges them. Their ids begin with `fault-`, in
the journal as well.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import trio

from chaos.clients import grpc_messages, http_messages
from chaos.record.outcome import now
from chaos.record.records import Invoke, Ok
from chaos.subject.server import Server
from chaos.wires.frames import Calls, GrpcAnswer
from chaos.wires.http import Broken, Connection, Reply, request
from chaos.workload.answers import expected, inputs
from protocols.kserve.proto import grpc_service_pb2 as pb

MARK: Final = "fault-"
PATIENCE: Final = 10.0
"""Seconds after which an answer that has not come is trouble."""

_OK, _UNAVAILABLE = 0, 14
_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Question:
    """One inference by its model and its value, as bytes, and the right answer to it."""

    invoke: Invoke

    @classmethod
    def draw(cls, model: str, target: random.Random) -> Question:
        """Return a question to a model, with an id that no other has."""
        number = next(_NUMBERS)
        value = target.randint(1, 100_000)
        return cls(
            Invoke(
                t=now(),
                n=-number,
                id=f"{MARK}{number}",
                model=model,
                protocol="http",
                phase="standard",
                value=value,
            )
        )

    @property
    def path(self) -> str:
        """Where HTTP takes it."""
        return f"/v2/models/{self.invoke.model}/infer"

    @property
    def body(self) -> bytes:
        """Its body over HTTP: JSON throughout."""
        described = [
            {"name": name, "shape": list(each.shape), "datatype": "INT32", "data": each.ravel().tolist()}
            for name, each in inputs(self.invoke).items()
        ]
        return json.dumps({"id": self.invoke.id, "inputs": described}).encode()

    @property
    def http(self) -> bytes:
        """The whole request over HTTP."""
        return request("POST", self.path, self.body)

    @property
    def message(self) -> bytes:
        """Its message over gRPC, a ModelInferRequest."""
        return bytes(grpc_messages.encode(self.invoke).SerializeToString())

    def judge_http(self, answer: Reply) -> str:
        """Return what is wrong with an answer, in words; "" if nothing is.

        That the model is not available is no trouble of the fault's: the ordinary load tells whether it
        should have been available.
        """
        if answer.status == 503:
            return ""
        if answer.status != 200:
            return f"HTTP {answer.status} to {self.invoke.id} of {self.invoke.model}: {answer.body[:200]!r}"
        end = http_messages.end_of(self.invoke, answer, now())
        return self._judge(tuple(end.values) if isinstance(end, Ok) else str(end))

    def judge_grpc(self, answer: GrpcAnswer) -> str:
        """The same of an answer over gRPC."""
        if answer.status == _UNAVAILABLE:
            return ""
        if answer.status != _OK:
            return f"gRPC status {answer.status} to {self.invoke.id} of {self.invoke.model}: {answer.details}"
        try:
            return self._judge(
                grpc_messages.read(self.invoke, pb.ModelInferResponse.FromString(answer.body))[0]
            )
        except ValueError as error:
            return self._judge(str(error))

    def _judge(self, got: tuple[int, ...] | str) -> str:
        right = tuple(expected(self.invoke))
        return "" if got == right else f"{got} to {self.invoke.id} of {self.invoke.model}, not {right}"


async def ask_http(server: Server, question: Question) -> str:
    """Ask as a decent client does, on a fresh connection; return what is wrong with the answer.

    Raises Broken.
    """
    async with await Connection.open(server.http_port) as connection:
        await connection.send(question.http)
        return question.judge_http(await connection.answer())


async def ask_grpc(server: Server, question: Question) -> str:
    """The same over gRPC."""
    async with await Calls.open(server.grpc_port) as calls:
        await calls.begin()
        await calls.call(1, "ModelInfer", question.message)
        return question.judge_grpc(await calls.finished(1))


Act = Callable[[], Awaitable[str]]
"""Something that a client does; it says what went wrong, "" for nothing, and may raise Broken."""


async def together(acts: Iterable[Act], *, within: float = 0.0, patience: float = PATIENCE) -> list[str]:
    """Carry out acts that begin one after the other, and do not wait for each other.

    They begin evenly `within` so many seconds. Returns what went wrong, without the acts that found nothing.
    A connection that breaks, one that is refused, and an act that is not over after `patience` seconds are
    trouble.
    """
    troubles: list[str] = []

    async def one(act: Act, after: float) -> None:
        await trio.sleep(after)
        try:
            with trio.move_on_after(patience) as scope:
                troubles.append(await act())
            if scope.cancelled_caught:
                troubles.append(f"not over after {patience:.0f} s")
        except* (Broken, OSError) as group:
            troubles.extend(map(str, group.exceptions))

    planned = list(acts)
    async with trio.open_nursery() as nursery:
        for place, act in enumerate(planned):
            nursery.start_soon(one, act, within * place / len(planned))
    return [each for each in troubles if each]
