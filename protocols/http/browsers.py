"""Browsers as clients: pages that are refused, and answers that pages of other origins may read (CORS).

A request without `Origin` and `Sec-Fetch-Site` costs one look at what the parser found.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Final

from actors.values.callers import Action
from protocols.http.admission import Admission
from protocols.http.answers import Answer, Send, error_answer
from protocols.http.fields import Header
from protocols.http.origins import ANY, OriginPolicy, Use, page_fields
from protocols.http.routes import Endpoint

_READ_BY_POST: Final = frozenset({Endpoint.REPOSITORY_INDEX})
_SHARED: Final = b"access-control-allow-origin"
_EXPOSED: Final[Header] = (
    b"access-control-expose-headers",
    b"Inference-Header-Content-Length, Retry-After, Server-Timing, Tritium-Replica, WWW-Authenticate",
)
_VARY: Final[Header] = (b"vary", b"Origin")
_ALLOWED: Final = (
    b"Authorization, Content-Encoding, Content-Type, Inference-Header-Content-Length, Tritium-Replica"
)
_ASKED: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_MOST_ASKED: Final = 1024
_KEPT_FOR: Final[Header] = (b"access-control-max-age", b"600")


def use_of(endpoint: Endpoint, method: str) -> Use:
    """Return what a request is for, as far as pages are concerned."""
    if endpoint.category is Action.HEALTH:
        return Use.HEALTH
    if endpoint.category is Action.INFERENCE:
        return Use.INFERENCE
    return Use.CHANGE if method == "POST" and endpoint not in _READ_BY_POST else Use.READ


class Browsers:
    """What is asked of requests that pages send, and what is added to their answers."""

    def __init__(self, policy: OriginPolicy) -> None:
        self._policy = policy

    def answer(self, endpoint: Endpoint, method: str, headers: Sequence[Header]) -> Answer | None:
        """Return the answer to a preflight, or to a page that is refused; None for all other requests."""
        fields = page_fields(headers)
        if b"origin" not in fields and b"sec-fetch-site" not in fields:
            return None
        asked = dict(headers).get(b"access-control-request-method", b"") if method == "OPTIONS" else b""
        preflight = bool(asked) and bool(self._policy.origins)
        if preflight:
            method = asked.decode("latin-1")
        complaint = self._policy.complaint(use_of(endpoint, method), fields)
        if complaint:
            return error_answer(403, complaint)
        if not preflight:
            return None
        if not self._policy.shares_with(fields.get(b"origin")):
            shown = fields.get(b"origin", b"")[:100].decode("latin-1")
            return error_answer(403, f"--cors-allowed-origins does not name the origin '{shown}'")
        return Answer(204, _preflight(endpoint, dict(headers)))

    def sending(self, headers: Sequence[Header], send: Send) -> Send:
        """Return `send`, or one that adds to the answer what its page needs in order to read it."""
        added = self._added(headers)
        if not added:
            return send

        def sending(message: MutableMapping[str, Any]) -> Awaitable[None]:
            if message["type"] in {"tritium.response", "http.response.start"}:
                message["headers"] = _with(message["headers"], added)
            return send(message)

        return sending

    def marked(self, headers: Sequence[Header], verdict: Admission) -> Admission:
        """Return a verdict whose answers can be read by the page that sent the request."""
        added = self._added(headers)
        if not added:
            return verdict

        def mark(answer: Answer) -> Answer:
            return replace(answer, headers=_with(answer.headers, added))

        if isinstance(verdict, Answer):
            return mark(verdict)
        too_long = verdict.too_long
        return replace(verdict, too_long=lambda size: mark(too_long(size)))

    def _added(self, headers: Sequence[Header]) -> list[Header]:
        origins = self._policy.origins
        if not origins:
            return []
        origin = page_fields(headers).get(b"origin")
        if origin is None:
            return []
        if ANY in origins:
            return [(_SHARED, b"*"), _EXPOSED]
        return [(_SHARED, origin), _EXPOSED, _VARY] if self._policy.shares_with(origin) else [_VARY]


def _with(headers: Sequence[Header], added: Sequence[Header]) -> list[Header]:
    """Return the header fields of an answer with those for its page, which may be there already."""
    return [*headers, *(each for each in added if each not in headers)]


def _preflight(endpoint: Endpoint, fields: dict[bytes, bytes]) -> list[Header]:
    asked = fields.get(b"access-control-request-headers", b"")
    more = asked if len(asked) <= _MOST_ASKED and _ASKED.fullmatch(asked) else b""
    return [
        (b"access-control-allow-methods", ", ".join(endpoint.methods).encode()),
        (b"access-control-allow-headers", _ALLOWED + (b", " + more if more else b"")),
        _KEPT_FOR,
    ]
