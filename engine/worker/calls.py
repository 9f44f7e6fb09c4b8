"""Exchanges that this worker begins: inference calls to other models, and questions to the server.

They have a connection of their own (`engine.worker.call_line`), so that a lane which executes need not read
for them, and a model that makes no calls pays nothing. Each process that the worker forks and that calls has
one too.
"""

from __future__ import annotations

import json
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from actors.values.errors import ErrorCode
from actors.values.tensors import Tensor
from actors.wire import batch_frames, frames
from actors.wire.batch_frames import Part
from actors.wire.call_frames import GIVE_UP, LARGEST_BODY, STOP_SENDING, Letter, laid_out, text_of
from actors.wire.frames import WINDOW_BYTES, WINDOW_PARTS
from engine.worker.call_line import Exchange, Line, branch
from engine.worker.forking import when_forked

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence

    from actors.values.datatypes import DataType
    from actors.values.requests import Parameter
    from actors.values.tensors import Array

    NamedArray = tuple[str, DataType, Array]
    Origin = tuple[int, int]

_KEPT = 64  # texts of calls that are remembered


class CallFailed(Exception):
    """The server answered with an error, or went away: `code` and the text for the caller's eyes."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CallRequest:
    """One request to another model, or to the caller's own.

    `inputs` are (name, datatype, array) with the batch dimension if the callee batches; BYTES takes an object
    array, BF16 `uint16` bit patterns. `timeout` is in microseconds, 0 for none.

    `parent` is `BatchRequest.origin` of the request on whose behalf the call is made: its deadline and its
    cancellation are the call's as well. With an index of -1 that is the whole batch: the latest deadline, and
    the cancellation of all. `blocking` says that the execution of `parent` can't end before the call does;
    only such calls count when the server looks for a deadlock. `decoupled` allows any number of responses;
    without it, a decoupled callee refuses.
    """

    __slots__ = (
        "blocking",
        "correlation_id",
        "decoupled",
        "flags",
        "id",
        "inputs",
        "model",
        "parameters",
        "parent",
        "priority",
        "requested_outputs",
        "timeout",
        "trace",
        "version",
    )

    def __init__(
        self,
        model: str,
        inputs: Sequence[NamedArray],
        *,
        version: int = -1,
        requested_outputs: Sequence[str] = (),
        id: str = "",  # noqa: A002  # the protocol's word
        correlation_id: int | str = 0,
        flags: int = 0,
        timeout: int = 0,
        priority: int = 0,
        parameters: Mapping[str, Parameter] | None = None,
        trace: str = "",
        decoupled: bool = False,
        parent: Origin | None = None,
        blocking: bool = True,
    ) -> None:
        self.model = model
        self.version = version  # -1: the policy's choice
        self.inputs = inputs
        self.requested_outputs = requested_outputs  # empty: all of them
        self.id = id
        self.correlation_id = correlation_id
        self.flags = flags
        self.timeout = timeout
        self.priority = priority
        self.parameters = parameters
        self.trace = trace  # a W3C `traceparent`, empty for none
        self.decoupled = decoupled
        self.parent = parent
        self.blocking = blocking


class CallResponse:
    """One response to a call: outputs (arrays of its own) and parameters, or an error if `code` is set.

    The message of an error is complete, as contract/python_backend.md section 7 has it. `final` ends the
    stream. The last response of a decoupled callee may have neither outputs nor an error.
    """

    __slots__ = ("code", "final", "message", "outputs", "parameters")

    def __init__(
        self,
        outputs: Sequence[NamedArray],
        parameters: Mapping[str, Parameter] | None,
        code: ErrorCode | None,
        message: str,
        *,
        final: bool,
    ) -> None:
        self.outputs = outputs
        self.parameters = parameters or {}
        self.code = code
        self.message = message
        self.final = final


class CallStream:
    """The responses to one call, in order.

    Iterate from any one thread. The last response has `final` set, and always comes. If the server goes away,
    the last one is an error with code UNAVAILABLE; iteration itself never raises. A stream is cancelled when
    its last reference is dropped.
    """

    _ended = True  # until there is an exchange

    def __init__(self, line: Line, exchange: Exchange) -> None:
        self._line = line
        self._exchange = exchange
        self._ended = False
        self._parts = 0  # taken, and no credit given for them
        self._nbytes = 0

    def __iter__(self) -> Iterator[CallResponse]:
        """Return itself: a stream is read once."""
        return self

    def __next__(self) -> CallResponse:
        """Wait for the next response. Raises StopIteration after the final one."""
        if self._ended:
            raise StopIteration
        part = self._line.wait(self._exchange)
        if part is None:
            self._ended = True
            return CallResponse((), None, ErrorCode.UNAVAILABLE, self._line.why_lost, final=True)
        if part.final:
            self._ended = True
        else:
            self._take(part)
        answer = part.answer
        if answer is None:
            return CallResponse((), None, None, "", final=True)
        return CallResponse(_arrays(part), answer.parameters, answer.code, answer.message, final=part.final)

    def _take(self, part: Part) -> None:
        """Give credit for half a window at once, as the server does for the parts of a decoupled model."""
        self._parts += 1
        self._nbytes += part.nbytes
        if self._parts >= WINDOW_PARTS // 2 or self._nbytes >= WINDOW_BYTES // 2:
            self._line.send(frames.encode_credit(self._exchange.number, 0, self._parts, self._nbytes))
            self._parts = self._nbytes = 0

    def cancel(self) -> None:
        """Ask the callee for an end. Idempotent, never waits.

        What the callee still sends arrives, the last response in any case.
        """
        if not self._ended:
            self._line.send(frames.encode_cancel(self._exchange.number, STOP_SENDING))

    def give_up(self) -> None:
        """Say that the caller reads no further.

        What is under way still comes, and then an error with code CANCELLED.
        """
        if not self._ended:
            self._line.send(frames.encode_cancel(self._exchange.number, GIVE_UP))

    def __del__(self) -> None:
        if not self._ended:
            self._exchange.unwanted = True
            self.give_up()


class Calls:
    """What `ModelInfo.calls` offers a backend.

    Every method may be called from any thread, and in processes that the worker forks.
    """

    def __init__(self, sock: socket.socket) -> None:
        """`sock` is this worker's end of a SOCK_SEQPACKET connection, blocking; closed with the process."""
        self._root = sock
        self._line: Line | None = Line(sock)
        self._forked = False
        self._opening = threading.Lock()
        when_forked(self)

    def infer(self, call: CallRequest) -> CallStream:
        """Send a call. Waits for nothing but the connection; refusals come as the stream's only response.

        Raises ValueError if an array does not fit its datatype, or a parameter can't travel.
        """
        batch_frames.check_parameters(call.parameters or {})
        placed, pieces, nbytes = laid_out(
            Tensor.from_numpy(name, array, datatype) for name, datatype, array in call.inputs
        )
        letter = Letter(frames.CALL, 0, {}, placed, b"", nbytes, parent=call.parent, text=_text_of(call))
        line = self._opened()
        return CallStream(line, line.begin(letter, pieces))

    def ask(
        self, subject: str, body: Mapping[str, Any], attachments: Mapping[str, bytes] | None = None
    ) -> dict[str, Any]:
        """Ask the server and wait for its answer.

        Both bodies are JSON objects; large bytes go into `attachments`. Raises CallFailed with the server's
        error, with UNAVAILABLE if it went away, and with INVALID_ARG if the question is too large to be
        asked.
        """
        try:
            letter, pieces = _written(frames.ASK, subject, body, attachments or {})
            line = self._opened()
            exchange = line.begin(letter, pieces)
        except ValueError as error:
            raise CallFailed(ErrorCode.INVALID_ARG, str(error)) from error
        part = line.wait(exchange)
        if part is None or part.answer is None:
            raise CallFailed(ErrorCode.UNAVAILABLE, line.why_lost)
        if part.answer.code is not None:
            raise CallFailed(part.answer.code, part.answer.message)
        answer: dict[str, Any] = json.loads(bytes(part.data))
        return answer

    def tell(self, subject: str, body: Mapping[str, Any]) -> None:
        """Tell the server something, without an answer; what one thread tells arrives in its order.

        Raises ValueError if it is too large.
        """
        letter, pieces = _written(frames.TELL, subject, body, {})
        self._opened().post(letter, pieces)

    def close(self) -> None:
        """Close the connection: the threads that wait are told that the server went away."""
        if self._line is not None and not self._forked:
            self._line.close()

    def forked(self) -> None:
        """This is a process that has just been forked.

        Its calls go over a line of its own, made when there is something to say.
        """
        line, self._line = self._line, None
        if line is not None:
            line.sever()
            if self._forked:
                # It was the parent's line. The server would not see the parent's end while this process holds
                # it.
                line.leave()
        self._forked = True
        self._opening = threading.Lock()

    def _opened(self) -> Line:
        line = self._line
        if line is not None:
            return line
        with self._opening:
            if self._line is None:
                line = branch(self._root)
                if line.lost:
                    return line  # the next one to call asks again
                self._line = line
            return self._line


def _fields(call: CallRequest) -> dict[str, Any]:
    """Return what a call says beyond its inputs: only what differs from the default."""
    fields: dict[str, Any] = {"model": call.model}
    if call.version != -1:
        fields["version"] = call.version
    for name in ("id", "correlation_id", "flags", "timeout", "priority", "trace", "decoupled", "blocking"):
        value = getattr(call, name)
        if value:
            fields[name] = value
    if call.requested_outputs:
        fields["outputs"] = list(call.requested_outputs)
    if call.parameters:
        fields["parameters"] = dict(call.parameters)
    return fields


def _text_of(call: CallRequest) -> bytes:
    """Return the JSON of what a call says. Most calls of a model say the same, so it is remembered."""
    if call.parameters or call.trace or call.id or call.correlation_id:
        return text_of(_fields(call))
    return _known_text(
        call.model,
        call.version,
        tuple(call.requested_outputs),
        call.flags,
        call.timeout,
        call.priority,
        bool(call.decoupled),
        bool(call.blocking),
    )


@lru_cache(maxsize=_KEPT)
def _known_text(
    model: str,
    version: int,
    outputs: Sequence[str],
    flags: int,
    timeout: int,
    priority: int,
    decoupled: bool,  # a cached function's arguments are its key
    blocking: bool,
) -> bytes:
    said = CallRequest(
        model,
        (),
        version=version,
        requested_outputs=outputs,
        flags=flags,
        timeout=timeout,
        priority=priority,
        decoupled=decoupled,
        blocking=blocking,
    )
    return text_of(_fields(said))


def _arrays(part: Part) -> list[NamedArray]:
    if part.answer is None:
        return []
    view = memoryview(part.data)
    return [
        (
            each.name,
            each.datatype,
            Tensor(
                each.name, each.datatype, each.shape, view[each.offset : each.offset + each.nbytes]
            ).as_numpy(),
        )
        for each in part.answer.outputs
    ]


def _written(
    kind: int, subject: str, body: Mapping[str, Any], attachments: Mapping[str, bytes]
) -> tuple[Letter, list[frames.Buffer]]:
    text = json.dumps(body, separators=(",", ":")).encode()
    if len(text) > LARGEST_BODY:
        raise ValueError(
            f"{len(text)} bytes of text in a message to the server on '{subject}'; at most {LARGEST_BODY} fit"
        )
    sizes = [[name, len(data)] for name, data in attachments.items()]
    pieces: list[frames.Buffer] = [text, *attachments.values()]
    letter = Letter(kind, 0, {"subject": subject, "attachments": sizes}, (), b"", sum(map(len, pieces)))
    return letter, pieces
