"""Where the responses of a Python model go, by senders or by what `execute` returns."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from actors.values.errors import ErrorCode
from engine.worker.backends.base import SenderClosed
from engine.worker.backends.python.tensors import (
    DeferredTensor,
    DeviceTensor,
    Tensor,
    TritonModelException,
)
from engine.worker.devices import cuda

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from typing import Any, Union

    import numpy as np

    from actors.values.datatypes import DataType
    from engine.worker.backends.base import Batch, BatchRequest
    from engine.worker.backends.python.responses import InferenceResponse

    Whole = tuple[str, DataType, Union[np.ndarray[Any, Any], None]]

CLOSED: Final = "Unable to send response. Response sender has been closed."
RESCHEDULED_TOO_LATE: Final = (
    "A request that has its final response can't be rescheduled (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)."
)
_NOTHING: Final[frozenset[str]] = frozenset()
READ_TOO_LATE: Final = "tensor '{}' lies on the GPU, and can't be read after its request has been answered"


class Gpu:
    """What a model on a GPU does with tensors that lie there.

    If it does not `lend` inputs to the model, that gets copies in CPU memory of those that it reads.
    """

    __slots__ = ("lends", "number")

    def __init__(self, number: int, *, lends: bool) -> None:
        self.number = number
        self.lends = lends


class BatchReplies:
    """What the requests of one batch share: their inputs, and how they are answered.

    Most models answer by what `execute` returns, so a request has no reply of its own until its sender is
    asked for.
    """

    __slots__ = (
        "_batch",
        "_batches",
        "_gpu",
        "_guard",
        "_lent",
        "_on_gpu",
        "_over",
        "_replies",
        "_requests",
        "_sealed",
        "_whole",
    )

    def __init__(
        self, batch: Batch, guard: threading.Condition, *, batches: bool, gpu: Gpu | None = None
    ) -> None:
        """`guard` is the backend's; see `Reply`.

        With `batches` the first dimension of inputs is the batch's. Without a `gpu` all tensors are handed
        over in CPU memory, both ways.
        """
        self._batch = batch
        self._requests: Sequence[BatchRequest] = batch.requests
        self._guard = guard
        self._batches = batches
        self._replies: dict[int, Reply | StreamReply] = {}
        self._sealed = False
        self._over = False
        self._whole: list[Whole] | None = None
        self._gpu = gpu
        self._on_gpu = _NOTHING if gpu is None else batch.device_inputs
        self._lent = False

    def inputs_of(self, request: BatchRequest, start: int) -> list[Tensor]:
        """Return the inputs of the request whose first row is `start`.

        They are views of the batch's inputs, which are read once. Inputs that lie on the GPU are not read.
        """
        whole = self._whole
        if whole is None:
            whole = self._whole = self._read()
        if self._on_gpu:
            return [self._input_on(request, start, *each) for each in whole]
        if not self._batches:
            return [
                Tensor.over(name, datatype, array) for name, datatype, array in whole if array is not None
            ]
        end = start + request.rows
        return [
            Tensor.over(name, datatype, request.input(name) if array is None else array[start:end])
            for name, datatype, array in whole
        ]

    def _input_on(
        self,
        request: BatchRequest,
        start: int,
        name: str,
        datatype: DataType,
        whole: np.ndarray[Any, Any] | None,
    ) -> Tensor:
        """Return one input of a request in a batch of which some inputs lie on the GPU."""
        memory = request.device_input(name) if whole is None else None
        if memory is None:
            if whole is None:
                return Tensor.over(name, datatype, request.input(name))
            return Tensor.over(
                name, datatype, whole[start : start + request.rows] if self._batches else whole
            )
        if self._gpu is not None and self._gpu.lends:
            self._lent = True
            return DeviceTensor(name, memory)
        return DeferredTensor(name, memory, partial(self._copied, request))

    def _copied(self, request: BatchRequest, name: str) -> np.ndarray[Any, Any]:
        """Return a copy in CPU memory of an input on the GPU. Raises TritonModelException."""
        if self._over:
            raise TritonModelException(READ_TOO_LATE.format(name))
        try:
            return request.input(name)
        except cuda.CudaError as error:
            raise TritonModelException(f"tensor '{name}': {error}") from error

    def _read(self) -> list[Whole]:
        """Return the batch's inputs, whole.

        There is None in place of one whose requests differ in shape, or which lies on the GPU.
        """
        first = self._requests[0]
        whole: list[Whole] = []
        for name in self._batch.input_names:
            if name in self._on_gpu:
                whole.append((name, first.input_datatype(name), None))
                continue
            try:
                whole.append((name, first.input_datatype(name), self._batch.stacked(name)))
            except ValueError:  # a ragged input
                whole.append((name, first.input_datatype(name), None))
        return whole

    def cancelled(self, index: int) -> bool:
        """Whether the client of request `index` has gone; not, once the batch is over."""
        reply = self._replies.get(index)
        if reply is not None:
            return reply.cancelled()
        return not self._over and self._requests[index].cancelled()

    def open_streams(self) -> list[StreamReply]:
        """Have every request answered by senders, as those of a decoupled model are."""
        streams = [StreamReply(request) for request in self._requests]
        self._replies.update(enumerate(streams))
        return streams

    def reply_to(self, index: int) -> Reply | StreamReply:
        """Return the reply of request `index`; a closed one if senders are refused already."""
        with self._guard:
            reply = self._replies.get(index)
            if reply is None:
                gpu = None if self._gpu is None else self._gpu.number
                reply = Reply(self._requests[index], self._guard, gpu)
                self._replies[index] = reply
                if self._sealed:
                    reply.close()
                if self._over:
                    reply.release()
            return reply

    def replies(self) -> list[Reply]:
        """Return every request's reply, made if there was none. Not for decoupled models."""
        replies = (self.reply_to(index) for index in range(len(self._requests)))
        return [reply for reply in replies if isinstance(reply, Reply)]

    def seal(self) -> bool:
        """Refuse senders from now on, unless the model has one.

        Returns whether senders are refused, so that only the caller can answer.
        """
        with self._guard:
            self._sealed = not self._replies
            return self._sealed

    def any_sender(self) -> bool:
        """Whether a sender was taken."""
        return bool(self._replies)

    def end(self) -> None:
        """Let go of the requests: their memory is about to be used for others."""
        with self._guard:
            self._sealed = self._over = True
            for reply in self._replies.values():
                reply.release()
        if self._gpu is not None and self._lent:
            # What the model has only begun may still read its inputs. If the device is lost, the next that
            # needs it is told so.
            with contextlib.suppress(cuda.CudaError):
                cuda.driver().synchronize(self._gpu.number)


class Reply:
    """The one answer of a request, from either side: `execute`'s list, or a sender on any thread.

    `guard` is the backend's. It guards the memory for answers, which the batch's requests share. A thread
    that waits for a sender waits on it.
    """

    __slots__ = ("_gpu", "_request", "answered", "closed", "guard", "senders")

    def __init__(self, request: BatchRequest, guard: threading.Condition, gpu: int | None = None) -> None:
        """Outputs in the memory of `gpu` are handed over as they are."""
        self._request: BatchRequest | None = request
        self._gpu = gpu
        self.guard = guard
        self.answered = False
        self.closed = False  # to senders
        self.senders = 0  # in the model's hands

    def give(self, response: InferenceResponse) -> None:
        """Answer the request, unless there is an answer. Raises if an output can't be encoded."""
        with self.guard:
            request = self._request
            if request is None or self.answered:
                return
            error = response.error()
            if error is not None:
                request.fail(ErrorCode[error.code().name], error.message())
            else:
                gpu = self._gpu
                outputs = response.as_outputs() if gpu is None else response.as_outputs_of(gpu)
                request.respond(outputs, response.given_parameters())
            self.answered = True
            self.guard.notify_all()

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer with an error, unless there is an answer."""
        with self.guard:
            if self._request is not None and not self.answered:
                self.answered = True
                self._request.fail(code, message)

    def reschedule(self) -> None:
        """Have the request run again in place of an answer. Raises TritonModelException if there is one."""
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
        """Return once the request is answered, or once no sender is left that could answer it."""
        with self.guard:
            while not self.answered and self.senders:
                self.guard.wait()

    def sender_made(self) -> None:
        """The model has one sender more."""
        with self.guard:
            self.senders += 1

    def sender_dropped(self) -> None:
        """The model has dropped a sender."""
        with self.guard:
            self.senders -= 1
            self.guard.notify_all()

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Take what a sender was given.

        Raises TritonModelException for what a model that is not decoupled may not send.
        """
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

    The request is open for as long as the model holds it or one of its senders. If the model drops these
    without the final flag, the request ends with an error.
    """

    __slots__ = ("_request", "_sender")

    def __init__(self, request: BatchRequest) -> None:
        self._sender = request.sender()
        self._request: BatchRequest | None = request

    def reschedule(self) -> None:
        """Have the request run again; its senders are closed. Raises TritonModelException if it has ended."""
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
        """Do nothing: a sender keeps this object alive."""

    def sender_dropped(self) -> None:
        """Nothing, likewise."""

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Send what a sender was given; wait while the client has much to take.

        Raises TritonModelException.
        """
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
