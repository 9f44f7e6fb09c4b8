"""The requests of a worker, as the server sees them: inference calls of models, and questions to the server.

A worker has a connection of its own for these (`actors.wire.call_frames`), which a task of its instance reads. A
call becomes an ordinary request to the model of that name, like a client's request. Validation, queue, cache,
limits and statistics are the callee's. The call carries the deadline, the tenant and the cancellation of the
request on whose behalf it is made. Answers are copied out of the callee's memory at once, so that a caller
that does not read can't hold that memory. While the caller has a window of parts of a stream to take, further
parts are held back, and the callee with them.

A worker may be hostile. It may have so many calls and questions under way, and so much memory for their contents
and for the answers that it has not read (`CallLimits`); any more are refused. The worker must read refusals as
well, or it is ended. When its process ends, its calls are cancelled.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio

from actors.calls.account import Account, CallLimits
from actors.calls.admission import Permit, Resolver, callee_of, parents_of
from actors.calls.answers import AnswerSender
from actors.calls.call import (
    CANCELLED_BY_CALLER,
    PARENT_CANCELLED,
    CallBook,
    WorkerCall,
    request_of,
    unwanted,
)
from actors.calls.call_branch import open_branch, refuse_branch
from actors.calls.call_pipe import CallPipe
from actors.calls.letters import LetterReader
from actors.calls.subjects import CallingWorker, Subjects
from actors.serving.asks import Asker, Asks, WorkerAsks
from actors.serving.model import ModelState
from actors.values.callers import Action
from actors.values.errors import Cancelled, TritiumError
from actors.values.requests import InferRequest
from actors.values.specs import ModelSpec
from actors.wire import frames
from actors.wire.call_fields import Attached, CallFields, read_attached, read_call
from actors.wire.call_frames import KINDS, STOP_SENDING, Letter
from actors.wire.frames import FrameError


class Deadlocks(Protocol):
    """Knows which calls wait for which models: `actors.calls.call_waits`."""

    def check(self, call: WorkerCall) -> None:
        """Raise Unavailable where `call`, which is about to be made, would wait for itself."""


@dataclass(frozen=True, slots=True)
class CallHost(Asks):
    """The parts that the calls of all workers share. Serves the port `actors.serving.asks`."""

    callees: Resolver
    subjects: Subjects
    deadlocks: Deadlocks | None = None
    limits: CallLimits = field(default_factory=CallLimits)
    permit: Permit | None = None

    def connect(self, worker: Asker, spec: ModelSpec, instance: str) -> tuple[WorkerAsks, socket.socket]:
        """See `Asks.connect`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        book = CallBook(CallingWorker(spec, instance, worker), Account(self.limits))
        return WorkerCalls(CallPipe(ours), worker, self, book), theirs


class WorkerCalls(WorkerAsks):
    """The calls of one process: of a worker's own, for as long as it lives, or of one that it has forked."""

    def __init__(
        self, pipe: CallPipe, worker: Asker, host: CallHost, book: CallBook, *, forked: bool = False
    ) -> None:
        """`book` is one for a worker and all processes that it has forked."""
        self.book = book
        self._forked = forked
        self._account = book.account
        self._pipe = pipe
        self._worker = worker
        self._host = host
        self._answers = AnswerSender(pipe, book.account)
        self._letters = LetterReader(pipe, book.account)
        self._handlers: Mapping[int, Callable[[bytes], None]] = {
            **dict.fromkeys(KINDS, self._on_letter),
            frames.MORE: self._on_more,
            frames.CREDIT: self._on_credit,
            frames.CANCEL: self._on_cancel,
            frames.SEGMENT: self._letters.take_segment,
            frames.TAKEN: self._answers.taken,
        }
        if not forked:
            self._handlers = {**self._handlers, frames.BRANCH: self._on_branch}
        self._calls: dict[int, WorkerCall] = {}
        self._queueing = 0  # calls whose task waits for room, or is about to
        self._nursery: trio.Nursery
        self._condemn: Callable[[FrameError], None]
        self._account.pipes.append(pipe)

    async def run(self, condemn: Callable[[FrameError], None]) -> None:
        """See `WorkerAsks.run`."""
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
                # Most likely its one thread that calls now waits for the answer, so don't try to receive.
                if self._account.calls <= 1 and not self._queueing:
                    await self._pipe.wait_readable()
                    in_a_row = 0
            else:
                return
            if in_a_row > self._account.limits.packets_in_a_row:
                await trio.lowlevel.checkpoint()
                in_a_row = 0

    def close(self) -> None:
        """The process is gone, or no longer calls: cancel what it has under way. Idempotent."""
        if self._pipe.closed:
            return
        self._pipe.close()
        for call in list(self._calls.values()):
            self._ended(call)
            call.drop()
        self._account.pipes.remove(self._pipe)
        self._answers.close()
        self._letters.close()
        self._handlers = {}  # the handlers refer to this object
        if not self._forked:
            self._host.subjects.ended(self.book.caller)

    def cancelled(self, request: InferRequest) -> None:
        """See `WorkerAsks.cancelled`."""
        self.book.cancelled(request)

    def _ended(self, call: WorkerCall) -> None:
        """A call has had its last response."""
        if self._calls.pop(call.number, None) is not None:
            self.book.ended(call)

    # -- what the process says -------------------------------------------------------------------------------

    def _on_packet(self, packet: bytes) -> None:
        handler = self._handlers.get(packet[0])
        if handler is None:
            raise FrameError(f"a worker sent a frame of kind {packet[0]} where it calls")
        handler(packet)

    def _on_letter(self, packet: bytes) -> None:
        letter = self._letters.begin(packet)
        if letter is not None:
            self._open(letter)

    def _on_more(self, packet: bytes) -> None:
        letter = self._letters.go_on(packet)
        if letter is not None:
            self._open(letter)

    def _on_branch(self, packet: bytes) -> None:
        """A process that the worker has forked wants a connection of its own.

        It gets the connection through the descriptor that comes with the question.
        """
        del packet
        asked_by = self._pipe.take_descriptor()
        try:
            most = self._account.limits.branches
            if len(self._account.pipes) > most:
                refuse_branch(asked_by, f"{most} processes forked by this worker make calls already")
                return
            pipe = open_branch(asked_by)
        finally:
            os.close(asked_by)
        if pipe is not None:
            line = WorkerCalls(pipe, self._worker, self._host, self.book, forked=True)
            self._nursery.start_soon(line.run, self._condemn)

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

    def _call_of(self, number: int) -> WorkerCall | None:
        if number > self._letters.highest:
            raise FrameError(f"call {number} is spoken of before it is made")
        return self._calls.get(number)

    def _open(self, letter: Letter) -> None:
        if letter.kind == frames.TELL:
            self._host.subjects.tell(read_attached(letter), self.book.caller)
            return
        try:
            if letter.kind == frames.CALL:
                self._call(self._admitted(letter, read_call(letter)))
            else:
                self._account.check_ask(letter.nbytes)
                attached = read_attached(letter)
                self._account.asks += 1
                self._account.nbytes += letter.nbytes
                self._nursery.start_soon(self._ask, letter.number, letter.nbytes, attached)
        except TritiumError as error:
            self._answers.send(letter.number, error, final=True)

    # -- questions -------------------------------------------------------------------------------------------

    async def _ask(self, number: int, nbytes: int, attached: Attached) -> None:
        try:
            told = await self._host.subjects.ask(attached, self.book.caller)
        except TritiumError as error:
            self._answers.send(number, error, final=True)
        except FrameError as error:
            self._condemn(error)
            self._nursery.cancel_scope.cancel()
        else:
            self._answers.send_told(number, told)
        finally:
            self._account.asks -= 1
            self._account.nbytes -= nbytes

    # -- calls -----------------------------------------------------------------------------------------------

    def _admitted(self, letter: Letter, fields: CallFields) -> WorkerCall:
        """Return the call that a letter asks for.

        Raises TritiumError where it is refused, FrameError where the letter is malformed.
        """
        self._account.check_call(letter.nbytes)
        if self._host.permit is not None:
            self._host.permit(self.book.caller.spec, Action.INFERENCE, fields.model)
        model = callee_of(fields, self._host.callees, self.book.caller.spec.namespace)
        batch, parents = parents_of(letter.parent, self._worker)
        if unwanted(parents):
            raise Cancelled(PARENT_CANCELLED)
        executing = batch is not None and batch.id in self._worker.outstanding
        call = WorkerCall(
            letter.number,
            model,
            self.book,
            self._answers,
            on_end=self._ended,
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

    def _call(self, call: WorkerCall) -> None:
        self._calls[call.number] = call
        self.book.began(call)
        if call.blocking:
            self._worker.stop_prefetching()
        model = call.model
        try:
            if isinstance(model, ModelState):
                model.intake.submit_nowait(call.request, pinned=True)
            else:
                model.submit_nowait(call.request)
        except trio.WouldBlock:
            self._queueing += 1
            self._nursery.start_soon(self._submit, call)
        except TritiumError as error:
            call.put(error, final=True)

    async def _submit(self, call: WorkerCall) -> None:
        """Wait for room in the callee's queue, as a client would."""
        try:
            await self._wait_for_room(call)
        finally:
            self._queueing -= 1

    async def _wait_for_room(self, call: WorkerCall) -> None:
        if call.ended:  # before this task had its first turn
            return
        if call.request.cancelled:
            call.put(Cancelled(CANCELLED_BY_CALLER), final=True)
            return
        model = call.model
        try:
            if isinstance(model, ModelState):
                await model.intake.submit(call.request, pinned=True)
            else:
                await model.submit(call.request)
        except TritiumError as error:
            call.put(error, final=True)
