"""Where the responses of a Python model go, by senders or by what `execute` returns."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from actors.messages.errors import ErrorCode
from engine.backends.base import SenderClosed
from engine.backends.python.tensors import TritonModelException

if TYPE_CHECKING:
    import threading

    from engine.backends.base import BatchRequest
    from engine.backends.python.exchange import InferenceResponse

CLOSED: Final = "Unable to send response. Response sender has been closed."
RESCHEDULED_TOO_LATE: Final = (
    "A request that has its final response can't be rescheduled (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)."
)


class Reply:
    """The one answer of a request, from whichever side it comes: `execute`'s list, or a sender on any thread.

    `guard` is the backend's: answers are written into memory that the batch's requests share, and whoever waits for a
    sender waits on it.
    """

    __slots__ = ("_request", "answered", "closed", "guard", "senders")

    def __init__(self, request: BatchRequest, guard: threading.Condition) -> None:
        self._request: BatchRequest | None = request
        self.guard = guard
        self.answered = False
        self.closed = False  # to senders
        self.senders = 0  # in the model's hands

    def give(self, response: InferenceResponse) -> None:
        """Answer the request, unless there is an answer. Raises where an output can't be encoded."""
        with self.guard:
            request = self._request
            if request is None or self.answered:
                return
            error = response.error()
            if error is not None:
                request.fail(ErrorCode[error.code().name], error.message())
            else:
                request.respond(response.as_outputs(), response.given_parameters())
            self.answered = True
            self.guard.notify_all()

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer with an error, unless there is an answer."""
        with self.guard:
            if self._request is not None and not self.answered:
                self.answered = True
                self._request.fail(code, message)

    def reschedule(self) -> None:
        """Have the request run again in place of an answer. Raises TritonModelException where there is one."""
        with self.guard:
            if self._request is None or self.answered:
                raise TritonModelException(RESCHEDULED_TOO_LATE)
            self._request.reschedule()
            self.answered = self.closed = True
            self.guard.notify_all()

    def close(self) -> None:
        """Refuse senders from now on."""
        with self.guard:
            self.closed = True

    def release(self) -> None:
        """Let go of the request: its memory is about to be used for another."""
        with self.guard:
            self._request = None

    def wait_for_senders(self) -> None:
        """Return once the request is answered, or once nobody is left who could."""
        with self.guard:
            while not self.answered and self.senders:
                self.guard.wait()

    def sender_made(self) -> None:
        """The model has one sender more."""
        with self.guard:
            self.senders += 1

    def sender_dropped(self) -> None:
        """The model has let go of a sender."""
        with self.guard:
            self.senders -= 1
            self.guard.notify_all()

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Take what a sender was given. Raises TritonModelException for what a model that is not decoupled may not send."""
        with self.guard:
            if self.closed:
                raise TritonModelException(CLOSED)
            if response is not None and self.answered:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if response is None and not self.answered:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a"
                    " response."
                )
            if response is not None:
                self.give(response)
            self.closed = final

    def cancelled(self) -> bool:
        """Whether the client has gone."""
        request = self._request
        return request is not None and request.cancelled()


class StreamReply:
    """The responses to one request of a decoupled model.

    The request is open for as long as the model holds it or one of its senders: what the model lets go of without the
    final flag ends with an error.
    """

    __slots__ = ("_request", "_sender")

    def __init__(self, request: BatchRequest) -> None:
        self._sender = request.sender()
        self._request: BatchRequest | None = request

    def reschedule(self) -> None:
        """Have the request run again; its senders are closed. Raises TritonModelException where it has ended."""
        if self._request is None:
            raise TritonModelException(RESCHEDULED_TOO_LATE)
        try:
            self._request.reschedule()
        except RuntimeError as error:
            raise TritonModelException(RESCHEDULED_TOO_LATE) from error

    def release(self) -> None:
        """`execute` has returned: from now on it can't be rescheduled."""
        self._request = None

    def sender_made(self) -> None:
        """Nothing: whoever has a sender holds this."""

    def sender_dropped(self) -> None:
        """Nothing, likewise."""

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Send what a sender was given; wait while the client has much to take. Raises TritonModelException."""
        try:
            if response is None:
                self._sender.finish()
                return
            error = response.error()
            if error is not None:
                self._sender.fail(ErrorCode[error.code().name], error.message(), final=final)
            else:
                self._sender.send(response.as_outputs(), response.given_parameters(), final=final)
        except SenderClosed as why:
            raise TritonModelException(CLOSED) from why

    def fail(self, message: str) -> None:
        """End the request with an error, unless it has ended; senders are closed."""
        with contextlib.suppress(SenderClosed):
            self._sender.fail(ErrorCode.INTERNAL, message)

    def cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._sender.cancelled()
