"""One inference on the direct path, and what that asks of its connection and of the endpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod

from actors.values.callers import Peer
from actors.values.errors import Cancelled, TritiumError
from actors.values.requests import InferRequest, InferResponse, ServedModel, release
from actors.values.tracing.spans import Span, Trace
from protocols.http.answers import Answer, failure
from protocols.http.fields import peer_of
from protocols.http.inference import InferEndpoint
from protocols.http.parser import Head
from protocols.http.reply import SingleReply
from protocols.http.tracing.noting import answered
from protocols.kserve.long_answers import is_long
from protocols.kserve.meanings import JSON_OUTPUTS, OutputPlan


class Desk(ABC):
    """What the direct path asks of the connection of a client."""

    @abstractmethod
    def peer(self, head: Head) -> Peer:
        """Return whose request it is."""

    @abstractmethod
    def client(self, head: Head) -> tuple[str, int] | None:
        """Return the address and port of the client; None for a Unix socket."""

    @abstractmethod
    def begun(self, exchange: Exchange) -> None:
        """A request is under way: have `exchange.leave` called if the client leaves."""

    @abstractmethod
    def came_at(self) -> float:
        """Return when the first bytes of the request came; negative where it came in one piece."""

    @abstractmethod
    def traced(self, trace: Trace) -> None:
        """The request that has begun is traced: note when its answer is sent."""

    @abstractmethod
    def declined(self) -> None:
        """The request that has begun goes another way."""

    @abstractmethod
    def answered(self, answer: Answer | None) -> None:
        """The request is answered; None: it will not be, because the client has left."""

    @abstractmethod
    def postponed(self, exchange: Exchange) -> None:
        """The answer of `exchange` takes longer: have the task make it, by `answer_late`."""

    @abstractmethod
    def failed(self, bug: Exception) -> None:
        """Something went wrong in here: have the task fail of it."""


class Exchange(SingleReply):
    """One inference on the direct path, from its body to its answer.

    It has its `request`, which has it as its reply port, only until that is over: nothing is left to the
    garbage collector.
    """

    __slots__ = ("_desk", "_endpoint", "_head", "_model", "_plan", "_request", "_span")

    def __init__(self, endpoint: InferEndpoint, desk: Desk, head: Head) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._desk = desk
        self._head = head
        self._model: ServedModel | None = None  # that was asked and, in the end, that has answered
        self._request: InferRequest | None = None
        self._plan: OutputPlan = JSON_OUTPUTS
        self._span: Span | None = None  # of a traced request, in the end

    def begin(self, model: ServedModel, request: InferRequest, plan: OutputPlan) -> None:
        """`model` is about to be asked."""
        self._model, self._request, self._plan = model, request, plan
        self._desk.begun(self)

    def leave(self) -> None:
        """The client has left."""
        model, request = self._model, self._request
        self.close()
        if model is not None and request is not None:
            model.cancel(request)

    def drop(self) -> None:
        """Take no answer: the request goes another way."""
        self._closed = True
        request, self._request = self._request, None
        if request is not None:
            _end(request)
        self._desk.declined()

    def _finish(self) -> None:
        desk = self._desk
        outcome = self._answer()
        request, self._request = self._request, None
        try:
            if request is not None:
                self._model = request.routed_to or self._model
                if request.span is not None:
                    self._span = request.span
                    answered(request, outcome)
                _end(request)
                on_finished = self._endpoint.options.endings.hook
                if on_finished is not None:
                    client = peer_of(desk.client(self._head))
                    on_finished(request, outcome or Cancelled("the client left"), client)
            if outcome is None:
                desk.answered(None)
            elif isinstance(outcome, TritiumError):
                desk.answered(failure(outcome))
            elif is_long(outcome, self._plan):
                desk.postponed(self)
            else:
                desk.answered(self._encoded(outcome))
        except Exception as bug:  # noqa: BLE001
            # The caller of `put` must not get the failure: the connection's task fails of it.
            if outcome is not None:
                release(outcome)
            desk.failed(bug)

    def _encoded(self, response: InferResponse) -> Answer:
        try:
            return self._endpoint.encoded(response, self._plan, self._answered_by(), self._span)
        except TritiumError as error:
            response.release()
            return failure(error)

    async def answer_late(self) -> Answer:
        """Return an answer that is made in slices."""
        response = self._answer()
        assert isinstance(response, InferResponse), "an error is no long answer"
        try:
            return await self._endpoint.encoded_in_slices(
                response, self._plan, self._answered_by(), self._span
            )
        except TritiumError as error:
            response.release()
            return failure(error)
        except BaseException:
            response.release()
            raise

    def _answered_by(self) -> ServedModel:
        assert self._model is not None, "nothing was asked yet"
        return self._model


def _end(request: InferRequest) -> None:
    """The request is no longer under way for its caller, and needs no shared memory."""
    if request.regions is not None:
        request.regions.end()
    caller = request.caller
    if caller is not None and caller.counted:
        caller.end()
