"""Clients of the language model: each asks for one stream after the other over the OpenAI API.

What a stream says is written down as the code points of its text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import trio

from chaos.clients.clients import Clients
from chaos.clients.mix import Step
from chaos.languages.page import Asked
from chaos.record.history import End
from chaos.record.outcome import DISCONNECTED, NO_ANSWER, NO_CONNECTION, UNREADABLE, code_of, now
from chaos.record.records import Fail, Invoke, Ok, Unknown
from chaos.wires.http import Broken, Connection, request
from chaos.wires.telling import Answer
from chaos.workload.answers import TALE

TOKENS: Final = (20, 200)
_PAUSE: Final = 0.05  # seconds from an answer to the next request

_CODES: Final = {"unavailable": "UNAVAILABLE", "poisoned": "FAILED_PRECONDITION"}
"""Codes of error events, as gRPC has them."""


class TaleClients:
    """They ask one server."""

    def __init__(self, clients: Clients, port: int, *, patience: float) -> None:
        """`port` is that of the OpenAI API."""
        self._clients = clients
        self._port = port
        self._patience = patience

    async def ask_on(self, number: int, *, begin: float, until: float) -> None:
        """Be one of them from `begin` until `until` (records' time)."""
        draw = random.Random(f"tale {number} {begin}")
        await trio.sleep(max(0.0, begin - now()))
        while now() < until:
            step = Step(model=TALE, protocol="http", value=draw.randrange(1000), parts=draw.randint(*TOKENS))
            await self._clients.written(self._clients.invoke(step), self.ask)
            await trio.sleep(_PAUSE)

    async def ask(self, invoke: Invoke) -> End:
        """Send a request and return what came of it, after `patience` seconds at the latest."""
        said: list[str] = []
        try:
            with trio.fail_after(self._patience):
                return await self._ask(invoke, said)
        except trio.TooSlowError:
            reason = f"{NO_ANSWER} within {self._patience:g} s, behind {len(said)} pieces"
        except OSError as error:
            reason = f"{NO_CONNECTION}: {error}"
        except Broken as error:
            reason = f"{DISCONNECTED}: {error}"
        return Unknown(t=now(), n=invoke.n, reason=reason)

    async def _ask(self, invoke: Invoke, said: list[str]) -> End:
        messages = [{"role": "user", "content": Asked(invoke.parts, invoke.value).prompt}]
        body = {"model": invoke.model, "messages": messages, "stream": True, "temperature": 0}
        fields = {"content_type": "application/json", "x_request_id": invoke.id}
        answer, read = Answer(), _Read(said)
        async with await Connection.open(self._port) as connection:
            await connection.send(
                request("POST", "/v1/chat/completions", json.dumps(body).encode(), **fields)
            )
            while not answer.over:
                if not (data := await connection.read()):
                    raise Broken(f"the connection was closed behind {len(said)} pieces")
                read.take(answer.feed(data))
        return read.end(invoke, answer.status)


class _Read:
    """What has come of one stream."""

    def __init__(self, said: list[str]) -> None:
        self._said = said
        self._first = 0.0
        self._finish = ""
        self._attempts = 1
        self._error: Mapping[str, Any] | None = None

    def take(self, documents: Iterator[Mapping[str, Any]]) -> None:
        """Take events, or the document of an error."""
        for document in documents:
            self._error = document.get("error", self._error)
            for choice in document.get("choices", ()):
                if choice["delta"].get("content"):
                    self._first = self._first or now()
                    self._said.append(choice["delta"]["content"])
                if choice["finish_reason"]:
                    self._finish = choice["finish_reason"]
                    self._attempts = (choice.get("tritium") or {}).get("attempts", 1)

    def end(self, invoke: Invoke, status: int) -> End:
        """Return what came of it."""
        at, values = now(), tuple(map(ord, "".join(self._said)))
        if self._error is not None:
            code, message = str(self._error["code"]), str(self._error["message"])
            told = code_of(status) if status != 200 else _CODES.get(code, code.upper())
            return Fail(t=at, n=invoke.n, code=told, message=message, values=values)
        if self._finish != "stop":
            return Fail(
                t=at, n=invoke.n, code=UNREADABLE, message=f"it ended for {self._finish or 'no reason'}"
            )
        return Ok(t=at, n=invoke.n, values=values, first=self._first, attempts=self._attempts)
