"""The direct path: an inference that needs nothing special costs no task, no coroutine and no second wake-up.

It is decoded and submitted in the turn that has read it. Its answer is encoded and sent where it is put. What
the direct path can't do at once it leaves alone, and the request is put to the application:

- by its head: other endpoints, what browsers send, codings, chunks, a restricted API whose key is missing;
- by its body or its model: a JSON text that is read in slices, a queue that is full.

What went wrong in here, and what takes longer, is handed to the connection's task. So a bug costs this one
connection, as it does in the application, and never the instance whose answer met it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from actors.values.auditing import DENIALS
from actors.values.errors import TritiumError, Unsupported
from actors.values.requests import InferRequest, ServedModel
from protocols.http.answers import failure
from protocols.http.bodies import NO_DECOUPLED
from protocols.http.direct.exchange import Desk, Exchange
from protocols.http.entry import let_in
from protocols.http.fields import put_marks
from protocols.http.inference import InferEndpoint, forwarded
from protocols.http.parser import Head, Request
from protocols.http.routes import Route
from protocols.http.steering.loads import FORMAT
from protocols.http.tracing.noting import begin, context_in
from protocols.kserve.caps import parse_json_size
from protocols.kserve.compression import choose_coding
from protocols.kserve.documents import TooLong
from protocols.kserve.meanings import OutputPlan
from protocols.kserve.permitted import tell_regions_denied
from protocols.kserve.requests import Arrival
from protocols.kserve.steering import REPLICA

_REPLICA: Final = REPLICA.encode()
_MOST_DIGITS: Final = 19  # of a version, a number below 2**63


class InferHead:
    """What the head of a plain inference says. `json_size` is the field's value, None without one.

    `context` are the fields `traceparent` and `tracestate`, empty without them.
    """

    __slots__ = ("context", "json_size", "model", "requested_version", "route", "version")

    def __init__(self, route: Route, json_size: bytes | None, context: tuple[str, str]) -> None:
        self.route = route
        self.model = route.model
        self.version = route.version
        self.requested_version = int(route.version) if route.version else -1
        self.json_size = json_size
        self.context = context


def read_head(route: Route, head: Head, replica: str = "") -> InferHead | None:
    """Return what the head of an inference says; None where its body has a coding, or its answer will have.

    A body in chunks is the application's, too: it counts for its caller as it comes. So is a version of more
    digits than a number may have, a request that shows the name of a server other than `replica`, and one
    that asks for the load of its model.
    """
    if len(route.version) > _MOST_DIGITS:
        return None
    fields = dict(head.headers)
    if fields.get(b"content-encoding", b"identity") != b"identity" or b"transfer-encoding" in fields:
        return None
    shown = fields.get(_REPLICA)
    if shown is not None and shown.decode("latin-1") != replica:
        return None
    if FORMAT in fields:
        return None
    accepted = fields.get(b"accept-encoding")
    if accepted is not None and choose_coding(accepted):
        return None
    return InferHead(route, fields.get(b"inference-header-content-length"), context_in(fields))


_NOT_HERE: Final = object()


class DirectPath:
    """Takes the plain inferences of all connections of a listener."""

    def __init__(self, endpoint: InferEndpoint, read: Callable[[Head], InferHead | None]) -> None:
        """`read` returns what a head says, and is asked once about each; None: it is no plain inference."""
        self._endpoint = endpoint
        self._read = read
        self._models = endpoint.models
        self._decoder = endpoint.decoder
        self._options = endpoint.options
        self._gate = endpoint.options.gate
        self._tracer = endpoint.options.tracer

    def begin(self, request: Request, desk: Desk) -> bool:
        """Have `request` answered; False where it must be put to the application.

        `request.caller` is set then, if that was asked.
        """
        head = request.head
        said = head.note
        if said is None:
            said = head.note = self._read(head) or _NOT_HERE
        if not isinstance(said, InferHead):
            return False
        exchange = Exchange(self._endpoint, desk, head)
        try:
            model, asked, plan = self._decoded(request, said, exchange, desk)
        except TooLong:
            return False
        except TritiumError as error:
            request.body = b""  # the connection keeps the request until the next one comes
            desk.answered(failure(error))
            return True
        exchange.begin(model, asked, plan)
        tracer = self._tracer
        if tracer.active:
            if tracer.skip and not said.context[0]:
                tracer.skip -= 1
            else:
                self._trace(asked, said, desk)
        try:
            if request.caller is not None:
                asked.made_by(request.caller)
            model.submit_nowait(asked)
        except trio.WouldBlock:
            if tracer.active or asked.span is not None:
                tracer.forget(asked)  # the application asks about it again
            exchange.drop()
            return False
        except TritiumError as error:
            # Its traceback holds the frame that holds it: floods
            # of refusals would wait for the garbage collector.
            exchange.put(error.with_traceback(None), final=True)
        except Exception:
            exchange.drop()
            raise
        request.body = b""
        return True

    def _trace(self, asked: InferRequest, said: InferHead, desk: Desk) -> None:
        trace = begin(self._tracer, asked, said.context, desk.came_at())
        if trace is not None:
            desk.traced(trace)

    def _decoded(
        self, request: Request, said: InferHead, exchange: Exchange, desk: Desk
    ) -> tuple[ServedModel, InferRequest, OutputPlan]:
        """Return the model, what to ask it, and how the answer is wanted. Raises TritiumError and TooLong."""
        head = request.head
        if self._gate is not None and request.caller is None:
            options = self._options
            request.caller = let_in(
                self._gate,
                options.auditor,
                said.route,
                desk.peer(head),
                head.method,
                head.headers,
                request.size,
            )
        model = self._models.resolve(said.model, said.version)
        spec = model.spec
        if spec.decoupled:
            raise Unsupported(NO_DECOUPLED)
        body = request.body
        json_size = None if said.json_size is None else parse_json_size(said.json_size, len(body))
        pattern = self._options.header_forward_pattern
        arrival = Arrival(
            said.requested_version,
            exchange,
            trio.current_time(),
            None if pattern is None else forwarded(head.raw_headers, pattern, self._gate),
            request.caller,
        )
        try:
            asked, plan = self._decoder.decode(body, json_size, spec, arrival)
        except DENIALS as error:
            tell_regions_denied(error, request.caller, desk.peer(head), self._options.auditor)
            raise
        if model.marks is not None:
            put_marks(model.marks, asked, head.headers, desk.client(head), request.caller)
        return model, asked, plan
