"""ModelStreamInfer: any number of requests, to any models, on one call.

Two tasks serve a call, however many requests are in flight. One reads and submits them. The other takes what
models have put into their reply ports, brings it into order and sends it. A request whose model is not
decoupled is answered in its turn; an answer that comes too early is copied, so that it holds no memory that
an earlier one may need. Answers of decoupled models are sent as they come, but only while the client takes
them. Until then they are held, unreleased, so that the model gets no credit for more.

Nothing is read while the answers in flight might not find room (`ServerStream.wait_admissible`), nor while a
full queue keeps a request waiting. Requests to decoupled models need no room, because their answers wait in
the model. `FLOWING_LIMIT` of them may be open.

Contract: grpc.md section 9.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from actors.seams.slices import in_slices
from actors.values.errors import Cancelled, DeadlineExceeded, Internal, TritiumError
from actors.values.requests import InferResponse, ReplyPort, release
from protocols.grpc.call import Leaving
from protocols.grpc.codec.infer_meaning import ALL_OUTPUTS
from protocols.grpc.codec.infer_request import READ_AT_ONCE, Target
from protocols.grpc.codec.infer_response import Encoded, encode_stream, encode_stream_error
from protocols.grpc.tracing import answering, begin, finished, over

if TYPE_CHECKING:
    from actors.values.requests import Endings, InferRequest, ServedModel
    from actors.values.tensors import Buffer
    from protocols.grpc.call import ServerStream
    from protocols.grpc.services.model_infer import MessageIntake
    from protocols.kserve.proto import grpc_service_pb2 as pb

Part = InferResponse | TritiumError

FLOWING_LIMIT: Final = 128
"""Requests to decoupled models that one stream may have open.

A client that stalls costs a window for each of them.
"""

STRICT_KEY: Final = "triton_grpc_error"


class StreamedRequest(ReplyPort):
    """One request of a stream and its reply port, from its bytes to its last answer."""

    __slots__ = (
        "_stream",
        "_surplus",
        "accepted",
        "answer",
        "complete",
        "decoupled",
        "id",
        "model",
        "plan",
        "request",
        "settled",
        "version",
    )

    def __init__(self, stream: StreamedInference) -> None:
        self.id = ""
        self.version = ""  # as it was asked for
        self.model: ServedModel | None = None
        self.request: InferRequest | None = None
        self.plan = ALL_OUTPUTS
        self.decoupled = False  # also while the model is not known
        # Whether its model has accepted it. Later errors are told with the model's name.
        self.accepted = False
        self.settled = False  # the final part has come, or is not waited for
        self.answer: Part | None = None  # the part that waits for its turn
        self.complete = False  # no more parts will come
        self._stream = stream
        self._surplus = 0  # parts beyond the one that a model may give

    def put(self, part: Part, *, final: bool) -> None:
        """Take one part (`actors.values.requests.ReplyPort`). Never raises."""
        if self.settled:
            release(part)
            return
        self.settled = final
        self._stream.arrived(self, part, final=final)

    def refuse(self, error: TritiumError) -> None:
        """Answer with an error that was found before the model accepted the request."""
        if not self.settled:
            self.accepted = False
            self.put(error, final=True)

    def keep(self, part: Part, *, final: bool) -> None:
        """Keep a part until its turn; its model may give only one."""
        if self.answer is None:
            self.answer = part
        else:
            self._surplus += 1
            release(part)
        self.complete = final
        if final and self._surplus:
            release(self.answer)
            self.answer = Internal(f"expected a single response, got {self._surplus + 1}")

    def close(self) -> None:
        """The answer is not wanted any more: have the model forget the request, and release its parts."""
        forget = not self.settled
        self.settled = True
        if self.answer is not None:
            release(self.answer)
        if forget and self.model is not None and self.request is not None:
            self.model.cancel(self.request)

    def forget(self) -> None:
        """Let go of the request, which holds this port.

        Together they would wait for the garbage collector.
        """
        if self.request is not None and self.request.span is not None:
            over(self.request.span.trace)
        self.request = None


class StreamedInference:
    """One ModelStreamInfer call."""

    def __init__(
        self,
        stream: ServerStream[pb.ModelInferRequest, pb.ModelStreamInferResponse],
        intake: MessageIntake,
        endings: Endings,
    ) -> None:
        self._stream = stream
        self._intake = intake
        self._endings = endings
        self._strict = stream.metadata.get(STRICT_KEY) == "true"
        self._forwarded = intake.forwarded(stream.call.head)
        self._open: dict[StreamedRequest, None] = {}  # not answered to the end, in the order of the requests
        stream.owed = self._open
        self._line: deque[StreamedRequest] = deque()  # those that are answered in their turn
        self._arrivals: deque[tuple[StreamedRequest, Part, bool]] = deque()
        # Parts of decoupled models, until the client takes more.
        self._held: deque[tuple[StreamedRequest, Part, bool]] = deque()
        self._flowing = 0  # requests to decoupled models
        self._bell = trio.lowlevel.ParkingLot()
        self._ebb = trio.lowlevel.ParkingLot()
        self._ended = False  # no more requests come
        self._failure: TritiumError | None = None  # ends the call at once
        self._parting: TritiumError | None = None  # ends it, once everything is answered

    async def run(self) -> None:
        """Serve the call until the client has ended its side or the server shuts down, and all is answered.

        Raises the TritiumError that ends the call. That is an error that was found in the stream itself or,
        where the client asked for that with `triton_grpc_error`, the first error of a request. However the
        call ends, requests in flight are cancelled, and what they have still to say is let go of.
        """
        self._stream.on_departure = self._bell.unpark_all
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                while self._failure is None and (self._open or not self._ended):
                    if self._arrivals:
                        self._send_arrivals()
                    elif self._held and self._stream.sendable:
                        self._send_held()
                    else:
                        await self._bell.park()
                nursery.cancel_scope.cancel()
        finally:
            self._stream.on_departure = None
            self._close()
        why = self._failure or self._parting
        if why is not None:
            raise why

    # Requests

    async def _read(self) -> None:
        try:
            while await self._read_one():
                pass
        except Leaving as error:
            self._parting = error
        except TritiumError as error:
            self._failure = error
        self._ended = True
        self._bell.unpark_all()

    async def _read_one(self) -> bool:
        """Take in the next request; False where there is none."""
        while self._flowing >= FLOWING_LIMIT:
            await self._ebb.park()
        await self._stream.wait_admissible()
        message = await self._stream.recv_raw()
        if message is None:
            return False
        # Much may have happened while the task waited for the message.
        await self._stream.wait_admissible()
        await self._begin(message)
        return True

    async def _begin(self, message: Buffer) -> None:
        exchange = StreamedRequest(self)
        self._open[exchange] = None
        self._stream.in_flight += 1
        try:
            try:
                await self._decode(exchange, message)
            finally:
                if not exchange.decoupled:
                    self._line.append(exchange)
            await self._submit(exchange)
        except TritiumError as error:
            exchange.refuse(error)

    async def _decode(self, exchange: StreamedRequest, message: Buffer) -> None:
        intake = self._intake
        target = intake.peek(message)
        if not isinstance(target, Target):
            target = await in_slices(target)
        exchange.id, exchange.version = target.id, target.model_version
        intake.admit_later(self._stream.call, target, len(message))
        exchange.model, version = intake.find(target)
        if exchange.model.spec.decoupled:
            exchange.decoupled = True
            self._flowing += 1
            self._stream.answered()  # the request was counted as one that needs room
        now = trio.current_time()
        given = (target, exchange.model, version, exchange, self._stream.call, self._forwarded, now)
        if target.unread_size > READ_AT_ONCE:
            exchange.request, exchange.plan = await intake.decode_in_slices(given)
        else:
            exchange.request, exchange.plan = intake.decode(*given)
        if intake.tracer.active:
            begin(intake.tracer, exchange.request, self._stream.call.head.fields, now)

    async def _submit(self, exchange: StreamedRequest) -> None:
        model, request = exchange.model, exchange.request
        assert model is not None, "a request was decoded for a model"
        assert request is not None, "a request was decoded"
        exchange.accepted = True
        try:
            model.submit_nowait(request)
        except trio.WouldBlock:
            await model.submit(request)

    # Answers

    def arrived(self, exchange: StreamedRequest, part: Part, *, final: bool) -> None:
        """Take a part that a model has put into a request's reply port. Never raises."""
        self._arrivals.append((exchange, part, final))
        self._bell.unpark_all()

    def _send_arrivals(self) -> None:
        while self._arrivals and self._failure is None:
            exchange, part, final = self._arrivals.popleft()
            # With `triton_grpc_error`, an error ends the call, even if another request's turn has come.
            if self._strict and isinstance(part, TritiumError):
                self._failure = part
                if final:
                    self._finish(exchange, part)
                    exchange.forget()
            elif not exchange.decoupled:
                self._deliver_in_turn(exchange, part, final=final)
            elif self._held or not self._stream.sendable:
                self._held.append((exchange, part, final))
            else:
                self._deliver(exchange, part, final=final)

    def _send_held(self) -> None:
        while self._held and self._stream.sendable and self._failure is None:
            exchange, part, final = self._held.popleft()
            self._deliver(exchange, part, final=final)

    def _deliver_in_turn(self, exchange: StreamedRequest, part: Part, *, final: bool) -> None:
        exchange.keep(part, final=final)
        while self._line and self._line[0].complete and self._failure is None:
            answer, self._line[0].answer = self._line[0].answer, None
            assert answer is not None, "a complete exchange has an answer"
            self._deliver(self._line.popleft(), answer, final=True)
        if exchange.answer is not None:
            _own(exchange.answer)

    def _deliver(self, exchange: StreamedRequest, part: Part, *, final: bool) -> None:
        """Send one part, whose turn it is."""
        if exchange.request is not None and exchange.request.span is not None:
            answering(exchange.request.span.trace)
        if final:
            self._finish(exchange, part)
        if isinstance(part, TritiumError):
            self._send_error(exchange, part, final=final)
        elif final and exchange.decoupled and not part.outputs and not exchange.plan.empty_final:
            part.release()
        else:
            self._send_response(exchange, part, final=final)
        if final:
            exchange.forget()
            if exchange.decoupled:
                self._flowing -= 1
                self._ebb.unpark_all()
            else:
                self._stream.answered()

    def _send_response(self, exchange: StreamedRequest, response: InferResponse, *, final: bool) -> None:
        try:
            buffers, size, borrowed = self._encoded(exchange, response, final=final)
        except TritiumError as error:
            response.release()
            self._send_error(exchange, error, final=final)
            return
        except BaseException:
            response.release()
            raise
        if not borrowed:
            response.release()
        self._stream.send_raw_nowait(buffers, size, response if borrowed else None)

    def _encoded(self, exchange: StreamedRequest, response: InferResponse, *, final: bool) -> Encoded:
        request, model = exchange.request, exchange.model
        assert model is not None, "what answers is a model"
        assert request is not None, "what is answered is a request"
        spec = (request.routed_to or model).spec
        return encode_stream(response, exchange.plan, spec, final=final, max_message=self._intake.max_message)

    def _send_error(self, exchange: StreamedRequest, error: TritiumError, *, final: bool) -> None:
        if self._strict:
            self._failure = error
            return
        text = error.message or error.code.rendered  # an empty text would mean success
        if exchange.accepted and exchange.request is not None:
            name = exchange.request.model_name
            message = encode_stream_error(text, exchange.id, name, exchange.version, final)
        else:
            message = encode_stream_error(text, exchange.id)
        self._stream.send_raw_nowait((message,), len(message))

    # Ends

    def _finish(self, exchange: StreamedRequest, outcome: Part) -> None:
        """Tell the request log the outcome of a request, before the memory of its answer is given back."""
        del self._open[exchange]
        request = exchange.request
        if request is not None and request.regions is not None:
            request.regions.end()
        caller = None if request is None else request.caller
        if caller is not None and caller.counted:
            caller.end()
        if request is not None and request.span is not None:
            finished(request, outcome)
        on_finished = self._endings.hook
        if on_finished is not None and request is not None:
            on_finished(request, outcome, self._stream.peer)

    def _close(self) -> None:
        """Release everything that is in flight, waits to be sent, or still comes."""
        for waiting in (self._arrivals, self._held):
            for _, part, _ in waiting:
                release(part)
            waiting.clear()
        self._line.clear()  # each exchange refers to this object
        for exchange in list(self._open):
            exchange.close()
            self._finish(exchange, self._why_over())
            exchange.forget()

    def _why_over(self) -> TritiumError:
        if trio.current_time() >= self._stream.call.deadline:
            return DeadlineExceeded("the deadline of the stream passed before this request was answered")
        return Cancelled("the stream ended before this request was answered")


def _own(part: Part) -> None:
    """Copy the memory that an answer views: it waits for an earlier one, which may need the same memory."""
    if isinstance(part, InferResponse) and part.leased:
        for tensor in part.outputs:
            tensor.data = bytes(tensor.data)
        part.release()
