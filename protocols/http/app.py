"""The v2 API as an ASGI application on trio.

One coroutine carries a request from its body to its answer: no task, nursery, cancel scope or lock is made
for it (DESIGN section 1). Two ASGI extensions let a server of ours save the rest:

- `tritium.response`: `send` takes one message of that type with `status`, `headers`, `body` (a list of
  buffers) and `release` (called once the buffers are no longer read, or None). So the answer is one write
  without a copy.
- `tritium.disconnect`: an object with an attribute `disconnected`, and `on_disconnect` to be set to a
  function that is called when the client leaves. Without it a watcher waits in `receive()` while an inference
  runs.

A server that keeps header names as they came may give them in `scope["tritium.raw_headers"]`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from actors.seams.slices import in_slices, in_threads
from actors.values.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    TritiumError,
    Unavailable,
    Unsupported,
)
from actors.values.interfaces import Server
from actors.values.requests import InferRequest, InferResponse, ServedModel
from protocols.http.admission import Admission, HttpRefusal
from protocols.http.bodies import NO_DECOUPLED, BodyLimits, BodyTooLong, ForeignBody, announced, as_refusal
from protocols.http.cross_site import foreign_origin
from protocols.http.disconnects import DisconnectHook, watched
from protocols.http.fields import JSON, SOON, Header, failure_fields, server_timing
from protocols.http.generate import GenerateOptions, Generator
from protocols.http.marking import peer_of, put_marks
from protocols.http.reply import HttpReply
from protocols.http.routes import CHANGE_WHAT_IS_SERVED, Endpoint, Route, match
from protocols.kserve import metadata
from protocols.kserve.categories import Category
from protocols.kserve.compression import (
    choose_coding,
    compress,
    compressing,
    decompress,
    decompressing,
    is_compressed,
)
from protocols.kserve.documents import dump, misfit
from protocols.kserve.forwarding import forward_headers
from protocols.kserve.loading import load_parameters, parameters_of
from protocols.kserve.long_answers import encode_long, is_long
from protocols.kserve.long_texts import LongText
from protocols.kserve.requests import (
    DEFAULT_MAX_INPUT_SIZE,
    InferDecoder,
    OutputPlan,
)
from protocols.kserve.responses import Body, encode
from protocols.kserve.short_texts import TooLong, read_short
from protocols.kserve.sizes import check_json_size, parse_json_size
from protocols.memo import Memo
from protocols.status import http_status

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Outcome = InferResponse | TritiumError

# Paths of ordinary length whose route is remembered. Hostile clients can make up any number of paths.
_KEPT_PATHS: Final = 1024
_KEPT_PATH_LENGTH: Final = 512
_KEPT_PATHS_BYTES: Final = 2 * 1024 * 1024
_TARGET_SIZE: Final = 1024  # bytes of a path's target, without its names
_IN_A_THREAD: Final = 64 * 1024  # answers from this size are compressed off the loop
# At zlib's best ratio of 1,032 these make 4 MiB, which takes a few milliseconds.
_UNFOLDED_AT_ONCE: Final = 4096
_LONGEST_PLAN: Final = 64 * 1024  # of traffic: some hundred versions
_MAX_BODY: Final = 2**31 - 1
_DEEP: Final = {b"1": True, b"true": True, b"0": False, b"false": False}

_JSON: Final[list[Header]] = [JSON]
_BINARY: Final[Header] = (b"content-type", b"application/octet-stream")
_NO_HEADERS: Final[list[Header]] = []

_NOT_OFFERED: Final = {
    Endpoint.LOGGING: "the logging extension",
    Endpoint.TRACE: "the trace extension",
    Endpoint.SYSTEM_MEMORY_STATUS: "system shared memory",
    Endpoint.SYSTEM_MEMORY_CHANGE: "system shared memory",
    Endpoint.CUDA_MEMORY_STATUS: "CUDA shared memory",
    Endpoint.CUDA_MEMORY_CHANGE: "CUDA shared memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class V2Options:
    """How the v2 API behaves.

    `restricted` maps a category to the header that opens it. `header_forward_pattern` picks request headers,
    by a match anywhere in their names, that become parameters of an inference. `on_finished` is told every
    inference, its outcome and the client's address, before its memory is given back.
    """

    max_input_size: int = DEFAULT_MAX_INPUT_SIZE
    max_body_size: int = _MAX_BODY
    restricted: Mapping[Category, tuple[str, str]] = field(default_factory=dict)
    header_forward_pattern: re.Pattern[str] | None = None
    server_timing: bool = False
    on_finished: Callable[[InferRequest, Outcome, str], None] | None = None


class _Answer:
    """The answer to the client."""

    __slots__ = ("buffers", "headers", "release", "status")

    def __init__(
        self,
        status: int,
        headers: list[Header],
        buffers: Sequence[Buffer] = (),
        release: Callable[[], None] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        self.buffers = buffers
        self.release = release


_Handler = Callable[[Route, Scope, Receive], Awaitable[_Answer | None]]


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """The result of looking a path up: what it asks of a request, and what answers."""

    route: Route
    # `handle` is None for the generate extension, which answers piece by piece.
    handle: _Handler | None
    methods: tuple[str, ...]
    restriction: Header | None
    refusal: _Answer | None  # to requests that don't meet `restriction`
    guarded: bool  # against pages of other sites


def _json(body: bytes) -> _Answer:
    return _Answer(200, _JSON, (body,))


def _error(status: int, message: str, headers: list[Header] = _JSON) -> _Answer:
    return _Answer(status, headers, (metadata.error(message),))


def _failure(error: TritiumError) -> _Answer:
    return _error(http_status(error.code), error.message, [JSON, *failure_fields(error)])


_NOT_FOUND: Final = _error(404, "Not Found", _NO_HEADERS)
_WRONG_METHOD: Final = _error(405, "Method Not Allowed")
_EXITING: Final = _error(503, "Server exiting", [JSON, SOON])
_YES: Final = _Answer(200, _NO_HEADERS)
_NO: Final = _Answer(400, _NO_HEADERS)


def _refusal(refused: HttpRefusal) -> _Answer:
    return _Answer(refused.status, list(refused.headers), (refused.body,))


def _turned_away(target: _Target | None, method: str, headers: Sequence[Header]) -> _Answer | None:
    """Return the answer to a request that its head alone forbids; None where it may go on."""
    if target is None:
        return _NOT_FOUND
    if target.restriction is not None:
        key, value = target.restriction
        if dict(headers).get(key) != value:
            return target.refusal
    if method not in target.methods:
        return _WRONG_METHOD
    origin = foreign_origin(dict(headers)) if target.guarded and method == "POST" else None
    if origin is None:
        return None
    return _error(403, f"a web page of another site sent this ({origin}), and may not change what is served")


class V2App:
    """Serves `server` over the v2 HTTP API. One instance serves all connections of a listener."""

    def __init__(self, server: Server, *, options: V2Options | None = None) -> None:
        self._server = server
        self._options = options or V2Options()
        self._decoder = InferDecoder(max_input_size=self._options.max_input_size)
        self._metadata = _json(metadata.server_metadata(server.identity))
        self._targets: Memo[bytes, _Target] = Memo(_KEPT_PATHS, _KEPT_PATHS_BYTES)
        self._limits = BodyLimits(
            server.models,
            max_input_size=self._options.max_input_size,
            max_body_size=self._options.max_body_size,
        )
        self._handlers: dict[Endpoint, _Handler] = {
            Endpoint.SERVER_LIVE: self._live,
            Endpoint.SERVER_READY: self._ready,
            Endpoint.SERVER_METADATA: self._server_metadata,
            Endpoint.MODEL_METADATA: self._model_metadata,
            Endpoint.MODEL_READY: self._model_ready,
            Endpoint.MODEL_CONFIG: self._model_config,
            Endpoint.MODEL_STATISTICS: self._statistics,
            Endpoint.ALL_STATISTICS: self._statistics,
            Endpoint.INFER: self._infer,
            Endpoint.REPOSITORY_INDEX: self._index,
            Endpoint.MODEL_LOAD: self._load,
            Endpoint.MODEL_UNLOAD: self._unload,
            Endpoint.TREE: self._tree,
            Endpoint.TRAFFIC: self._traffic,
            **dict.fromkeys(_NOT_OFFERED, self._not_offered),
        }
        self._generator = Generator(
            server.models,
            self._body,
            GenerateOptions(
                max_input_size=self._options.max_input_size,
                server_timing=self._options.server_timing,
                on_finished=self._options.on_finished,
            ),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the v2 API speaks HTTP only, not {scope['type']}")
        if "tritium.response" not in scope.get("extensions", ()):
            await self._answer_elsewhere(scope, receive, send)
            return
        answer = await self._answer(scope, receive, send)
        if answer is None:
            return  # it was answered piece by piece, or the client has left
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
        length = announced(scope["headers"])
        verdict = self.admit(scope["method"], scope["raw_path"], scope["headers"], length)
        foreign = ForeignBody(receive, verdict, length)
        if isinstance(verdict, HttpRefusal):
            answer: _Answer | None = _refusal(verdict)
        else:
            try:
                answer = await self._answer(scope, foreign.receive, send)
            except BodyTooLong as error:
                answer = _refusal(error.answer)
        if answer is None:
            return
        body = b"".join(answer.buffers)
        if answer.release is not None:
            answer.release()
        headers = [*answer.headers, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if not foreign.ended:
            # A server that learns that the answer is complete would
            # close the connection while the body still comes.
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await foreign.discard()
            body = b""
        await send({"type": "http.response.body", "body": body})

    def admit(self, method: str, path: bytes, headers: Sequence[Header], length: int) -> Admission:
        """Say on a request's head whether its body may come (`protocols.http.admission.Admit`)."""
        target = self._targets.get(path) or self._look_up(path)
        answer = _turned_away(target, method, headers)
        if answer is not None:
            return HttpRefusal(status=answer.status, headers=answer.headers, body=b"".join(answer.buffers))
        try:
            assert target is not None, "an unknown path was turned away"
            return self._limits.admit(target.route, headers, length)
        except TritiumError as error:
            return as_refusal(error)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> _Answer | None:
        path: bytes = scope["raw_path"]
        target = self._targets.get(path) or self._look_up(path)
        turned_away = _turned_away(target, scope["method"], scope["headers"])
        if turned_away is not None or target is None:
            return turned_away
        try:
            if target.handle is not None:
                return await target.handle(target.route, scope, receive)
            await self._generator.answer(target.route, scope, receive, send)
        except TritiumError as error:
            return _failure(error)
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
            refusal = _error(403, f"This API is restricted, expecting header '{key}'")
        target = _Target(
            route,
            self._handlers.get(endpoint),
            endpoint.methods,
            restriction,
            refusal,
            guarded=endpoint in CHANGE_WHAT_IS_SERVED,
        )
        if len(path) <= _KEPT_PATH_LENGTH:
            self._targets.remember(path, target, 2 * len(path) + _TARGET_SIZE)
        return target

    # Health and metadata

    async def _live(self, _route: Route, _scope: Scope, _receive: Receive) -> _Answer:
        health = self._server.health
        if health.exiting:
            return _EXITING
        return _YES if health.live() else _NO

    async def _ready(self, _route: Route, scope: Scope, _receive: Receive) -> _Answer:
        health = self._server.health
        if health.exiting or health.withdrawn:
            return _EXITING
        if _asks_deep(scope.get("query_string", b"")):
            report = await health.deep()
            return _Answer(200 if report.ready else 400, _JSON, (dump(report.document),))
        return _YES if await health.ready() else _NO

    def _require_running(self) -> None:
        health = self._server.health
        if health.exiting or not health.live():
            raise Unavailable("Server not ready")

    async def _model_ready(self, route: Route, _scope: Scope, _receive: Receive) -> _Answer:
        self._require_running()
        if await self._server.health.model_ready(route.model, route.version):
            return _YES
        return _error(400, "Model version not ready")

    async def _server_metadata(self, _route: Route, _scope: Scope, _receive: Receive) -> _Answer:
        return self._metadata

    async def _model_metadata(self, route: Route, _scope: Scope, _receive: Receive) -> _Answer:
        self._require_running()
        models = self._server.models
        spec = models.resolve(route.model, route.version).spec
        versions = [spec.version] if route.version else models.versions(route.model)
        return _json(metadata.model_metadata(spec, versions))

    async def _model_config(self, route: Route, _scope: Scope, _receive: Receive) -> _Answer:
        self._require_running()
        return _json(self._server.models.resolve(route.model, route.version).spec.config_json)

    async def _statistics(self, route: Route, _scope: Scope, _receive: Receive) -> _Answer:
        self._require_running()
        return _json(metadata.statistics(self._server.models.statistics(route.model, route.version)))

    async def _tree(self, _route: Route, _scope: Scope, _receive: Receive) -> _Answer:
        return _json(dump(self._server.introspection.tree()))

    # Repository

    async def _index(self, _route: Route, _scope: Scope, receive: Receive) -> _Answer | None:
        document = await self._optional_document(receive)
        if document is None:
            return None
        ready_only = document.get("ready", False)
        if type(ready_only) is not bool:
            raise InvalidArgument("Invalid value for 'ready': expected a boolean")
        self._require_running()
        return _json(metadata.repository_index(await self._server.repository.index(ready_only=ready_only)))

    async def _load(self, route: Route, _scope: Scope, receive: Receive) -> _Answer | None:
        document = await self._optional_document(receive, long_strings=True)
        if document is None:
            return None
        _refuse_repository_name(route)
        parameters = await in_slices(load_parameters(document))
        await self._server.repository.load(route.model, parameters)
        return _Answer(200, _JSON)

    async def _unload(self, route: Route, _scope: Scope, receive: Receive) -> _Answer | None:
        document = await self._optional_document(receive)
        if document is None:
            return None
        _refuse_repository_name(route)
        parameters = parameters_of(document)
        dependents = parameters.get("unload_dependents", False)
        if type(dependents) is not bool:
            raise misfit(parameters, "unload_dependents", "boolean")
        await self._server.repository.unload(route.model, unload_dependents=dependents)
        return _Answer(200, _JSON)

    async def _traffic(self, route: Route, scope: Scope, receive: Receive) -> _Answer | None:
        """Describe a model's traffic plan, or put another in force.

        `{}` ends the split; nothing at all is a mistake.
        """
        traffic = self._server.traffic
        if scope["method"] == "GET":
            return _json(dump(traffic.describe(route.model)))
        self._require_running()
        body = await self._body(receive)
        if body is None:
            return None
        if len(body) > _LONGEST_PLAN:
            raise InvalidArgument(
                f"a traffic plan has {_LONGEST_PLAN} bytes at most, and this body {len(body)}"
            )
        try:
            document = await self._parsed(body) if body else None
        except Internal as error:  # as Triton's own endpoints answer such a body
            raise InvalidArgument(error.message) from error
        if type(document) is not dict:
            raise InvalidArgument("the body is a traffic plan as a JSON object, or {} to end the split")
        return _json(dump(traffic.change(route.model, document)))

    async def _not_offered(self, route: Route, _scope: Scope, _receive: Receive) -> _Answer:
        raise Unsupported(f"{_NOT_OFFERED[route.endpoint]} is not supported by this version of Tritium")

    async def _optional_document(
        self, receive: Receive, *, long_strings: bool = False
    ) -> dict[str, Any] | None:
        """Return the members of the JSON object in the body, none for an empty body.

        None: the client left.
        """
        body = await self._body(receive)
        if body is None:
            return None
        document = await self._parsed(body, long_strings=long_strings) if body else {}
        return document if type(document) is dict else {}

    async def _parsed(self, body: Buffer, *, long_strings: bool = False) -> Any:
        check_json_size(len(body), self._options.max_input_size)
        try:
            return read_short(body)
        except TooLong:
            return await in_slices(LongText(body, long_strings=long_strings).document())

    async def _body(self, receive: Receive) -> Buffer | None:
        """Return the request's body; None where the client left before its end."""
        message = await receive()
        if message["type"] != "http.request":
            return None
        body: Buffer = message.get("body", b"")
        if not message.get("more_body", False):
            return body
        parts = [body]
        while message.get("more_body", False):
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
        return b"".join(parts)

    # Inference

    async def _infer(self, route: Route, scope: Scope, receive: Receive) -> _Answer | None:
        model = self._server.models.resolve(route.model, route.version)
        if model.spec.decoupled:
            raise Unsupported(NO_DECOUPLED)
        body = await self._body(receive)
        if body is None:
            return None
        fields: dict[bytes, bytes] = dict(scope["headers"])
        encoding = fields.get(b"content-encoding")
        if encoding is not None and is_compressed(encoding):
            body = await self._decompressed(body)
        model = self._server.models.resolve(route.model, route.version)  # it may have been replaced meanwhile
        json_size = fields.get(b"inference-header-content-length")
        pattern = self._options.header_forward_pattern
        port = HttpReply()
        given = (body, None if json_size is None else parse_json_size(json_size, len(body)), model.spec)
        requested_version = int(route.version) if route.version else -1
        forwarded = None if pattern is None else _forwarded(scope, pattern)
        try:
            request, plan = self._decoder.decode(
                *given,
                requested_version=requested_version,
                reply=port,
                accepted_at=trio.current_time(),
                forwarded=forwarded,
            )
        except TooLong:
            request, plan = await in_slices(
                self._decoder.decode_long(
                    *given,
                    requested_version=requested_version,
                    reply=port,
                    accepted_at=trio.current_time(),
                    forwarded=forwarded,
                )
            )
            model = self._server.models.resolve(route.model, route.version)  # once more, for the same reason
        del body, given  # the request keeps nothing of a long JSON text
        if model.marks is not None:
            put_marks(model.marks, request, scope)
        hook: DisconnectHook | None = scope.get("extensions", {}).get("tritium.disconnect")
        try:
            if hook is not None:
                outcome = await _exchange(model, request, port, hook)
            else:
                outcome = await watched(receive, partial(_exchange, model, request, port))
        except TritiumError as error:
            # Its traceback holds this frame, which holds it: floods
            # of refusals would wait for the garbage collector.
            outcome = error.with_traceback(None)
        if self._options.on_finished is not None:
            self._options.on_finished(request, outcome or Cancelled("the client left"), peer_of(scope))
        if outcome is None:
            return None
        if isinstance(outcome, TritiumError):
            return _failure(outcome)
        answered_by = request.routed_to or model
        return await self._encoded(outcome, plan, answered_by, fields.get(b"accept-encoding"))

    async def _decompressed(self, body: Buffer) -> Buffer:
        limit = self._options.max_input_size
        if len(body) < _UNFOLDED_AT_ONCE:
            return decompress(body, limit)
        return await in_slices(in_threads(decompressing(body, limit)))

    async def _encoded(
        self, response: InferResponse, plan: OutputPlan, model: ServedModel, accept_encoding: bytes | None
    ) -> _Answer:
        """Return the answer that carries `response`, whose memory is given back here or by the server."""
        try:
            if is_long(response, plan):
                body = await in_slices(encode_long(response, plan, model.spec))
            else:
                body = encode(response, plan, model.spec)
            headers = _JSON if body.json_size is None else _binary_headers(body.json_size)
            if self._options.server_timing and response.timing is not None:
                headers = [*headers, server_timing(response.timing)]
            coding = b"" if accept_encoding is None else choose_coding(accept_encoding)
            if coding:
                headers = [*headers, (b"content-encoding", coding)]
                body = await self._compressed(body, coding)
        except BaseException:
            response.release()
            raise
        if body.borrowed:
            return _Answer(200, headers, body.buffers, response.release)
        response.release()
        return _Answer(200, headers, body.buffers)

    async def _compressed(self, body: Body, coding: bytes) -> Body:
        if body.size < _IN_A_THREAD:
            compressed = compress(body.buffers, coding)
        else:
            compressed = await in_slices(in_threads(compressing(body.buffers, coding)))
        return Body([compressed], len(compressed), body.json_size, borrowed=False)


async def _exchange(
    model: ServedModel, request: InferRequest, port: HttpReply, hook: DisconnectHook
) -> Outcome | None:
    """Have `model` answer `request`; None where the client left first."""

    def left() -> None:
        port.close()
        model.cancel(request)

    if hook.disconnected:
        return None
    hook.on_disconnect = left
    try:
        await model.submit(request)
        return await port.wait()
    except trio.Cancelled:
        left()
        raise
    finally:
        hook.on_disconnect = None


def _forwarded(scope: Scope, pattern: re.Pattern[str]) -> dict[str, str] | None:
    return forward_headers(scope.get("tritium.raw_headers") or scope["headers"], pattern)


def _binary_headers(json_size: int) -> list[Header]:
    return [_BINARY, (b"inference-header-content-length", str(json_size).encode())]


def _asks_deep(query: bytes) -> bool:
    """Whether a readiness probe asks for inferences. Other fields of the query are ignored."""
    for pair in query.split(b"&") if query else ():
        name, _, value = pair.partition(b"=")
        if name == b"deep":
            if value not in _DEEP:
                shown = value[:40].decode("ascii", "replace")
                raise InvalidArgument(f"Invalid value '{shown}' for 'deep': expected 1 or 0")
            return _DEEP[value]
    return False


def _refuse_repository_name(route: Route) -> None:
    if route.repository:
        raise Unsupported("'repository_name' specification is not supported")
