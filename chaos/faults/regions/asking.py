"""Requests whose tensors lie in a client's region, over both protocols, and what came of each."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import trio
from grpclib.const import Status

from chaos.faults.base import Stage, until
from chaos.faults.network.asking import Act, Question, together
from chaos.faults.regions.memory import PAGE, Memory, held_open
from chaos.record.outcome import code_of
from chaos.record.records import Wire
from chaos.wires.frames import Calls
from chaos.wires.http import Connection, Reply, request
from protocols.kserve.proto import grpc_service_pb2 as pb

SHARED_MEMORY: Final = "--allow-client-shm=true"
"""The flag of a server whose clients may register regions."""

NAMES: Final = "chaos-"
"""What the names of all regions and objects of these faults begin with."""

LASTS: Final = 1.5
"""Seconds in which the clients ask while the harm is done."""

_PAUSE: Final = 0.01  # seconds between two requests of one client
# Numbers: a tensor that the server's loop reads and writes, and one that a worker or a thread does.
_ROWS: Final = (16, 262_144)
_REGION: Final = "/v2/systemsharedmemory/region/{}/{}"
_STATUS: Final = "/v2/systemsharedmemory/status"


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one client has its tensors: `rows` numbers at byte `at` of the region, its answer behind them."""

    wire: Wire
    at: int
    rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of one tensor."""
        return 4 * self.rows

    @property
    def answer(self) -> int:
        """Where the answer is to be written."""
        return self.at + self.nbytes


def seats() -> Iterator[Seat]:
    """Yield a place for each protocol and each size; none is another's."""
    at = PAGE  # what is cut off down to one page has none of them
    for wire in ("http", "grpc"):
        for rows in _ROWS:
            seat = Seat("http" if wire == "http" else "grpc", at, rows)
            yield seat
            at += -(-2 * seat.nbytes // PAGE) * PAGE


SEATS: Final = tuple(seats())
ROOM: Final = SEATS[-1].at + 2 * SEATS[-1].nbytes
"""Bytes of a region in which there is room for all seats."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one request: the error's code and text, or none; and what lies in the answer's place."""

    id: str
    value: int
    code: str
    text: str
    answer: npt.NDArray[np.int32]

    @property
    def right(self) -> bool:
        """Whether it was answered, by nothing but the value that was sent."""
        return not self.code and bool((self.answer == self.value).all())

    def refused(self, code: str, text: str) -> bool:
        """Whether it was refused so."""
        return self.code == code and text in self.text

    def told(self) -> str:
        """Say what came of it."""
        if self.code:
            return f"{self.code} to {self.id}: {self.text}"
        numbers = np.unique(self.answer)[:5].tolist()
        return f"the answer to {self.id} in its region has {numbers}, where {self.value} was sent"


Judge = Callable[[Seen], bool]
"""Whether what came of a request is right."""


def exact(seen: Seen) -> bool:
    """Whether the answer is the value that was sent."""
    return seen.right


@dataclass(frozen=True, slots=True)
class Stand:
    """What one fault's clients have: a guest to ask, which no other fault hits, and regions."""

    stage: Stage
    guest: str
    values: set[int] = field(default_factory=set)  # all that were sent

    # -- regions

    async def register(self, region: str, memory: Memory, *, offset: int = 0) -> Reply:
        """Register an object from byte `offset` on. Returns the answer."""
        body = {"key": memory.key, "offset": offset, "byte_size": memory.nbytes - offset}
        return await self._post(region, "register", body)

    async def unregister(self, region: str) -> Reply:
        """Unregister a region. Returns the answer."""
        return await self._post(region, "unregister", {})

    async def listed(self) -> list[str]:
        """Return the names of these faults' regions that the server lists."""
        reply = await self.stage.server.ask(_STATUS)
        return [each["name"] for each in reply.json() if each["name"].startswith(NAMES)]

    async def cleared(self) -> list[str]:
        """Unregister all, and wait until the server has nothing of them open.

        Returns what can't be unregistered. Raises Trouble if something stays open.
        """
        refused = [
            f"HTTP {reply.status} to the end of '{each}'"
            for each in await self.listed()
            if (reply := await self.unregister(each)).status != 200
        ]
        await until(
            self._left,
            lambda seen: not seen,
            lambda seen: f"all regions were unregistered, and the server still has {seen}",
        )
        return refused

    async def _left(self) -> list[str]:
        return [*await self.listed(), *held_open(self.stage.server.pid, NAMES)]

    async def _post(self, region: str, what: str, body: object) -> Reply:
        path = _REGION.format(region, what)
        return await self.stage.server.ask(path, method="POST", body=json.dumps(body).encode())

    # -- requests

    async def ask(
        self, memory: Memory, region: str, seat: Seat, target: random.Random, *, cut_to: int | None = None
    ) -> Seen:
        """Write a tensor to the region, have it echoed into the region, and see what is there.

        `cut_to` is what is left of the object when the request is sent. Raises Broken.
        """
        question = Question.draw(self.guest, target)
        value = question.invoke.value
        self.values.add(value)
        memory.put(seat.at, np.full(2 * seat.rows, [value] * seat.rows + [0] * seat.rows, np.int32))
        if cut_to is not None:
            memory.resize(cut_to)
        send = self._by_http if seat.wire == "http" else self._by_grpc
        code, text = await send(question.invoke.id, region, seat)
        return Seen(question.invoke.id, value, code, text, memory.take(seat.answer, seat.rows))

    async def ask_all(
        self, memory: Memory, region: str, target: random.Random, fine: Judge = exact
    ) -> list[str]:
        """Ask from each seat, once. Returns what went wrong."""

        async def one(seat: Seat) -> str:
            seen = await self.ask(memory, region, seat, target)
            return "" if fine(seen) else seen.told()

        return await together(partial(one, seat) for seat in SEATS)

    async def crowd(self, *clients: Act, harm: Callable[[], Awaitable[None]] | None = None) -> list[str]:
        """Have clients ask while `harm` is done, over and over if it ends. Returns what went wrong."""

        async def harming() -> None:
            while harm is not None:
                await harm()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(harming)
            troubles = await together(clients, patience=LASTS + 10)
            nursery.cancel_scope.cancel()
        return troubles

    def client(
        self, memory: Memory, region: str, seat: Seat, target: random.Random, fine: Judge = exact
    ) -> Act:
        """Return a client that asks from one seat without a rest, and tells of the first wrong answer."""

        async def asking() -> str:
            over = trio.current_time() + LASTS
            while trio.current_time() < over:
                seen = await self.ask(memory, region, seat, target)
                if not fine(seen):
                    return seen.told()
                await trio.sleep(_PAUSE)
            return ""

        return asking

    def clients(
        self, memory: Memory, region: str, target: random.Random, fine: Judge = exact
    ) -> Sequence[Act]:
        """Return a client for each seat."""
        return [self.client(memory, region, seat, target, fine) for seat in SEATS]

    async def _by_http(self, name: str, region: str, seat: Seat) -> tuple[str, str]:
        given = {"name": "VALUE", "shape": [seat.rows, 1], "datatype": "INT32"}
        body = {
            "id": name,
            "inputs": [{**given, "parameters": _place(region, seat.at, seat.nbytes)}],
            "outputs": [{"name": "ANSWER", "parameters": _place(region, seat.answer, seat.nbytes)}],
        }
        async with await Connection.open(self.stage.server.http_port) as connection:
            words = request("POST", f"/v2/models/{self.guest}/infer", json.dumps(body).encode())
            reply = await connection.ask(words)
        if reply.status == 200:
            return "", ""
        return code_of(reply.status), reply.body.decode(errors="replace")

    async def _by_grpc(self, name: str, region: str, seat: Seat) -> tuple[str, str]:
        message = pb.ModelInferRequest(model_name=self.guest, id=name)
        given = message.inputs.add(name="VALUE", datatype="INT32", shape=[seat.rows, 1])
        wanted = message.outputs.add(name="ANSWER")
        for tensor, at in ((given, seat.at), (wanted, seat.answer)):
            tensor.parameters["shared_memory_region"].string_param = region
            tensor.parameters["shared_memory_byte_size"].int64_param = seat.nbytes
            tensor.parameters["shared_memory_offset"].int64_param = at
        async with await Calls.open(self.stage.server.grpc_port) as calls:
            await calls.begin()
            await calls.call(1, "ModelInfer", message.SerializeToString())
            answer = await calls.finished(1)
        return ("", "") if not answer.status else (Status(answer.status).name, answer.details)


def _place(region: str, at: int, nbytes: int) -> dict[str, str | int]:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": at,
        "shared_memory_byte_size": nbytes,
    }
