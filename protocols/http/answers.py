"""Answers of the v2 API, as its endpoints make them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from actors.values.errors import TritiumError
from actors.values.tensors import Buffer
from protocols.http.fields import JSON, SOON, Header, failure_fields
from protocols.http.routes import Route
from protocols.kserve import metadata
from protocols.status import http_status

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ONLY_JSON: Final[list[Header]] = [JSON]
NO_HEADERS: Final[list[Header]] = []


@dataclass(slots=True)
class Answer:
    """The answer to the client. `release` is called once the buffers are no longer read."""

    status: int
    headers: list[Header]
    buffers: Sequence[Buffer] = ()
    release: Callable[[], None] | None = None


EndpointHandler = Callable[[Route, Scope, Receive], Awaitable[Answer | None]]
"""Answers requests to one endpoint; None where the client left first."""

StreamHandler = Callable[[Route, Scope, Receive, Send], Awaitable[None]]
"""Answers requests to one endpoint piece by piece. Raises TritiumError only while nothing has been sent."""


def json_answer(body: bytes) -> Answer:
    """Return a JSON text."""
    return Answer(200, ONLY_JSON, (body,))


def error_answer(status: int, message: str, headers: list[Header] = ONLY_JSON) -> Answer:
    """Return an error as the v2 API tells it."""
    return Answer(status, headers, (metadata.error(message),))


def failure(error: TritiumError) -> Answer:
    """Return the answer that tells a client of `error`."""
    return error_answer(http_status(error.code), error.message, [JSON, *failure_fields(error)])


def said_by(answer: Answer) -> str:
    """Return the text of an error that `error_answer` made."""
    return str(json.loads(b"".join(answer.buffers))["error"])


EXITING: Final = error_answer(503, "Server exiting", [JSON, SOON])
YES: Final = Answer(200, NO_HEADERS)
NO: Final = Answer(400, NO_HEADERS)
