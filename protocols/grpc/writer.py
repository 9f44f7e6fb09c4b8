"""The half of a gRPC connection that answers: one task, which encodes, writes and gives memory back.

Answers put into the outbox are encoded when the task next runs, all of them before one write. Then the memory
that the answers view is given back. That is at once where the socket and the client's windows took
everything. Otherwise the rest is copied first, so that a slow reader costs memory of this connection and not
of a model.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import trio
from grpclib.exceptions import GRPCError

from actors.seams.slices import in_slices, in_threads
from actors.values.errors import Cancelled, Internal, InvalidArgument, TritiumError, Unavailable
from actors.values.requests import InferResponse
from protocols.grpc.admission import AnswerRoom
from protocols.grpc.call import Call, Metadata
from protocols.grpc.codec import answer_blocks as replies
from protocols.grpc.codec import messages
from protocols.grpc.codec.request_head import Refusal
from protocols.kserve.compression import compress, compressing
from protocols.status import grpc_status, retry_seconds
from protocols.transport.sockets import ConnectionLost, Transport

if TYPE_CHECKING:
    from actors.values.tensors import Buffer
    from protocols.grpc.options import GrpcOptions
    from protocols.http2.connection import Stream
    from protocols.http2.sending import SendingSide

_AT_ONCE: Final = 256 * 1024  # bytes of one write; the rest of a stalled one is copied
_IN_A_ROW: Final = 1024 * 1024  # bytes written before other tasks get a turn
# Bytes of an answer that are copied in one piece. A longer one is copied in slices.
_OWNED_AT_ONCE: Final = 1024 * 1024
_FOLDED_HERE: Final = 64 * 1024  # larger messages are compressed in a thread
# Bytes compressed on the loop before other tasks get a turn.
_FOLDED_A_TURN: Final = 256 * 1024

_HEAD: Final = replies.initial()
_OK: Final = replies.trailers()

BUG: Final = "internal server error"


class Folded:
    """An answer that was compressed in a thread, and the response that it was made of."""

    __slots__ = ("message", "response")

    def __init__(self, response: InferResponse, message: bytes) -> None:
        self.response = response
        self.message = message


Outcome = InferResponse | TritiumError | GRPCError | Refusal | Folded


class Owner(Protocol):
    """What the answering half needs of the connection."""

    def over(self, call: Call) -> None:
        """Everything of `call` is on its way, or is not wanted any more."""

    def room_made(self) -> None:
        """Answers have left: more requests may begin."""

    def data_sent(self) -> None:
        """Headers or data of calls went out."""

    def crashed(self, call: Call, bug: Exception) -> None:
        """A method raised an exception that is no TritiumError."""

    def tell(self, call: Call, hook: Callable[[], None]) -> None:
        """Call a method's hook, whose failure changes nothing."""

    def run_always(self, call: Call, body: Callable[[], Awaitable[None]]) -> None:
        """Start a task beside the call, which may be closed."""


class Answers:
    """Sends what `h2` has to send. `end` has `run` return once nothing is left."""

    def __init__(
        self, transport: Transport, h2: SendingSide, owner: Owner, options: GrpcOptions, room: AnswerRoom
    ) -> None:
        # When the socket last took anything, while it takes nothing.
        self.stalled_since = math.inf
        self.stalled_bytes = 0
        self._transport = transport
        self._h2 = h2
        self._owner = owner
        self._room = room
        self._most = options.max_send_message
        self._level = messages.LEVELS.get(options.compression, 0)
        self._outbox: list[tuple[Call, Outcome]] = []
        self._leases: list[tuple[Stream, InferResponse]] = []
        self._long: list[tuple[Stream, InferResponse]] = []  # the rest of these is to be copied in slices
        self._done: list[Call] = []  # answered since the last write
        self._slow: dict[Call, None] = {}  # answered, but the client's windows are shut
        self._speakers: dict[Call, None] = {}  # calls of coroutines whose answers wait
        self._parked: trio.lowlevel.Task | None = None
        self._stall: trio.CancelScope | None = None
        self._ending = False
        # For answers that are sent where they are put.
        self.quiet = True  # no code is in the middle of something with `h2`
        self._rest: list[Buffer] = []  # the part of such an answer that the socket did not take
        self._failure: Exception | None = None  # of sending such an answer; the task raises it

    # Told by the connection and by calls

    def put(self, call: Call, outcome: Outcome) -> None:
        """Have a unary call answered."""
        self._outbox.append((call, outcome))
        if self._parked is None:
            if self._stall is not None:
                self._stall.cancel()
        elif (
            len(self._h2.streams) == 1
            and self.quiet
            and isinstance(outcome, InferResponse)
            and not outcome.leased
        ):
            self._send_at_once()
        else:
            self.wake()

    def _send_at_once(self) -> None:
        """Answer the only call there is in the place where its answer was put.

        Its client would wait for the task to wake, and for nothing else.
        """
        self.quiet = False
        try:
            self._encode()
            self._rest = self._transport.send(self._h2.take(_AT_ONCE))
            if not self._rest:
                self._settle()
        except Exception as failure:  # noqa: BLE001
            # The caller of `put` must not get the failure: the task fails of it.
            self._failure = failure
        self.quiet = True
        if self._failure is not None or self._rest or self._outbox or self._h2.output or self._long:
            self.wake()

    def wake(self) -> None:
        """There is something to write."""
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _attend(self) -> None:
        """There is memory to give back or a call to end, also while the socket takes nothing."""
        if self._parked is not None:
            self.wake()
        elif self._stall is not None:
            self._stall.cancel()

    def end(self) -> None:
        """Write the rest, as far as the windows take it, and return from `run`."""
        self._ending = True
        self.wake()

    def send_head(self, call: Call, metadata: Metadata | None) -> None:
        """Send initial metadata, unless that was done."""
        if not call.closed:
            self._send_head(call, metadata)
            self.wake()

    def _send_head(self, call: Call, metadata: Metadata | None) -> None:
        if not call.head_sent:
            coding = call.head.answer_coding
            block = replies.initial_with(metadata, coding) if metadata else replies.initial(coding)
            self._h2.send_head(call.stream, block)
            call.head_sent = True
            self._owner.data_sent()

    def send_part(
        self, call: Call, buffers: Sequence[Buffer], size: int, lease: InferResponse | None
    ) -> None:
        """Send a message of a coroutine's call (see `protocols.grpc.call.Wire`)."""
        if call.closed or size > self._most:
            if lease is not None:
                lease.release()
            if call.closed:
                return
            raise _too_large(size, self._most)
        self.send_head(call, None)
        prefix = messages.prefix(size)
        if call.head.answer_coding and 0 < size <= _FOLDED_HERE:
            folded = compress(buffers, call.head.answer_coding, self._level)
            buffers, size = (folded,), len(folded)
            prefix = messages.prefix(size, compressed=True)
        self._h2.send_message(call.stream, (prefix, *buffers), size + len(prefix))
        self._owner.data_sent()
        if call.stream.pending:
            self._speakers[call] = None
        if lease is not None:
            self._leases.append((call.stream, lease))
            self._attend()
        else:
            self.wake()

    def send_status(self, call: Call, status: int, message: str, metadata: Metadata | None) -> None:
        """End a coroutine's call."""
        if call.closed:
            return
        call.closed = True
        if call.head_sent or metadata:
            self._send_head(call, None)
            block = (
                replies.trailers_with(metadata, status, message)
                if metadata
                else replies.trailers(status, message)
            )
            self._h2.send_trailers(call.stream, block)
        else:
            self._h2.send_head(call.stream, replies.trailers_only(status, message), end=True)
        self.leave(call)

    def leave(self, call: Call) -> None:
        """Note that a coroutine's call is over with the next write."""
        self._done.append(call)
        self._attend()

    def forget(self, call: Call) -> bool:
        """Forget a call that is gone.

        Returns whether it was answered and only waited for the client to make room.
        """
        self._speakers.pop(call, None)
        if call not in self._slow:
            return False
        del self._slow[call]
        self._attend()  # the call's pending bytes are gone, which made room
        return True

    def drop(self) -> None:
        """The connection is gone: give back all memory."""
        outbox, self._outbox = self._outbox, []
        for call, outcome in outbox:
            self._drop(call, outcome)
        for _, response in (*self._leases, *self._long):
            response.release()
        self._leases.clear()
        self._long.clear()
        self._h2.drop()

    # The task

    async def run(self) -> None:
        """Write until told to end; where the client is lost, return as well, with its socket shut."""
        try:
            await self._write()
        except ConnectionLost:
            self._transport.shut()

    async def _write(self) -> None:
        h2, transport = self._h2, self._transport
        in_a_row = 0
        while True:
            if self._failure is not None:
                raise self._failure
            if self._rest:
                rest, self._rest = self._rest, []
                await self._write_slowly(rest, carries=True)
            if self._outbox:
                self._encode()
            if h2.output:
                pending = h2.pending
                buffers = h2.take(_AT_ONCE)
                carries = h2.pending < pending
                if carries:  # clients measure the way of a long answer by pings
                    self._owner.data_sent()
                rest = transport.send(buffers)
                if rest:
                    await self._write_slowly(rest, carries=carries)
                elif h2.output:
                    in_a_row += _AT_ONCE
                    if in_a_row < _IN_A_ROW:
                        continue
                    await trio.lowlevel.checkpoint()
                in_a_row = 0
            self._settle()
            if self._long:
                await self._own()
            if not self._outbox and not h2.output:
                if self._ending:
                    return
                await self._park()
            elif self._outbox:
                await trio.lowlevel.checkpoint()

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _write_slowly(self, rest: list[Buffer], *, carries: bool) -> None:
        """Give the client one turn of the loop to read; then copy the rest, and wait for the client.

        `carries`: data of calls is among it, and pings are excused as it goes.
        """
        await trio.lowlevel.checkpoint()
        rest = self._transport.send(rest)
        if not rest:
            return
        left: list[Buffer] = [b"".join(rest)]
        self.stalled_since = trio.current_time()
        try:
            while left:
                self.stalled_bytes = len(left[0])
                if self._outbox:
                    self._encode()
                self._settle()
                if self._long:
                    await self._own()
                # The outbox holds answers that were put meanwhile, or would have taken too long.
                if self._outbox:
                    await trio.lowlevel.checkpoint()
                    continue
                with trio.CancelScope() as self._stall:
                    await self._transport.wait_writable()
                self._stall = None
                left = self._transport.send(left)
                if not left or len(left[0]) < self.stalled_bytes:
                    self.stalled_since = trio.current_time()
                    if carries:
                        self._owner.data_sent()
        finally:
            self._stall = None
            self.stalled_bytes = 0
            self.stalled_since = math.inf

    # Encoding

    def _encode(self) -> None:
        """Encode the outbox; stop early where compressing it takes too long for one turn."""
        outbox, self._outbox = self._outbox, []
        folded = 0
        for index, (call, outcome) in enumerate(outbox):
            if folded > _FOLDED_A_TURN:
                self._outbox[:0] = outbox[index:]
                break
            if call.gone:
                self._drop(call, outcome)
                continue
            try:
                if isinstance(outcome, InferResponse):
                    folded += self._send_response(call, outcome)
                elif isinstance(outcome, Folded):
                    self._send_folded(call, outcome)
                else:
                    self._send_error(call, outcome)
            except TritiumError as error:
                self._send_error(call, error)
                self._let_go(call, outcome)
            except Exception as bug:  # noqa: BLE001  # a protocol's outer edge: a bug costs no other call
                self._owner.crashed(call, bug)
                self._send_error(call, Internal(BUG))
                self._let_go(call, outcome)
        self._owner.data_sent()

    def _send_response(self, call: Call, response: InferResponse) -> int:
        """Send a unary answer; return how many bytes were compressed for it here and now."""
        unary = call.unary
        assert unary is not None, "only unary methods put responses"
        buffers, size, _ = unary.encode(call, response)
        if size > self._most:
            raise _too_large(size, self._most)
        coding = call.head.answer_coding
        if not coding or not size:
            head = _HEAD
            prefix = messages.prefix(size)
            here = 0
        elif size > _FOLDED_HERE:
            self._owner.run_always(call, partial(self._fold, call, response, buffers, coding))
            return 0
        else:
            here = size
            folded = compress(buffers, coding, self._level)
            buffers, size = (folded,), len(folded)
            head, prefix = replies.initial(coding), messages.prefix(size, compressed=True)
        self._h2.send_answer(call.stream, head, (prefix, *buffers), size + 5, _OK)
        self._room.answered(size)
        call.begun = False
        unary.finished(call, response)
        if response.leased:
            self._leases.append((call.stream, response))
        self._done.append(call)
        return here

    async def _fold(
        self, call: Call, response: InferResponse, buffers: Sequence[Buffer], coding: bytes
    ) -> None:
        """Compress a large answer in a thread, which reads the response's memory until it is done."""
        try:
            message = await in_slices(in_threads(compressing(buffers, coding, self._level)))
        except Exception as bug:  # noqa: BLE001  # such as lack of memory: it costs no other call
            response.release()
            self._owner.crashed(call, bug)
            self.put(call, Internal(BUG))
        except BaseException:
            self._drop(call, response)
            raise
        else:
            self.put(call, Folded(response, message))

    def _send_folded(self, call: Call, folded: Folded) -> None:
        message = folded.message
        head = replies.initial(call.head.answer_coding)
        prefix = messages.prefix(len(message), compressed=True)
        self._h2.send_answer(call.stream, head, (prefix, message), len(message) + len(prefix), _OK)
        self._conclude(call, folded.response, len(message))
        folded.response.release()
        self._done.append(call)

    def _send_error(self, call: Call, error: TritiumError | GRPCError | Refusal) -> None:
        if isinstance(error, Refusal):
            block = replies.refused(error)
        else:
            block = replies.trailers_only(*status_of(error), trailing_metadata(error))
        self._h2.send_head(call.stream, block, end=True)
        self._conclude(call, error)
        self._done.append(call)

    def _drop(self, call: Call, outcome: Outcome) -> None:
        """The client left before its answer was sent."""
        told = outcome.response if isinstance(outcome, Folded) else outcome
        self._conclude(call, told)
        release_outcome(outcome)
        self._done.append(call)
        self.wake()

    def _let_go(self, call: Call, outcome: Outcome) -> None:
        """Give back an answer's memory, some of which may be on its way."""
        self._h2.own(call.stream)
        release_outcome(outcome)

    def _conclude(
        self, call: Call, outcome: InferResponse | TritiumError | GRPCError | Refusal, size: int = 0
    ) -> None:
        """Tell the method the outcome of a call that it began."""
        if not call.begun:
            return
        call.begun = False
        self._room.answered(size)
        told = (
            outcome
            if isinstance(outcome, (InferResponse, TritiumError))
            else Cancelled("the call was refused")
        )
        assert call.unary is not None, "only unary methods begin"
        self._owner.tell(call, partial(call.unary.finished, call, told))

    # After a write

    def _settle(self) -> None:
        """Give back the memory of answers that were written or copied, and end calls that are complete."""
        for stream, response in self._leases:
            if stream.pending > _OWNED_AT_ONCE:
                self._long.append((stream, response))
                continue
            if stream.pending:
                self._h2.own(stream)
            response.release()
        self._leases.clear()
        over = self._owner.over
        for call in self._done:
            if call.stream.pending:
                self._slow[call] = None
            else:
                over(call)
        self._done.clear()
        if self._slow:
            for call in [call for call in self._slow if not call.stream.pending]:
                del self._slow[call]
                over(call)
        if self._speakers:
            self._hear_speakers()
        self._room.pending = self._h2.waiting + self.stalled_bytes
        self._owner.room_made()

    async def _own(self) -> None:
        """Copy the rest of long answers, and give back their memory."""
        while self._long:
            stream, response = self._long[-1]
            await in_slices(self._h2.owning(stream))
            self._long.pop()
            response.release()

    def _hear_speakers(self) -> None:
        for call in list(self._speakers):
            if not call.stream.pending:
                del self._speakers[call]
            if call.server_stream is not None:
                call.server_stream.departed()


def status_of(error: TritiumError | GRPCError) -> tuple[int, str]:
    """Return the number of the status that `error` stands for, and its message."""
    if isinstance(error, TritiumError):
        return grpc_status(error.code), error.message
    return error.status.value, error.message or ""


def trailing_metadata(error: TritiumError | GRPCError) -> Metadata | None:
    """Return the metadata that tells a client, beside the status UNAVAILABLE, when to try again."""
    if not isinstance(error, Unavailable):
        return None
    return replies.try_again(retry_seconds(error), known=error.retry_after > 0)


def release_outcome(outcome: Outcome) -> None:
    """Give back the memory of an answer."""
    if isinstance(outcome, Folded):
        outcome.response.release()
    elif isinstance(outcome, InferResponse):
        outcome.release()


def _too_large(size: int, most: int) -> TritiumError:
    """Contract, grpc.md section 1."""
    return InvalidArgument(f"Response has byte size {size} which exceeds gRPC's byte size limit {most}.")
