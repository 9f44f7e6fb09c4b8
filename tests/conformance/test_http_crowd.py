"""A crowd of HTTP clients: some send ahead in pieces and check every number, others leave or read slowly.

Each way to serve gets the same requests, and gives the same answers, whatever else goes on.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import numpy as np
import pytest
import trio

from tests.support.flavours import PROCESSES, write_common_models

SERVED_BY = ("tritium-serve", "hypercorn-trio")
LARGE = 400_000
"""Numbers of an answer that no socket takes at once."""

VISIT = 100
"""Rounds on one connection: hypercorn ends one behind a thousand requests."""

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory) -> Iterator[dict[str, tuple[str, int]]]:
    """Where each way to serve is found."""
    folder: Path = tmp_path_factory.mktemp("repository")
    write_common_models(folder)
    with ExitStack() as stack:
        found = {name: stack.enter_context(PROCESSES[name](folder)).http for name in SERVED_BY}
        yield {name: (http.rpartition(":")[0], int(http.rpartition(":")[2])) for name, http in found.items()}


def numbers(chance: Random, count: int) -> np.ndarray:
    return np.array([chance.randrange(-999, 999) / 4 for _ in range(count)], np.float32)


def post(model: str, text: bytes, tail: bytes = b"", *, binary: bool = False, fields: bytes = b"") -> bytes:
    if binary:
        fields += b"Inference-Header-Content-Length: %d\r\n" % len(text)
    head = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: h\r\n%bContent-Length: %d\r\n\r\n"
    return head % (model.encode(), fields, len(text + tail)) + text + tail


def addition(chance: Random, name: str) -> tuple[bytes, object]:
    """An inference whose answer is known: its bytes, and what comes back."""
    rows = chance.randrange(1, 4)
    a, b = (numbers(chance, 16 * rows).reshape(rows, 16) for _ in range(2))
    binary_in, binary_out = chance.random() < 0.6, chance.random() < 0.6
    inputs = []
    for port, array in (("A", a), ("B", b)):
        tensor = {"name": port, "shape": [rows, 16], "datatype": "FP32"}
        extra = (
            {"parameters": {"binary_data_size": array.nbytes}}
            if binary_in
            else {"data": array.ravel().tolist()}
        )
        inputs.append(tensor | extra)
    document = {"id": name, "inputs": inputs, "parameters": {"binary_data_output": binary_out}}
    tail = a.tobytes() + b.tobytes() if binary_in else b""
    return post("add", json.dumps(document).encode(), tail, binary=binary_in), (name, a + b, a - b)


def echo(chance: Random, name: str) -> tuple[bytes, object]:
    """An inference whose answer is large now and then."""
    count = LARGE if chance.random() < 0.1 else chance.randrange(1, 2_000)
    array = np.resize(numbers(chance, 100), count)
    tensor = {
        "name": "X",
        "shape": [1, count],
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }
    text = json.dumps({"id": name, "inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return post("scores", text, array.tobytes(), binary=True), (name, array[None])


MISTAKES = (
    post("add", b"{}"),
    post("add", b"nonsense"),
    post("unknown", b"{}"),
    post("add", b'{"inputs":[{"name":"A","shape":[1,16],"datatype":"FP32","data":[1]}]}'),
    post("add", b"{}", fields=b"Content-Encoding: br\r\n"),
    post("add", b'{"inputs":[]}', fields=b"Accept-Encoding: gzip\r\n"),
    b"GET /v2/models/add/infer HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v2/models/add HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n",
)


class Client:
    """One connection, whose bytes are sent in pieces."""

    def __init__(self, chance: Random, sock: trio.socket.SocketType) -> None:
        self.chance = chance
        self.socket = sock
        self.pending = bytearray()

    async def send(self, octets: bytes) -> None:
        """Send in pieces that are cut anywhere."""
        view = memoryview(octets)
        while view:
            size = len(view) if self.chance.random() < 0.5 else self.chance.randrange(1, 1 + len(view))
            view = view[await self.socket.send(view[:size]) :]

    async def answer(self) -> Answer:
        """Receive one answer."""
        while (end := self.pending.find(b"\r\n\r\n")) < 0:
            await self._more()
        line, *lines = self.pending[:end].decode().split("\r\n")
        fields = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
        size = end + 4 + int(fields.get("content-length", 0))
        while len(self.pending) < size:
            await self._more()
        body = bytes(self.pending[end + 4 : size])
        del self.pending[:size]
        return int(line.split()[1]), fields, body

    async def _more(self) -> None:
        part = await self.socket.recv(1_000_000)
        assert part, f"closed behind {bytes(self.pending[:300])!r}"
        self.pending += part


async def connected(address: tuple[str, int], **options: int) -> trio.socket.SocketType:
    sock = trio.socket.socket()
    for option, value in options.items():
        sock.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    await sock.connect(address)
    return sock


def check(answer: Answer, known: object) -> None:
    """See that an answer has the numbers that the model computes."""
    assert isinstance(known, tuple)
    name, *arrays = known
    status, fields, body = answer
    assert status == 200, body
    size = int(fields.get("inference-header-content-length", len(body)))
    document = json.loads(body[:size])
    assert document["id"] == name
    at = size
    for output, array in zip(document["outputs"], arrays, strict=True):
        if "data" in output:
            assert output["data"] == array.ravel().tolist()
        else:
            assert body[at : at + array.nbytes] == array.tobytes()
            at += array.nbytes
    assert at == len(body)


async def steady(address: tuple[str, int], seed: str, rounds: int, answers: list[Answer]) -> None:
    """Send requests ahead, check each answer, and put them all into `answers`."""
    chance = Random(seed)
    for begin in range(0, rounds, VISIT):
        with await connected(address) as sock:
            client = Client(chance, sock)
            for number in range(begin, min(rounds, begin + VISIT)):
                await ask_and_check(client, f"{seed} {number}", answers)


async def ask_and_check(client: Client, name: str, answers: list[Answer]) -> None:
    chance = client.chance
    batch: list[tuple[bytes, object]] = []
    for place in range(chance.choice((1, 1, 1, 2, 5))):
        kind = chance.random()
        if kind < 0.7:
            batch.append(addition(chance, f"{name}.{place}"))
        elif kind < 0.85:
            batch.append(echo(chance, f"{name}.{place}"))
        else:
            batch.append((chance.choice(MISTAKES), None))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"".join(octets for octets, _ in batch))
        for _, known in batch:
            answer = await client.answer()
            if known is not None:
                check(answer, known)
            answers.append(comparable(answer))


def comparable(answer: Answer) -> Answer:
    """Leave out of an answer what a server of HTTP adds."""
    status, fields, body = answer
    return status, {name: value for name, value in fields.items() if name not in {"date", "server"}}, body


async def rude(address: tuple[str, int], seed: str, rounds: int) -> None:
    """Come, ask, and leave in a bad moment, time and again."""
    chance = Random(seed)
    for number in range(rounds):
        with await connected(address, SO_RCVBUF=4_096) as sock:
            ask = addition if chance.random() < 0.5 else echo
            octets = b"".join(ask(chance, f"{seed} {number}")[0] for _ in range(chance.randrange(1, 4)))
            if chance.random() < 0.4:
                octets = octets[: chance.randrange(1, len(octets))]
            with trio.move_on_after(chance.choice((0.0, 0.001, 0.01, 0.05))):
                client = Client(chance, sock)
                await client.send(octets)
                for _ in range(chance.randrange(1, 20)):
                    if not await sock.recv(chance.choice((1, 100, 10_000))):
                        break
            if chance.random() < 0.3:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif chance.random() < 0.3:
                sock.shutdown(socket.SHUT_WR)


async def crowd(address: tuple[str, int], rounds: int) -> dict[str, list[Answer]]:
    """Return the answers of each steady client."""
    answers: dict[str, list[Answer]] = {f"client {number}": [] for number in range(6)}
    async with trio.open_nursery() as nursery:
        for seed, own in answers.items():
            nursery.start_soon(steady, address, seed, rounds, own)
        for number in range(4):
            nursery.start_soon(rude, address, f"rude {number}", rounds)
    return answers


@pytest.mark.parametrize("rounds", [40, pytest.param(1_000, marks=pytest.mark.long)])
async def test_a_crowd_gets_right_answers_and_the_same_from_each_way_to_serve(addresses, rounds):
    served = {name: await crowd(address, rounds) for name, address in addresses.items()}
    one, other = (served[name] for name in SERVED_BY)
    for client in one:
        for place, (mine, theirs) in enumerate(zip(one[client], other[client], strict=True)):
            assert mine == theirs, f"answer {place} of {client}"
