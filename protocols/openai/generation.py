"""The endpoints that ask a language model for something: from a body to an answer, or to events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

import trio

from actors.seams.slices import in_slices
from actors.seams.steps import at_once
from actors.values.callers import Action, Caller
from actors.values.errors import InvalidArgument, NotFound, TritiumError
from actors.values.generation.asking import GenerationRequest
from actors.values.generation.facts import BadAsk, Languages
from actors.values.interfaces import Models
from actors.values.requests import InferRequest, InferResponse, ServedModel, release
from actors.values.tensors import Buffer
from protocols.grpc.codec.heads import parse_timeout
from protocols.http.answers import Answer, Receive, Scope, Send
from protocols.http.bodies import ONLY_IDENTITY, read_body
from protocols.http.fields import JSON, Header, connecting, peer_of, put_marks
from protocols.http.generate import Exchange, Part
from protocols.http.reply import carried_out
from protocols.http.tracing.noting import begin_in, noting
from protocols.kserve.auditing import tell_denied
from protocols.openai.asking import AskedFor, Kind, is_request_id, level_of, read
from protocols.openai.chunks import chunks
from protocols.openai.documents import SHORT, LongDocument, parse
from protocols.openai.envelope import PREFIXES, Envelope, fingerprint, is_long
from protocols.openai.listing import TokenAnswer, VectorAnswer
from protocols.openai.naming import Meant, find, no_language_model, only_one, unknown
from protocols.openai.options import OpenAiOptions
from protocols.openai.streams import EVENTS, EventWriter, KeepAlive, StreamPort
from protocols.openai.whole import WholeAnswer

REQUEST_ID: Final = b"x-request-id"
IGNORED: Final = b"x-tritium-ignored-fields"
"""Names the fields of the request that mean nothing here."""

_PLAIN: Final = frozenset((b"", b"identity"))
_MOST_NAMED: Final = 32
_SESSION: Final = b"x-session-affinity"
Respond = Callable[[Answer], Any]
Gathering = WholeAnswer | VectorAnswer | TokenAnswer


class Asking:
    """Answers requests to the language models among `models`."""

    def __init__(
        self, models: Models, languages: Languages, options: OpenAiOptions, alive: KeepAlive
    ) -> None:
        self._models = models
        self._languages = languages
        self._options = options
        self._alive = alive

    async def answer(self, kind: Kind, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """Answer one request. None: it was answered in events, or the client has left.

        Raises TritiumError only while nothing has been sent.
        """
        came = await self._read(kind, scope, receive)
        if came is None:
            return None
        asked, size = came
        meant = self._meant(asked.model)
        caller: Caller | None = scope.get("tritium.caller")
        if caller is not None:
            self._require(caller, meant.model, scope)
        model = self._models.resolve(meant.model)
        port = StreamPort()
        request = self._request(asked, meant, model, port, scope)
        request.nbytes = size
        _mark(model, request, asked, scope)
        envelope = self._envelope(asked, model, request.id)
        trace = begin_in(scope, self._options.tracer, request)
        if trace is not None:
            send = noting(trace, send)
        exchange = Exchange(model, request, port, self._told(scope))
        answers: list[Answer] = []
        if asked.streaming.wanted:
            headers = [*EVENTS, *ignored_fields(asked.ignored)]
            writer = EventWriter(
                exchange,
                port,
                chunks(asked, envelope),
                send,
                headers,
                self._alive,
                more=scope.get("extensions", {}).get("tritium.more"),
            )
            work = partial(exchange.run, writer.write)
        else:
            work = partial(exchange.run, partial(_gather, exchange, asked, envelope, answers))
        await carried_out(work, request, scope, receive)
        return answers[0] if answers else None

    async def _read(self, kind: Kind, scope: Scope, receive: Receive) -> tuple[AskedFor, int] | None:
        """Return what is asked for, and in how many bytes; None where the client left before it was told."""
        fields = dict(scope["headers"])
        body: Buffer | None = await read_body(receive)
        if body is None:
            return None
        if fields.get(b"content-encoding", b"") not in _PLAIN:
            raise InvalidArgument(ONLY_IDENTITY)
        if len(body) > self._options.max_input_size:
            raise BadAsk(too_long(len(body), self._options.max_input_size), reason="content_too_large")
        defaults = self._options.defaults
        if len(body) <= SHORT:
            asked = at_once(read(kind, parse(body), defaults))
        else:
            document = await in_slices(LongDocument(body).value())
            asked = await in_slices(read(kind, document, defaults))
        if asked.request_id and REQUEST_ID not in fields:
            scope["tritium.request_id"] = asked.request_id
        return _within(asked, fields.get(b"grpc-timeout")), len(body)

    def _meant(self, name: str) -> Meant:
        if not name:
            return only_one(self._languages)
        meant = find(name, self._languages, self._options.separator)
        if meant is not None:
            return meant
        try:
            # It may be known and not READY, which has an error of its own.
            self._models.resolve(name)
        except NotFound:
            raise unknown(name) from None
        raise no_language_model(name)

    def _require(self, caller: Caller, model: str, scope: Scope) -> None:
        try:
            caller.require(Action.INFERENCE, model)
        except TritiumError as error:
            if self._options.auditor is not None:
                peer = connecting(scope)
                tell_denied(self._options.auditor, Action.INFERENCE.value, model, caller, peer, error)
            raise

    def _request(
        self, asked: AskedFor, meant: Meant, model: ServedModel, port: StreamPort, scope: Scope
    ) -> GenerationRequest:
        now = trio.current_time()
        request = GenerationRequest(
            model_name=meant.model,
            reply=port,
            accepted_at=now,
            id=scope["tritium.request_id"],
            parameters={"user": asked.user} if asked.user else None,
            priority=level_of(asked.priority, model.spec),
            deadline=now + asked.deadline if asked.deadline else math.inf,
        )
        request.ask = asked.ask._replace(adapter=meant.adapter, stream=asked.streaming.wanted)
        return request

    def _envelope(self, asked: AskedFor, model: ServedModel, request_id: str) -> Envelope:
        spec = model.spec
        return Envelope(
            PREFIXES.get(asked.kind.value, "") + request_id,
            time.time_ns() // 1_000_000_000,
            asked.model or spec.name,
            fingerprint(self._options.server, spec.name, spec.version),
        )

    def _told(self, scope: Scope) -> Callable[[InferRequest, Part], None] | None:
        """Return the hook that is told the outcome of the request of `scope`."""
        on_finished = self._options.endings.hook
        if on_finished is None:
            return None
        return lambda request, outcome: on_finished(request, outcome, peer_of(scope.get("client")))


def too_long(size: int, most: int) -> str:
    """Return what is said of a body of `size` bytes, of which `most` are allowed (contract, http.md 14)."""
    return (
        f"Request size of {size} bytes exceeds the maximum allowed input size of {most} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def request_id_of(headers: Sequence[Header]) -> str:
    """Return the id that a client gave its request, or a random one. One that is too odd is left out."""
    given = dict(headers).get(REQUEST_ID, b"").decode("latin-1")
    return given if is_request_id(given) else uuid4().hex


def _within(asked: AskedFor, timeout: bytes | None) -> AskedFor:
    """Return `asked` with the deadline that its head says, as gRPC's do, if that is the earlier one."""
    if timeout is None:
        return asked
    try:
        seconds = max(parse_timeout(timeout), 0.001)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    return replace(asked, deadline=min(seconds, asked.deadline or math.inf))


def ignored_fields(ignored: Sequence[str]) -> list[Header]:
    """Return the header field that names what a request had and means nothing here, if there is any."""
    if not ignored:
        return []
    names = [name.encode("ascii", "backslashreplace").decode()[:80] for name in ignored]
    # A name that is no token could end the field, or be taken for several.
    named = [name for name in names if is_request_id(name) and "," not in name]
    more = len(names) - len(named[:_MOST_NAMED])
    value = ", ".join(named[:_MOST_NAMED]) + (f"; more={more}" if more else "")
    return [(IGNORED, value.encode())]


def _mark(model: ServedModel, request: InferRequest, asked: AskedFor, scope: Scope) -> None:
    if model.marks is not None:
        put_marks(model.marks, request, scope["headers"], scope.get("client"), scope.get("tritium.caller"))
    if not request.affinity:
        session = next((value for name, value in scope["headers"] if name == _SESSION), b"")
        request.affinity = session.decode("latin-1") or asked.affinity


async def _gather(exchange: Exchange, asked: AskedFor, envelope: Envelope, answers: list[Answer]) -> None:
    """Put the answer into `answers`, once all of it has come. Raises the error that came instead."""
    gathering = _gathering(asked, envelope)
    over = False
    while not over and not exchange.left:
        parts, over = await exchange.take()
        try:
            for part in parts:
                if not isinstance(part, InferResponse):
                    raise part
                if is_long(part.generated):
                    await in_slices(gathering.take(part.generated))
                else:
                    at_once(gathering.take(part.generated))
                release(part)
        finally:
            for part in parts:
                release(part)
    if exchange.left:
        return
    texts = await in_slices(gathering.texts())
    exchange.tell_end()
    answers.append(Answer(200, [JSON, *ignored_fields(asked.ignored)], texts))


def _gathering(asked: AskedFor, envelope: Envelope) -> Gathering:
    match asked.kind:
        case Kind.EMBEDDINGS:
            return VectorAnswer(asked, envelope)
        case Kind.TOKENIZE | Kind.DETOKENIZE:
            return TokenAnswer(asked)
    return WholeAnswer(asked, envelope)
