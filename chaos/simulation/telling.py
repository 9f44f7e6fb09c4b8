"""Clients of language models as tasks: one takes parts from the server itself, one speaks the OpenAI API."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import trio

from actors.values.errors import TritiumError
from actors.values.generation.asking import CHAT, Ask, GenerationRequest, Sampling
from actors.values.generation.pieces import TextPiece
from actors.values.requests import InferResponse, ReplyPort
from chaos.simulation.asking import STATUS
from chaos.simulation.outcomes import ANSWERED, Outcome
from chaos.simulation.plan import Told
from chaos.wires.http import Broken, Connection, request
from chaos.wires.telling import Answer
from engine.server.running import RunningServer

_CODES: Final = {
    "unavailable": "UNAVAILABLE",
    "poisoned": "POISONED",
    "deadline_exceeded": "DEADLINE_EXCEEDED",
}
"""Codes of error events."""


def _messages(told: Told) -> list[dict[str, str]]:
    return [{"role": "user", "content": told.asked.prompt}]


# -- the server's own interface


class _Port(ReplyPort):
    """A client that reads one part after the other, and takes its time for each."""

    def __init__(self, outcome: Outcome, nursery: trio.Nursery, pause: float) -> None:
        self.over = trio.Event()
        self._outcome = outcome
        self._send, receive = trio.open_memory_channel[InferResponse](math.inf)
        nursery.start_soon(self._read, receive, pause)

    async def _read(self, receive: trio.MemoryReceiveChannel[InferResponse], pause: float) -> None:
        async for part in receive:
            await trio.sleep(pause)
            part.release()

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Take one part."""
        outcome = self._outcome
        outcome.parts_after_final += outcome.finals > 0
        outcome.finals += final
        if isinstance(part, TritiumError):
            outcome.code, outcome.message = part.code.name, part.message
        else:
            for each in part.generated:
                if isinstance(each, TextPiece):
                    outcome.take(
                        each.choice, each.text, each.finish, reason=str(each.reason), attempts=each.attempts
                    )
            outcome.version = part.model_version
            self._send.send_nowait(part)
        if final:
            outcome.code = outcome.code or ANSWERED
            self._send.close()
            self.over.set()


async def ask_core(running: RunningServer, outcome: Outcome) -> None:
    """Submit a request, and wait for its final part. Raises TritiumError."""
    told, now = outcome.request.told, trio.current_time()
    assert told is not None, "it is for a language model"
    model = running.router.resolve(outcome.request.model)
    async with trio.open_nursery() as nursery:
        port = _Port(outcome, nursery, told.pause)
        asked = GenerationRequest(
            model_name=outcome.request.model,
            id=outcome.request.id,
            deadline=now + outcome.request.deadline if outcome.request.deadline else math.inf,
            reply=port,
            accepted_at=now,
        )
        sampling = Sampling(n=told.choices, max_tokens=told.most or None, stop=told.stops, temperature=0.0)
        asked.ask = Ask(CHAT, messages=_messages(told), sampling=sampling, stream=told.streams)
        try:
            await model.submit(asked)
            await port.over.wait()
        except trio.Cancelled:
            model.cancel(asked)
            raise
        except TritiumError as error:
            nursery.cancel_scope.cancel()
            outcome.code, outcome.message, outcome.finals = error.code.name, error.message, 1


# -- the OpenAI API


def _body(outcome: Outcome) -> bytes:
    asked = outcome.request
    told = asked.told
    assert told is not None, "it is for a language model"
    document: dict[str, Any] = {
        "model": asked.model,
        "messages": _messages(told),
        "n": told.choices,
        "stream": told.streams,
        "temperature": 0,
    }
    if told.most:
        document["max_tokens"] = told.most
    if told.stops:
        document["stop"] = list(told.stops)
    if asked.deadline:
        document["deadline"] = asked.deadline
    return json.dumps(document).encode()


async def ask_openai(address: bytes, outcome: Outcome) -> None:
    """Ask over HTTP, and read what comes until the answer is whole. Raises Broken and OSError."""
    told = outcome.request.told
    assert told is not None, "it is for a language model"
    answer = Answer()
    async with await Connection.open(address) as connection:
        head = {"content_type": "application/json", "X_Request_ID": outcome.request.id}
        await connection.send(request("POST", "/v1/chat/completions", _body(outcome), **head))
        while not answer.over:
            await trio.sleep(told.pause)
            data = await connection.read(4096)
            if not data:
                raise Broken("the connection has ended before the answer")
            for document in answer.feed(data):
                _take(outcome, answer.status, document)
    outcome.finals = 1
    outcome.code = outcome.code or ANSWERED


def _take(outcome: Outcome, status: int, document: Mapping[str, Any]) -> None:
    """Take an event of a stream, or the document of a whole answer."""
    if "error" in document:
        error = document["error"]
        told = _CODES.get(error["code"], error["code"])
        outcome.code = told if status == 200 else STATUS.get(status, f"HTTP {status}")
        outcome.message = error["message"]
        return
    for choice in document["choices"]:
        ours = choice.get("tritium") or {}
        said = choice.get("delta") or choice.get("message") or {}
        outcome.take(
            choice["index"],
            said.get("content") or "",
            choice["finish_reason"] or "",
            reason=ours.get("reason", ""),
            attempts=ours.get("attempts", 1),
        )
