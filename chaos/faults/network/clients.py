"""Faults by single clients.

They leave at the wrong moment, are too slow, send byte by byte, or talk nonsense.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from chaos.faults.base import Stage
from chaos.faults.network.asking import Question, together
from chaos.faults.network.attacks import Attack
from chaos.wires.frames import DATA, END_STREAM, PREFACE, SETTINGS, Calls, frame, message
from chaos.wires.http import Broken, Connection, chunked, request

UNARY: Final = "ModelInfer"
_ASKED: Final[Sequence[str]] = ("echo", "add_sub", "batching", "slow", "pipeline")
_EACH: Final = 6  # clients of a kind at a time
_COMING: Final = 1.0
"""Seconds in which the clients come.

These faults try the manners of clients; `crowds` tries what a crowd does to the cores.
"""


# -- leaving


async def _leave_http(stage: Stage, target: random.Random, moment: str, *, reset: bool) -> str:
    """Come, get as far as `moment`, and leave without waiting for anything."""
    question = Question.draw(target.choice(_ASKED), target)
    async with await Connection.open(stage.server.http_port) as connection:
        whole = question.http
        head = whole.index(b"\r\n\r\n") + 4
        cut = {
            "before": 0,
            "in its head": target.randrange(1, head),
            "in its body": target.randrange(head, len(whole)),
        }
        await connection.send(whole[: cut.get(moment, len(whole))])
        if moment == "in the answer":
            await connection.take(target.randrange(1, 40))
        elif moment == "after":
            await connection.answer()
        if reset:
            connection.reset()
    return ""


async def _leave_grpc(stage: Stage, target: random.Random, moment: str, *, reset: bool) -> str:
    """The same by gRPC.

    A client that leaves by a reset leaves the connection, but not the call, standing for a moment.
    """
    question = Question.draw(target.choice(_ASKED), target)
    async with await Calls.open(stage.server.grpc_port) as calls:
        await calls.begin()
        if moment == "before":
            return ""
        opening = calls.headers(1, UNARY)
        if moment == "in its head":
            await calls.send(opening[: target.randrange(1, len(opening))])
            return ""
        whole = message(question.message)
        cut = target.randrange(1, len(whole)) if moment == "in its body" else len(whole)
        ended = END_STREAM if cut == len(whole) else 0
        await calls.send(opening + frame(DATA, ended, 1, whole[:cut]))
        if moment == "after":
            return question.judge_grpc(await calls.finished(1))
        if moment == "in the answer":
            while not calls.so_far(1).data and calls.so_far(1).status < 0:
                await calls.step()
        if reset:
            await calls.send(calls.cancel(1))
            await _still_served(calls, target)
    return ""


async def _still_served(calls: Calls, target: random.Random) -> None:
    """Make another call on a connection of which one was cancelled.

    Raises Broken if it is not answered rightly.
    """
    question = Question.draw("echo", target)
    await calls.call(3, UNARY, question.message)
    if trouble := question.judge_grpc(await calls.finished(3)):
        raise Broken(trouble)


MOMENTS: Final[Sequence[str]] = (
    "before",
    "in its head",
    "in its body",
    "unanswered",
    "in the answer",
    "after",
)
"""How far a client gets before it leaves."""


async def _leave(stage: Stage, target: random.Random, *, reset: bool) -> list[str]:
    clients = (
        partial(leave, stage, target, moment, reset=reset)
        for moment in MOMENTS
        for leave in (_leave_http, _leave_grpc)
        for _ in range(_EACH)
    )
    return await together(clients, within=_COMING)


# -- slowness


async def _write_http_slowly(stage: Stage, question: Question) -> str:
    async with await Connection.open(stage.server.http_port) as connection:
        await connection.trickle(question.http, pieces=40, pause=0.05)
        return question.judge_http(await connection.answer())


async def _write_grpc_slowly(stage: Stage, question: Question) -> str:
    async with await Calls.open(stage.server.grpc_port) as calls:
        whole = (
            calls.headers(1, UNARY)
            + frame(DATA, 0, 1, message(question.message)[:7])
            + frame(DATA, END_STREAM, 1, message(question.message)[7:])
        )
        await calls.begin()
        await calls.trickle(whole, pieces=40, pause=0.05)
        return question.judge_grpc(await calls.finished(1))


_PIPELINED: Final = 40
_SMALL_BUFFER: Final = 2048  # the kernel doubles it, and has a least of its own


async def _read_http_slowly(stage: Stage, question: Question) -> str:
    """Send many requests at once, and read the answers a few bytes at a time.

    The answers must come in order.
    """
    async with await Connection.open(stage.server.http_port, receive_buffer=_SMALL_BUFFER) as connection:
        troubles: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, question.http * _PIPELINED)
            for _ in range(_PIPELINED):
                answer = await connection.answer(piece=64, pause=0.01)
                troubles.append(question.judge_http(answer))
    return next(filter(None, troubles), "")


async def _read_metrics_slowly(stage: Stage, question: Question) -> str:
    """Read a large answer a little at a time: whole, to its end."""
    async with await stage.server.scraper(receive_buffer=_SMALL_BUFFER) as connection:
        await connection.send(request("GET", "/metrics"))
        answer = await connection.answer(piece=1024, pause=0.02)
    whole = answer.status == 200 and answer.body.endswith(b"\n")
    return "" if whole else f"metrics: {answer.status}, {len(answer.body)} bytes"


async def _read_grpc_slowly(stage: Stage, question: Question) -> str:
    """Let the server send an answer a few bytes at a time.

    The client's window begins at 0 and grows by 5 each time.
    """
    async with await Calls.open(stage.server.grpc_port) as calls:
        await calls.begin(window=0)
        await calls.call(1, UNARY, question.message)
        answer = calls.so_far(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.finished, 1)
            while answer.status < 0:
                await calls.send(calls.grant(1, 5))
                await trio.sleep(0.03)
        return question.judge_grpc(answer)


async def _slow(stage: Stage, target: random.Random, *clients: Callable[..., Awaitable[str]]) -> list[str]:
    asked = (
        partial(client, stage, Question.draw(target.choice(_ASKED), target))
        for client in clients
        for _ in range(_EACH)
    )
    return await together(asked, within=_COMING)


# -- byte by byte


async def _chunks_of_one_byte(stage: Stage, question: Question) -> str:
    async with await Connection.open(stage.server.http_port) as connection:
        await connection.send(chunked(question.path, question.body))
        return question.judge_http(await connection.answer())


async def _segments_of_one_byte(stage: Stage, question: Question) -> str:
    async with await Connection.open(stage.server.http_port) as connection:
        whole = chunked(question.path, question.body)
        await connection.trickle(whole, pieces=len(whole), pause=0.0)
        return question.judge_http(await connection.answer())


async def _frames_of_one_byte(stage: Stage, question: Question) -> str:
    async with await Calls.open(stage.server.grpc_port) as calls:
        await calls.begin()
        body = message(question.message)
        frames = [frame(DATA, 0, 1, body[at : at + 1]) for at in range(len(body))]
        await calls.send(calls.headers(1, UNARY) + b"".join(frames) + frame(DATA, END_STREAM, 1))
        return question.judge_grpc(await calls.finished(1))


# -- nonsense

_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # how a TLS client begins


def _nonsense(target: random.Random) -> Sequence[bytes]:
    """What no port of the server should take."""
    return (
        target.randbytes(4096),
        _HELLO + target.randbytes(500),
        b"\r\n\r\n" * 100,
        b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
        PREFACE + target.randbytes(4096),
        PREFACE + frame(SETTINGS) + frame(DATA, 0, 1, b"to no call"),
        b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        request("POST", "/v2/models/echo/infer", target.randbytes(300)),
    )


async def _talk_nonsense(port: int, words: bytes) -> str:
    """Send `words`, and that nothing more comes.

    The server has to end the connection, whatever it answers.
    """
    async with await Connection.open(port) as connection:
        try:
            await connection.send(words)
            await connection.half_close()
        except Broken:
            return ""
        said = await connection.wait_ended()
    return f"{words[:20]!r}… was answered {said[:60]!r}" if said.startswith(b"HTTP/1.1 2") else ""


async def _garbage(stage: Stage, target: random.Random) -> list[str]:
    ports = (stage.server.http_port, stage.server.grpc_port, stage.server.metrics_port)
    clients = (
        partial(_talk_nonsense, port, words)
        for port in ports
        for words in (each for _ in range(3) for each in _nonsense(target))
    )
    return await together(clients, within=_COMING)


_NOT_FELT: Final = "; nobody else notices, and whoever comes next is answered."

FAULTS: Final[Sequence[Attack]] = (
    Attack(
        name="client_disconnects",
        expected="Clients that close their connections before, during and after a request cost their own answer alone"
        + _NOT_FELT,
        attack=partial(_leave, reset=False),
        detail="clients of HTTP and gRPC leave before, during and after requests",
    ),
    Attack(
        name="client_resets",
        expected="Connections that end by a reset, and calls of gRPC that are cancelled, cost their own answer alone; other calls of "
        "the same connection are answered" + _NOT_FELT,
        attack=partial(_leave, reset=True),
        detail="clients of HTTP and gRPC reset connections and calls",
    ),
    Attack(
        name="slow_writers",
        expected="A request that takes two seconds to arrive is answered rightly when it is there"
        + _NOT_FELT,
        attack=lambda stage, target: _slow(stage, target, _write_http_slowly, _write_grpc_slowly),
        detail="requests that arrive within two seconds, a few bytes at a time",
    ),
    Attack(
        name="slow_readers",
        expected="A client that reads its answers a few bytes at a time gets them whole, rightly and in order"
        + _NOT_FELT,
        attack=lambda stage, target: _slow(
            stage, target, _read_http_slowly, _read_grpc_slowly, _read_metrics_slowly
        ),
        detail="answers that are read a few bytes at a time",
    ),
    Attack(
        name="one_byte_chunks",
        expected="A request that comes in chunks, packets or frames of one byte each is answered like any other"
        + _NOT_FELT,
        attack=lambda stage, target: _slow(
            stage, target, _chunks_of_one_byte, _segments_of_one_byte, _frames_of_one_byte
        ),
        detail="requests in chunks, packets and frames of one byte",
    ),
    Attack(
        name="garbage",
        expected="Nonsense on any port is refused or hung up on" + _NOT_FELT,
        attack=_garbage,
        detail="random bytes, TLS, HTTP/2 for HTTP and the other way round, endless heads",
    ),
)
"""The family's faults."""
