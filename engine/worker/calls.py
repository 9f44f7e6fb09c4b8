"""Exchanges that this worker begins: inference calls to other models, and questions to the server.

They have a connection of their own, so that a lane which executes need not read for them, and nothing is paid where a model
makes no calls. Any thread may call. Nobody reads for the others' sake: of the threads that wait, one reads the connection
and hands the others what is theirs, which spares a thread switch per answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any

from actors import frames
from actors.call_frames import LARGEST_BODY, Letter, laid_out
from actors.call_segments import WORTH_A_SEGMENT, map_segment, write_segment
from actors.frames import WINDOW_BYTES, WINDOW_PARTS, Part
from actors.messages.errors import ErrorCode
from actors.messages.tensors import Tensor
from engine.worker.feeds import receive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Union

    import numpy as np

    from actors.messages.datatypes import DataType

    Array = np.ndarray[Any, Any]
    NamedArray = tuple[str, DataType, Array]
    Parameter = Union[bool, int, float, str]
    Origin = tuple[int, int]

_GONE = "the server closed the connection"


class CallFailed(Exception):
    """The server answered with an error, or went away: `code` and the text for the caller's eyes."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CallRequest:
    """One request to another model, or to the caller's own.

    `inputs` are (name, datatype, array) with the batch dimension where the callee batches; BYTES takes an object array,
    BF16 `uint16` bit patterns. `timeout` is in microseconds, 0 for none. `parent` is `BatchRequest.origin` of the request on
    whose behalf the call is made: its deadline and its cancellation are the call's as well. With an index of -1 that is the whole
    batch: the latest deadline, and the cancellation of all. `blocking` says that the execution of `parent` can't end before
    the call does; only such calls count when the server looks for a deadlock.
    `decoupled` allows any number of responses; without it, a decoupled callee refuses.
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
    """One response to a call: outputs (arrays of its own) and parameters, or an error where `code` is not None.

    The message of an error is complete, as contract/python_backend.md section 7 has it. `final` ends the stream; the last
    one of a decoupled callee may have neither outputs nor an error.
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


class Exchange:
    """What has come of one call, and who waits for it. Guarded by the lock of its `Calls`."""

    __slots__ = ("_assembled", "_part", "changed", "number", "parts", "unwanted")

    def __init__(self, lock: threading.RLock) -> None:
        self.changed = threading.Condition(lock)
        self.number = 0
        self.parts: deque[Part] = deque()
        self.unwanted = False  # nobody will read it
        self._part: Part | None = None  # whose bytes are still coming
        self._assembled = bytearray()

    def receive(self, part: Part, segment: memoryview | None) -> bool:
        """Take a part's first frame, and the segment with its bytes if there is one; whether that was all of it."""
        if segment is not None:
            part.data = segment
            return self._deliver(part)
        self._assembled = bytearray(part.data)  # the caller's own, to write to if it likes
        part.data = self._assembled
        return self._complete(part)

    def receive_more(self, data: frames.Buffer) -> bool:
        """Take a part's next frame; whether that was the last."""
        assert self._part is not None, "the server sends a part's frames in a row"
        self._assembled += data
        return self._complete(self._part)

    def _complete(self, part: Part) -> bool:
        if len(self._assembled) < part.nbytes:
            self._part = part
            return False
        self._part = None
        return self._deliver(part)

    def _deliver(self, part: Part) -> bool:
        if not self.unwanted:
            self.parts.append(part)
        self.changed.notify_all()
        return True


class CallStream:
    """The responses to one call, in order: iterate from any one thread; the last one has `final` set, and always comes.

    Where the server goes away, the last one is an error with code UNAVAILABLE; iteration itself never raises. A stream that
    nobody holds any more is cancelled.
    """

    _ended = True  # until there is an exchange

    def __init__(self, calls: Calls, exchange: Exchange) -> None:
        self._calls = calls
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
        part = self._calls.wait(self._exchange)
        if part is None:
            self._ended = True
            return CallResponse((), None, ErrorCode.UNAVAILABLE, _GONE, final=True)
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
            self._calls.send(frames.encode_credit(self._exchange.number, 0, self._parts, self._nbytes))
            self._parts = self._nbytes = 0

    def cancel(self) -> None:
        """Give the call up: what is under way still comes, and then an error with code CANCELLED. Idempotent, never waits."""
        if not self._ended:
            self._calls.send(frames.encode_cancel(self._exchange.number, 0))

    def __del__(self) -> None:
        if not self._ended:
            self._exchange.unwanted = True
            self.cancel()


class Calls:
    """What `ModelInfo.calls` offers a backend. Every method may be called from any thread.

    A thread that waits becomes the reader where there is none. A reader that has got what it waited for has another one
    take over: whoever leaves `wait` sees to that, for the one that was chosen before may have been served meanwhile.
    """

    def __init__(self, sock: socket.socket) -> None:
        """`sock` is this worker's end of a SOCK_SEQPACKET connection, blocking; it is closed with the process."""
        self._sock = sock
        self._lock = threading.RLock()  # a stream may be collected, and cancelled, by a thread that holds it
        self._order = threading.Lock()  # of the frames of one letter
        self._number = 0  # of the last letter that is answered
        self._exchanges: dict[int, Exchange] = {}
        self._waiting: list[Exchange] = []
        self._reading = False
        self._lost = False
        self._incomplete: Exchange | None = None
        self._segment: memoryview | None = None  # with the bytes of the next part

    def infer(self, call: CallRequest) -> CallStream:
        """Send a call. Waits for nothing but the connection; refusals come as the stream's only response.

        Raises ValueError where an array does not fit its datatype, or a parameter can't travel.
        """
        frames.check_parameters(call.parameters or {})
        placed, pieces, nbytes = laid_out(
            Tensor.from_numpy(name, array, datatype) for name, datatype, array in call.inputs
        )
        letter = Letter(frames.CALL, 0, _fields(call), placed, b"", nbytes)
        return CallStream(self, self._begin(letter, pieces))

    def ask(
        self, subject: str, body: Mapping[str, Any], attachments: Mapping[str, bytes] | None = None
    ) -> dict[str, Any]:
        """Ask the server and wait for its answer; both bodies are JSON objects, large bytes go into `attachments`.

        Raises CallFailed with the server's error, with UNAVAILABLE where it went away, and with INVALID_ARG where the question is too
        large to be asked.
        """
        try:
            letter, pieces = _written(frames.ASK, subject, body, attachments or {})
            exchange = self._begin(letter, pieces)
        except ValueError as error:
            raise CallFailed(ErrorCode.INVALID_ARG, str(error)) from error
        part = self.wait(exchange)
        if part is None or part.answer is None:
            raise CallFailed(ErrorCode.UNAVAILABLE, _GONE)
        if part.answer.code is not None:
            raise CallFailed(part.answer.code, part.answer.message)
        answer: dict[str, Any] = json.loads(bytes(part.data))
        return answer

    def tell(self, subject: str, body: Mapping[str, Any]) -> None:
        """Tell the server something, without an answer; what one thread tells arrives in its order.

        Raises ValueError where it is too large.
        """
        letter, pieces = _written(frames.TELL, subject, body, {})
        self._post(letter, pieces)

    def close(self) -> None:
        """Close the connection: whoever waits is told that the server went away."""
        self._lose()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    # -- for streams -------------------------------------------------------------------------------------------------

    def send(self, packet: bytes) -> None:
        """Send a frame that is complete in itself. Where the server has gone, who waits is told."""
        try:
            self._sock.send(packet)
        except OSError:
            self._lose()

    def wait(self, exchange: Exchange) -> Part | None:
        """Return the next part of an exchange, waiting for it; None where the server went away."""
        with self._lock:
            try:
                while not exchange.parts and not self._lost:
                    if self._reading:
                        self._waiting.append(exchange)
                        exchange.changed.wait()
                        self._waiting.remove(exchange)
                    else:
                        self._read_until(exchange)
                return exchange.parts.popleft() if exchange.parts else None
            finally:
                if not self._reading and self._waiting:
                    self._waiting[0].changed.notify()

    def _read_until(self, exchange: Exchange) -> None:
        """Read for everybody until `exchange` has a part. With the lock held, which is given up meanwhile."""
        self._reading = True
        try:
            while not exchange.parts and not self._lost:
                self._lock.release()
                try:
                    packet, descriptors = receive(self._sock)
                finally:
                    self._lock.acquire()
                if packet:
                    self._hand_out(packet, descriptors)
                else:
                    self._lose_locked()
        finally:
            self._reading = False

    def _hand_out(self, packet: bytes, descriptors: Sequence[int]) -> None:
        if packet[0] == frames.SEGMENT:
            self._segment = map_segment(descriptors[0], frames.decode_segment(packet)[2], writable=True)
            self.send(bytes((frames.TAKEN,)))
            return
        if packet[0] == frames.MORE:
            exchange, final = self._incomplete, False
            assert exchange is not None, "the server sends a part's frames in a row"
            whole = exchange.receive_more(frames.decode_more(packet)[2])
        else:
            part = Part.decode(packet)
            exchange = self._exchanges.get(part.batch_id)
            if exchange is None:
                raise frames.FrameError(
                    f"the server answers call {part.batch_id}, which has had its last answer"
                )
            whole, final = exchange.receive(part, self._segment), part.final
            self._segment = None
        self._incomplete = None if whole else exchange
        if final:
            del self._exchanges[exchange.number]

    # -- sending -----------------------------------------------------------------------------------------------------

    def _begin(self, letter: Letter, pieces: Sequence[frames.Buffer]) -> Exchange:
        """Send a letter that is answered, under the next number."""
        exchange = Exchange(self._lock)

        def register() -> None:
            exchange.number = self._number = letter.number
            with self._lock:
                self._exchanges[letter.number] = exchange

        self._post(letter, pieces, register)
        return exchange

    def _post(
        self, letter: Letter, pieces: Sequence[frames.Buffer], register: Callable[[], None] | None = None
    ) -> None:
        """Send a letter, in a segment where that is worth it. Raises ValueError where it is too large."""
        descriptor = _prepared(letter, pieces)
        try:
            with self._order:
                if register is not None:
                    letter.number = self._number + 1
                packets = letter.packets()
                if register is not None:
                    register()
                self._send_all(letter, packets, descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _send_all(
        self, letter: Letter, packets: Iterator[tuple[bytes, frames.Buffer]], descriptor: int
    ) -> None:
        try:
            if descriptor < 0:
                for pieces in packets:
                    self._sock.sendmsg(pieces)
                return
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", (descriptor,)))
            self._sock.sendmsg((frames.encode_segment(0, 0, letter.nbytes),), (rights,))
            self._sock.sendmsg(next(packets))
        except OSError:
            self._lose()

    def _lose(self) -> None:
        with self._lock:
            self._lose_locked()

    def _lose_locked(self) -> None:
        self._lost = True
        for exchange in self._waiting:
            exchange.changed.notify_all()


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
    if call.parent is not None:
        fields["parent"] = list(call.parent)
    return fields


def _prepared(letter: Letter, pieces: Sequence[frames.Buffer]) -> int:
    """Put a letter's bytes where they will be read: a descriptor's segment, or the letter itself (-1)."""
    if letter.nbytes >= WORTH_A_SEGMENT:
        with contextlib.suppress(OSError):  # no descriptor or memory is left: frames need neither
            return write_segment(pieces)
    letter.data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return -1


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
