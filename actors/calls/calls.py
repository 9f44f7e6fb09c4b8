"""The requests of a worker, as the server sees them: inference calls of models, and questions to the server.

A worker has a connection of its own for these (`actors.wire.call_frames`), which a task of its instance reads. A
call becomes an ordinary request to the model of that name, like a client's request. Validation, queue, cache,
limits and statistics are the callee's. The call carries the deadline, the tenant and the cancellation of the
request on whose behalf it is made. Answers are copied out of the callee's memory at once, so that a caller
that does not read can't hold that memory. While the caller has a window of parts of a stream to take, further
parts are held back, and the callee with them.

A worker may be hostile. It may have `MAX_CALLS` calls and `MAX_ASKS` questions under way, and `MAX_BYTES` of
memory for their contents and for the answers that it has not read; any more are refused. The worker must read
refusals as well, or it is ended (`MAX_UNREAD`). When its process ends, its calls are cancelled.
"""

from __future__ import annotations

import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import trio

from actors.calls.call import CANCELLED_BY_CALLER, Call, release, request_of
from actors.calls.call_branch import open_branch, refuse_branch
from actors.calls.call_pipe import CallPipe, Packet
from actors.calls.subjects import Caller, Subjects
from actors.serving.model import ModelState
from actors.values.datatypes import DataType
from actors.values.errors import (
    Cancelled,
    ErrorCode,
    TritiumError,
    Unavailable,
    Unsupported,
)
from actors.values.interfaces import ServedModel
from actors.values.requests import InferRequest, InferResponse
from actors.wire import frames
from actors.wire.call_fields import WHOLE_BATCH, Attached, CallFields, read_attached, read_call
from actors.wire.call_frames import KINDS, LARGEST_LETTER, STOP_SENDING, Letter, laid_out
from actors.wire.call_segments import WORTH_A_SEGMENT, map_segment, write_segment
from actors.wire.frames import Answer, FrameError, Part, Placed

if TYPE_CHECKING:
    from actors.serving.instances.worker import InFlight, LiveWorker
    from actors.values.tensors import Buffer

MAX_CALLS: Final = 1024
"""Calls of one worker that may be under way."""

MAX_ASKS: Final = 64
"""Questions of one worker that may be under way."""

MAX_BYTES: Final = 2**31
"""Bytes of inputs of one worker's calls and questions, and of answers not read yet or without credit."""

MAX_UNREAD: Final = 8 * MAX_CALLS
"""Calls and questions whose last answer, or refusal, one worker has not read.

A worker with more of them does not read at all.
"""

MAX_BRANCHES: Final = 256
"""Processes forked by one worker that may call at the same time.

Each has a connection, which takes one of the server's descriptors.
"""

MAX_SEGMENTS: Final = 64
"""Segments each way, for one worker.

Each takes one of the server's descriptors. Data beyond that is copied into frames.
"""

PACKETS_IN_A_ROW: Final = 64  # from one worker, before other tasks get their turn

_PARENT_CANCELLED: Final = "the request on whose behalf this call was made has been cancelled"
_TEXT_LIMIT: Final = 8 * 1024  # characters of an error's message
_PART_COST: Final = 1024  # bytes that one part takes beside its tensors, roughly


class Resolver(Protocol):
    """Finds the model to call: `actors.calls.callees`."""

    def resolve(self, name: str, version: str = "", *, namespace: str = "") -> ServedModel:
        """Return the model of that name. Raises TritiumError."""


class Deadlocks(Protocol):
    """Knows which calls wait for which models: `actors.calls.call_waits`."""

    def check(self, call: Call) -> None:
        """Raise Unavailable where `call`, which is about to be made, would wait for itself."""


@dataclass(frozen=True, slots=True)
class CallHost:
    """The parts that the calls of all workers share."""

    callees: Resolver
    subjects: Subjects
    deadlocks: Deadlocks | None = None


@dataclass(slots=True)
class Tally:
    """What one worker has under way by all its connections: its own process's and those of forked ones."""

    calls: int = 0
    asks: int = 0
    nbytes: int = 0  # of inputs and questions
    kept: int = 0  # bytes of answers for which there is no credit
    handed: int = 0  # segments that it has not taken
    untaken: int = 0  # bytes in them
    lines: list[WorkerCalls] = field(default_factory=list)
    mapped: weakref.WeakSet[object] = field(default_factory=weakref.WeakSet)  # segments of letters in use
    blocking: dict[int, list[Call]] = field(default_factory=dict)  # by batch


class WorkerCalls:
    """The calls of one worker, for as long as its process lives."""

    def __init__(
        self,
        pipe: CallPipe,
        caller: Caller,
        worker: LiveWorker,
        host: CallHost,
        root: WorkerCalls | None = None,
    ) -> None:
        """`root` is the connection of the worker's own process, if this is a forked process's connection."""
        self.caller = caller
        self._root = root
        self.tally: Tally = Tally() if root is None else root.tally
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
        if root is None:
            self._handlers = {**self._handlers, frames.BRANCH: self._on_branch}
        self._segment: Buffer | None = None  # the bytes of the next letter
        self._handed: deque[int] = deque()  # sizes of segments that the worker has not taken
        self._letter: Letter | None = None  # the letter whose bytes are still coming
        self._assembled = bytearray()
        self._highest = 0  # the highest number that the worker has used
        self._calls: dict[int, Call] = {}
        self._nursery: trio.Nursery
        self._condemn: Callable[[FrameError], None]
        self.tally.lines.append(self)

    async def run(self, condemn: Callable[[FrameError], None]) -> None:
        """Serve the worker's calls until it closes the connection.

        `condemn` is called where it breaks the protocol.
        """
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
        """The worker is gone, or no longer calls: cancel what it has under way. Idempotent."""
        if self._pipe.closed:
            return
        self._pipe.close()
        for call in list(self._calls.values()):
            self.ended(call)
            call.drop()
        tally = self.tally
        tally.lines.remove(self)
        tally.handed -= len(self._handed)
        tally.untaken -= sum(self._handed)
        self._letter, self._assembled, self._segment = None, bytearray(), None
        self._handlers = {}  # the handlers refer to this object
        if self._root is None:
            self._host.subjects.ended(self.caller)

    # -- for others ------------------------------------------------------------------------------------------

    def blocking(self, batch: InFlight) -> Sequence[Call]:
        """Return the calls that the execution of `batch` waits for."""
        return self.tally.blocking.get(batch.id, ())

    @property
    def any_blocking(self) -> bool:
        """Whether any execution waits for a call."""
        return bool(self.tally.blocking)

    def parent_cancelled(self, request: InferRequest) -> None:
        """The client of a request that this worker executes has gone.

        Calls that are made only on behalf of that request are cancelled.
        """
        calls = [call for line in self.tally.lines for call in line.under_way() if request in call.parents]
        for call in calls:
            if _nobody_waits(call.parents):
                call.cancel(_PARENT_CANCELLED)

    @property
    def root(self) -> WorkerCalls:
        """The connection of the worker's own process: this one, or another."""
        return self._root or self

    def under_way(self) -> Collection[Call]:
        """Return the calls that have come by this connection and are not over."""
        return self._calls.values()

    # -- for calls -------------------------------------------------------------------------------------------

    def ended(self, call: Call) -> None:
        """A call has had its last response."""
        if self._calls.pop(call.number, None) is None:
            return
        self.tally.calls -= 1
        self.tally.nbytes -= call.size
        if call.blocking and call.batch is not None:
            siblings = self.tally.blocking[call.batch.id]
            siblings.remove(call)
            if not siblings:
                del self.tally.blocking[call.batch.id]

    def keep(self, cost: int) -> bool:
        """Count bytes of an answer for which there is no credit.

        If there is no room for them, they are not counted, and the result is False.
        """
        if self.tally.kept + cost > MAX_BYTES:
            return False
        self.tally.kept += cost
        return True

    @property
    def unread(self) -> tuple[int, int]:
        """The bytes of answers that the process has yet to read, and how many of those answers are final."""
        return self._pipe.unsent, self._pipe.unsent_ends

    def send(self, number: int, part: InferResponse | TritiumError, *, final: bool) -> int:
        """Send one part of an answer, copied; return how many bytes its tensors take."""
        if isinstance(part, InferResponse):
            size = sum(tensor.nbytes for tensor in part.outputs)
            waiting = sum(line.unread[0] for line in self.tally.lines) + self.tally.untaken
            if waiting + size > MAX_BYTES:
                release(part)
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
            if nbytes < WORTH_A_SEGMENT or self.tally.handed >= MAX_SEGMENTS:
                self._send(Part(number, 0, answer, b"".join(pieces), nbytes, final=final))
            else:
                self._send_segment(Part(number, 0, answer, b"", nbytes, final=final), pieces)
        except ValueError as error:
            # The data beside the tensors is too much for a frame.
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
        self.tally.handed += 1
        self.tally.untaken += part.nbytes
        self._pipe.send_answer(iter((announced, (first, ()))), 0, final=part.final)

    def _answer(self, number: int, answer: Answer, *, final: bool) -> None:
        self._send(Part(number, 0, answer, b"", 0, final=final))

    def _send(self, part: Part) -> None:
        packets: Iterator[Packet] = ((packet, ()) for packet in part.packets())
        self._pipe.send_answer(packets, part.nbytes, final=part.final)

    # -- what the worker says --------------------------------------------------------------------------------

    def _on_packet(self, packet: bytes) -> None:
        handler = self._handlers.get(packet[0])
        if handler is None:
            raise FrameError(f"a worker sent a frame of kind {packet[0]} where it calls")
        handler(packet)

    def _on_letter(self, packet: bytes) -> None:
        if self._letter is not None:
            raise FrameError(f"a frame of kind {packet[0]} within another letter")
        if sum(line.unread[1] for line in self.tally.lines) > MAX_UNREAD:
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

    def _on_branch(self, packet: bytes) -> None:
        """A process that the worker has forked wants a connection of its own.

        It gets the connection through the descriptor that comes with the question.
        """
        asked_by = self._pipe.take_descriptor()
        try:
            if len(self.tally.lines) > MAX_BRANCHES:
                refuse_branch(asked_by, f"{MAX_BRANCHES} processes forked by this worker make calls already")
                return
            pipe = open_branch(asked_by)
        finally:
            os.close(asked_by)
        if pipe is not None:
            line = WorkerCalls(pipe, self.caller, self._worker, self._host, self)
            self._nursery.start_soon(line.run, self._condemn)

    def _on_segment(self, packet: bytes) -> None:
        _, _, size = frames.decode_segment(packet)
        if self._letter is not None or self._segment is not None or size > LARGEST_LETTER:
            raise FrameError(f"a segment of {size} bytes that nothing asked for")
        view = map_segment(self._pipe.take_descriptor(), size, writable=False)
        if len(self.tally.mapped) < MAX_SEGMENTS:
            self.tally.mapped.add(view.obj)
            self._segment = view
        else:
            self._segment = bytes(view)

    def _on_taken(self, packet: bytes) -> None:
        if not self._handed:
            raise FrameError("a worker has taken a segment that it was not given")
        self.tally.handed -= 1
        self.tally.untaken -= self._handed.popleft()

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
        elif self.tally.asks >= MAX_ASKS or self.tally.nbytes + letter.nbytes > MAX_BYTES:
            why = f"{self.tally.asks} questions of this worker wait already, with {self.tally.nbytes} bytes"
            self.send(letter.number, Unavailable(why), final=True)
        else:
            attached = read_attached(letter)
            self.tally.asks += 1
            self.tally.nbytes += letter.nbytes
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
            self.tally.asks -= 1
            self.tally.nbytes -= nbytes

    def _on_credit(self, packet: bytes) -> None:
        number, _, parts, nbytes = frames.decode_credit(packet)
        call = self._call_of(number)
        if call is not None:
            call.credit(parts, nbytes)

    def _on_cancel(self, packet: bytes) -> None:
        number, how = frames.decode_cancel(packet)
        call = self._call_of(number)
        if call is None:
            return
        if how == STOP_SENDING:
            call.stop()
        else:
            call.cancel(CANCELLED_BY_CALLER)

    def _call_of(self, number: int) -> Call | None:
        if number > self._highest:
            raise FrameError(f"call {number} is spoken of before it is made")
        return self._calls.get(number)

    # -- calls -----------------------------------------------------------------------------------------------

    def _call(self, letter: Letter, fields: CallFields) -> None:
        try:
            call = self._admitted(letter, fields)
        except TritiumError as error:
            self.send(letter.number, error, final=True)
            return
        self._calls[call.number] = call
        self.tally.calls += 1
        self.tally.nbytes += call.size
        if call.blocking and call.batch is not None:
            self.tally.blocking.setdefault(call.batch.id, []).append(call)
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
        if call.request.cancelled:
            call.put(Cancelled(CANCELLED_BY_CALLER), final=True)
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
        """Return the call that a letter asks for.

        Raises TritiumError where it is refused, FrameError where the letter is malformed.
        """
        if self.tally.calls >= MAX_CALLS:
            raise Unavailable(f"{MAX_CALLS} calls of this worker are under way already")
        if self.tally.nbytes + letter.nbytes > MAX_BYTES:
            raise Unavailable(f"what this worker has under way takes {self.tally.nbytes} bytes already")
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
        call.request = request_of(letter, fields, call, parents)
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
        """Return the batch and the requests that a call says it belongs to.

        They may be over; that is no mistake.
        """
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


def _nobody_waits(parents: Sequence[InferRequest]) -> bool:
    """Whether the clients of all unanswered requests have gone.

    Where no client has gone, this is False: a call may be made for its effect alone.
    """
    return any(each.cancelled for each in parents) and all(
        each.cancelled or each.answered for each in parents
    )
