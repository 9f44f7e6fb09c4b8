"""ModelInfer, from a message to a model's queue and back, without a task.

ModelStreamInfer's way in is the same.

Contract: grpc.md sections 3, 7 and 8. The order of the checks is the contract's: shutdown, version, model,
whether it is decoupled, then the decoder's checks, then the model's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from actors.seams.slices import in_slices
from actors.values.auditing import DENIALS, Auditor
from actors.values.callers import Action, Caller, HeadGate
from actors.values.errors import InvalidArgument, TritiumError, Unavailable, Unsupported
from actors.values.interfaces import Server
from actors.values.requests import InferRequest, InferResponse, ServedModel
from actors.values.tracing.spans import NO_TRACER, Tracer
from actors.values.versions import parse_version
from protocols.grpc.call import SHUTTING_DOWN, UnaryMethod
from protocols.grpc.codec.heads import meant_by
from protocols.grpc.codec.infer_meaning import AnswerPlan, Forwarded
from protocols.grpc.codec.infer_request import READ_AT_ONCE, InferDecoder, Steps, Target
from protocols.grpc.codec.infer_response import MAX_MESSAGE, encode
from protocols.grpc.tracing import answering, begin, finished
from protocols.kserve.auditing import tell_denied
from protocols.kserve.forwarding import forward_headers
from protocols.kserve.permitted import tell_regions_denied
from protocols.kserve.steering import check_replica

if TYPE_CHECKING:
    from actors.values.marks import ClientMarks
    from actors.values.requests import Endings, ReplyPort
    from actors.values.tensors import Buffer
    from protocols.grpc.call import Call
    from protocols.grpc.codec.heads import CallHead

# A name that is bound: to look up a member of an Enum takes as long as a call.
_INFERENCE: Final = Action.INFERENCE

Given = tuple[Target, ServedModel, int, "ReplyPort", "Call", Forwarded, float]
"""The arguments of `MessageIntake.decode`."""


class MessageIntake:
    """What both inference RPCs do with a message before a model sees it.

    `header_forward_pattern` picks metadata, by a match anywhere in its key, that becomes parameters. An
    answer's message may have `max_message` bytes. `replica` is the server's name among several.
    """

    def __init__(
        self,
        server: Server,
        *,
        header_forward_pattern: re.Pattern[str] | None = None,
        max_message: int = MAX_MESSAGE,
        gate: HeadGate | None = None,
        auditor: Auditor | None = None,
        tracer: Tracer = NO_TRACER,
        replica: str = "",
    ) -> None:
        decoder = InferDecoder(server.shared_memory)
        self.peek = decoder.begin_peek
        self.max_message = max_message
        self.forwards = header_forward_pattern is not None
        self._decode = decoder.decode
        self._learning = decoder.learning
        self._server = server
        self._health = server.health
        self._pattern = header_forward_pattern
        self._gate = gate
        self._auditor = auditor
        self.tracer = tracer
        self._replica = replica.encode()

    def admit_later(self, call: Call, target: Target, size: int) -> None:
        """Let a later message of a call pass, by the rules in force now.

        Raises as `HeadGate.identify` and `Caller.admit`.
        """
        if self._gate is None:
            return
        try:
            call.caller = self._gate.identify(call.head.authorization, call.client)
            call.caller.admit(_INFERENCE, target.model_name, size=size)
        except TritiumError as error:
            self.tell_denied(call, target, error)
            raise

    def tell_denied(self, call: Call, target: Target, error: TritiumError) -> None:
        """Tell the audit log, if there is one, that a message is not let in."""
        if self._auditor is not None:
            action, model = Action.INFERENCE.value, target.model_name
            tell_denied(self._auditor, action, model, call.caller, call.client, error)

    def find(self, target: Target) -> tuple[ServedModel, int]:
        """Return the model that `target` is for, and the version that it names, -1 for none.

        Raises Unavailable once shutdown has begun, and what `Models.resolve` does.
        """
        if self._health.exiting:
            raise Unavailable(SHUTTING_DOWN)
        version = target.model_version
        number = parse_version(version) if version else -1
        return self._server.models.resolve(target.model_name, version), number

    def forwarded(self, head: CallHead[Any]) -> Forwarded:
        """Return the part of a call's metadata that becomes parameters of its requests.

        Of a repeated key the last value counts.
        """
        if self._pattern is None:
            return None
        try:
            return forward_headers(
                [(name, meant_by(name, value)) for name, value in head.fields],
                self._pattern,
                credentials=self._gate is None,
            )
        except InvalidArgument as error:
            return error

    def decode(
        self,
        target: Target,
        model: ServedModel,
        requested_version: int,
        reply: ReplyPort,
        call: Call,
        forwarded: Forwarded,
        accepted_at: float,
    ) -> tuple[InferRequest, AnswerPlan]:
        """Return the request for `model` in `target`, and how its answer is to be written.

        Raises as the decoder does.
        """
        caller = call.caller
        try:
            request, plan = self._decode(
                target,
                model.spec,
                requested_version=requested_version,
                reply=reply,
                accepted_at=accepted_at,
                deadline=call.deadline,
                forwarded=forwarded,
                caller=caller,
            )
        except DENIALS as error:
            tell_regions_denied(error, caller, call.client, self._auditor)
            raise
        shown = call.head.replica
        if shown and shown != self._replica:
            self._check_replica(request, shown)
        if model.marks is not None:
            _mark(request, model.marks, call)
        if caller is not None:
            if caller.counted:
                _make_by(request, caller)
            else:
                request.caller = caller
        return request, plan

    def _check_replica(self, request: InferRequest, shown: bytes) -> None:
        """Raise OtherReplica for a request that goes on with another server's sequence."""
        try:
            check_replica(request, shown.decode("latin-1"), self._replica.decode())
        except TritiumError:
            if request.regions is not None:
                request.regions.end()
            raise

    async def decode_in_slices(self, given: Given) -> tuple[InferRequest, AnswerPlan]:
        """Do as `decode` does, for a target whose `unread_size` is over `READ_AT_ONCE`."""
        target, model, forwarded = given[0], given[1], given[5]
        await in_slices(self._learning(target, model.spec, forwarded))
        return self.decode(*given)


def _make_by(request: InferRequest, caller: Caller) -> None:
    """Count the request as under way. Raises TritiumError; then it holds no shared memory."""
    try:
        request.made_by(caller)
    except TritiumError:
        if request.regions is not None:
            request.regions.end()
        raise


def _mark(request: InferRequest, marks: ClientMarks, call: Call) -> None:
    """Put on the request what the model wants to know of the client."""
    metadata = call.head.metadata

    def header(name: str) -> str:
        value = metadata.get(name, "")
        return value.decode("latin-1") if isinstance(value, bytes) else value

    marks.put_on(request, header, lambda: call.client.address, call.caller)


_Accepted = tuple[ServedModel, InferRequest, AnswerPlan]  # what a call remembers


class ModelInferMethod(UnaryMethod):
    """ModelInfer as the connection calls it; see `protocols.grpc.call.UnaryMethod`."""

    def __init__(self, intake: MessageIntake, endings: Endings) -> None:
        self._intake = intake
        self._endings = endings

    def begin(self, call: Call, message: Buffer) -> None:
        """Have a model answer `call`. Raises TritiumError where no model will."""
        intake = self._intake
        target = intake.peek(message)
        if not isinstance(target, Target):
            call.start(partial(self._begin_slowly, call, target, len(message)))
            return
        given = self._given(call, target, len(message), call.wire.now)
        if target.unread is not None and target.unread_size > READ_AT_ONCE:
            call.start(partial(self._decode_slowly, call, given))
            return
        request, plan = intake.decode(*given)
        model = given[1]
        call.context = (model, request, plan)
        tracer = intake.tracer
        if tracer.active:
            if tracer.skip and not tracer.reads_context:
                tracer.skip -= 1
            else:
                call.trace = begin(tracer, request, call.head.fields, call.came_at)
        try:
            model.submit_nowait(request)
        except trio.WouldBlock:
            call.start(partial(model.submit, request))

    def _given(self, call: Call, target: Target, size: int, now: float) -> Given:
        intake = self._intake
        if call.caller is not None:
            try:
                call.caller.admit(_INFERENCE, target.model_name, size=size)
            except TritiumError as error:
                intake.tell_denied(call, target, error)
                raise
        model, version = intake.find(target)
        if model.spec.decoupled:
            raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
        forwarded = intake.forwarded(call.head) if intake.forwards else None
        return (target, model, version, call, call, forwarded, now)

    async def _begin_slowly(self, call: Call, steps: Steps, size: int) -> None:
        target = await in_slices(steps)
        await self._decode_slowly(call, self._given(call, target, size, trio.current_time()))

    async def _decode_slowly(self, call: Call, given: Given) -> None:
        request, plan = await self._intake.decode_in_slices(given)
        model = given[1]
        call.context = (model, request, plan)
        if self._intake.tracer.active:
            call.trace = begin(self._intake.tracer, request, call.head.fields, call.came_at)
        await model.submit(request)

    def encode(self, call: Call, response: InferResponse) -> tuple[Sequence[Buffer], int]:
        """Return the ModelInferResponse that carries `response`.

        Raises TritiumError where it can't be told.
        """
        accepted: _Accepted = call.context
        model, request, plan = accepted
        if call.trace is not None:
            answering(call.trace)
        spec = (request.routed_to or model).spec
        return encode(response, plan, spec, max_message=self._intake.max_message)

    def cancel(self, call: Call) -> None:
        """Have the model forget the request of `call`, whose answer is not wanted any more."""
        accepted: _Accepted | None = call.context
        if accepted is not None:
            model, request, _ = accepted
            model.cancel(request)

    def finished(self, call: Call, outcome: InferResponse | TritiumError) -> None:
        """Tell the request log, and let go of the request. A request that could not be read is not logged."""
        accepted: _Accepted | None = call.context
        # The request holds the call. Together they would wait for the garbage collector.
        call.context = None
        if accepted is not None:
            if call.trace is not None:
                finished(accepted[1], outcome)
            regions = accepted[1].regions
            if regions is not None:
                regions.end()
            caller = accepted[1].caller
            if caller is not None and caller.counted:
                caller.end()
        on_finished = self._endings.hook
        if on_finished is not None and accepted is not None:
            on_finished(accepted[1], outcome, call.client.text)
