"""The infer endpoint: from a request's body to the model's answer, in the task of the request's connection.

Contract: http.md sections 6 to 8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from actors.seams.slices import in_slices, in_threads
from actors.values.auditing import DENIALS
from actors.values.callers import Caller, HeadGate
from actors.values.errors import Cancelled, TritiumError, Unsupported
from actors.values.interfaces import Models, Regions
from actors.values.requests import InferRequest, InferResponse, ServedModel
from actors.values.tensors import Buffer
from actors.values.tracing.spans import Span
from protocols.http.answers import ONLY_JSON, Answer, Receive, Scope, failure
from protocols.http.bodies import NO_DECOUPLED, read_body
from protocols.http.fields import Header, connecting, peer_of, put_marks, server_timing
from protocols.http.options import Outcome, V2Options
from protocols.http.reply import DisconnectHook, HttpReply, watched
from protocols.http.routes import Route
from protocols.http.tracing.noting import answered, begin_in
from protocols.kserve.caps import parse_json_size
from protocols.kserve.compression import (
    choose_coding,
    compress,
    compressing,
    decompress,
    decompressing,
    is_compressed,
    most_of,
)
from protocols.kserve.documents import TooLong
from protocols.kserve.forwarding import forward_headers
from protocols.kserve.long_answers import encode_long, is_long
from protocols.kserve.meanings import OutputPlan
from protocols.kserve.permitted import tell_regions_denied
from protocols.kserve.requests import Arrival, InferDecoder
from protocols.kserve.responses import Body, encode
from protocols.kserve.steering import REPLICA, check_replica
from protocols.transport.budget import FREE
from protocols.transport.receiving import Claim, no_room

_IN_A_THREAD: Final = 64 * 1024  # answers from this size are compressed off the loop
# At zlib's best ratio of 1,032 these make 4 MiB, which takes a few milliseconds.
_UNFOLDED_AT_ONCE: Final = 4096
_REPLICA: Final = REPLICA.encode()
_BINARY: Final[Header] = (b"content-type", b"application/octet-stream")


class InferEndpoint:
    """Answers inferences by `models`."""

    def __init__(self, models: Models, options: V2Options, regions: Regions | None = None) -> None:
        """`regions` are those of clients' shared memory. Without it, there are none."""
        self.models = models
        self.options = options
        self.decoder = InferDecoder(max_input_size=options.max_input_size, regions=regions)

    async def answer(self, route: Route, scope: Scope, receive: Receive) -> Answer | None:
        """Have a model answer one request. Raises TritiumError."""
        model = self.models.resolve(route.model, route.version)
        if model.spec.decoupled:
            raise Unsupported(NO_DECOUPLED)
        body = await read_body(receive)
        if body is None:
            return None
        fields: dict[bytes, bytes] = dict(scope["headers"])
        encoding = fields.get(b"content-encoding")
        claim: Claim | None = None  # of what the body unfolds to
        decoded: InferRequest | None = None
        try:
            if encoding is not None and is_compressed(encoding):
                claim = Claim(self.options.room)
                body = await self._decompressed(body, claim)
            model = self.models.resolve(route.model, route.version)  # it may have been replaced meanwhile
            json_size = fields.get(b"inference-header-content-length")
            pattern = self.options.header_forward_pattern
            port = HttpReply()
            caller: Caller | None = scope.get("tritium.caller")
            given = (
                body,
                None if json_size is None else parse_json_size(json_size, len(body)),
                model.spec,
                Arrival(
                    int(route.version) if route.version else -1,
                    port,
                    trio.current_time(),
                    None
                    if pattern is None
                    else forwarded(
                        scope.get("tritium.raw_headers") or scope["headers"], pattern, self.options.gate
                    ),
                    caller,
                ),
            )
            try:
                try:
                    request, plan = self.decoder.decode(*given)
                    decoded = request
                except TooLong:
                    request, plan = await in_slices(self.decoder.decode_long(*given))
                    decoded = request
                    model = self.models.resolve(route.model, route.version)  # once more, for the same reason
            except DENIALS as error:
                tell_regions_denied(error, caller, connecting(scope), self.options.auditor)
                raise
            self._check_replica(request, fields.get(_REPLICA))
            del body, given  # the request keeps nothing of a long JSON text
            if model.marks is not None:
                put_marks(model.marks, request, scope["headers"], scope.get("client"), caller)
            begin_in(scope, self.options.tracer, request)
            outcome = await _outcome(model, request, port, scope, receive)
            answered(request, outcome)
            on_finished = self.options.endings.hook
            if on_finished is not None:
                on_finished(request, outcome or Cancelled("the client left"), peer_of(scope.get("client")))
            if outcome is None:
                return None
            if isinstance(outcome, TritiumError):
                return failure(outcome)
            answered_by = request.routed_to or model
            accepted = fields.get(b"accept-encoding")
            return await self._encoded(outcome, plan, answered_by, accepted, request.span)
        finally:
            if claim is not None:
                claim.release()
            if decoded is not None and decoded.regions is not None:
                decoded.regions.end()

    def _check_replica(self, request: InferRequest, shown: bytes | None) -> None:
        if shown is not None:
            check_replica(request, shown.decode("latin-1"), self.options.replica)

    async def _decompressed(self, body: Buffer, claim: Claim) -> Buffer:
        limit = self.options.max_input_size
        if len(body) < _UNFOLDED_AT_ONCE:
            content = decompress(body, limit)
            if len(content) <= FREE:
                return content
            del content  # while this waits
        if not await claim.take(most_of(len(body), limit), urgent=len(body) > FREE):
            raise no_room()
        content = await in_slices(in_threads(decompressing(body, limit)))
        claim.shrink(len(content))
        return content

    async def _encoded(
        self,
        response: InferResponse,
        plan: OutputPlan,
        model: ServedModel,
        accept_encoding: bytes | None,
        span: Span | None,
    ) -> Answer:
        """Return the answer that carries `response`, whose memory is given back here or by the server."""
        try:
            coding = b"" if accept_encoding is None else choose_coding(accept_encoding)
            if is_long(response, plan):
                answer = await self.encoded_in_slices(response, plan, model, span)
            else:
                answer = self.encoded(response, plan, model, span)
            return await _compressed(answer, coding) if coding else answer
        except BaseException:
            response.release()
            raise

    async def encoded_in_slices(
        self, response: InferResponse, plan: OutputPlan, model: ServedModel, span: Span | None
    ) -> Answer:
        """Do as `encoded` does, for a long answer."""
        return self._carrying(response, await in_slices(encode_long(response, plan, model.spec)), span)

    def encoded(
        self, response: InferResponse, plan: OutputPlan, model: ServedModel, span: Span | None
    ) -> Answer:
        """Return the answer that carries `response`, uncompressed, where it is not long.

        `span` is that of its request, if that is traced.

        The memory of `response` is given back here, or by the `release` of the answer; where this raises, it
        is left to the caller.
        """
        return self._carrying(response, encode(response, plan, model.spec), span)

    def _carrying(self, response: InferResponse, body: Body, span: Span | None) -> Answer:
        headers = ONLY_JSON if body.json_size is None else _binary_headers(body.json_size)
        if self.options.server_timing and response.timing is not None:
            headers = [*headers, server_timing(response.timing, span)]
        if body.borrowed:
            return Answer(200, headers, body.buffers, response.release)
        response.release()
        return Answer(200, headers, body.buffers)


async def _compressed(answer: Answer, coding: bytes) -> Answer:
    """Return `answer` with a compressed body. The memory of its own body is given back."""
    try:
        if sum(map(len, answer.buffers)) < _IN_A_THREAD:
            compressed = compress(answer.buffers, coding)
        else:
            compressed = await in_slices(in_threads(compressing(answer.buffers, coding)))
    finally:
        if answer.release is not None:
            answer.release()
    return Answer(answer.status, [*answer.headers, (b"content-encoding", coding)], [compressed])


async def _outcome(
    model: ServedModel, request: InferRequest, port: HttpReply, scope: Scope, receive: Receive
) -> Outcome | None:
    """Have `model` answer `request` for its caller; None where the client left first."""
    hook: DisconnectHook | None = scope.get("extensions", {}).get("tritium.disconnect")
    caller: Caller | None = scope.get("tritium.caller")
    try:
        if caller is not None:
            request.made_by(caller)
        if hook is not None:
            return await _exchange(model, request, port, hook)
        return await watched(receive, partial(_exchange, model, request, port))
    except TritiumError as error:
        # Its traceback holds the frame that holds it: floods
        # of refusals would wait for the garbage collector.
        return error.with_traceback(None)
    finally:
        if request.caller is not None and request.caller.counted:
            request.caller.end()


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
        try:
            model.submit_nowait(request)
        except trio.WouldBlock:
            await model.submit(request)
        return await port.wait()
    except trio.Cancelled:
        left()
        raise
    finally:
        hook.on_disconnect = None


def forwarded(
    headers: Sequence[Header], pattern: re.Pattern[str], gate: HeadGate | None
) -> dict[str, str] | None:
    """Return the headers that become parameters. What the server itself judges by is not among them."""
    return forward_headers(headers, pattern, credentials=gate is None)


def _binary_headers(json_size: int) -> list[Header]:
    return [_BINARY, (b"inference-header-content-length", str(json_size).encode())]
