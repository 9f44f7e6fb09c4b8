"""A server that a Python model can call, of functions: what `ModelInfo.calls` is in a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from queue import Queue
from typing import Any

from actors.values.errors import ErrorCode, TritiumError
from engine.worker.calls import CallFailed, CallRequest, CallResponse, Calls, CallStream

Callee = Callable[[CallRequest], Iterable[CallResponse]]


class LocalStream(CallStream):
    """Gives what a callee yields, one response when it is asked for; after `cancel` an error."""

    def __init__(self, responses: Iterable[CallResponse]) -> None:
        self._responses = iter(responses)
        self._over = False
        self.cancelled = threading.Event()

    def __next__(self) -> CallResponse:
        if self._over:
            raise StopIteration
        if self.cancelled.is_set():
            self._over = True
            return failed(ErrorCode.CANCELLED, "the call was cancelled")
        response = next(self._responses)
        self._over = response.final
        return response

    def cancel(self) -> None:
        self.cancelled.set()

    def give_up(self) -> None:
        self.cancelled.set()


class LocalCalls(Calls):
    """Answers calls by `callees`, by model; asks and tells by `subjects`."""

    def __init__(
        self,
        callees: Mapping[str, Callee] | None = None,
        subjects: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.callees = dict(callees or {})
        self.subjects = dict(subjects or {})
        self.sent: list[CallRequest] = []
        self.streams: Queue[LocalStream] = Queue()

    def infer(self, call: CallRequest) -> LocalStream:
        self.sent.append(call)
        callee = self.callees.get(call.model)
        if callee is None:
            message = f"Model {call.model} - Error when running inference: Request for unknown model: '{call.model}' is not found"
            stream = LocalStream([failed(ErrorCode.NOT_FOUND, message)])
        else:
            stream = LocalStream(callee(call))
        self.streams.put(stream)
        return stream

    def ask(
        self, subject: str, body: Mapping[str, Any], attachments: Mapping[str, bytes] | None = None
    ) -> dict[str, Any]:
        try:
            extra = () if attachments is None else (attachments,)
            return self.subjects[subject](dict(body), *extra) or {}
        except TritiumError as error:
            raise CallFailed(error.code, error.message) from error

    def tell(self, subject: str, body: Mapping[str, Any]) -> None:
        self.subjects[subject](dict(body))


def answered(*outputs, parameters=None, final=True) -> CallResponse:
    """Return a response with (name, datatype, array) outputs."""
    return CallResponse(outputs, parameters, None, "", final=final)


def failed(code: ErrorCode, message: str, *, final: bool = True) -> CallResponse:
    """Return an error."""
    return CallResponse((), None, code, message, final=final)
