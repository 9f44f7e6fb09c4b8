"""The v2 API as an ASGI application on trio.

One coroutine carries a request from its body to its answer: no task, nursery, cancel scope or lock is made
for it (DESIGN section 1). ASGI extensions let a server of ours save the rest:

- `tritium.response`: `send` takes one message of that type with `status`, `headers`, `body` (a list of
  buffers) and `release` (called once the buffers are no longer read, or None). So the answer is one write
  without a copy.
- `tritium.more`: writes part of a standard answer that has begun, at once and without the task. It returns
  False if the socket did not take all; then nothing more may be written in this way before the task has sent
  another part.
- `tritium.peer`: the `Peer` whose request it is.
- `tritium.disconnect`: an object with an attribute `disconnected`, and `on_disconnect` to be set to a
  function that is called when the client leaves. Without it a watcher waits in `receive()` while an inference
  runs.

A server that keeps header names as they came may give them in `scope["tritium.raw_headers"]`, and the caller
that `admit` returned for a long body in `scope["tritium.caller"]`. Endpoints find the caller there. Where
`scope["tritium.of_page"]` is false, no browser says which page the request is of. An application in front of
this one may give `scope["tritium.handle"]`, which answers in the endpoint's place once that has let the
request in.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from actors.values.auditing import Auditor, Requester
from actors.values.callers import Action, Caller, HeadGate, Peer
from actors.values.errors import PermissionDenied, TritiumError
from actors.values.interfaces import Server
from actors.values.tracing.spans import Trace
from protocols.http.admission import Admission, Admitted
from protocols.http.answers import (
    EXITING,
    NO_HEADERS,
    Answer,
    EndpointHandler,
    Receive,
    Scope,
    Send,
    StreamHandler,
    error_answer,
    failure,
    said_by,
)
from protocols.http.apart import Methods, outlives_draining
from protocols.http.bodies import BodyLimits, BodyTooLong, ForeignBody, Message, announced
from protocols.http.browsers import Browsers
from protocols.http.direct.path import DirectPath, InferHead, read_head
from protocols.http.entry import let_in
from protocols.http.events.endpoint import EventsEndpoint
from protocols.http.fields import Header, connecting
from protocols.http.generate import Generator
from protocols.http.inference import InferEndpoint
from protocols.http.management import ManagementEndpoints
from protocols.http.options import V2Options
from protocols.http.parser import Head
from protocols.http.routes import Endpoint, Route, match
from protocols.http.steering.loads import reporting
from protocols.http.steering.naming import naming
from protocols.http.tracing.noting import KEY, over, sending
from protocols.http.tracing.setting import TraceSettingEndpoint
from protocols.kserve.auditing import attempt
from protocols.memo import Memo

# Paths of ordinary length whose route is remembered. Hostile clients can make up any number of paths.
_KEPT_PATHS: Final = 1024
_KEPT_PATH_LENGTH: Final = 512
_KEPT_PATHS_BYTES: Final = 2 * 1024 * 1024
_TARGET_SIZE: Final = 1024  # bytes of a path's target, without its names


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """The result of looking a path up: what it asks of a request, and what answers."""

    route: Route
    # `handle` is None for what answers piece by piece: the generate extension, and the events.
    handle: EndpointHandler | None
    methods: tuple[str, ...]
    wrong_method: Callable[[Endpoint, str], Answer]
    restriction: Header | None
    refusal: Answer | None  # to requests that don't meet `restriction`


_FORBIDDEN: Final = 403
_NOT_FOUND: Final = error_answer(404, "Not Found", NO_HEADERS)


def _turned_away(target: _Target | None, method: str, headers: Sequence[Header]) -> Answer | None:
    """Return the answer to a request that its head alone forbids; None where it may go on."""
    if target is None:
        return _NOT_FOUND
    if target.restriction is not None:
        key, value = target.restriction
        shown = dict(headers).get(key)
        if shown is None or not hmac.compare_digest(shown, value):
            return target.refusal
    if method not in target.methods:
        return target.wrong_method(target.route.endpoint, method)
    return None


def ask_gate(
    gate: HeadGate, auditor: Auditor | None, route: Route, scope: Scope, receive: Receive
) -> Receive:
    """Put the caller into `scope`. Return a `receive` that tells it of bytes that no head announced.

    The native listener has read the body, and says how long it was.
    """
    headers = scope["headers"]
    caller: Caller | None = scope.get("tritium.caller")
    size: int | None = scope.get("tritium.size") if caller is None else None
    length = announced(headers) if size is None else size
    if caller is None:
        caller = let_in(gate, auditor, route, connecting(scope), scope["method"], headers, length)
        scope["tritium.caller"] = caller
    if length >= 0:
        return receive

    async def counted() -> Message:
        message = await receive()
        caller.received(len(message.get("body", b"")))
        return message

    return counted


class V2App:
    """Serves `server` over the v2 HTTP API. One instance serves all connections of a listener."""

    def __init__(self, server: Server, *, options: V2Options | None = None) -> None:
        self._options = options or V2Options()
        self._server = server
        self._gate = self._options.gate
        self._auditor = auditor = self._options.auditor
        self._browsers = Browsers(self._options.pages)
        self._methods = Methods(self._options.elsewhere)
        self._drains = server.health if self._options.outlives_draining else None
        self._targets: Memo[bytes, _Target] = Memo(_KEPT_PATHS, _KEPT_PATHS_BYTES)
        self._limits = BodyLimits(
            server.models,
            max_input_size=self._options.max_input_size,
            max_body_size=self._options.max_body_size,
        )
        inferences = InferEndpoint(server.models, self._options, server.shared_memory)
        self._handlers: dict[Endpoint, EndpointHandler] = {
            **ManagementEndpoints(
                server, max_input_size=self._options.max_input_size, auditor=auditor
            ).handlers,
            Endpoint.INFER: inferences.answer,
            Endpoint.TRACE: TraceSettingEndpoint(
                server, max_input_size=self._options.max_input_size, auditor=auditor
            ).answer,
        }
        # A port for management, which answers while the server drains, leaves nothing out.
        self.direct = None if self._drains is not None else DirectPath(inferences, self.read_inference)
        generator = Generator(server.models, self._options)
        self._streams: dict[Endpoint, StreamHandler] = {
            Endpoint.GENERATE: generator.answer,
            Endpoint.GENERATE_STREAM: generator.answer,
            Endpoint.EVENTS: EventsEndpoint(server.events, self._options).answer,
        }

    def read_inference(self, head: Head) -> InferHead | None:
        """Return what the head of a plain inference says; None for every other request."""
        if head.of_page:
            return None
        target = self._targets.get(head.path) or self._look_up(head.path)
        if target is None or target.route.endpoint is not Endpoint.INFER:
            return None
        if _turned_away(target, head.method, head.headers) is not None:
            return None
        return read_head(target.route, head, self._options.replica)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the v2 API speaks HTTP only, not {scope['type']}")
        sent = False
        try:
            await self._exchange(scope, receive, send)
            sent = True
        finally:
            trace: Trace | None = scope.get(KEY)
            if trace is not None:
                over(trace, sent=sent)

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, and note on its trace, if it has one, when the answer is sent."""
        if self._server.loads is not None:
            send = reporting(scope, send, self._server.models, self._server.loads)
        if "tritium.response" not in scope.get("extensions", ()):
            send = self._browsers.sending(scope["headers"], send)
            if self._options.replica:  # our own listener does so for all its answers
                send = naming(self._options.replica, send)
            await self._answer_elsewhere(scope, receive, send)
            return
        answer: Answer | None = None
        if scope.get("tritium.of_page", True):
            send = self._browsers.sending(scope["headers"], send)
            peer = connecting(scope)
            answer = self._answer_page(peer, scope["method"], scope["raw_path"], scope["headers"])
        if answer is None:
            answer = await self._answer(scope, receive, send)
        if answer is None:
            return  # it was answered piece by piece, or the client has left
        if KEY in scope:
            sending(scope[KEY])
        await send(
            {
                "type": "tritium.response",
                "status": answer.status,
                "headers": answer.headers,
                "body": answer.buffers,
                "release": answer.release,
            }
        )

    async def _answer_elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer under a foreign server, which has not asked `admit`."""
        verdict = self.admit_scope(scope)
        stream = scope.get("http_version", "1.1").startswith(("2", "3"))
        foreign = ForeignBody(receive, verdict, announced(scope["headers"]), stream=stream)
        if isinstance(verdict, Answer):
            answer: Answer | None = verdict
        else:
            try:
                answer = await self._answer(scope, foreign.receive, send)
            except BodyTooLong as error:
                answer = error.answer
        if answer is None:
            return
        if KEY in scope:
            sending(scope[KEY])
        await foreign.answer(send, answer, answer.headers)

    def admit(
        self, peer: Peer, method: str, path: bytes, headers: Sequence[Header], length: int
    ) -> Admission:
        """Say on a request's head whether its body may come (`protocols.http.admission.Admit`)."""
        verdict: Admission | None = self._answer_page(peer, method, path, headers)
        verdict = verdict or self._admit(peer, method, path, headers, length)
        return self._browsers.marked(headers, verdict)

    def _answer_page(self, peer: Peer, method: str, path: bytes, headers: Sequence[Header]) -> Answer | None:
        target = self._targets.get(path) or self._look_up(path)
        if target is None:
            return None
        answer = self._browsers.answer(target.route.endpoint, method, headers)
        if answer is not None and self._auditor is not None:
            self._tell_turned_away(self._auditor, target.route, method, peer, answer)
        return answer

    def _tell_turned_away(
        self, auditor: Auditor, route: Route, method: str, peer: Peer, answer: Answer
    ) -> None:
        """Tell the audit log of a request that was forbidden before credentials were looked at."""
        if answer.status == _FORBIDDEN:
            action = attempt(route.endpoint.value, route.endpoint.action(method))
            auditor.denied(
                action, route.model, Requester("", peer.address), PermissionDenied(said_by(answer))
            )

    def _admit(
        self, peer: Peer, method: str, path: bytes, headers: Sequence[Header], length: int
    ) -> Admission:
        target = self._targets.get(path) or self._look_up(path)
        answer = _turned_away(target, method, headers)
        if answer is not None:
            if target is not None and self._auditor is not None:
                self._tell_turned_away(self._auditor, target.route, method, peer, answer)
            return answer
        try:
            assert target is not None, "an unknown path was turned away"
            if self._gate is None:
                return self._limits.admit(target.route, headers, length)
            route = target.route
            caller = let_in(self._gate, self._auditor, route, peer, method, headers, length)
            uploads = route.endpoint is not Endpoint.MODEL_LOAD or caller.may(Action.UPLOAD, route.model)
            verdict = self._limits.admit(route, headers, length, uploads=uploads)
        except TritiumError as error:
            return failure(error)
        if isinstance(verdict, Admitted):
            verdict.caller = caller
        return verdict

    def admit_scope(self, scope: Scope) -> Admission:
        """Do as `admit` for a request of a foreign server, and note in `scope` whose it is."""
        headers = scope["headers"]
        verdict = self.admit(
            connecting(scope), scope["method"], scope["raw_path"], headers, announced(headers)
        )
        if isinstance(verdict, Admitted):
            scope["tritium.caller"] = verdict.caller
        return verdict

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        path: bytes = scope["raw_path"]
        target = self._targets.get(path) or self._look_up(path)
        turned_away = _turned_away(target, scope["method"], scope["headers"])
        if turned_away is not None or target is None:
            if turned_away is not None and target is not None and self._auditor is not None:
                method = scope["method"]
                self._tell_turned_away(self._auditor, target.route, method, connecting(scope), turned_away)
            return turned_away
        if self._drains is not None and self._drains.exiting and not outlives_draining(target.route.endpoint):
            return EXITING
        try:
            if self._gate is not None:
                receive = ask_gate(self._gate, self._auditor, target.route, scope, receive)
            handle: EndpointHandler | None = scope.get("tritium.handle") or target.handle
            if handle is not None:
                return await handle(target.route, scope, receive)
            await self._streams[target.route.endpoint](target.route, scope, receive, send)
        except TritiumError as error:
            return failure(error)
        return None

    def _look_up(self, path: bytes) -> _Target | None:
        route = match(path.decode("latin-1"))
        if route is None:
            return None
        endpoint = route.endpoint
        opened_by = self._options.restricted.get(endpoint.category)
        restriction = refusal = None
        if opened_by is not None:
            key, value = opened_by
            restriction = (key.lower().encode("latin-1"), value.encode("latin-1"))
            refusal = error_answer(403, f"This API is restricted, expecting header '{key}'")
        target = _Target(
            route,
            self._handlers.get(endpoint),
            self._methods.of(endpoint),
            self._methods.refusal,
            restriction,
            refusal,
        )
        if len(path) <= _KEPT_PATH_LENGTH:
            self._targets.remember(path, target, 2 * len(path) + _TARGET_SIZE)
        return target
