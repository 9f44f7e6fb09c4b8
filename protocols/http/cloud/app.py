"""A platform's API as an application in front of the v2 application.

A `Platform` reads the head of a request, and says what it asks of the v2 API. The v2 application answers that
as it answers all others: restrictions, identities, limits, audit and log are the same. What the platform
spells in another way is put right on the way in and on the way out.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from actors.values.callers import Peer
from actors.values.errors import InvalidArgument
from protocols.http.admission import Admission, unread
from protocols.http.answers import NO_HEADERS, Answer, EndpointHandler, Receive, Scope, Send, failure
from protocols.http.app import V2App
from protocols.http.cloud.framing import Framing
from protocols.http.conversation import Application, Message
from protocols.http.fields import Header
from protocols.http.routes import Route

BAD_REQUEST: Final = Answer(400, NO_HEADERS)
NOT_FOUND: Final = Answer(404, NO_HEADERS)

_KEPT: Final = frozenset((401, 403, 405, 413, 429))
"""Statuses that say nothing of a model: who may ask, how, and how much."""


def as_it_is(answer: Answer) -> Answer:
    """Change nothing of an answer."""
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """What a request of a platform asks of the v2 API.

    `handle`, if there is one, answers in the endpoint's place, once that has let the request in. `answered`
    puts answers into the platform's form. `elsewhere` answers in place of the v2 application.
    """

    method: str
    path: bytes
    headers: Sequence[Header] = field(default_factory=list)
    handle: EndpointHandler | None = None
    answered: Callable[[Answer], Answer] = as_it_is
    elsewhere: Application | None = None


def inference(
    framing: Framing,
    method: str,
    path: bytes,
    headers: Sequence[Header],
    answered: Callable[[Answer], Answer],
) -> Translated:
    """Return what an inference asks for. One whose media type is wrong is refused where it was let in."""
    try:
        return Translated(method=method, path=path, headers=framing.request(headers), answered=answered)
    except InvalidArgument as error:
        refusal = partial(_refuse, error)
        return Translated(method=method, path=path, headers=headers, handle=refusal, answered=answered)


async def _refuse(error: InvalidArgument, _route: Route, _scope: Scope, _receive: Receive) -> Answer:
    return failure(error)


class Platform(ABC):
    """The paths and the marks of one platform."""

    @abstractmethod
    def read(self, method: str, path: bytes, headers: Sequence[Header]) -> Translated | Answer:
        """Return what a request asks for, or the answer to one that asks for nothing that there is."""

    @abstractmethod
    def is_health(self, path: bytes) -> bool:
        """Whether the platform's health checks ask for this path."""


class CloudApp:
    """Serves a platform. One instance serves all connections of its listener."""

    def __init__(self, platform: Platform, v2: V2App) -> None:
        self._platform = platform
        self._v2 = v2

    def admit(
        self, peer: Peer, method: str, path: bytes, headers: Sequence[Header], length: int
    ) -> Admission:
        """Say on a request's head whether its body may come (`protocols.http.admission.Admit`)."""
        wanted = self._platform.read(method, path, headers)
        if isinstance(wanted, Answer):
            return wanted
        if wanted.elsewhere is not None:
            return unread(length)
        verdict = self._v2.admit(peer, wanted.method, wanted.path, wanted.headers, length)
        return wanted.answered(verdict) if isinstance(verdict, Answer) else verdict

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        wanted = self._platform.read(scope["method"], scope["raw_path"], scope["headers"])
        if isinstance(wanted, Answer):
            await send(_message(wanted))
            return
        inner = {
            **scope,
            "method": wanted.method,
            "path": wanted.path.decode("latin-1"),
            "raw_path": wanted.path,
            "query_string": b"",
            "headers": wanted.headers,
            "tritium.raw_headers": wanted.headers,
            "tritium.handle": wanted.handle,
        }
        if wanted.elsewhere is not None:
            await wanted.elsewhere(inner, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "tritium.response":
                message = _message(
                    wanted.answered(
                        Answer(message["status"], message["headers"], message["body"], message["release"])
                    )
                )
            await send(message)

        await self._v2(inner, receive, sent)


def _message(answer: Answer) -> Message:
    return {
        "type": "tritium.response",
        "status": answer.status,
        "headers": answer.headers,
        "body": answer.buffers,
        "release": answer.release,
    }


def said(answer: Answer) -> str:
    """Return the text of an error of the v2 API; empty where it has none."""
    try:
        document = json.loads(b"".join(answer.buffers))
    except ValueError:
        return ""
    text = document.get("error", "") if isinstance(document, dict) else ""
    return text if isinstance(text, str) else ""


def tells_of_model(answer: Answer) -> bool:
    """Whether an answer is an error that a model met, and not one of who asks, how, or how much."""
    return answer.status >= 300 and answer.status not in _KEPT
