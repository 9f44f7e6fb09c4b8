"""What a worker begins, as the server sees it: inference calls of models, and questions to the server.

A worker has a connection for that of its own (`actors.call_frames`), which a task of its instance reads. A call becomes an
ordinary request to whoever answers for the model's name, like that of a client: validation, queue, cache, limits and
statistics are the callee's. What is the caller's goes along: the deadline, the tenant and the cancellation of the request on
whose behalf the call is made. Answers are copied out of the callee's memory at once, so that nobody who does not read can
hold it; those of a stream are held back, and with them the callee, while the caller has a window of them to take.

A worker is hostile: it may have `MAX_CALLS` calls and `MAX_ASKS` questions under way, and `MAX_BYTES` of memory for what they
carry and what it has not read; more is refused. Refusals must be read as well, else that is the end of it (`MAX_UNREAD`). When its
process ends, its calls are cancelled.
"""

from __future__ import annotations

import json
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import trio

from actors import frames
from actors.call_fields import WHOLE_BATCH, Attached, CallFields, read_attached, read_call
from actors.call_frames import KINDS, LARGEST_LETTER, Letter, laid_out
from actors.call_pipe import CallPipe, Packet
from actors.call_segments import WORTH_A_SEGMENT, map_segment, write_segment
from actors.fault_points import fault_point
from actors.frames import WINDOW_BYTES, WINDOW_PARTS, Answer, FrameError, Part, Placed
from actors.interfaces import ServedModel
from actors.messages.datatypes import DataType
from actors.messages.errors import (
    Cancelled,
    ErrorCode,
    TritiumError,
    Unavailable,
    Unsupported,
)
from actors.messages.requests import InferRequest, InferResponse
from actors.messages.tensors import Tensor
from actors.model import ModelState
from actors.subjects import Caller, Subjects

if TYPE_CHECKING:
    from actors.messages.tensors import Buffer
    from actors.worker import InFlight, LiveWorker

MAX_CALLS: Final = 1024
"""Calls of one worker that may be under way."""

MAX_ASKS: Final = 64
"""Questions of one worker that may be under way."""

MAX_BYTES: Final = 2**31
"""Bytes of inputs of one worker's calls and questions, of answers that it has not read, and of such as it gives no credit for."""

MAX_UNREAD: Final = 8 * MAX_CALLS
"""Calls and questions whose last answer, a refusal perhaps, one worker has not read: one that has more does not read at all."""

MAX_SEGMENTS: Final = 64
"""Segments each way, for one worker: each holds a descriptor of the server's. What has more to say is copied into frames."""

PACKETS_IN_A_ROW: Final = 64  # from one worker, before others get their turn

_PARENT_CANCELLED: Final = "the request on whose behalf this call was made has been cancelled"
_TEXT_LIMIT: Final = 8 * 1024  # characters of an error's message
_PART_COST: Final = 1024  # bytes that one part takes beside its tensors, roughly


class Resolver(Protocol):
    """Who can be called: `actors.callees`."""

    def resolve(self, name: str, version: str = "", *, namespace: str = "") -> ServedModel:
        """Return who answers for a model. Raises TritiumError."""


class Deadlocks(Protocol):
    """Knows who waits for whom: `actors.call_waits`."""

    def check(self, call: Call) -> None:
        """Raise Unavailable where `call`, which is about to be made, would wait for itself."""


@dataclass(frozen=True, slots=True)
class CallHost:
    """What the calls of all workers have in common."""

    callees: Resolver
    subjects: Subjects
    deadlocks: Deadlocks | None = None


class Call:
    """One call under way, and the reply port of its request."""

    __slots__ = (
        "_nbytes",
        "_parts",
        "_waiting",
        "batch",
        "blocking",
        "ended",
        "model",
        "number",
        "owner",
        "parents",
        "request",
        "size",
    )
    relation = "call"  # of its request to its parent, in the log

    def __init__(
        self,
        owner: WorkerCalls,
        number: int,
        model: ServedModel,
        *,
        size: int,
        batch: InFlight | None,
        parents: Sequence[InferRequest],
        blocking: bool,
    ) -> None:
        self.number = number
        self.size = size  # bytes of its inputs
        self.model = model
        self.batch = batch  # whose execution made it, if that is still under way
        self.parents = parents  # the requests of that batch on whose behalf it is made: one, or all of them
        self.blocking = blocking and batch is not None  # the execution can't end before it
        self.request: InferRequest  # until the end
        self.ended = False  # the caller has had the last response
        self.owner = owner
        self._parts = 0  # that the caller has not taken
        self._nbytes = 0
        self._waiting: deque[tuple[InferResponse | TritiumError, bool, int]] = deque()  # with what it costs

    @property
    def parent(self) -> InferRequest | None:
        """The request on whose behalf it is made; the first, where that is a whole batch."""
        return self.parents[0] if self.parents else None

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Pass on one part of the answer, or keep it until the caller has taken more. See `ReplyPort`."""
        if self.ended:
            _release(part)
        elif self._waiting or not self._may_send(part, final=final):
            self._keep(part, final=final)
        else:
            self._send(part, final=final)

    def _keep(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Keep a part until there is credit for it. One that holds up nobody until it is released is ours to find room for."""
        cost = _PART_COST
        if isinstance(part, InferResponse):
            cost = 0 if part.leased else cost + sum(tensor.nbytes for tensor in part.outputs)
        if self.owner.kept + cost > MAX_BYTES:
            _release(part)
            self._break_off(
                Unavailable(f"{self.owner.kept} bytes of answers wait for the caller to take them")
            )
            return
        self.owner.kept += cost
        self._waiting.append((part, final, cost))

    def _may_send(self, part: InferResponse | TritiumError, *, final: bool) -> bool:
        if final and (isinstance(part, TritiumError) or not part.outputs):
            return True  # the end costs no credit: there is one of them
        return self._parts < WINDOW_PARTS and self._nbytes < WINDOW_BYTES

    def _send(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        if final:
            self.owner.ended(self)
            self._end()
        nbytes = self.owner.send(self.number, part, final=final)
        self._parts += 1
        self._nbytes += nbytes

    def credit(self, parts: int, nbytes: int) -> None:
        """The caller has taken so much. Raises FrameError where it had not been given as much."""
        if parts > self._parts or nbytes > self._nbytes:
            raise FrameError(
                f"credit for {parts} parts and {nbytes} bytes of call {self.number}, which has fewer"
            )
        self._parts -= parts
        self._nbytes -= nbytes
        while self._waiting and self._may_send(self._waiting[0][0], final=self._waiting[0][1]):
            part, final, cost = self._waiting.popleft()
            self.owner.kept -= cost
            self._send(part, final=final)

    def cancel(self, why: str) -> None:
        """Nobody needs the answer: the caller gets what waits for no credit, then an error, and the callee is told."""
        if not self.ended:
            self._break_off(Cancelled(why))

    def _break_off(self, error: TritiumError) -> None:
        self.owner.ended(self)
        self.drop()
        self.owner.send(self.number, error, final=True)

    def drop(self) -> None:
        """Have the callee stop, and tell nobody."""
        if self.ended:
            return
        request = self.request
        self._end()
        while self._waiting:
            part, _, cost = self._waiting.popleft()
            self.owner.kept -= cost
            _release(part)
        if not request.answered:
            self.model.cancel(request)

    def withdraw(self) -> None:
        """It is not made after all: nobody knows of it."""
        self._end()

    def _end(self) -> None:
        self.ended = True
        del (
            self.request
        )  # which holds us: its inputs are to go with the last one who needs them, not with the garbage


class WorkerCalls:
    """The calls of one worker, for as long as its process lives."""

    def __init__(self, pipe: CallPipe, caller: Caller, worker: LiveWorker, host: CallHost) -> None:
        self.caller = caller
        self.kept = 0  # bytes of answers for which there is no credit
        self._pipe = pipe
        self._worker = worker
        self._host = host
        self._handlers: Mapping[int, Callable[[bytes], None]] = {
            **dict.fromkeys(KINDS, self._on_letter),
            frames.MORE: self._on_more,
            frames.CREDIT: self._on_credit,
            frames.CANCEL: self._on_cancel,
            frames.SEGMENT: self._on_segment,
            frames.TAKEN: self._on_taken,
        }
        self._segment: Buffer | None = None  # the bytes of the next letter
        self._mapped: weakref.WeakSet[object] = weakref.WeakSet()  # segments of letters that are still in use
        self._handed: deque[int] = deque()  # sizes of segments that the worker has not taken
        self._untaken = 0  # their sum
        self._letter: Letter | None = None  # whose bytes are still coming
        self._assembled = bytearray()
        self._highest = 0  # number that the worker has used
        self._calls: dict[int, Call] = {}
        self._blocking: dict[int, list[Call]] = {}  # by batch
        self._asks = 0
        self._nbytes = 0  # of what is under way
        self._nursery: trio.Nursery
        self._condemn: Callable[[FrameError], None]

    async def run(self, condemn: Callable[[FrameError], None]) -> None:
        """Serve the worker's calls until it closes the connection. `condemn` is called where it breaks the protocol."""
        self._condemn = condemn
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._pipe.flush)
                try:
                    await self._receive()
                except FrameError as error:
                    condemn(error)
                self._nursery.cancel_scope.cancel()
        finally:
            self.close()

    async def _receive(self) -> None:
        in_a_row = 0
        while True:
            packet = self._pipe.receive_nowait()
            in_a_row += 1
            if packet is None:
                await self._pipe.wait_readable()
                in_a_row = 0
            elif packet:
                self._on_packet(packet)
            else:
                return
            if in_a_row > PACKETS_IN_A_ROW:
                await trio.lowlevel.checkpoint()
                in_a_row = 0

    def close(self) -> None:
        """The worker is gone, or does not call any more: cancel what it has under way. Idempotent."""
        if self._pipe.closed:
            return
        self._pipe.close()
        calls, self._calls = self._calls, {}
        self._blocking.clear()
        for call in calls.values():
            call.drop()
        self._letter, self._assembled, self._segment = None, bytearray(), None
        self._handlers = {}  # which refer to us
        self._host.subjects.ended(self.caller)

    # -- for others --------------------------------------------------------------------------------------------------

    def blocking(self, batch: InFlight) -> Sequence[Call]:
        """Return the calls that the execution of `batch` waits for."""
        return self._blocking.get(batch.id, ())

    @property
    def any_blocking(self) -> bool:
        """Whether any execution waits for a call."""
        return bool(self._blocking)

    def parent_cancelled(self, request: InferRequest) -> None:
        """The client of a request has gone that this worker executes: what is called on its behalf alone is not needed."""
        for call in [call for call in self._calls.values() if request in call.parents]:
            if _nobody_waits(call.parents):
                call.cancel(_PARENT_CANCELLED)

    # -- for calls ---------------------------------------------------------------------------------------------------

    def ended(self, call: Call) -> None:
        """A call has had its last response."""
        if self._calls.pop(call.number, None) is None:
            return
        self._nbytes -= call.size
        if call.blocking and call.batch is not None:
            siblings = self._blocking[call.batch.id]
            siblings.remove(call)
            if not siblings:
                del self._blocking[call.batch.id]

    def send(self, number: int, part: InferResponse | TritiumError, *, final: bool) -> int:
        """Send one part of an answer, copied; return how many bytes its tensors take."""
        if isinstance(part, InferResponse):
            size = sum(tensor.nbytes for tensor in part.outputs)
            waiting = self._pipe.unsent + self._untaken
            if waiting + size > MAX_BYTES:
                _release(part)
                part = Unavailable(f"answers of {waiting} bytes wait for the caller to read them")
        if isinstance(part, TritiumError):
            self._answer(number, Answer(code=part.code, message=part.message[:_TEXT_LIMIT]), final=final)
            return 0
        if final and not part.outputs and not part.parameters:
            part.release()
            self._send(Part(number, 0, None, b"", 0, final=True))
            return 0
        placed, pieces, nbytes = laid_out(part.outputs)
        answer = Answer(placed, part.parameters)
        try:
            if nbytes < WORTH_A_SEGMENT or len(self._handed) >= MAX_SEGMENTS:
                self._send(Part(number, 0, answer, b"".join(pieces), nbytes, final=final))
            else:
                self._send_segment(Part(number, 0, answer, b"", nbytes, final=final), pieces)
        except ValueError as error:  # what is said beside the tensors is too much for a frame
            self._answer(number, Answer(code=ErrorCode.INTERNAL, message=str(error)), final=final)
            return 0
        except OSError as error:
            refusal = f"no memory for an answer of {nbytes} bytes: {error.strerror}"
            self._answer(number, Answer(code=ErrorCode.UNAVAILABLE, message=refusal), final=final)
            return 0
        finally:
            part.release()
        return nbytes

    def _send_segment(self, part: Part, pieces: Sequence[Buffer]) -> None:
        first = next(part.packets())
        announced = frames.encode_segment(0, 0, part.nbytes), (write_segment(pieces),)
        self._handed.append(part.nbytes)
        self._untaken += part.nbytes
        self._pipe.send_answer(iter((announced, (first, ()))), 0, final=part.final)

    def _answer(self, number: int, answer: Answer, *, final: bool) -> None:
        self._send(Part(number, 0, answer, b"", 0, final=final))

    def _send(self, part: Part) -> None:
        packets: Iterator[Packet] = ((packet, ()) for packet in part.packets())
        self._pipe.send_answer(packets, part.nbytes, final=part.final)

    # -- what the worker says ----------------------------------------------------------------------------------------

    @fault_point("calls.packet")
    def _on_packet(self, packet: bytes) -> None:
        handler = self._handlers.get(packet[0])
        if handler is None:
            raise FrameError(f"a worker sent a frame of kind {packet[0]} where it calls")
        handler(packet)

    def _on_letter(self, packet: bytes) -> None:
        if self._letter is not None:
            raise FrameError(f"a frame of kind {packet[0]} within another letter")
        if self._pipe.unsent_ends > MAX_UNREAD:
            raise FrameError("a worker calls again and again and never reads the answers")
        letter = Letter.decode(packet)
        if (letter.kind != frames.TELL) is not (letter.number > self._highest):
            raise FrameError(
                f"a letter of kind {letter.kind} has number {letter.number} after {self._highest}"
            )
        self._highest = max(self._highest, letter.number)
        if self._segment is not None:
            if letter.data or len(self._segment) != letter.nbytes:
                raise FrameError(f"a letter of {letter.nbytes} bytes after a segment of {len(self._segment)}")
            letter.data, self._segment = self._segment, None
        if letter.complete:
            self._open(letter)
        else:
            self._letter, self._assembled = letter, bytearray(letter.data)

    def _on_segment(self, packet: bytes) -> None:
        _, _, size = frames.decode_segment(packet)
        if self._letter is not None or self._segment is not None or size > LARGEST_LETTER:
            raise FrameError(f"a segment of {size} bytes that nothing asked for")
        view = map_segment(self._pipe.take_descriptor(), size, writable=False)
        if len(self._mapped) < MAX_SEGMENTS:
            self._mapped.add(view.obj)
            self._segment = view
        else:
            self._segment = bytes(view)

    def _on_taken(self, packet: bytes) -> None:
        if not self._handed:
            raise FrameError("a worker has taken a segment that it was not given")
        self._untaken -= self._handed.popleft()

    def _on_more(self, packet: bytes) -> None:
        number, _, data = frames.decode_more(packet)
        letter = self._letter
        if letter is None or number != letter.number or len(self._assembled) + len(data) > letter.nbytes:
            raise FrameError(f"{len(data)} bytes too many for letter {number}")
        self._assembled += data
        if len(self._assembled) == letter.nbytes:
            letter.data, self._letter, self._assembled = self._assembled, None, bytearray()
            self._open(letter)

    def _open(self, letter: Letter) -> None:
        if letter.kind == frames.CALL:
            self._call(letter, read_call(letter))
        elif letter.kind == frames.TELL:
            self._host.subjects.tell(read_attached(letter), self.caller)
        elif self._asks >= MAX_ASKS or self._nbytes + letter.nbytes > MAX_BYTES:
            why = f"{self._asks} questions of this worker wait already, with {self._nbytes} bytes"
            self.send(letter.number, Unavailable(why), final=True)
        else:
            attached = read_attached(letter)
            self._asks += 1
            self._nbytes += letter.nbytes
            self._nursery.start_soon(self._ask, letter.number, letter.nbytes, attached)

    async def _ask(self, number: int, nbytes: int, attached: Attached) -> None:
        try:
            told = await self._host.subjects.ask(attached, self.caller)
        except TritiumError as error:
            self.send(number, error, final=True)
        except FrameError as error:
            self._condemn(error)
            self._nursery.cancel_scope.cancel()
        else:
            text = json.dumps(told, separators=(",", ":")).encode()
            placed = Placed("", DataType.UINT8, (len(text),), 0, len(text))
            self._send(Part(number, 0, Answer([placed]), text, len(text), final=True))
        finally:
            self._asks -= 1
            self._nbytes -= nbytes

    def _on_credit(self, packet: bytes) -> None:
        number, _, parts, nbytes = frames.decode_credit(packet)
        call = self._call_of(number)
        if call is not None:
            call.credit(parts, nbytes)

    def _on_cancel(self, packet: bytes) -> None:
        call = self._call_of(frames.decode_cancel(packet)[0])
        if call is not None:
            call.cancel("the caller has cancelled this call")

    def _call_of(self, number: int) -> Call | None:
        if number > self._highest:
            raise FrameError(f"call {number} is spoken of before it is made")
        return self._calls.get(number)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, letter: Letter, fields: CallFields) -> None:
        try:
            call = self._admitted(letter, fields)
        except TritiumError as error:
            self.send(letter.number, error, final=True)
            return
        self._calls[call.number] = call
        self._nbytes += call.size
        if call.blocking and call.batch is not None:
            self._blocking.setdefault(call.batch.id, []).append(call)
            self._worker.stop_prefetching()
        model = call.model
        try:
            if isinstance(model, ModelState):
                model.submit_nowait(call.request, pinned=True)
            else:
                model.submit_nowait(call.request)
        except trio.WouldBlock:
            self._nursery.start_soon(self._submit, call)
        except TritiumError as error:
            call.put(error, final=True)

    async def _submit(self, call: Call) -> None:
        """Wait for room in the callee's queue, as a client would."""
        if call.ended:  # before this task had its first turn
            return
        model = call.model
        try:
            if isinstance(model, ModelState):
                await model.submit(call.request, pinned=True)
            else:
                await model.submit(call.request)
        except TritiumError as error:
            call.put(error, final=True)

    def _admitted(self, letter: Letter, fields: CallFields) -> Call:
        """Return the call that a letter asks for. Raises TritiumError where it is refused, FrameError where it is none."""
        if len(self._calls) >= MAX_CALLS:
            raise Unavailable(f"{MAX_CALLS} calls of this worker are under way already")
        if self._nbytes + letter.nbytes > MAX_BYTES:
            raise Unavailable(f"what this worker has under way takes {self._nbytes} bytes already")
        model = self._resolve(fields)
        batch, parents = self._parents(fields.parent)
        if _nobody_waits(parents):
            raise Cancelled(_PARENT_CANCELLED)
        executing = batch is not None and batch.id in self._worker.outstanding
        call = Call(
            self,
            letter.number,
            model,
            size=letter.nbytes,
            batch=batch if executing else None,
            parents=parents,
            blocking=fields.blocking,
        )
        call.request = _request(letter, fields, call, parents)
        if call.blocking and self._host.deadlocks is not None:
            try:
                self._host.deadlocks.check(call)
            except TritiumError:
                call.withdraw()
                raise
        return call

    def _resolve(self, fields: CallFields) -> ServedModel:
        """Return the callee, or raise with the texts of contract/python_backend.md section 7."""
        name, spec = fields.model, self.caller.spec
        version = "" if fields.version == -1 else str(fields.version)
        begin = f"Model {name} - Error when running inference: "
        try:
            model = self._host.callees.resolve(name, version, namespace=spec.namespace)
        except Unavailable as error:
            why = f"Failed for execute the inference request. Model '{name}' is not ready."
            raise Unavailable(begin + why) from error
        except TritiumError as error:
            raise TritiumError.of(error.code, begin + error.message) from error
        if model.spec.decoupled and not fields.decoupled:
            raise Unsupported(
                f"{begin}Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "
                "decoupled models.'"
            )
        return model

    def _parents(self, origin: tuple[int, int] | None) -> tuple[InFlight | None, Sequence[InferRequest]]:
        """Return the batch and the requests that a call says it belongs to; they may be over, which is no mistake."""
        if origin is None:
            return None, ()
        batch = self._worker.outstanding.get(origin[0]) or self._worker.open.get(origin[0])
        if batch is None:
            return None, ()
        if origin[1] == WHOLE_BATCH:
            return batch, [each for each in batch.requests if not each.padding]
        if origin[1] >= len(batch.requests):
            raise FrameError(f"a call on behalf of request {origin[1]} of a batch of {len(batch.requests)}")
        return batch, (batch.requests[origin[1]],)


def _request(letter: Letter, fields: CallFields, call: Call, parents: Sequence[InferRequest]) -> InferRequest:
    data = memoryview(letter.data)
    inputs = [
        Tensor(each.name, each.datatype, each.shape, data[each.offset : each.offset + each.nbytes])
        for each in letter.inputs
    ]
    request = InferRequest(
        model_name=fields.model,
        requested_version=fields.version,
        id=fields.id,
        inputs=inputs,
        requested_outputs=fields.requested_outputs,
        parameters=fields.parameters,
        priority=fields.priority,
        timeout=fields.timeout,
        correlation_id=fields.correlation_id,
        flags=fields.flags,
        reply=call,
        accepted_at=trio.current_time(),
    )
    if parents:
        request.deadline = max(parent.deadline for parent in parents)
        request.synthetic = all(parent.synthetic for parent in parents)
        request.affinity, request.tenant = parents[0].affinity, parents[0].tenant
    return request


def _nobody_waits(parents: Sequence[InferRequest]) -> bool:
    """Whether those who had not been answered have all gone; where nobody has, a call may be made for its effect."""
    return any(each.cancelled for each in parents) and all(
        each.cancelled or each.answered for each in parents
    )


def _release(part: InferResponse | TritiumError) -> None:
    if isinstance(part, InferResponse):
        part.release()
