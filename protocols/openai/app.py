"""The OpenAI API as an ASGI application on trio, beside the v2 application (`protocols.http.app`).

It takes the same extensions of ASGI, and treats identities, web pages and the audit log in the same way.
`run` is a task of its owner: it shows clients that quiet streams live.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, Final

from actors.values.callers import Caller, Peer
from actors.values.errors import TritiumError
from actors.values.generation.facts import BadAsk, Languages
from actors.values.interfaces import Server
from actors.values.tracing.spans import Trace
from protocols.http.admission import Admission, Admitted, limited, unread
from protocols.http.answers import Answer, Receive, Scope, Send, said_by
from protocols.http.app import ask_gate
from protocols.http.bodies import BodyTooLong, ForeignBody, Message, announced
from protocols.http.browsers import Browsers
from protocols.http.entry import let_in
from protocols.http.fields import JSON, Header, connecting, failure_fields
from protocols.http.routes import Route
from protocols.http.tracing.noting import KEY, over, sending
from protocols.openai.faults import error_object, retry_fields, status_of, told
from protocols.openai.generation import REQUEST_ID, Asking, request_id_of, too_long
from protocols.openai.managing.adapters import AdapterEndpoints
from protocols.openai.managing.management import Management
from protocols.openai.options import OpenAiOptions
from protocols.openai.routes import OpenAiRoute, Path, match
from protocols.openai.streams import KeepAlive

_INVALID: Final = "invalid_request_error"
_HEAD: Final = "HEAD"


def _refusal(status: int, message: str, code: str, kind: str = _INVALID, *more: Header) -> Answer:
    return Answer(status, [JSON, *more], (error_object(message, kind, code),))


_NOT_FOUND: Final = "there is no such path: see docs/llm.md for those that there are"


def _failed(error: TritiumError) -> Answer:
    """Return the answer that tells a client of `error`."""
    fields = retry_fields(error) or failure_fields(error)
    return Answer(status_of(error), [JSON, *fields], (told(error),))


def _of_page(answer: Answer) -> Answer:
    """Return the refusal of a web page in the form of this API. An answer to a preflight stays as it is."""
    if answer.status < 400:
        return answer
    text = error_object(said_by(answer), "permission_error", "permission_denied")
    return replace(answer, buffers=(text,))


class OpenAiApp:
    """Serves the language models of `server`. One instance serves all connections of a listener."""

    def __init__(self, server: Server, languages: Languages, options: OpenAiOptions) -> None:
        self._options = options
        self._alive = KeepAlive(options.keep_alive)
        self._asking = Asking(server.models, languages, options, self._alive)
        self._handlers = Management(server, languages, options).handlers
        if options.adapters is not None:
            adapters = AdapterEndpoints(options.adapters, languages, options)
            self._handlers |= {Path.LOAD_ADAPTER: adapters.load, Path.UNLOAD_ADAPTER: adapters.unload}
        self._browsers = Browsers(options.pages)
        self._opened_by = {
            area: (
                (key.lower().encode("latin-1"), value.encode("latin-1")),
                _refusal(
                    401,
                    f"This API is restricted, expecting header '{key}' with valid value",
                    "invalid_auth",
                    "authentication_error",
                ),
            )
            for area, (key, value) in options.restricted.items()
        }

    async def run(self) -> None:
        """Show clients that quiet streams live, until cancelled."""
        await self._alive.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the OpenAI API speaks HTTP only, not {scope['type']}")
        scope["tritium.request_id"] = request_id_of(scope["headers"])
        send = self._browsers.sending(scope["headers"], send)
        sent = False
        try:
            if "tritium.response" in scope.get("extensions", ()):
                await self._exchange(scope, receive, send)
            else:
                await self._exchange_elsewhere(scope, receive, send)
            sent = True
        finally:
            trace: Trace | None = scope.get(KEY)
            if trace is not None:
                over(trace, sent=sent)

    # The head of a request

    def admit(
        self, peer: Peer, method: str, path: bytes, headers: Sequence[Header], length: int
    ) -> Admission:
        """Say on a request's head whether its body may come (`protocols.http.admission.Admit`)."""
        route = match(path.decode("latin-1"))
        verdict: Admission | None = self._turned_away(route, method, headers)
        if verdict is None:
            assert route is not None, "an unknown path was turned away"
            verdict = self._admit(route, peer, method, headers, length)
        if isinstance(verdict, Answer):
            verdict = _with_id(verdict, request_id_of(headers))
        return self._browsers.marked(headers, verdict)

    def _admit(
        self, route: OpenAiRoute, peer: Peer, method: str, headers: Sequence[Header], length: int
    ) -> Admission:
        caller: Caller | None = None
        try:
            if self._options.gate is not None:
                caller = self._let_in(route, peer, method, headers, length)
        except TritiumError as error:
            return _failed(error)
        most = self._options.max_input_size
        verdict = limited(most, length, self._too_long) if route.path.kind is not None else unread(length)
        if isinstance(verdict, Admitted):
            verdict.caller = caller
            # What is sent with a load is looked at.
            verdict.wanted = verdict.wanted or route.path.method == "POST"
        return verdict

    def _too_long(self, size: int) -> Answer:
        return _refusal(413, too_long(size, self._options.max_input_size), "content_too_large")

    def _let_in(
        self, route: OpenAiRoute, peer: Peer, method: str, headers: Sequence[Header], length: int
    ) -> Caller:
        gate = self._options.gate
        assert gate is not None, "it is asked only where there is one"
        return let_in(gate, self._options.auditor, _as_v2(route), peer, method, headers, length)

    def _turned_away(
        self, route: OpenAiRoute | None, method: str, headers: Sequence[Header]
    ) -> Answer | None:
        """Return the answer to a request that its head alone forbids; None where it may go on."""
        if route is None:
            return _refusal(404, _NOT_FOUND, "not_found")
        page = self._browsers.answer(route.path.like, method, headers)
        if page is not None:
            return _of_page(page)
        opened_by = self._opened_by.get(route.path.area)
        if opened_by is not None:
            (key, value), refusal = opened_by
            if not hmac.compare_digest(dict(headers).get(key, b""), value):
                return refusal
        wanted = route.path.method
        if method != wanted and not (method == _HEAD and wanted == "GET"):
            return _refusal(
                405,
                f"{method} is not for this path: use {wanted}",
                "method_not_allowed",
                _INVALID,
                (b"allow", wanted.encode()),
            )
        return None

    # The whole request

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a listener of ours."""
        answer = await self._answer(scope, receive, send)
        if answer is None:
            return  # it was answered piece by piece, or the client has left
        if KEY in scope:
            sending(scope[KEY])
        await send(
            {
                "type": "tritium.response",
                "status": answer.status,
                "headers": _with_id(answer, scope["tritium.request_id"]).headers,
                "body": answer.buffers,
                "release": answer.release,
            }
        )

    async def _exchange_elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer under a foreign server, which has not asked `admit`."""
        headers = scope["headers"]
        length = announced(headers)
        verdict = self.admit(connecting(scope), scope["method"], scope["raw_path"], headers, length)
        stream = scope.get("http_version", "1.1").startswith(("2", "3"))
        foreign = ForeignBody(receive, verdict, length, stream=stream)
        if isinstance(verdict, Answer):
            answer: Answer | None = verdict
        else:
            scope["tritium.caller"] = verdict.caller
            try:
                answer = await self._answer(scope, foreign.receive, send)
            except BodyTooLong as error:
                answer = error.answer
        if answer is None:
            return
        await foreign.answer(send, answer, _with_id(answer, scope["tritium.request_id"]).headers)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        method, headers = scope["method"], scope["headers"]
        route = match(scope["raw_path"].decode("latin-1"))
        refused = self._turned_away(route, method, headers)
        if refused is not None or route is None:
            return refused
        try:
            if self._options.gate is not None:
                receive = self._ask_gate(route, scope, receive)
            kind = route.path.kind
            if kind is not None:
                return await self._asking.answer(kind, scope, receive, _naming(scope, send))
            if route.path is Path.METRICS:
                return await self._metrics(scope, receive, send)
            handler = self._handlers.get(route.path)
            if handler is None:
                return _refusal(404, _NOT_FOUND, "not_found")
            return await handler(route, scope, receive)
        except TritiumError as error:
            if isinstance(error, BadAsk) and error.reason == "content_too_large":
                return _refusal(413, error.message, "content_too_large")
            return _failed(error)

    def _ask_gate(self, route: OpenAiRoute, scope: Scope, receive: Receive) -> Receive:
        """Put the caller into `scope`. Return a `receive` that tells it of bytes that no head announced."""
        if scope.get("tritium.caller") is not None:
            return receive
        gate = self._options.gate
        assert gate is not None, "it is asked only where there is one"
        return ask_gate(gate, self._options.auditor, _as_v2(route), scope, receive)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        if self._options.metrics is None:
            return _refusal(404, "metrics are switched off (--allow-metrics)", "not_found")
        # The listener sends no body to a HEAD.
        await self._options.metrics({**scope, "method": "GET", "path": "/metrics"}, receive, send)
        return None


def _with_id(answer: Answer, request_id: str) -> Answer:
    return replace(answer, headers=[*answer.headers, (REQUEST_ID, request_id.encode())])


def _naming(scope: Scope, send: Send) -> Send:
    """Return a `send` that puts the request's id into the head of an answer that comes in events."""

    def named(message: Message) -> Awaitable[Any]:
        if message["type"] == "http.response.start":
            name = (REQUEST_ID, scope["tritium.request_id"].encode())
            message["headers"] = [*message["headers"], name]
        return send(message)

    return named


def _as_v2(route: OpenAiRoute) -> Route:
    """Return the route of the v2 API that asks for the same right."""
    return Route(endpoint=route.path.like, model=route.model)
